package cm

import (
	"net/netip"
	"time"

	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/qpstate"
)

// conn is an id and what is known of its connection.
type conn struct {
	id, remote CommID
	state      State
	active     bool
	destroyed  bool // by the program: no event, gone when the network is done with it
	typ        qpstate.Type
	service    ServiceID
	listener   *listener // whose backlog it counts in, nil when in none
	listenerID ListenerID
	cma        CMA // as sent by the active side
	path       Path
	tid        uint64 // of the REQ or SIDR_REQ

	remoteGUID     uint64
	qpn, remoteQPN bth.QPN
	psn, remotePSN bth.PSN // the first to be received, the first to be sent
	mtu            bth.MTU
	lifeTime       uint8
	ackTimeout     uint8 // of the own queue pair, and the base of time-wait
	retryCount     uint8 // of the own queue pair
	rnrRetry       uint8 // of the own queue pair, as the peer asks
	flowControl    bool
	// depths of the own queue pair; before Accept what the peer asked for
	responder, initiator uint8
	hop, tclass, sl      uint8 // of the connection's packets
	flow                 uint32

	// out is the message that waits for an answer, or that answers a duplicate.
	out      [MADLen]byte
	timeout  time.Duration // of each try
	tries    int           // left beyond those sent
	maxTries int

	deadline time.Time
	slot     int // in the timers, noSlot when in none
}

// isFrom says whether a MAD's sender is the peer.
func (c *conn) isFrom(from *Path) bool { return c.path.Remote == from.Remote }

// isHalfOpen says whether c was begun by a peer and nobody proved to be there.
func (c *conn) isHalfOpen() bool {
	switch c.state {
	case ReqRcvd, RepSent, MRARepRcvd, SIDRReqRcvd:
		return true
	case Idle, ReqSent, MRAReqRcvd, RepRcvd, Connected, DReqSent, DReqRcvd, TimeWait, SIDRReqSent, SIDRAnswered, stateCount:
	}
	return false
}

// untake takes c out of its listener's backlog.
func (c *conn) untake() {
	if c.listener != nil {
		delete(c.listener.waiting, c)
		c.listener = nil
	}
}

func (c *conn) localAddr() netip.AddrPort {
	if c.active {
		return c.cma.Src
	}
	return c.cmaDst()
}

func (c *conn) remoteAddr() netip.AddrPort {
	if c.active {
		return c.cmaDst()
	}
	return c.cma.Src
}

func (c *conn) cmaDst() netip.AddrPort {
	if !c.cma.Dst.IsValid() {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(c.cma.Dst, c.service.Port())
}

// Times of the connection manager (specification values, as the kernel has them:
// 4.096 µs × 2^n counted as 2^(n-8) ms).
const (
	responseTimeout = 20 // how fast each side is to answer: 4.1 s
	maxRetries      = 15
)

// Bounds on what a peer may ask for (our own tuning).
const (
	minResponse    = 14 // 64 ms
	maxResponse    = 22 // 16 s
	minTimeWait    = 15 // 128 ms
	maxTimeWait    = 22
	maxMRA         = 24 // 65 s
	serviceTimeout = 24 // what an MRA of this side asks for, as the kernel's
	// sidrLinger is how long a destroyed id answers duplicates of its SIDR_REQ.
	sidrLinger = 21 // 8 s
)

// codeTime is a time code in the connection manager's own rounding.
func codeTime(code uint8) time.Duration {
	if code < 8 {
		code = 8
	}
	return time.Millisecond << (code - 8)
}

func clamp(v, lo, hi uint8) uint8 { return min(max(v, lo), hi) }

// ackTimeoutCode is the ACK timeout of a queue pair whose peer acknowledges
// after delay, over a path of this packet life time: all three as codes
// (IBTA Vol 1 §12.7.34: twice the life time and the delay, rounded up).
func ackTimeoutCode(delay, life uint8) uint8 {
	t := life + 1
	switch {
	case t >= delay:
		if delay >= life {
			t++
		}
	default:
		near := t >= delay-1
		t = delay
		if near {
			t++
		}
	}
	return min(t, maxCode)
}
