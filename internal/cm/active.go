package cm

import (
	"fmt"
	"time"

	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/qpstate"
)

// check judges the arguments of Connect and fills in defaults.
func (a *ConnectArgs) check() error {
	most := PrivateREQ
	switch a.Type {
	case qpstate.RC, qpstate.UC:
		if q := a.Param.QPN; q <= bth.GSIQPN || q >= bth.MulticastQPN {
			return fmt.Errorf("connect: queue pair %v: %w", q, ErrInvalid)
		}
		if !a.MTU.Valid() {
			return fmt.Errorf("connect: path MTU %v: %w", a.MTU, ErrInvalid)
		}
	case qpstate.UD:
		most = PrivateSIDRREQ
	case qpstate.GSI:
		return fmt.Errorf("connect: type %v: %w", a.Type, ErrInvalid)
	default:
		return fmt.Errorf("connect: %v: %w", a.Type, ErrInvalid)
	}
	if a.LifeTime > maxCode-1 {
		return fmt.Errorf("connect: packet life time %d, at most %d: %w", a.LifeTime, maxCode-1, ErrInvalid)
	}
	if a.LifeTime == 0 {
		a.LifeTime = DefaultLifeTime
	}
	if a.Path.Remote.IsZero() || a.Path.Local.Is4() != a.Path.Remote.Is4() {
		return fmt.Errorf("connect: from GID %v to %v: %w", a.Path.Local, a.Path.Remote, ErrInvalid)
	}
	if src := a.CMA.Src.Addr(); src.IsValid() {
		most -= CMALen
		if family(src) != family(a.CMA.Dst) {
			return fmt.Errorf("connect: from address %v to %v: %w", src, a.CMA.Dst, ErrInvalid)
		}
	}
	return checkPrivate("connect", a.Private, most)
}

// putPrivate writes the CMA header, if there is one, and the private data.
func (a *ConnectArgs) putPrivate(b []byte) {
	if a.CMA.Src.Addr().IsValid() {
		a.CMA.Put(b)
		b = b[CMALen:]
	}
	copy(b, a.Private)
}

func (m *Machine) connect(now time.Time, a ConnectArgs) (CommID, error) {
	a.CMA.Src = unmapPort(a.CMA.Src)
	a.CMA.Dst = a.CMA.Dst.Unmap().WithZone("")
	if err := a.check(); err != nil {
		return 0, err
	}
	c := m.newConn()
	if c == nil {
		return 0, fmt.Errorf("connect: %d ids: %w", len(m.conns), ErrFull)
	}
	c.active, c.typ, c.service, c.cma, c.path = true, a.Type, a.Service, a.CMA, a.Path
	c.tid = m.tidHigh | uint64(c.id)
	c.lifeTime, c.maxTries = a.LifeTime, maxRetries
	if a.Type == qpstate.UD {
		m.askSIDR(now, c, &a)
		return c.id, nil
	}
	c.qpn, c.mtu = a.Param.QPN, a.MTU
	c.retryCount, c.flowControl = min(a.Param.RetryCount, 7), a.Param.FlowControl
	c.responder = m.depth(a.Param.ResponderResources, DepthMax)
	c.initiator = m.depth(a.Param.InitiatorDepth, DepthMax)
	c.ackTimeout = ackTimeoutCode(m.cfg.AckDelay, c.lifeTime)
	c.hop, c.tclass, c.sl, c.flow = a.Path.HopLimit, a.Path.TrafficClass, a.Path.SL, a.Path.FlowLabel
	c.timeout = 2*codeTime(c.lifeTime) + codeTime(responseTimeout)
	m.buildREQ(c, &a)
	m.setState(c, ReqSent)
	m.await(now, c, c.maxTries)
	return c.id, nil
}

// depth is a depth within the adapter's; DepthMax takes as much as was asked for.
func (m *Machine) depth(want, asked uint8) uint8 {
	if want == DepthMax {
		want = asked
	}
	return min(want, m.cfg.MaxDepth)
}

