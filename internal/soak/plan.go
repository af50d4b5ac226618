package soak

import (
	"fmt"
	"strings"
	"time"

	"github.com/softroce/softroce/internal/simnet"
	"github.com/softroce/softroce/pkg/bth"
)

// Sizes of a world.
const (
	minAdapters = 2
	maxAdapters = 16
	slots       = 4 // of each kind, at each end
	guardLen    = 64
)

// Config chooses a world. What is zero is drawn from the seed.
type Config struct {
	Seed     uint64
	Adapters int
	Requests int // about how many are posted

	// Trace, when set, is told of every packet, completion and fault.
	Trace func(string)
}

// plan is all that a seed decides beforehand.
type plan struct {
	adapters   int
	net        simnet.Config
	rc, uc     int // connections
	ud         int // datagram queue pairs
	srqs       int // shared receive queues
	slot       int // bytes of the longest message
	requests   int
	think      time.Duration // between two bursts of a queue pair, at most
	late       bool          // receives are posted late
	refuse     bool          // sockets refuse packets at times
	alone      bool          // each queue pair has a window of its own
	restarts   int
	partitions int
	bad        int           // bad requests in a thousand
	toErr      int           // of a thousand thoughts, those that move the queue pair to ERR
	dereg      int           // those that deregister its memory
	poor       bool          // slabs are small
	drain      int           // and those that drain the send queue
	span       time.Duration // in which restarts and partitions begin
	patience   time.Duration // how old a request may become
}

// String lists what is special.
func (p *plan) String() string {
	var s strings.Builder
	n := &p.net
	fmt.Fprintf(&s, "%d adapters, %d RC and %d UC connections, %d UD queue pairs, %d shared receive queues, %d requests of up to %d bytes", p.adapters, p.rc, p.uc, p.ud, p.srqs, p.requests, p.slot)
	fmt.Fprintf(&s, "; loss %.3f, duplicates %.3f, reordered %.3f, damaged %.3f, delay %v + %v", n.Loss, n.Duplicate, n.Reorder, n.Corrupt, n.Delay, n.Jitter)
	if n.Rate > 0 || n.Buffer > 0 || n.ReadRate > 0 || n.ReadEvery > 0 {
		fmt.Fprintf(&s, "; links %d B/s with %d B waiting, buffers %d B read at %d B/s, pauses %v in %v", n.Rate, n.LinkQueue, n.Buffer, n.ReadRate, n.ReadPause, n.ReadEvery)
	}
	fmt.Fprintf(&s, "; %d restarts, %d partitions in %v; in a thousand: %d bad, %d to ERR, %d drains", p.restarts, p.partitions, p.span, p.bad, p.toErr, p.drain)
	for _, f := range []struct {
		name string
		is   bool
	}{{"late receives", p.late}, {"busy sockets", p.refuse}, {"windows alone", p.alone}, {"small slabs", p.poor}} {
		if f.is {
			s.WriteString("; " + f.name)
		}
	}
	return s.String()
}

// newPlan draws a plan.
func newPlan(c Config, r *simnet.Rand) plan {
	p := plan{
		adapters: minAdapters + min(r.IntN(8), r.IntN(maxAdapters-minAdapters+1)),
		slot:     1 << (10 + r.IntN(5)), requests: 500 << r.IntN(4),
		think: time.Duration(10+r.IntN(400)) * time.Microsecond,
		late:  r.IntN(2) == 0, refuse: r.IntN(2) == 0, alone: r.IntN(4) == 0,
	}
	if c.Adapters > 0 {
		p.adapters = min(max(c.Adapters, minAdapters), maxAdapters)
	}
	if c.Requests > 0 {
		p.requests = c.Requests
	}
	p.rc = 1 + r.IntN(2*p.adapters)
	p.uc, p.ud, p.srqs = r.IntN(p.adapters+1), r.IntN(p.adapters+1), r.IntN(p.adapters+1)
	p.drawNet(r)
	p.drawTrouble(r)
	return p
}

