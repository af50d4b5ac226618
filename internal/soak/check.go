package soak

import (
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/cq"
	"github.com/softroce/softroce/pkg/qpstate"
	"github.com/softroce/softroce/pkg/wq"
)

// completedAs is the operation that a completion names.
var completedAs = map[wq.Opcode]cq.Opcode{
	wq.Send: cq.Send, wq.SendWithImm: cq.Send, wq.SendWithInv: cq.Send,
	wq.RDMAWrite: cq.RDMAWrite, wq.RDMAWriteWithImm: cq.RDMAWrite, wq.RDMARead: cq.RDMARead,
	wq.AtomicFetchAndAdd: cq.FetchAdd, wq.AtomicCmpAndSwp: cq.CompSwap,
	wq.LocalInv: cq.LocalInv, wq.BindMW: cq.BindMW, wq.RegMR: cq.RegMR,
}

// sendDone: the completion must be of the oldest signaled request, and says that
// those before it are done.
func (e *end) sendDone(wc *cq.WC) {
	w := e.c.w
	for len(e.ops) > 0 {
		o := e.ops[0]
		e.ops = e.ops[1:]
		switch {
		case o.id != wc.WRID && (o.signaled || e.sendDead):
			w.fail("%v: completion of request %d, expected that of %s", e.q, wc.WRID, &o)
			return
		case o.id != wc.WRID:
			e.success(&o)
			continue
		case wc.Opcode != completedAs[o.code]:
			w.fail("%v: %s completes as %v", e.q, &o, wc.Opcode)
		case wc.Status != cq.Success:
			e.failure(&o, wc.Status)
		case !o.signaled || e.sendDead:
			w.fail("%v: %s completes; signaled %v, in error before it %v", e.q, &o, o.signaled, e.sendDead)
		case int(wc.ByteLen) != o.n && o.n >= 0:
			w.fail("%v: %s completes with byte_len %d", e.q, &o, wc.ByteLen)
		default:
			e.success(&o)
		}
		return
	}
	w.fail("%v: completion of request %d, which was not posted or is done", e.q, wc.WRID)
}

// success looks at what a request that is done has changed.
func (e *end) success(o *op) {
	w, p, s := e.c.w, e.peer(), e.c.w.plan.slot
	if o.bad != nothing && (e.c.typ == qpstate.RC || o.bad == badLKey) {
		w.fail("%v: %s succeeds, but was bad (%d)", e.q, o, o.bad)
	}
	e.release(o)
	if o.n < 0 {
		e.turned(o)
		return
	}
	if busy := e.busyOf(o.code); busy != nil {
		busy[o.slot] = false
	}
	if e.c.typ == qpstate.UC {
		return // nobody knows more
	}
	word8 := e.results + 8*o.slot
	switch {
	case o.code == wq.RDMARead:
		if !e.a.arrived(e.lands+o.slot*s, o.data) {
			w.fail("%v: %s: the data differs", e.q, o)
		}
	case o.code == wq.AtomicFetchAndAdd, o.code == wq.AtomicCmpAndSwp:
		got := word(e.a.mem[word8:])
		putWord(e.a.model[word8:], got)
		switch {
		case o.cell >= 0 && !p.gone:
			p.a.cells[o.cell].found = append(p.a.cells[o.cell].found, got)
		case o.cell >= 0:
		case got != o.want:
			w.fail("%v: %s returns %#x, want %#x", e.q, o, got, o.want)
		case !p.gone && o.code == wq.AtomicFetchAndAdd:
			putWord(p.a.model[p.addCell:], o.after)
		case !p.gone:
			putWord(p.a.model[p.swapCell:], o.after)
		}
	case o.code == wq.RDMAWrite:
		if !p.gone && !p.a.arrived(p.writes+o.slot*s, o.data) {
			w.fail("%v: %s: the peer's memory differs", e.q, o)
		}
	}
	if o.isMessage() && !p.gone && len(p.arrivals) > 0 && p.arrivals[0].id <= o.id {
		w.fail("%v: %s is done, but its peer has not received %s", e.q, o, &p.arrivals[0])
	}
}

// release gives up what a request that is over used of the peer's locks.
func (e *end) release(o *op) {
	if o.through != nil {
		o.through.uses--
	}
}

// failure: the first request that ends in error has a reason, the others are
// flushed.
func (e *end) failure(o *op, status cq.Status) {
	w := e.c.w
	e.failed = append(e.failed, *o)
	// What an RC request uses it may still use: its packets are on their way.
	if st := e.q.qp.State(); st == qpstate.SQE && e.c.typ == qpstate.UC {
		// What it would have opened or shut is as it was; its slot is free.
		if busy := e.busyOf(o.code); busy != nil {
			busy[o.slot] = false
		}
		if o.n < 0 {
			o.lock.undo()
		}
	}
	first := !e.sendDead
	e.sendDead = true
	switch {
	case !first && status == cq.WRFlushErr:
	case !first:
		w.fail("%v: %s ends with %v behind another error", e.q, o, status)
	case !e.mayFail(o, status):
		w.fail("%v: %s ends with %v; bad %d, moved to ERR %v, state %v, the peer's %v", e.q, o, status, o.bad, e.toErr, e.q.qp.State(), e.peer().state())
	}
	if e.q.qp.State() == qpstate.Err {
		e.c.die()
	}
}