// buildREQ writes the REQ of c.
func (m *Machine) buildREQ(c *conn, a *ConnectArgs) {
	service := ServiceRC
	if c.typ == qpstate.UC {
		service = ServiceUC
	}
	lid := uint16(0xFFFF) // no LID leads there: over a router, as all of RoCEv2
	local := a.Path.HopLimit <= 1
	if local {
		lid = 0
	}
	r := REQ{
		LocalID: c.id, ServiceID: c.service, CAGUID: m.cfg.GUID, QPN: c.qpn,
		ResponderResources: c.responder, InitiatorDepth: c.initiator,
		RemoteTimeout: responseTimeout, LocalTimeout: responseTimeout, MaxCMRetries: maxRetries,
		Service: service, FlowControl: c.flowControl, PSN: c.psn,
		RetryCount: c.retryCount, RNRRetry: min(a.Param.RNRRetry, 7), SRQ: a.Param.SRQ,
		PKey: bth.DefaultPKey, MTU: c.mtu,
		Primary: PathRecord{
			LocalLID: lid, RemoteLID: lid, LocalGID: a.Path.Local, RemoteGID: a.Path.Remote,
			FlowLabel: a.Path.FlowLabel, TrafficClass: a.Path.TrafficClass, HopLimit: a.Path.HopLimit,
			SL: a.Path.SL, SubnetLocal: local, AckTimeout: c.ackTimeout,
		},
	}
	a.putPrivate(r.Private[:])
	build(&c.out, c.tid, &r)
}

// handleREP: the peer grants the connection (IBTA Vol 1 §12.9.7.1).
func (m *Machine) handleREP(now time.Time, from *Path, tid uint64, msg *REP) Verdict {
	c := m.conns[msg.RemoteID]
	if c == nil || !c.active {
		m.refuseREP(from, tid, msg, RejInvalidCommID)
		return Answered
	}
	if !c.isFrom(from) {
		return DropUnknown
	}
	switch c.state {
	case ReqSent, MRAReqRcvd:
		return m.granted(now, from, tid, c, msg)
	case SIDRReqSent:
		return DropState
	case Idle, RepRcvd, ReqRcvd, RepSent, MRARepRcvd, Connected, DReqSent, DReqRcvd, TimeWait,
		SIDRReqRcvd, SIDRAnswered, stateCount:
	}
	switch {
	case c.state == Idle || c.remote != msg.LocalID:
		m.refuseREP(from, tid, msg, RejInvalidCommID)
		return Answered
	case c.state == RepRcvd:
		m.sendMRA(c, SubjectREP)
	case c.state == Connected:
		m.sendOut(c)
	}
	return Duplicate
}

// refuseREP answers a REP that no connection waits for.
func (m *Machine) refuseREP(from *Path, tid uint64, msg *REP, reason RejectReason) {
	reply(m, from, tid, &REJ{LocalID: msg.RemoteID, RemoteID: msg.LocalID, Subject: SubjectREP, Reason: reason})
}

// granted takes the first REP.
func (m *Machine) granted(now time.Time, from *Path, tid uint64, c *conn, msg *REP) Verdict {
	if m.remotes[remoteKey{msg.CAGUID, msg.LocalID}] != nil {
		return DropState
	}
	if m.qpns[qpnKey{msg.CAGUID, msg.QPN}] != nil {
		m.refuseREP(from, tid, msg, RejStaleConnection)
		m.becomeTimeWait(now, c)
		m.event(c, Event{Kind: Rejected, Status: int32(RejStaleConnection)})
		return Handled
	}
	m.timers.stop(c)
	c.remote, c.remoteGUID, c.remoteQPN, c.remotePSN = msg.LocalID, msg.CAGUID, msg.QPN, msg.PSN
	c.rnrRetry, c.flowControl = msg.RNRRetry, msg.FlowControl
	c.initiator = min(msg.ResponderResources, m.cfg.MaxDepth)
	c.responder = min(msg.InitiatorDepth, m.cfg.MaxDepth)
	c.ackTimeout = ackTimeoutCode(msg.AckDelay, c.lifeTime)
	m.remember(c)
	m.setState(c, RepRcvd)
	ev := Event{Kind: ConnectResponse, Path: c.path, Param: Param{
		QPN: msg.QPN, QKey: msg.QKey, ResponderResources: msg.InitiatorDepth, InitiatorDepth: msg.ResponderResources,
		FlowControl: msg.FlowControl, RNRRetry: msg.RNRRetry, SRQ: msg.SRQ,
	}}
	ev.PrivateLen = copy(ev.Private[:], msg.Private[:])
	m.event(c, ev)
	return Handled
}

func (m *Machine) establish(_ time.Time, id CommID, private []byte) error {
	c, err := m.own("establish", id)
	if err != nil {
		return err
	}
	if c.state != RepRcvd {
		return c.wrongState("establish")
	}
	if err := checkPrivate("establish", private, PrivateRTU); err != nil {
		return err
	}
	r := RTU{LocalID: c.id, RemoteID: c.remote}
	copy(r.Private[:], private)
	build(&c.out, c.tid, &r)
	m.setState(c, Connected)
	m.sendOut(c)
	return nil
}
