package cm

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/qpstate"
)

// handleREQ: a peer asks for a connection (IBTA Vol 1 §12.9.7.2).
func (m *Machine) handleREQ(now time.Time, from *Path, tid uint64, msg *REQ) Verdict {
	if c := m.remotes[remoteKey{msg.CAGUID, msg.LocalID}]; c != nil {
		return m.duplicateREQ(c, from)
	}
	if c := m.qpns[qpnKey{msg.CAGUID, msg.QPN}]; c != nil {
		m.refuseREQ(from, tid, msg, RejStaleConnection, nil)
		m.endStale(now, c, from)
		return Answered
	}
	l, cma, reason := m.admit(from, msg)
	if reason != 0 {
		var info []byte
		if reason == RejInvalidGID {
			info = from.Local[:]
		}
		m.refuseREQ(from, tid, msg, reason, info)
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
	c.cma = cma
	m.learn(c, msg)
	m.remember(c)
	m.setState(c, ReqRcvd)
	m.event(c, requestEvent(c, msg))
	return Handled
}

// begin fills in what an id for a peer's request begins with.
func (m *Machine) begin(c *conn, l *listener, from *Path, tid uint64) {
	c.typ, c.service, c.listenerID, c.path, c.tid = l.args.Type, l.args.Service, l.id, *from, tid
	c.listener = l
	l.waiting[c] = struct{}{}
}

// learn takes the numbers of a REQ.
func (m *Machine) learn(c *conn, msg *REQ) {
	p := &msg.Primary
	c.remote, c.remoteGUID, c.remoteQPN, c.remotePSN = msg.LocalID, msg.CAGUID, msg.QPN, msg.PSN
	c.mtu, c.retryCount, c.rnrRetry, c.flowControl = msg.MTU, msg.RetryCount, msg.RNRRetry, msg.FlowControl
	c.responder, c.initiator = msg.InitiatorDepth, msg.ResponderResources
	c.ackTimeout = p.AckTimeout
	c.hop, c.tclass, c.sl, c.flow = p.HopLimit, p.TrafficClass, p.SL, p.FlowLabel
	c.timeout = codeTime(clamp(msg.LocalTimeout, minResponse, maxResponse))
	c.maxTries = int(msg.MaxCMRetries)
}

// requestEvent is the ConnectRequest of a REQ.
func requestEvent(c *conn, msg *REQ) Event {
	ev := Event{Kind: ConnectRequest, Listener: c.listenerID, Path: c.path, Param: Param{
		QPN: msg.QPN, QKey: msg.QKey, ResponderResources: msg.InitiatorDepth, InitiatorDepth: msg.ResponderResources,
		FlowControl: msg.FlowControl, RetryCount: msg.RetryCount, RNRRetry: msg.RNRRetry, SRQ: msg.SRQ,
	}}
	ev.PrivateLen = copy(ev.Private[:], userPrivate(c, msg.Private[:]))
	return ev
}

// userPrivate is the private data behind the CMA header, if there is one.
func userPrivate(c *conn, b []byte) []byte {
	if c.cma.Dst.IsValid() {
		return b[CMALen:]
	}
	return b
}

// duplicateREQ: a REQ of a connection that is known.
func (m *Machine) duplicateREQ(c *conn, from *Path) Verdict {
	switch {
	case !c.isFrom(from):
		return DropUnknown
	case c.state == ReqRcvd:
		m.sendMRA(c, SubjectREQ)
	case c.state == TimeWait:
		m.sendREJ(c, SubjectREQ, RejStaleConnection, nil, nil)
	}
	return Duplicate
}

// endStale ends a connection whose queue pair the peer has given to another: it
// knows nothing of the old one (IBTA Vol 1 §12.9.8.3.1). Only a request from the
// address that the old one is with can do that.
func (m *Machine) endStale(now time.Time, c *conn, from *Path) {
	if !c.isFrom(from) {
		return
	}
	switch c.state {
	case Connected:
		m.beginDisconnect(now, c, nil)
	case ReqRcvd, RepSent, MRARepRcvd:
		m.becomeIdle(c)
		m.event(c, Event{Kind: Rejected, Status: int32(RejStaleConnection)})
	case Idle, ReqSent, MRAReqRcvd, RepRcvd, DReqSent, DReqRcvd, TimeWait, SIDRReqSent, SIDRReqRcvd, SIDRAnswered, stateCount:
	}
}

// refuseREQ answers a REQ that gets no id.
func (m *Machine) refuseREQ(from *Path, tid uint64, msg *REQ, reason RejectReason, info []byte) {
	r := REJ{RemoteID: msg.LocalID, Subject: SubjectREQ, Reason: reason, InfoLen: uint8(len(info))}
	copy(r.Info[:], info)
	reply(m, from, tid, &r)
}

// admit judges a REQ: who listens, or why nobody does. The order of the checks
// is the kernel's, since it decides which reason a bad REQ gets.
func (m *Machine) admit(from *Path, msg *REQ) (*listener, CMA, RejectReason) {
	cma, cmaErr := requestCMA(msg.ServiceID, msg.Private[:])
	l, known := m.listeners.find(msg.ServiceID, cma.Dst)
	p := &msg.Primary
	switch {
	case !known:
		return nil, cma, RejInvalidServiceID
	case p.LocalGID.Is4() != p.RemoteGID.Is4() || p.LocalGID.IsZero() || p.RemoteGID != from.Local:
		return nil, cma, RejInvalidGID
	case msg.Alternate.LocalLID != 0:
		return nil, cma, RejInvalidAltGID
	case cmaErr != nil || !plausible(&cma, from) || l == nil:
		return nil, cma, RejConsumer
	case !msg.fits(l.args.Type):
		return nil, cma, RejInvalidTransport
	case !msg.MTU.Valid():
		return nil, cma, RejInvalidMTU
	case msg.QPN <= bth.GSIQPN || msg.QPN == bth.MulticastQPN:
		return nil, cma, RejNoQP
	}
	return l, cma, 0
}

// fits says whether a REQ's transport is the listener's.
func (m *REQ) fits(t qpstate.Type) bool {
	switch m.Service {
	case ServiceRC:
		return t == qpstate.RC
	case ServiceUC:
		return t == qpstate.UC
	case ServiceExtended:
	}
	return false
}

// requestCMA reads the CMA header of a request for a service id that has one.
func requestCMA(s ServiceID, private []byte) (CMA, error) {
	if s>>32 != 0 {
		return CMA{}, nil
	}
	switch s.Space() {
	case SpaceTCP, SpaceUDP, SpaceIPoIB:
		return ReadCMA(private)
	case SpaceIB:
	}
	return CMA{}, nil
}

// plausible says whether the addresses of a CMA header can be the ends of a
// connection, and the destination is what the MAD came to.
func plausible(c *CMA, from *Path) bool {
	if !c.Dst.IsValid() {
		return true
	}
	src := c.Src.Addr()
	broadcast := netip.AddrFrom4([4]byte{255, 255, 255, 255})
	return !src.IsUnspecified() && !src.IsMulticast() && src != broadcast && c.Dst.Unmap() == from.Local.Addr()
}

// unmapPort is a without the IPv6 form of an IPv4 address, and without a zone.
func unmapPort(a netip.AddrPort) netip.AddrPort {
	if !a.IsValid() {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(a.Addr().Unmap().WithZone(""), a.Port())
}

func (m *Machine) accept(now time.Time, id CommID, p Param, private []byte) error {
	c, err := m.own("accept", id)
	switch {
	case err != nil:
		return err
	case c.state == SIDRReqRcvd:
		return m.acceptSIDR(c, p, private)
	case c.state != ReqRcvd:
		return c.wrongState("accept")
	case p.QPN <= bth.GSIQPN || p.QPN >= bth.MulticastQPN:
		return fmt.Errorf("accept: queue pair %v: %w", p.QPN, ErrInvalid)
	}
	if err := checkPrivate("accept", private, PrivateREP); err != nil {
		return err
	}
	c.untake()
	c.qpn = p.QPN
	c.responder, c.initiator = m.depths(c, &p)
	r := REP{
		LocalID: c.id, RemoteID: c.remote, QPN: c.qpn, PSN: c.psn, CAGUID: m.cfg.GUID,
		ResponderResources: c.responder, InitiatorDepth: c.initiator, AckDelay: m.cfg.AckDelay,
		FlowControl: p.FlowControl, RNRRetry: min(p.RNRRetry, 7), SRQ: p.SRQ,
	}
	copy(r.Private[:], private)
	build(&c.out, c.tid, &r)
	m.setState(c, RepSent)
	m.await(now, c, c.maxTries)
	return nil
}

// depths are the passive side's depths, of what the program gives and the peer asked for.
func (m *Machine) depths(c *conn, p *Param) (responder, initiator uint8) {
	return m.depth(p.ResponderResources, c.responder), m.depth(p.InitiatorDepth, c.initiator)
}

func (m *Machine) reject(now time.Time, id CommID, reason RejectReason, private []byte) error {
	c, err := m.own("reject", id)
	switch {
	case err != nil:
		return err
	case c.state == SIDRReqRcvd:
		return m.rejectSIDR(c, private)
	case c.state != ReqRcvd && c.state != RepRcvd:
		return c.wrongState("reject")
	}
	if err := checkPrivate("reject", private, PrivateREJ); err != nil {
		return err
	}
	c.untake()
	if c.state == RepRcvd {
		m.sendREJ(c, SubjectREP, reason, nil, private)
		m.becomeTimeWait(now, c)
		return nil
	}
	m.sendREJ(c, SubjectREQ, reason, nil, private)
	m.becomeIdle(c)
	return nil
}

// handleRTU: the active side is ready.
func (m *Machine) handleRTU(from *Path, tid uint64, msg *RTU) Verdict {
	c := m.peer(from, msg.RemoteID, msg.LocalID)
	switch {
	case c == nil || c.state == Idle || c.state == TimeWait:
		// It believes in a connection that is not there.
		reply(m, from, tid, &REJ{LocalID: msg.RemoteID, RemoteID: msg.LocalID, Subject: SubjectOther, Reason: RejInvalidCommID})
		return Answered
	case c.state != RepSent && c.state != MRARepRcvd:
		return Duplicate
	}
	m.connected(c, msg.Private[:])
	return Handled
}

// connected brings the passive side up.
func (m *Machine) connected(c *conn, private []byte) {
	m.timers.stop(c)
	m.setState(c, Connected)
	ev := Event{Kind: Established, Path: c.path, Param: Param{QPN: c.remoteQPN, ResponderResources: c.responder, InitiatorDepth: c.initiator}}
	ev.PrivateLen = copy(ev.Private[:], private)
	m.event(c, ev)
}

func (m *Machine) commEstablished(_ time.Time, id CommID) error {
	c, err := m.own("notify", id)
	if err != nil {
		return err
	}
	if c.state == RepSent || c.state == MRARepRcvd {
		m.connected(c, nil)
	}
	return nil
}