// state is the queue pair's state, RESET when it is gone.
func (e *end) state() qpstate.State {
	if e.q == nil {
		return qpstate.Reset
	}
	return e.q.qp.State()
}

// mayFail says whether the first error can have this status.
func (e *end) mayFail(o *op, status cq.Status) bool {
	now, p := e.c.w.now(), e.peer()
	if e.c.loose || status == cq.RetryExcErr && p.a.poor {
		return true // a READ without memory for its record is dropped, and what follows uses up the retries
	}
	switch {
	case status == cq.WRFlushErr:
		return e.toErr || e.fatal || e.recvDead || p.hasBad
	case status == cq.RetryExcErr:
		since := e.answered
		if o.at.After(since) {
			since = o.at
		}
		cut := !e.c.cut.IsZero() && now.Sub(e.c.cut) < e.c.horizon()
		full := !e.c.w.log.overflow(e.a.index, p.a.index).Before(since)
		// A sequence NAK uses up a retry, too: the last one may, behind a partition.
		silent := now.Sub(since) >= bth.AckTimeout(e.c.plan.timeout)
		return cut || full || silent && (p.gone || p.state() == qpstate.Err)
	case status == cq.RNRRetryExcErr:
		return e.c.plan.rnrRetry < retries && (e.c.w.plan.late || e.c.near || p.srq != nil)
	case status == cq.RemAccessErr:
		return o.bad == badKey || o.bad == badRange
	case status == cq.RemInvReqErr:
		return o.bad == tooLong
	case status == cq.LocProtErr:
		return o.bad == badLKey
	case status == cq.MWBindErr:
		return o.code == wq.BindMW && o.bad != nothing
	case status == cq.LocQPOpErr:
		return o.code == wq.LocalInv && o.bad != nothing
	default:
		return false
	}
}

// recvDone: receives complete in order, with the peer's messages in order.
func (e *end) recvDone(wc *cq.WC, solicited bool) {
	w := e.c.w
	r, ok := e.claim(wc)
	switch {
	case !ok:
		return
	case e.c.typ == qpstate.UC:
		e.unreliable(&r, wc, solicited)
		return
	case wc.Status != cq.Success:
		e.recvFailed(&r, wc.Status)
		return
	case e.recvDead:
		w.fail("%v: receive %d succeeds behind one in error", e.q, wc.WRID)
		return
	case len(e.arrivals) == 0:
		w.fail("%v: receive %d completes, nothing was sent", e.q, wc.WRID)
		return
	}
	o := e.arrivals[0]
	e.arrivals = e.arrivals[1:]
	off, as := r.off, cq.Recv
	if o.code == wq.RDMAWriteWithImm {
		off, as = e.writes+o.slot*w.plan.slot, cq.RecvRDMAWithImm
	}
	switch {
	case o.bad != nothing:
		w.fail("%v: received %s, which was bad (%d)", e.q, &o, o.bad)
	case !e.a.arrived(off, o.data):
		w.fail("%v: received %s: the data differs", e.q, &o)
	case int(wc.ByteLen) != o.n || solicited != o.solicit || wc.Opcode != as:
		w.fail("%v: received %s: byte_len %d, solicited %v, %v", e.q, &o, wc.ByteLen, solicited, wc.Opcode)
	}
	if hasImm := o.code != wq.Send && o.code != wq.SendWithInv; hasImm != (wc.Flags&cq.WithImm != 0) || hasImm && wc.ImmData != o.imm {
		w.fail("%v: received %s: immediate %#x, want %#x", e.q, &o, wc.ImmData, o.imm)
	}
	if hasInv := o.code == wq.SendWithInv; hasInv != (wc.Flags&cq.WithInv != 0) || hasInv && wc.InvalidatedRKey != uint32(o.inv) {
		w.fail("%v: received %s: invalidated %#x, want %#x", e.q, &o, wc.InvalidatedRKey, o.inv)
	} else if hasInv {
		o.lock.phase = shut
	}
	e.again(&r)
}

