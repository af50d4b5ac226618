package cm

import (
	"fmt"
	"time"

	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/qpstate"
)

// askSIDR asks for the queue pair behind a service id (IBTA Vol 1 §12.11).
func (m *Machine) askSIDR(now time.Time, c *conn, a *ConnectArgs) {
	r := SIDRREQ{RequestID: c.id, PKey: bth.DefaultPKey, ServiceID: c.service}
	a.putPrivate(r.Private[:])
	build(&c.out, c.tid, &r)
	c.timeout = codeTime(responseTimeout)
	m.setState(c, SIDRReqSent)
	m.await(now, c, c.maxTries)
}

// handleSIDRREP: the peer's queue pair, or why there is none.
func (m *Machine) handleSIDRREP(from *Path, msg *SIDRREP) Verdict {
	c := m.conns[msg.RequestID]
	switch {
	case c == nil || !c.active || c.typ != qpstate.UD || !c.isFrom(from):
		return DropUnknown
	case c.state != SIDRReqSent:
		return Duplicate
	}
	ev := Event{Kind: Unreachable, Status: int32(msg.Status), Path: c.path}
	if msg.Status == SIDRSuccess {
		ev.Kind = Established
		ev.Param = Param{QPN: msg.QPN, QKey: msg.QKey}
		c.remoteQPN = msg.QPN
	}
	ev.PrivateLen = copy(ev.Private[:], msg.Private[:])
	m.becomeIdle(c)
	m.event(c, ev)
	return Handled
}

// handleSIDRREQ: a peer asks for a queue pair.
func (m *Machine) handleSIDRREQ(from *Path, tid uint64, msg *SIDRREQ) Verdict {
	key := requestKey{from.Remote, msg.RequestID}
	if c := m.asked[key]; c != nil {
		if c.state == SIDRAnswered {
			m.sendOut(c)
		}
		return Duplicate
	}
	l, cma, status := m.admitSIDR(from, msg)
	if status != SIDRSuccess {
		reply(m, from, tid, &SIDRREP{RequestID: msg.RequestID, Status: status, ServiceID: msg.ServiceID})
		return Answered
	}
	if m.crowded(l, from) {
		return DropFull
	}
	c := m.newConn()
	if c == nil {
		return DropFull
	}
	m.begin(c, l, from, tid)
	c.cma, c.remote = cma, msg.RequestID
	m.asked[key] = c
	m.setState(c, SIDRReqRcvd)
	ev := Event{Kind: ConnectRequest, Listener: l.id, Path: c.path}
	ev.PrivateLen = copy(ev.Private[:], userPrivate(c, msg.Private[:]))
	m.event(c, ev)
	return Handled
}

// admitSIDR judges a SIDR_REQ: who listens, or why nobody does.
func (m *Machine) admitSIDR(from *Path, msg *SIDRREQ) (*listener, CMA, SIDRStatus) {
	cma, err := requestCMA(msg.ServiceID, msg.Private[:])
	l, known := m.listeners.find(msg.ServiceID, cma.Dst)
	switch {
	case !known:
		return nil, cma, SIDRUnsupported
	case err != nil:
		return nil, cma, SIDRVersion
	case !plausible(&cma, from) || l == nil:
		return nil, cma, SIDRReject
	case l.args.Type != qpstate.UD:
		return nil, cma, SIDRUnsupported
	}
	return l, cma, SIDRSuccess
}

// answerSIDR sends the SIDR_REP; duplicates of the request get the same.
func (m *Machine) answerSIDR(c *conn, status SIDRStatus, p Param, private []byte) {
	c.untake()
	r := SIDRREP{RequestID: c.remote, Status: status, QPN: p.QPN, ServiceID: c.service, QKey: p.QKey}
	copy(r.Private[:], private)
	build(&c.out, c.tid, &r)
	m.setState(c, SIDRAnswered)
	m.sendOut(c)
}

func (m *Machine) acceptSIDR(c *conn, p Param, private []byte) error {
	if err := checkPrivate("accept", private, PrivateSIDRREP); err != nil {
		return err
	}
	if p.QPN == 0 || p.QPN >= bth.MulticastQPN {
		return fmt.Errorf("accept: queue pair %v: %w", p.QPN, ErrInvalid)
	}
	c.qpn = p.QPN
	m.answerSIDR(c, SIDRSuccess, p, private)
	return nil
}

func (m *Machine) rejectSIDR(c *conn, private []byte) error {
	if err := checkPrivate("reject", private, PrivateSIDRREP); err != nil {
		return err
	}
	m.answerSIDR(c, SIDRReject, Param{}, private)
	return nil
}

// linger keeps a destroyed id until the peer asks no more.
func (m *Machine) linger(now time.Time, c *conn) { m.timers.set(c, now.Add(codeTime(sidrLinger))) }
