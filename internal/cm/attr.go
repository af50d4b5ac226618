package cm

import (
	"fmt"

	"github.com/softroce/softroce/pkg/qpstate"
)

// Access rights of a queue pair (specification values: ibv_access_flags).
const (
	accessRemoteWrite  = 1 << 1
	accessRemoteRead   = 1 << 2
	accessRemoteAtomic = 1 << 3
)

// defaultHop is the hop limit of a connection whose REQ has none.
const defaultHop = 64

func (m *Machine) qpAttr(id CommID, to qpstate.State, p Param) (qpstate.Attr, qpstate.Mask, error) {
	c, err := m.own("attributes for", id)
	if err != nil {
		return qpstate.Attr{}, 0, err
	}
	if !c.knowsPeer() && (to != qpstate.Init || c.typ == qpstate.UD) {
		return qpstate.Attr{}, 0, c.wrongState("attributes for")
	}
	responder, initiator := c.responder, c.initiator
	if c.state == ReqRcvd {
		responder, initiator = m.depths(c, &p)
	}
	switch to {
	case qpstate.Init:
		a, mask := c.initAttr(responder)
		return a, mask, nil
	case qpstate.RTR:
		a, mask := c.rtrAttr(responder)
		return a, mask, nil
	case qpstate.RTS:
		a, mask := c.rtsAttr(initiator)
		return a, mask, nil
	case qpstate.Reset, qpstate.SQD, qpstate.SQE, qpstate.Err:
	}
	return qpstate.Attr{}, 0, fmt.Errorf("attributes for %#08x to %v: %w", uint32(id), to, ErrInvalid)
}

// knowsPeer says whether the peer's numbers are there.
func (c *conn) knowsPeer() bool {
	switch c.state {
	case RepRcvd, ReqRcvd, RepSent, MRARepRcvd, Connected:
		return true
	case Idle, ReqSent, MRAReqRcvd, DReqSent, DReqRcvd, TimeWait, SIDRReqSent, SIDRReqRcvd, SIDRAnswered, stateCount:
	}
	return false
}

func (c *conn) initAttr(responder uint8) (qpstate.Attr, qpstate.Mask) {
	a := qpstate.Attr{State: qpstate.Init, PortNum: 1, AccessFlags: rights(responder)}
	return a, qpstate.MaskState | qpstate.MaskAccessFlags | qpstate.MaskPKeyIndex | qpstate.MaskPort
}

// rights are what the peer may do, given how many of its READs and atomics are taken
// at once.
func rights(responder uint8) uint32 {
	if responder == 0 {
		return accessRemoteWrite
	}
	return accessRemoteWrite | accessRemoteRead | accessRemoteAtomic
}

// rtrAttr has the rights, too, which are optional here: they are known by now, and a
// queue pair may have come to INIT before.
func (c *conn) rtrAttr(responder uint8) (qpstate.Attr, qpstate.Mask) {
	hop := c.hop
	if hop == 0 {
		hop = defaultHop
	}
	a := qpstate.Attr{
		State: qpstate.RTR, PathMTU: c.mtu, DestQPN: c.remoteQPN, RQPSN: c.psn, AccessFlags: rights(responder),
		AH: qpstate.AHAttr{
			DGID: c.path.Remote, SGIDIndex: c.path.SGIDIndex, FlowLabel: c.flow, HopLimit: hop,
			TrafficClass: c.tclass, SL: c.sl, IsGlobal: true, PortNum: 1,
		},
	}
	mask := qpstate.MaskState | qpstate.MaskAV | qpstate.MaskPathMTU | qpstate.MaskDestQPN | qpstate.MaskRQPSN | qpstate.MaskAccessFlags
	if c.typ == qpstate.RC {
		a.MaxDestRDAtomic = responder
		mask |= qpstate.MaskMaxDestRDAtomic | qpstate.MaskMinRNRTimer
	}
	return a, mask
}

func (c *conn) rtsAttr(initiator uint8) (qpstate.Attr, qpstate.Mask) {
	a := qpstate.Attr{State: qpstate.RTS, SQPSN: c.remotePSN}
	mask := qpstate.MaskState | qpstate.MaskSQPSN
	if c.typ == qpstate.RC {
		a.Timeout, a.RetryCnt, a.RNRRetry, a.MaxRDAtomic = c.ackTimeout, c.retryCount, c.rnrRetry, initiator
		mask |= qpstate.MaskTimeout | qpstate.MaskRetryCnt | qpstate.MaskRNRRetry | qpstate.MaskMaxQPRDAtomic
	}
	return a, mask
}
