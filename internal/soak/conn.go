package soak

import (
	"fmt"
	"time"

	"github.com/softroce/softroce/pkg/qpstate"
	"github.com/softroce/softroce/pkg/transport"
)

// phase is where in its life a connection is.
type phase uint8

const (
	waiting phase = iota // for its adapters to be up
	up
	dying // one of its ends is in ERR, or gone
	over  // it will not come again
)

// conn is a connection of two adapters, or of one with itself. When it died it is
// made again, with other queue pairs.
type conn struct {
	w     *world
	index int
	typ   qpstate.Type
	ends  [2]*end
	phase phase
	lives int
	plan  connPlan
	cut   time.Time // when the last partition between the two ended
	died  time.Time
	whole bool // it is left to die by itself
	loose bool // a region went while it was used: errors may be of any kind
	near  bool // both ends are of one adapter, and meet in memory
}

func newConn(w *world, index int, typ qpstate.Type, a, b *adapter) *conn {
	c := &conn{w: w, index: index, typ: typ}
	for i, a := range [2]*adapter{a, b} {
		c.ends[i] = newEnd(c, i, a)
	}
	return c
}

func (c *conn) String() string { return fmt.Sprintf("%v-%d", c.typ, c.index) }

// connect makes the queue pairs, once both adapters are up.
func (c *conn) connect() {
	w := c.w
	if c.phase != waiting {
		return
	}
	if c.lives > 0 && w.toPost <= 0 {
		c.phase = over
		c.dropKept()
		return
	}
	for _, e := range c.ends {
		if !e.a.up {
			w.after(time.Millisecond, c.connect)
			return
		}
	}
	c.lives++
	c.phase = up
	c.plan = w.plan.drawConn(&w.rand)
	c.loose = false
	c.near = c.ends[0].a == c.ends[1].a && w.rand.IntN(2) == 0
	for _, e := range c.ends {
		e.begin()
	}
	for _, e := range c.ends {
		e.toRTS()
		if w.err != nil {
			return
		}
	}
	for _, e := range c.ends {
		e.postRecvs()
		e.thinkLater()
	}
}

// horizon is how long a queue pair tries to reach a peer that is not there.
func (c *conn) horizon() time.Duration { return c.w.plan.horizon(c.plan.timeout) }

// die is called when one end is in ERR or gone. The other is left alone for a
// while, or until its requests must have found out.
func (c *conn) die() {
	if c.phase != up {
		return
	}
	w := c.w
	c.phase, c.died = dying, w.now()
	w.result.Deaths++
	life := c.lives
	delay := w.upTo(2 * time.Millisecond)
	if c.whole = w.rand.IntN(2) == 0; c.whole {
		delay = c.horizon() + time.Duration(w.rand.IntN(1000))
	}
	w.after(delay, func() {
		if c.lives == life && c.phase == dying {
			c.teardown()
		}
	})
}

// teardown ends what is left of a connection, looks at it, and makes it again.
func (c *conn) teardown() {
	w := c.w
	for _, e := range c.ends {
		e.kill()
		if w.err != nil {
			return
		}
	}
	for _, e := range c.ends {
		e.lookAtFlush()
	}
	for _, e := range c.ends {
		e.resolve()
	}
	keep := c.mayKeep() && w.rand.IntN(3) == 0
	for _, e := range c.ends {
		e.quit(keep)
	}
	c.phase = waiting
	delay := w.upTo(3 * time.Millisecond)
	if keep {
		delay += w.plan.roundTrip() // old packets are gone then
	}
	w.after(delay, c.connect)
}

// mayKeep says whether the queue pairs can be used again through RESET.
func (c *conn) mayKeep() bool {
	return !c.ends[0].gone && !c.ends[1].gone
}

// dropKept closes queue pairs that wait in RESET.
func (c *conn) dropKept() {
	for _, e := range c.ends {
		if e.q != nil && !e.q.closed {
			e.q.close()
		}
		e.q = nil
	}
}

