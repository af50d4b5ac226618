package cm

import (
	"time"

	"github.com/softroce/softroce/pkg/bth"
)

// beginDisconnect asks the peer to end the connection.
func (m *Machine) beginDisconnect(now time.Time, c *conn, private []byte) {
	d := DREQ{LocalID: c.id, RemoteID: c.remote, RemoteQPN: c.remoteQPN}
	copy(d.Private[:], private)
	build(&c.out, m.tidHigh|uint64(c.id), &d)
	m.setState(c, DReqSent)
	m.await(now, c, maxRetries)
}

func (m *Machine) disconnect(now time.Time, id CommID, private []byte) error {
	c, err := m.own("disconnect", id)
	if err != nil {
		return err
	}
	if err := checkPrivate("disconnect", private, PrivateDREQ); err != nil {
		return err
	}
	switch c.state {
	case Connected:
		m.beginDisconnect(now, c, private)
	case DReqRcvd:
		m.sendDREP(c, c.tid, private)
		m.becomeTimeWait(now, c)
	case DReqSent, TimeWait:
	case Idle:
		if c.remote == 0 {
			return c.wrongState("disconnect")
		}
	case ReqSent, MRAReqRcvd, RepRcvd, ReqRcvd, RepSent, MRARepRcvd, SIDRReqSent, SIDRReqRcvd, SIDRAnswered, stateCount:
		return c.wrongState("disconnect")
	}
	return nil
}

// handleDREQ: the peer ends the connection (IBTA Vol 1 §12.9.7.3).
func (m *Machine) handleDREQ(now time.Time, from *Path, tid uint64, msg *DREQ) Verdict {
	c := m.peer(from, msg.RemoteID, msg.LocalID)
	if c == nil {
		v := m.overtaken(from, msg)
		reply(m, from, tid, &DREP{LocalID: msg.RemoteID, RemoteID: msg.LocalID})
		return v
	}
	if msg.RemoteQPN&bth.QPNMask != c.qpn {
		return DropUnknown
	}
	switch c.state {
	case RepRcvd, RepSent, MRARepRcvd, Connected:
		m.timers.stop(c)
		m.setState(c, DReqRcvd)
		c.tid = tid
		m.disconnected(c, msg.Private[:])
		return Handled
	case DReqSent: // crossing: both ask
		m.sendDREP(c, tid, nil)
		m.becomeTimeWait(now, c)
		m.disconnected(c, msg.Private[:])
		return Handled
	case TimeWait, Idle:
		m.sendDREP(c, tid, nil)
		return Duplicate
	case DReqRcvd:
		return Duplicate
	case ReqSent, MRAReqRcvd, ReqRcvd, SIDRReqSent, SIDRReqRcvd, SIDRAnswered, stateCount:
	}
	return DropState
}

// overtaken is for a DREQ that names an id of this side with an id of the peer
// that is not known: when a REP is awaited, the peer's program went, and the DREQ
// was faster than the REP. The request is over.
func (m *Machine) overtaken(from *Path, msg *DREQ) Verdict {
	c := m.conns[msg.RemoteID]
	if c == nil || !c.isFrom(from) || msg.RemoteQPN&bth.QPNMask != c.qpn || c.state != ReqSent && c.state != MRAReqRcvd {
		return Answered
	}
	m.becomeIdle(c)
	m.event(c, Event{Kind: Rejected, Status: int32(RejConsumer)})
	return Handled
}

// handleDREP: the peer agrees.
func (m *Machine) handleDREP(now time.Time, from *Path, msg *DREP) Verdict {
	c := m.peer(from, msg.RemoteID, msg.LocalID)
	switch {
	case c == nil:
		return DropUnknown
	case c.state != DReqSent:
		return Duplicate
	}
	m.becomeTimeWait(now, c)
	m.disconnected(c, msg.Private[:])
	return Handled
}

func (m *Machine) disconnected(c *conn, private []byte) {
	ev := Event{Kind: Disconnected}
	ev.PrivateLen = copy(ev.Private[:], private)
	m.event(c, ev)
}

func (m *Machine) destroy(now time.Time, id CommID) error {
	c, err := m.own("destroy", id)
	if err == nil {
		m.drop(now, c)
	}
	return err
}

// drop ends the program's use of c. What the peer is owed is done first; c is
// gone when nothing of it can come any more.
func (m *Machine) drop(now time.Time, c *conn) {
	c.destroyed = true
	c.untake()
	switch c.state {
	case Idle, SIDRReqSent:
		m.becomeIdle(c)
	case ReqSent, MRAReqRcvd:
		m.sendTimeoutREJ(c)
		m.becomeIdle(c)
	case ReqRcvd:
		m.sendREJ(c, SubjectREQ, RejConsumer, nil, nil)
		m.becomeIdle(c)
	case RepRcvd:
		m.sendREJ(c, SubjectREP, RejConsumer, nil, nil)
		m.becomeTimeWait(now, c)
	case RepSent, MRARepRcvd:
		// The peer may be connected already. The REJ tells it why, and may be
		// lost; the DREQ goes on until it is heard.
		m.sendREJ(c, SubjectOther, RejConsumer, nil, nil)
		m.beginDisconnect(now, c, nil)
	case Connected:
		m.beginDisconnect(now, c, nil)
	case DReqRcvd:
		m.sendDREP(c, c.tid, nil)
		m.becomeTimeWait(now, c)
	case SIDRReqRcvd:
		m.answerSIDR(c, SIDRReject, Param{}, nil)
		m.linger(now, c)
	case SIDRAnswered:
		m.linger(now, c)
	case DReqSent, TimeWait, stateCount:
	}
}
