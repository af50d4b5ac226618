package soak

import (
	"errors"
	"time"

	"github.com/softroce/softroce/pkg/qpstate"
	"github.com/softroce/softroce/pkg/wq"
)

const (
	maxPending = 2 * slots              // requests of a queue pair
	inlineMost = 256                    // bytes
	burst      = 5                      // requests at once, at most
	lateMost   = 300 * time.Microsecond // that a receive is late
)

// wrong is what is wrong with a bad request.
type wrong uint8

const (
	nothing  wrong = iota
	badKey         // an rkey that is not there
	badRange       // one byte behind the region
	tooLong        // for the peer's receive
	badLKey        // an lkey that is not there
	wrongs
)

// thinkLater has the program think again.
func (e *end) thinkLater() {
	life := e.c.lives
	e.c.w.after(e.c.w.upTo(e.c.w.plan.think), func() {
		if e.c.lives == life && !e.gone && (e.c.phase == up || e.c.phase == dying) {
			e.think()
		}
	})
}

// think is what the program does with its queue pair: it posts, most of the time.
func (e *end) think() {
	w, p := e.c.w, &e.c.w.plan
	switch {
	case w.toPost <= 0:
		// All that is left is a request that tells that those before it are done.
		if n := len(e.ops); n == 0 {
			return
		} else if e.c.phase == up && !e.ops[n-1].signaled && n < maxPending {
			e.post(true)
		}
	case e.q.qp.State() == qpstate.SQE:
		e.sendDead = false
		e.modify(qpstate.Attr{State: qpstate.RTS}, qpstate.MaskState)
	case e.c.phase == up && w.chance(p.toErr):
		w.log.note(ToERR, "%v", e.q)
		e.toErr = true
		e.modify(qpstate.Attr{State: qpstate.Err}, qpstate.MaskState)
		e.c.die()
	case e.c.phase == up && w.chance(p.dereg):
		if e.a.keys.Mark(e.mr) == nil { // no window is bound to it
			w.log.note(Dereg, "%v", e.q)
			e.c.loose, e.marked = true, true
		}
	case e.c.phase == up && w.chance(p.drain) && e.q.qp.State() == qpstate.RTS:
		w.log.note(Drain, "%v", e.q)
		e.draining = true
		e.modify(qpstate.Attr{State: qpstate.SQD, EnSQDAsyncNotify: true}, qpstate.MaskState|qpstate.MaskEnSQDAsyncNotify)
	case e.c.phase == up && w.chance(p.drain) && e.q.qp.State() == qpstate.RTS && e.c.typ == qpstate.RC:
		e.modify(qpstate.Attr{MinRNRTimer: uint8(1 + w.rand.IntN(12))}, qpstate.MaskMinRNRTimer)
	default:
		for k := 1 + w.rand.IntN(burst); k > 0 && w.err == nil && len(e.ops) < maxPending; k-- {
			e.post(false)
		}
	}
	w.harvest()
	e.thinkLater()
}

// operation is one that is drawn, in weight of all.
type operation struct {
	code   wq.Opcode
	weight int
	shared bool // an atomic on a cell of all
}

// operations are what each type of queue pair draws from. BindMW stands for all
// that opens and shuts the end's memory.
var operations = map[qpstate.Type][]operation{
	qpstate.RC: {
		{wq.Send, 4, false},
		{wq.SendWithImm, 2, false},
		{wq.SendWithInv, 1, false},
		{wq.RDMAWrite, 4, false},
		{wq.RDMAWriteWithImm, 3, false},
		{wq.RDMARead, 4, false},
		{wq.AtomicFetchAndAdd, 1, false},
		{wq.AtomicFetchAndAdd, 1, true},
		{wq.AtomicCmpAndSwp, 1, false},
		{wq.BindMW, 2, false},
	},
	qpstate.UC: {
		{wq.Send, 4, false},
		{wq.SendWithImm, 2, false},
		{wq.RDMAWrite, 4, false},
		{wq.RDMAWriteWithImm, 3, false},
		{wq.BindMW, 1, false},
	},
}

// draw draws an operation.
func (e *end) draw() (code wq.Opcode, shared bool) {
	l, sum := operations[e.c.typ], 0
	for i := range l {
		sum += l[i].weight
	}
	k := e.c.w.rand.IntN(sum)
	for i := range l {
		if k -= l[i].weight; k < 0 {
			return l[i].code, l[i].shared
		}
	}
	return wq.Send, false
}

