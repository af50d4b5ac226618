package cm

import (
	"encoding/binary"
	"time"
)

// handleMAD judges a MAD and hands it to its message's rule.
func (m *Machine) handleMAD(now time.Time, from Path, mad []byte) Verdict {
	h, err := ParseHeader(mad)
	if err != nil || h.check() != nil {
		return m.verdict(DropMalformed)
	}
	if h.Attr >= AttrREQ && h.Attr <= AttrAPR {
		m.counters.Received[h.Attr-AttrREQ]++
	}
	return m.verdict(m.dispatch(now, &from, &h, (*Data)(mad[HeaderLen:])))
}

func (m *Machine) verdict(v Verdict) Verdict {
	m.counters.Verdicts[v]++
	return v
}

func (m *Machine) dispatch(now time.Time, from *Path, h *Header, d *Data) Verdict {
	switch h.Attr {
	case AttrClassPortInfo:
		return m.handleClassPortInfo(from, h)
	case AttrREQ:
		return with(d, func(msg *REQ) Verdict { return m.handleREQ(now, from, h.TID, msg) })
	case AttrMRA:
		return with(d, func(msg *MRA) Verdict { return m.handleMRA(now, from, msg) })
	case AttrREJ:
		return with(d, func(msg *REJ) Verdict { return m.handleREJ(now, from, msg) })
	case AttrREP:
		return with(d, func(msg *REP) Verdict { return m.handleREP(now, from, h.TID, msg) })
	case AttrRTU:
		return with(d, func(msg *RTU) Verdict { return m.handleRTU(from, h.TID, msg) })
	case AttrDREQ:
		return with(d, func(msg *DREQ) Verdict { return m.handleDREQ(now, from, h.TID, msg) })
	case AttrDREP:
		return with(d, func(msg *DREP) Verdict { return m.handleDREP(now, from, msg) })
	case AttrSIDRREQ:
		return with(d, func(msg *SIDRREQ) Verdict { return m.handleSIDRREQ(from, h.TID, msg) })
	case AttrSIDRREP:
		return with(d, func(msg *SIDRREP) Verdict { return m.handleSIDRREP(from, msg) })
	case AttrLAP:
		return with(d, func(msg *LAP) Verdict { return m.handleLAP(from, h.TID, msg) })
	case AttrAPR:
		return DropState // this side sends no LAP
	}
	return DropMalformed
}

// with reads a message and gives it to its rule.
func with[T any, P sender[T]](d *Data, rule func(P) Verdict) Verdict {
	var msg T
	P(&msg).Read(d)
	return rule(&msg)
}

// handleClassPortInfo answers what the connection manager can do (IBTA Vol 1
// §13.4.8.1).
func (m *Machine) handleClassPortInfo(from *Path, h *Header) Verdict {
	if h.Method != MethodGet {
		return DropState
	}
	answer := *h
	answer.Method, answer.Status = MethodGetResp, 0
	var mad [MADLen]byte
	answer.Append(mad[:0])
	info := ClassPortInfo{
		BaseVersion: BaseVersion, ClassVersion: ClassVersion,
		Capability: CapReliable | CapUnreliable | CapSIDR, ResponseTime: responseTimeout,
	}
	info.Put((*Data)(mad[HeaderLen:]))
	m.push(from, &mad)
	return Answered
}

// handleLAP: a port of RoCE has one path, so there is no alternate to load
// (kernels answer nothing; the peer learns sooner from an APR).
func (m *Machine) handleLAP(from *Path, tid uint64, msg *LAP) Verdict {
	status := APUnsupported
	if c := m.peer(from, msg.RemoteID, msg.LocalID); c == nil || c.state != Connected || msg.RemoteQPN != c.qpn {
		status = APInvalidCommID
	}
	reply(m, from, tid, &APR{LocalID: msg.RemoteID, RemoteID: msg.LocalID, Status: status})
	return Answered
}

