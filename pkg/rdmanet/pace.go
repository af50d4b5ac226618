package rdmanet

import (
	"context"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/pkg/verbs"
)

// Our own tuning.
const (
	// In bulk come naps in place of the wait for an event, so many of them, each
	// between shortNap and longNap, to which the kernel adds some 50 microseconds.
	naps               = 4
	shortNap, longNap  = 20 * time.Microsecond, 250 * time.Microsecond
	usualNap           = 50 * time.Microsecond
	bulkAfter          = 512 << 10 // received data without an answer is bulk from here on
	napGrows, napHalts = 4, 2      // by a fourth, by a half
)

// pace is how long to nap in one direction of a connection. It grows while a nap
// ends with most of the way still to go, and shrinks when the way was nearly over,
// as each wake-up takes time from who moves the data, and a pipe that runs dry too.
type pace struct{ nap time.Duration }

func (p *pace) learn(early, late bool) {
	switch {
	case late:
		p.nap = max(p.nap-p.nap/napHalts, shortNap)
	case early:
		p.nap = min(p.nap+p.nap/napGrows, longNap)
	}
}

// A rest is how long to nap, 0 for not at all, and for the sake of which ways.
type rest struct {
	nap     time.Duration
	out, in bool
}

// rest naps when much data goes one way, as far as one can tell: then the next
// completions are not far, and who naps takes in several at once, where each event
// would wake somebody for one. Who asks and answers gets events. The caller holds
// mu.
func (c *Conn) rest() rest {
	r := rest{
		out: (c.inWrite || c.inSpace) && c.sent-c.done > uint64(c.e.conf.SendBuffer)/2,
		in:  c.recvd-c.answered > bulkAfter,
	}
	switch {
	case r.out && r.in:
		r.nap = min(c.paceOut.nap, c.paceIn.nap)
	case r.out:
		r.nap = c.paceOut.nap
	case r.in:
		r.nap = c.paceIn.nap
	}
	return r
}

// learn looks at what there is after a nap.
func (c *Conn) learn(r rest) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.out {
		size, left := uint64(c.e.conf.SendBuffer), c.sent-c.done
		c.paceOut.learn(left >= size-size/4, left < size/2)
	}
	if r.in {
		size, came := uint64(c.e.conf.RecvBuffer), c.recvd-c.read
		c.paceIn.learn(came < size/16, came > size/4)
	}
}

// nap takes in completions after short sleeps, a few times.
func (c *Conn) nap(ctx context.Context, long time.Duration, wcs []verbs.WC) (n int, err error) {
	for i := 0; i < naps && n == 0 && err == nil && ctx.Err() == nil; i++ {
		ts := unix.NsecToTimespec(int64(long))
		_ = unix.Nanosleep(&ts, nil) // a shorter one is as good
		n, err = c.e.cq.Poll(wcs)
	}
	return n, err
}
