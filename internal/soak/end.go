package soak

import (
	"fmt"
	"time"

	"github.com/softroce/softroce/pkg/cq"
	"github.com/softroce/softroce/pkg/mrtable"
	"github.com/softroce/softroce/pkg/qpstate"
	"github.com/softroce/softroce/pkg/transport"
	"github.com/softroce/softroce/pkg/wq"
)

// op is one send request.
type op struct {
	id       uint64
	code     wq.Opcode
	n        int
	data     []byte // sent, written, or to be read: the bytes at their source, which never change
	slot     int
	imm      uint32
	signaled bool
	solicit  bool
	want     uint64 // atomics: what must come back
	after    uint64 // and what the cell is then
	cell     int    // of the peer's adapter, -1: the connection's own
	bad      wrong
	at       time.Time
	lock     *lock        // that it opens or shuts
	through  *lock        // of the peer, that its key is of
	inv      mrtable.RKey // that it invalidates
}

func (o *op) String() string { return fmt.Sprintf("%v %d of %d bytes", o.code, o.id, o.n) }

// isMessage says whether the peer spends a receive on it.
func (o *op) isMessage() bool {
	return o.code == wq.Send || o.code == wq.SendWithImm || o.code == wq.RDMAWriteWithImm || o.code == wq.SendWithInv
}

// recv is a posted receive.
type recv struct {
	id   uint64
	slot int
	off  int // in the adapter's memory
	n    int
}

// end is one end of a connection with its model.
type end struct {
	c      *conn
	index  int
	a      *adapter
	q      *queue
	recv   *wq.RecvQueue // its own
	srq    *srq          // nil: it has its own
	mr     *mrtable.Region
	locks  []*lock
	sigAll bool

	// Offsets in the adapter's memory. One region covers them.
	base, size int
	source     int // what is sent and written, and what the peer READs; two slots, never changes
	receives   int // slots
	writes     int // slots that the peer WRITEs
	lands      int // slots for own READs
	results    int // a word for each atomic
	addCell    int // for the peer's FETCH_ADDs
	swapCell   int // for the peer's CMP_SWAPs

	ops       []op // posted, not known to be done
	failed    []op // ended in error, to be looked at
	arrivals  []op // of the peer, not received
	posted    []recv
	sent      []sentOp // UC: all of the connection's life
	nextID    uint64
	nextRecv  uint64
	unsigned  int // unsignaled requests in a row
	writeBusy [slots]bool
	landBusy  [slots]bool
	wordBusy  [slots]bool
	sum, swap uint64 // of the peer's cells, when all that is posted is done

	gone     bool // with its adapter
	toErr    bool // the program moved it to ERR
	fatal    bool // or its adapter did
	sendDead bool // a send request ended in error
	recvDead bool // a receive did
	hasBad   bool // a bad request was posted
	draining bool // in SQD
	lastWQE  bool // the event came
	marked   bool // its region was deregistered
	answered time.Time
}

func newEnd(c *conn, index int, a *adapter) *end {
	e := &end{c: c, index: index, a: a, nextID: 1, nextRecv: 1}
	s := c.w.plan.slot
	e.size = 2*s + recvSpare + 3*slots*s + 8*slots + 16
	e.base = a.reserve(e.size)
	e.source = e.base
	e.receives = e.source + 2*s + recvSpare
	e.writes = e.receives + slots*s
	e.lands = e.writes + slots*s
	e.results = e.lands + slots*s
	e.addCell = e.results + 8*slots
	e.swapCell = e.addCell + 8
	return e
}

// recvSpare is a multiple of 8.
const recvSpare = 64

func (e *end) String() string { return fmt.Sprintf("%v/%d", e.c, e.index) }

func (e *end) peer() *end { return e.c.ends[1-e.index] }

// begin makes a queue pair, or takes the one that waits in RESET, and forgets
// what was.
func (e *end) begin() {
	w, l := e.c.w, &e.c.plan
	e.mr = e.a.register(e.base, e.size)
	e.makeLocks()
	e.ops, e.failed, e.arrivals, e.posted, e.sent = nil, nil, nil, nil, nil
	e.writeBusy, e.landBusy, e.wordBusy = [slots]bool{}, [slots]bool{}, [slots]bool{}
	e.gone, e.toErr, e.fatal, e.sendDead, e.recvDead, e.hasBad, e.draining, e.lastWQE = false, false, false, false, false, false, false, false
	e.marked = false
	e.unsigned = 0
	e.answered = w.now()
	if e.q == nil {
		e.sigAll = l.sigAll[e.index]
		var source wq.RecvSource
		if e.srq = nil; len(e.a.srqs) > 0 && w.rand.IntN(2) == 0 {
			e.srq = e.a.srqs[w.rand.IntN(len(e.a.srqs))]
			source = e.srq.ring
		} else {
			e.recv = wq.NewRecvQueue(slots + 1)
			source = e.recv
		}
		e.q = e.a.newQueue(e, transport.Config{
			Type: e.c.typ, Recv: source, SRQ: e.srq != nil, SQSigAll: e.sigAll, Window: l.window, MaxRDAtomic: 16,
			Cap: qpstate.Cap{MaxSendWR: maxPending + 1, MaxRecvWR: slots + 1, MaxSendSGE: sgeMost, MaxRecvSGE: sgeMost, MaxInlineData: inlineMost},
		})
	}
	p := e.peer()
	e.sum, e.swap = word(p.a.mem[p.addCell:]), word(p.a.mem[p.swapCell:])
}