// drawNet draws how bad the network is. Each kind of fault is there in half of
// the worlds.
func (p *plan) drawNet(r *simnet.Rand) {
	n := &p.net
	n.Seed = r.Uint64()
	n.Delay = time.Duration(1+r.IntN(50)) * time.Microsecond
	if r.IntN(8) == 0 {
		n.Delay *= 50
	}
	if r.IntN(3) > 0 {
		n.Jitter = time.Duration(r.IntN(int(n.Delay)))
	}
	for _, f := range []*float64{&n.Loss, &n.Duplicate, &n.Reorder, &n.Corrupt} {
		if r.IntN(2) == 0 {
			*f = float64(1+r.IntN(30)) / 1000
		}
	}
	switch r.IntN(5) {
	case 0: // slow links
		n.Rate = 10_000_000 << r.IntN(5)
		n.LinkQueue = 16<<10 + r.IntN(n.Rate/(20<<r.IntN(8)))
	case 1: // slow readers with small buffers
		n.ReadRate = 20_000_000 << r.IntN(5)
		n.Buffer = 24<<10 + r.IntN(64<<10<<r.IntN(5))
		n.Cost = func(size int) int { return size + 768 }
	case 2: // readers that pause
		n.ReadEvery = time.Duration(1+r.IntN(20)) * time.Millisecond
		n.ReadPause = n.ReadEvery / time.Duration(2+r.IntN(4))
		n.Buffer = 24<<10 + r.IntN(64<<10<<r.IntN(5))
	}
	for range p.adapters {
		var h simnet.Host
		if r.IntN(4) == 0 {
			h.Delay = time.Duration(r.IntN(100)) * time.Microsecond
		}
		if n.Rate > 0 && r.IntN(4) == 0 {
			h.Rate = n.Rate / (1 + r.IntN(4))
		}
		n.Hosts = append(n.Hosts, h)
	}
}

// drawTrouble draws what goes wrong beside the network.
func (p *plan) drawTrouble(r *simnet.Rand) {
	p.span = 20 * time.Millisecond
	some := func(n int) int {
		if r.IntN(2) == 0 {
			return 0
		}
		return 1 + r.IntN(n)
	}
	p.restarts, p.partitions = some(3), some(4)
	p.bad, p.toErr, p.drain = some(8), some(5), some(30)
	if r.IntN(3) == 0 {
		p.dereg = 1 + r.IntN(3)
	}
	p.poor = r.IntN(8) == 0
	p.patience = 10*time.Second + 2*p.horizon(p.timeout()+1)
}

// roundTrip is the longest way there and back that is no fault.
func (p *plan) roundTrip() time.Duration {
	n := &p.net
	way := n.Delay + n.Jitter + 4*(n.Delay+n.Jitter) + 100*time.Microsecond
	if n.Rate > 0 {
		way += time.Duration(float64(n.LinkQueue) / float64(n.Rate/4) * float64(time.Second))
	}
	if n.ReadRate > 0 {
		way += time.Duration(float64(n.Buffer) / float64(n.ReadRate) * float64(time.Second))
	}
	return 2 * (way + n.ReadPause)
}

// horizon is how long a queue pair with this ACK timeout tries to reach a peer
// that is not there: the timer may take four times its time.
func (p *plan) horizon(timeout uint8) time.Duration {
	return 4*bth.AckTimeout(timeout)*(retries+2) + 10*time.Millisecond + p.roundTrip()
}

// timeout is the least code of an ACK timeout that a world's connections may
// have.
func (p *plan) timeout() uint8 {
	for c := uint8(8); c < 20; c++ {
		if bth.AckTimeout(c) > 2*p.roundTrip() {
			return c
		}
	}
	return 20
}

// connPlan is what is drawn for a connection each time that it is made.
type connPlan struct {
	mtu      bth.MTU
	rd       uint8
	timeout  uint8
	rnrTimer uint8
	rnrRetry uint8
	window   int
	psn      [2]bth.PSN
	sigAll   [2]bool
}

func (p *plan) drawConn(r *simnet.Rand) connPlan {
	c := connPlan{
		mtu: bth.MTU256 + bth.MTU(r.IntN(5)), rd: uint8(1 + r.IntN(16)), timeout: p.timeout() + uint8(r.IntN(2)),
		rnrTimer: uint8(1 + r.IntN(12)), window: 1 << (12 + r.IntN(8)),
	}
	if c.rnrRetry = retries; r.IntN(6) == 0 {
		c.rnrRetry = uint8(r.IntN(retries))
	}
	for i := range c.psn {
		c.psn[i] = bth.PSN(r.Uint64()) & bth.PSNMask
		if r.IntN(2) == 0 {
			c.psn[i] = bth.PSNMask - bth.PSN(r.IntN(200)) // it will wrap
		}
		c.sigAll[i] = r.IntN(8) == 0
	}
	return c
}