// idle says whether everything posted is done.
func (c *conn) idle() bool {
	switch c.phase {
	case over:
		return true
	case up:
		for _, e := range c.ends {
			if e.waits() || len(e.arrivals) > 0 || e.draining {
				return false
			}
		}
		return true
	case waiting, dying:
	}
	return false
}

// look finds requests that take too long.
func (c *conn) look() {
	w := c.w
	for _, e := range c.ends {
		if c.phase == up && e.waits() && w.now().Sub(e.ops[0].at) > w.plan.patience {
			w.fail("%v is stuck: %s was posted at %v; %d requests wait, the peer has %d receives; next timeout %v, windows %+v", e.q, &e.ops[0], e.ops[0].at.Sub(start), len(e.ops), len(e.peer().posted), e.q.qp.NextTimeout().Sub(start), e.q.qp.Window())
		}
	}
	if c.phase == dying && w.now().Sub(c.died) > w.plan.patience {
		w.fail("%v is dying since %v", c, c.died.Sub(start))
	}
}

// finish ends the connection for good.
func (c *conn) finish() {
	if c.phase == up {
		c.died = c.w.now()
		c.phase = dying
		c.whole = false
		c.teardown()
	}
	c.dropKept()
	c.phase = over
}

// retries is retry_cnt and, as rnr_retry, what never ends.
const retries = 7

// ways are the attributes that each step from RESET to RTS needs.
var ways = map[qpstate.Type][3]qpstate.Mask{
	qpstate.RC: {
		qpstate.MaskPKeyIndex | qpstate.MaskPort | qpstate.MaskAccessFlags,
		qpstate.MaskAV | qpstate.MaskPathMTU | qpstate.MaskDestQPN | qpstate.MaskRQPSN | qpstate.MaskMaxDestRDAtomic | qpstate.MaskMinRNRTimer,
		qpstate.MaskTimeout | qpstate.MaskRetryCnt | qpstate.MaskRNRRetry | qpstate.MaskSQPSN | qpstate.MaskMaxQPRDAtomic,
	},
	qpstate.UC: {
		qpstate.MaskPKeyIndex | qpstate.MaskPort | qpstate.MaskAccessFlags,
		qpstate.MaskAV | qpstate.MaskPathMTU | qpstate.MaskDestQPN | qpstate.MaskRQPSN,
		qpstate.MaskSQPSN,
	},
	qpstate.UD: {
		qpstate.MaskPKeyIndex | qpstate.MaskPort | qpstate.MaskQKey,
		0,
		qpstate.MaskSQPSN,
	},
}

// toRTS connects the end's queue pair with its peer's.
func (e *end) toRTS() {
	c, p := e.c, e.peer()
	l := &c.plan
	a := qpstate.Attr{
		PortNum: 1, AccessFlags: uint32(allAccess &^ 1 &^ 16), PathMTU: l.mtu, DestQPN: p.q.qpn, SQPSN: l.psn[e.index], RQPSN: l.psn[1-e.index],
		MaxRDAtomic: l.rd, MaxDestRDAtomic: l.rd, MinRNRTimer: l.rnrTimer, Timeout: l.timeout, RetryCnt: retries, RNRRetry: l.rnrRetry,
		AH: qpstate.AHAttr{DGID: p.a.gid, IsGlobal: true, PortNum: 1, HopLimit: 64},
	}
	path := &transport.Path{Src: e.a.gid, Dst: p.a.gid, SrcPort: udpPort, HopLimit: 64, Flow: int32(p.a.index)}
	if c.near {
		path.Flow, path.NoICRC, path.Near = nearFlow, true, true
	}
	if !c.w.plan.alone {
		path.Peers = e.a.peers
	}
	for i, m := range ways[c.typ] {
		a.State = qpstate.Init + qpstate.State(i)
		to := path
		if m&qpstate.MaskAV == 0 {
			to = nil
		}
		if err := e.q.qp.Modify(c.w.now(), &a, m|qpstate.MaskState, to); err != nil {
			c.w.fail("%v: %v", e.q, err)
			return
		}
	}
}