// postRecvs posts receives until each slot has one.
func (e *end) postRecvs() {
	if e.srq != nil {
		return
	}
	for i := range slots {
		e.postRecv(i)
	}
}

func (e *end) postRecv(slot int) {
	s := e.c.w.plan.slot
	off := e.receives + slot*s
	wr := wq.RecvWR{WRID: e.nextRecv, SGList: e.c.w.cut(e.mr, off, s)}
	if err := e.recv.Push(&wr); err != nil {
		e.c.w.fail("%v: post receive: %v", e.q, err)
		return
	}
	e.posted = append(e.posted, recv{e.nextRecv, slot, off, s})
	e.nextRecv++
	e.q.qp.PostRecv(e.c.w.now())
	e.q.touch()
}

// again posts a receive in place of one that completed, at once or late.
func (e *end) again(r *recv) {
	if e.srq != nil {
		e.srq.again(r.slot)
		return
	}
	life := e.c.lives
	e.c.w.lately(func() {
		if e.c.lives == life && !e.gone && (e.c.phase == up || e.c.phase == dying) {
			e.postRecv(r.slot)
		}
	})
}

// claim is the receive that completes.
func (e *end) claim(wc *cq.WC) (r recv, ok bool) {
	switch {
	case e.srq != nil:
		r, ok = e.srq.claim(wc)
	case len(e.posted) > 0 && e.posted[0].id == wc.WRID:
		r, ok = e.posted[0], true
		e.posted = e.posted[1:]
	}
	if !ok {
		e.c.w.fail("%v: receive %d completes, posted are %v", e.q, wc.WRID, e.posted)
	}
	return r, ok
}

// event is what the queue pair tells of itself.
func (e *end) event(ev *transport.Event) {
	w := e.c.w
	switch {
	case ev.Kind == transport.SQDrained:
		if !e.draining {
			w.fail("%v: drained, but was not asked to", e.q)
		}
		life := e.c.lives
		w.after(w.upTo(time.Millisecond), func() {
			if e.c.lives != life || e.gone || e.c.phase != up && e.c.phase != dying {
				return
			}
			e.draining = false
			if e.q.qp.State() == qpstate.SQD {
				e.modify(qpstate.Attr{State: qpstate.RTS}, qpstate.MaskState)
			}
		})
	case ev.Kind == transport.QPReqErr, ev.Kind == transport.QPAccessErr:
		if !e.peer().hasBad && !e.c.loose {
			w.fail("%v: %s; its peer did nothing bad", e.q, ev.Text())
		}
	case ev.Kind == transport.QPFatal:
		if !e.fatal && !e.c.loose {
			w.fail("%v: %s", e.q, ev.Text())
		}
	case ev.Kind == transport.LastWQE:
		if e.srq == nil || e.q.qp.State() != qpstate.Err {
			w.fail("%v: %s", e.q, ev.Text())
		}
		e.lastWQE = true
	}
	if e.q.qp.State() == qpstate.Err {
		e.c.die()
	}
}

// modify changes the queue pair.
func (e *end) modify(a qpstate.Attr, m qpstate.Mask) {
	if err := e.q.qp.Modify(e.c.w.now(), &a, m, nil); err != nil {
		e.c.w.fail("%v: %v", e.q, err)
	}
	e.q.touch()
}

// kill moves the queue pair to ERR, unless it is there. One that was left to find
// out for itself must have.
func (e *end) kill() {
	w := e.c.w
	if e.gone {
		return
	}
	if st := e.q.qp.State(); st != qpstate.Err {
		if e.c.whole && e.c.typ == qpstate.RC && len(e.ops) > 0 && e.ops[0].at.Before(e.c.died) && !e.draining && !e.silent() {
			w.fail("%v: its peer is dead since %v, and %s has not ended; state %v, next timeout %v", e.q, e.c.died.Sub(start), &e.ops[0], st, e.q.qp.NextTimeout().Sub(start))
			return
		}
		if w.rand.IntN(3) == 0 {
			e.fatal = true
			e.q.qp.Fatal(w.now())
		}
		e.toErr = true
		e.modify(qpstate.Attr{State: qpstate.Err}, qpstate.MaskState)
		w.harvest()
	}
	if w.rand.IntN(2) == 0 { // what is posted in ERR is flushed
		e.post(true)
		if e.srq == nil {
			e.postRecv(0)
		}
		w.harvest()
	}
}

// silent says whether nothing of what is posted may wait for the peer: what is not
// signaled may be done, and nobody knows.
func (e *end) silent() bool {
	for i := range e.ops {
		if e.ops[i].signaled {
			return false
		}
	}
	return true
}

// waits says whether something posted is not known to be done. Where there is no
// memory for a request that would tell, it is not asked.
func (e *end) waits() bool { return len(e.ops) > 0 && !(e.a.poor && e.silent()) }

// vanish is the end of the adapter's life.
func (e *end) vanish() {
	e.gone = true
	e.failed = append(e.failed, e.ops...)
	e.ops, e.posted = nil, nil
	e.q = nil
	e.c.die()
}

// quit closes the queue pair, or leaves it in RESET to be used again.
func (e *end) quit(keep bool) {
	if e.gone {
		return
	}
	e.dropLocks()
	if e.marked {
		e.a.keys.Free(e.mr)
	} else {
		e.a.deregister(e.mr)
	}
	if keep {
		e.modify(qpstate.Attr{State: qpstate.Reset}, qpstate.MaskState)
		return
	}
	e.q.close()
	e.q = nil
}