// length is a message's: often around the borders of packets.
func (e *end) length() int {
	r, most := &e.c.w.rand, e.c.w.plan.slot
	n := 0
	switch r.IntN(6) {
	case 0:
		n = r.IntN(5)
	case 1:
		n = 256<<r.IntN(5) + r.IntN(3) - 1
	case 2:
		n = r.IntN(most + 1)
	default:
		n = r.IntN(3000)
	}
	return min(n, most)
}

// post posts a request; signaled: it must tell that it is done.
func (e *end) post(signaled bool) {
	w, r := e.c.w, &e.c.w.rand
	o := op{id: e.nextID, imm: uint32(r.Uint64()), n: e.length(), cell: -1, at: w.now()}
	var shared bool
	o.code, shared = e.draw()
	busy := e.busyOf(o.code)
	if busy != nil {
		if o.slot = r.IntN(slots); busy[o.slot] {
			return
		}
	}
	o.signaled = signaled || e.sigAll || r.IntN(3) > 0 || e.unsigned >= slots-1
	o.solicit = r.IntN(2) == 0
	wr := wq.SendWR{WRID: o.id, Opcode: o.code, ImmData: o.imm, RKey: e.peer().mr.RKey()}
	if o.signaled && !e.sigAll {
		wr.Flags |= wq.SendSignaled
	}
	if o.solicit {
		wr.Flags |= wq.SendSolicited
	}
	if r.IntN(8) == 0 {
		wr.Flags |= wq.SendFence
	}
	if !e.build(&o, &wr, shared) {
		return
	}
	if w.chance(w.plan.bad) && e.c.phase == up && !signaled {
		e.spoil(&o, &wr)
	}
	e.give(&o, &wr, busy)
}

// busyOf is which slots of an operation's kind are in use, nil: it has none.
func (e *end) busyOf(code wq.Opcode) *[slots]bool {
	switch code {
	case wq.RDMAWrite, wq.RDMAWriteWithImm:
		return &e.writeBusy
	case wq.RDMARead:
		return &e.landBusy
	case wq.AtomicFetchAndAdd, wq.AtomicCmpAndSwp:
		return &e.wordBusy
	case wq.Send, wq.SendWithImm, wq.SendWithInv, wq.LocalInv, wq.BindMW, wq.RegMR:
	}
	return nil
}

// build fills in what the operation needs; false: it cannot be done now.
func (e *end) build(o *op, wr *wq.SendWR, shared bool) bool {
	w, p, s := e.c.w, e.peer(), e.c.w.plan.slot
	r := &w.rand
	from := r.IntN(s + 1)
	switch {
	case o.code == wq.RDMARead:
		o.data = p.a.mem[p.source+from : p.source+from+o.n]
		wr.RemoteAddr = memBase + uint64(p.source+from)
		wr.SGList = w.cut(e.mr, e.lands+o.slot*s, o.n)
	case o.code == wq.AtomicFetchAndAdd, o.code == wq.AtomicCmpAndSwp:
		e.buildAtomic(o, wr, shared)
	case o.code == wq.BindMW:
		if !e.turnKey(o, wr) {
			return false
		}
		wr.Opcode = o.code
	default:
		off := e.source + from
		o.data = e.a.mem[off : off+o.n]
		if o.n <= inlineMost && r.IntN(2) == 0 {
			wr.Flags |= wq.SendInline
			wr.Inline = append([]byte(nil), o.data...)
		} else {
			wr.SGList = w.cut(e.mr, off, o.n)
		}
		wr.RemoteAddr = memBase + uint64(p.writes+o.slot*s)
		switch {
		case o.code == wq.RDMAWrite, o.code == wq.RDMAWriteWithImm:
			e.enter(o, wr)
		case o.code == wq.SendWithInv:
			o.code, wr.Opcode = wq.Send, wq.Send // when there is nothing to invalidate
			e.sendAndShut(o, wr)
		}
	}
	return true
}

// buildAtomic foretells what will come of it.
func (e *end) buildAtomic(o *op, wr *wq.SendWR, shared bool) {
	r, p := &e.c.w.rand, e.peer()
	o.n = 8
	wr.SGList = []wq.SGE{{Addr: memBase + uint64(e.results+8*o.slot), Length: 8, LKey: e.mr.LKey()}}
	switch {
	case shared:
		o.cell = r.IntN(cells)
		wr.CompareAdd = 1
		wr.RemoteAddr, wr.RKey = memBase+cellsOff+8*uint64(o.cell), p.a.shared.RKey()
	case o.code == wq.AtomicFetchAndAdd:
		wr.CompareAdd = r.Uint64()
		wr.RemoteAddr = memBase + uint64(p.addCell)
		o.want, o.after = e.sum, e.sum+wr.CompareAdd
	default:
		wr.CompareAdd, wr.Swap = e.swap, r.Uint64()
		if r.IntN(3) == 0 {
			wr.CompareAdd++ // does not match
		}
		wr.RemoteAddr = memBase + uint64(p.swapCell)
		o.want, o.after = e.swap, wr.Swap
		if wr.CompareAdd != e.swap {
			o.after = e.swap
		}
	}
}