// recvFailed: only the first receive in error can have been begun. It has a
// reason, or is flushed as the others.
func (e *end) recvFailed(r *recv, status cq.Status) {
	w := e.c.w
	first := !e.recvDead
	e.recvDead = true
	if e.q.qp.State() != qpstate.Err {
		w.fail("%v: receive %d ends with %v in %v", e.q, r.id, status, e.q.qp.State())
	}
	var o *op
	if len(e.arrivals) > 0 {
		o = &e.arrivals[0]
	}
	switch {
	case status == cq.WRFlushErr:
	case first && status == cq.LocLenErr && o != nil && o.bad == tooLong:
	case first && status == cq.LocAccessErr && e.peer().hasBad: // of a WRITE with immediate
	case first && status == cq.LocQPOpErr && o != nil && o.code == wq.SendWithInv && o.bad == badKey:
	case first && e.c.loose:
	default:
		w.fail("%v: receive %d ends with %v", e.q, r.id, status)
	}
	if first && o != nil && o.code != wq.RDMAWriteWithImm {
		if !e.a.begun(r.off, o.data[:min(o.n, r.n)]) {
			w.fail("%v: receive %d was flushed, and holds what is not the begin of %s", e.q, r.id, o)
		}
	}
	if !first && e.srq != nil {
		w.fail("%v: a second receive of the shared queue ends with %v", e.q, status)
	}
	if e.srq != nil {
		e.again(r)
	}
	e.c.die()
}

// lookAtFlush: in ERR nothing is left in the queues, but for what is done and was
// not to be told.
func (e *end) lookAtFlush() {
	w := e.c.w
	if e.gone {
		return
	}
	for len(e.ops) > 0 {
		o := e.ops[0]
		e.ops = e.ops[1:]
		if o.signaled || e.sendDead {
			w.fail("%v is in %v, and %s did not complete", e.q, e.q.qp.State(), &o)
			return
		}
		e.success(&o)
	}
	if e.lastWQE != (e.srq != nil) {
		w.fail("%v is in %v; has a shared receive queue %v, event of the last request %v", e.q, e.q.qp.State(), e.srq != nil, e.lastWQE)
	}
	if len(e.posted) > 0 {
		w.fail("%v is in %v, and receive %d did not complete", e.q, e.q.qp.State(), e.posted[0].id)
	}
}

// resolve looks at what requests that ended in error may have done: each executed
// wholly, in part or not at all, and none without those before it.
func (e *end) resolve() {
	w, p, s := e.c.w, e.peer(), e.c.w.plan.slot
	if e.c.typ == qpstate.UC {
		e.resolveUC()
		return
	}
	add, swap := e.firstWords()
	for i := range e.failed {
		o := &e.failed[i]
		if o.bad != nothing {
			// A long READ goes out in parts, and those inside the region are answered.
			if at := e.lands + o.slot*s; o.bad == badRange && o.code == wq.RDMARead && !e.gone {
				copy(e.a.model[at:at+o.n], e.a.mem[at:at+o.n])
			}
			continue
		}
		ok := true
		switch {
		case o.code == wq.RDMAWrite, o.code == wq.RDMAWriteWithImm:
			ok = p.gone || p.a.begun(p.writes+o.slot*s, o.data)
		case o.code == wq.RDMARead:
			ok = e.gone || e.a.begun(e.lands+o.slot*s, o.data)
		case o.code == wq.AtomicFetchAndAdd, o.code == wq.AtomicCmpAndSwp:
			ok = e.resolveAtomic(o, &add, &swap)
		}
		if !ok {
			w.fail("%v: %s ended in error, and memory is neither as before nor as it begins", e, o)
		}
	}
	if p.gone {
		return
	}
	if !add.met || !swap.met {
		w.fail("%v: the peer's cells are %#x and %#x, which no request makes of them", e, add.now, swap.now)
	}
	putWord(p.a.model[p.addCell:], add.now)
	putWord(p.a.model[p.swapCell:], swap.now)
}

// reached is a cell and whether its value is one that it went through.
type reached struct {
	now uint64
	met bool
}

// firstWords are the connection's cells at the peer, compared with what they were
// behind the last atomic that is known to be done.
func (e *end) firstWords() (add, swap reached) {
	p := e.peer()
	if p.gone {
		return add, swap
	}
	add.now, swap.now = word(p.a.mem[p.addCell:]), word(p.a.mem[p.swapCell:])
	add.met = add.now == word(p.a.model[p.addCell:])
	swap.met = swap.now == word(p.a.model[p.swapCell:])
	return add, swap
}

// resolveAtomic looks at an atomic that may have been executed.
func (e *end) resolveAtomic(o *op, add, swap *reached) bool {
	p := e.peer()
	off := e.results + 8*o.slot
	if o.cell >= 0 {
		if !p.gone {
			p.a.cells[o.cell].uncertain++
		}
		copy(e.a.model[off:off+8], e.a.mem[off:off+8])
		return true
	}
	r := add
	if o.code == wq.AtomicCmpAndSwp {
		r = swap
	}
	r.met = r.met || r.now == o.after
	var want [8]byte
	putWord(want[:], o.want)
	return e.gone || e.a.begun(off, want[:])
}
