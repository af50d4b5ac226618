package soak

import (
	"bytes"
	"slices"

	"github.com/softroce/softroce/pkg/cq"
	"github.com/softroce/softroce/pkg/qpstate"
	"github.com/softroce/softroce/pkg/wq"
)

// On an unreliable connection a message comes whole or not at all. One that the
// network doubled can come twice, and one that it held back behind later ones.
// What is not whole leaves its begin in memory.

// sentOp is a request that was posted on an unreliable service.
type sentOp struct {
	op
	to   uint32 // UD: the queue pair that it is for
	came []came
}

// came counts how often a queue pair received it.
type came struct {
	by *queue
	n  int
}

// arrive counts an arrival, and says whether it may be.
func (s *sentOp) arrive(w *world, by *queue) bool {
	most := 1
	if w.plan.net.Duplicate > 0 {
		most = 2
	}
	i := slices.IndexFunc(s.came, func(c came) bool { return c.by == by })
	if i < 0 {
		i = len(s.came)
		s.came = append(s.came, came{by: by})
	}
	s.came[i].n++
	return s.came[i].n <= most
}

// unreliable looks at a completed receive of an unreliable connection.
func (e *end) unreliable(r *recv, wc *cq.WC, solicited bool) {
	w := e.c.w
	if wc.Status != cq.Success {
		e.unreliableFailed(r, wc.Status)
		return
	}
	off := func(o *op) int {
		if o.code == wq.RDMAWriteWithImm {
			return e.writes + o.slot*w.plan.slot
		}
		return r.off
	}
	is := func(s *sentOp) bool {
		o := &s.op
		as := cq.Recv
		if o.code == wq.RDMAWriteWithImm {
			as = cq.RecvRDMAWithImm
		}
		hasImm := o.code != wq.Send
		return o.isMessage() && o.bad == nothing && int(wc.ByteLen) == o.n && wc.Opcode == as && o.solicit == solicited &&
			hasImm == (wc.Flags&cq.WithImm != 0) && (!hasImm || wc.ImmData == o.imm) &&
			bytes.Equal(e.a.mem[off(o):off(o)+o.n], o.data)
	}
	s := find(e.peer().sent, is, w, e.q)
	if s == nil {
		w.fail("%v: receive %d holds what no message of the peer is, or one that came too often: %s", e.q, r.id, wcText(wc))
		return
	}
	w.result.UCReceived++
	e.a.arrived(off(&s.op), s.data)
	from := s.n
	if s.code == wq.RDMAWriteWithImm {
		from = 0
	}
	e.leftovers(r.off+from, r.off, r.off+r.n, func(o *op) bool { return o.code != wq.RDMAWrite && o.code != wq.RDMAWriteWithImm })
	e.again(r)
}

// find finds the newest of the messages that is one, and did not come too often.
func find(sent []sentOp, is func(*sentOp) bool, w *world, by *queue) *sentOp {
	for i := len(sent) - 1; i >= 0; i-- {
		if s := &sent[i]; is(s) && s.arrive(w, by) {
			return s
		}
	}
	return nil
}

// unreliableFailed: a receive is flushed in ERR. One of a shared queue also ends
// with the message that took it.
func (e *end) unreliableFailed(r *recv, status cq.Status) {
	w := e.c.w
	inErr := e.q.qp.State() == qpstate.Err
	switch {
	case inErr && (status == cq.WRFlushErr || e.c.loose && !e.recvDead):
		e.recvDead = true
	case e.srq != nil && status == cq.RemInvReqErr && !inErr: // cut short
	case e.srq != nil && status == cq.LocAccessErr && !inErr: // or its key was taken back meanwhile
	case e.srq != nil && status == cq.LocLenErr && e.peer().hasBad:
	default:
		w.fail("%v: receive %d ends with %v in %v", e.q, r.id, status, e.q.qp.State())
	}
	e.leftovers(r.off, r.off, r.off+r.n, func(o *op) bool { return o.code != wq.RDMAWrite && o.code != wq.RDMAWriteWithImm })
	switch {
	case e.srq != nil:
		e.again(r)
	case !inErr:
		w.fail("%v: receive %d of its own ends with %v", e.q, r.id, status)
	}
	if inErr {
		e.c.die()
	}
}

// leftovers looks at memory [from, to), a part of a place that begins at base,
// where messages that were cut short may have left their begin: each byte is as
// before, or as one of them has it there.
func (e *end) leftovers(from, base, to int, of func(*op) bool) {
	mem, model := e.a.mem, e.a.model
	if bytes.Equal(mem[from:to], model[from:to]) {
		return
	}
	sent := e.peer().sent
	at := len(sent) - 1 // the message that the byte before is of
	for i := from; i < to; i++ {
		if mem[i] == model[i] {
			continue
		}
		is := func(k int) bool {
			o := &sent[k].op
			return i-base < len(o.data) && o.data[i-base] == mem[i] && of(o)
		}
		if at < 0 || !is(at) {
			for at = len(sent) - 1; at >= 0 && !is(at); at-- {
			}
		}
		if at < 0 {
			e.c.w.fail("%v: byte at offset %#x is %#02x, want %#02x, and no message has that there", e, i, mem[i], model[i])
			return
		}
		model[i] = mem[i]
	}
}

// resolveUC looks at the memory that the peer may have written.
func (e *end) resolveUC() {
	if e.gone {
		return
	}
	for slot := range slots {
		at := e.writes + slot*e.c.w.plan.slot
		e.leftovers(at, at, at+e.c.w.plan.slot, func(o *op) bool {
			return o.slot == slot && (o.code == wq.RDMAWrite || o.code == wq.RDMAWriteWithImm)
		})
	}
}