// spoil makes a request bad.
func (e *end) spoil(o *op, wr *wq.SendWR) {
	w, p := e.c.w, e.peer()
	switch k := nothing + 1 + wrong(w.rand.IntN(int(wrongs-1))); {
	case o.lock != nil:
		e.spoilLock(o, wr)
	case k == badKey && o.n > 0 && o.code != wq.Send && o.code != wq.SendWithImm:
		wr.RKey ^= 0x5A00
		o.bad = k
	case k == badRange && o.n > 0 && o.through == nil && (o.code == wq.RDMAWrite || o.code == wq.RDMARead):
		wr.RemoteAddr = memBase + uint64(p.base+p.size-o.n+1)
		o.bad = k
	case k == tooLong && (o.code == wq.Send || o.code == wq.SendWithImm):
		o.n = w.plan.slot + grhLen + 1 + w.rand.IntN(recvSpare-grhLen) // a shared queue's receives have room for the header
		o.data = e.a.mem[e.source : e.source+o.n]
		wr.Flags &^= wq.SendInline
		wr.SGList, wr.Inline = w.cut(e.mr, e.source, o.n), nil
		o.bad = k
	case k == badLKey && o.n > 0 && wr.Flags&wq.SendInline == 0:
		for i := range wr.SGList {
			wr.SGList[i].LKey ^= 0x5A00
		}
		o.bad = k
	}
}

// spoilLock makes a request bad that opens or shuts a lock.
func (e *end) spoilLock(o *op, wr *wq.SendWR) {
	switch {
	case o.code == wq.SendWithInv, o.code == wq.LocalInv:
		wr.InvalidateRKey ^= 0x5A00
		o.bad = badKey
	case o.code == wq.RegMR:
		wr.SGList[0].LKey ^= 0x5A00
		o.bad = badLKey
	case o.lock.phase == opening:
		wr.Bind.Length += uint64(e.size)
		o.bad = badRange
	}
}

// give posts what was built, and notes in the model what will come of it.
func (e *end) give(o *op, wr *wq.SendWR, busy *[slots]bool) {
	w, p := e.c.w, e.peer()
	st := e.q.qp.State()
	flushes := st == qpstate.Err || st == qpstate.SQE // the request completes before the call is over
	e.nextID++
	w.toPost--
	w.result.Requests++
	e.ops = append(e.ops, *o)
	if w.cfg.Trace != nil {
		w.trace("%v post %s, signaled %v, bad %d", e.q, o, o.signaled, o.bad)
	}
	if err := e.q.qp.PostSend(w.now(), wr); errors.Is(err, wq.ErrSlab) && e.a.poor {
		w.result.Faults[NoMemory]++
		e.ops = e.ops[:len(e.ops)-1]
		if o.lock != nil {
			o.lock.undo()
		}
		return
	} else if err != nil {
		w.fail("%v: post %s: %v", e.q, o, err)
		return
	}
	if e.unsigned++; o.signaled {
		e.unsigned = 0
	}
	if busy != nil {
		busy[o.slot] = true
	}
	if o.bad != nothing {
		e.hasBad = true
		w.log.note(BadRequest, "%v %s: %d", e.q, o, o.bad)
	}
	if o.through != nil {
		o.through.uses++
	}
	if e.c.typ == qpstate.UC {
		e.sent = append(e.sent, sentOp{op: *o})
		if o.isMessage() {
			w.result.UCSent++
		}
	} else if !flushes && o.isMessage() && o.bad != badLKey && (o.bad != badKey || o.code == wq.SendWithInv) {
		p.arrivals = append(p.arrivals, *o)
	}
	if o.cell < 0 && o.bad == nothing && !flushes {
		switch {
		case o.code == wq.AtomicFetchAndAdd:
			e.sum = o.after
		case o.code == wq.AtomicCmpAndSwp:
			e.swap = o.after
		}
	}
	e.q.touch()
}