// handleMRA gives the peer the time that it asks for, within bounds.
func (m *Machine) handleMRA(now time.Time, from *Path, msg *MRA) Verdict {
	c := m.conns[msg.RemoteID]
	if c == nil || !c.isFrom(from) {
		return DropUnknown
	}
	waits := c.state
	switch {
	case msg.Subject == SubjectREQ && (waits == ReqSent || waits == MRAReqRcvd):
		m.setState(c, MRAReqRcvd)
	case msg.Subject == SubjectREP && (waits == RepSent || waits == MRARepRcvd):
		if c.remote != msg.LocalID {
			return DropUnknown
		}
		m.setState(c, MRARepRcvd)
	default:
		return DropState
	}
	wait := codeTime(min(msg.ServiceTimeout, maxMRA)) + codeTime(clamp(c.ackTimeout, 0, maxTimeWait))
	m.timers.set(c, now.Add(wait))
	return Handled
}

// refused is the connection that a REJ is about, nil when there is none that it
// could end.
func (m *Machine) refused(from *Path, msg *REJ) *conn {
	if msg.Reason == RejTimeout && msg.InfoLen >= 8 {
		c := m.remotes[remoteKey{binary.BigEndian.Uint64(msg.Info[:]), msg.LocalID}]
		if c != nil && c.isFrom(from) {
			return c
		}
	}
	c := m.conns[msg.RemoteID]
	switch {
	case c == nil || !c.isFrom(from):
		return nil
	case c.state == ReqSent || c.state == MRAReqRcvd:
		return c // whatever came of the REQ: the peer's id may not be known here
	case msg.Subject == SubjectREQ || c.remote != msg.LocalID:
		return nil // it answers a duplicate, or another connection
	}
	return c
}

// handleREJ ends what the peer refuses, in whatever state.
func (m *Machine) handleREJ(now time.Time, from *Path, msg *REJ) Verdict {
	c := m.refused(from, msg)
	if c == nil {
		return DropUnknown
	}
	ev := Event{Kind: Rejected, Status: int32(msg.Reason)}
	switch c.state {
	case ReqSent, MRAReqRcvd, ReqRcvd, RepSent, MRARepRcvd:
		if msg.Reason == RejStaleConnection {
			m.becomeTimeWait(now, c)
		} else {
			m.becomeIdle(c)
		}
	case RepRcvd, Connected:
		m.becomeTimeWait(now, c)
	case DReqSent:
		ev = Event{Kind: Disconnected}
		m.becomeTimeWait(now, c)
	case Idle, DReqRcvd, TimeWait, SIDRReqSent, SIDRReqRcvd, SIDRAnswered, stateCount:
		return DropState
	}
	ev.PrivateLen = copy(ev.Private[:], msg.Private[:])
	m.event(c, ev)
	return Handled
}

// handleTimeout does what is due.
func (m *Machine) handleTimeout(now time.Time) {
	for c := m.timers.due(now); c != nil; c = m.timers.due(now) {
		m.expire(now, c)
	}
}

// expire is what happens when c has waited long enough.
func (m *Machine) expire(now time.Time, c *conn) {
	unreachable := Event{Kind: Unreachable, Status: StatusTimeout}
	switch c.state {
	case ReqSent, MRAReqRcvd, RepSent, MRARepRcvd:
		if !m.again(now, c) {
			m.sendTimeoutREJ(c)
			m.becomeIdle(c)
			m.event(c, unreachable)
		}
	case SIDRReqSent:
		if !m.again(now, c) {
			m.becomeIdle(c)
			m.event(c, unreachable)
		}
	case DReqSent:
		if !m.again(now, c) {
			m.becomeTimeWait(now, c)
			m.event(c, Event{Kind: Disconnected, Status: StatusTimeout})
		}
	case TimeWait:
		m.becomeIdle(c)
		m.event(c, Event{Kind: TimewaitExit})
	case SIDRAnswered:
		m.becomeIdle(c)
	case Idle, RepRcvd, ReqRcvd, Connected, DReqRcvd, SIDRReqRcvd, stateCount:
	}
}
