package soak

import (
	"github.com/softroce/softroce/pkg/cq"
	"github.com/softroce/softroce/pkg/mrtable"
	"github.com/softroce/softroce/pkg/wq"
)

// srq is a shared receive queue, for queue pairs of every type.
type srq struct {
	a      *adapter
	base   int // of its slots
	size   int // of a slot: a message and, with datagrams, the network header
	slots  int
	ring   *wq.RecvQueue
	mr     *mrtable.Region
	posted map[uint64]int // slots of the receives that did not complete
	late   int            // slots that have none
	nextID uint64
}

func newSRQ(a *adapter) *srq {
	q := &srq{a: a, size: a.w.plan.slot + grhLen, slots: 2 * slots << a.w.rand.IntN(3), nextID: 1 << 32}
	q.base = a.reserve(q.size * q.slots)
	return q
}

// boot posts a receive for each slot.
func (q *srq) boot() {
	q.mr = q.a.register(q.base, q.size*q.slots)
	q.ring, q.posted, q.late = wq.NewRecvQueue(q.slots), make(map[uint64]int), 0
	for i := range q.slots {
		q.post(i)
	}
}

func (q *srq) post(slot int) {
	off := q.base + slot*q.size
	wr := wq.RecvWR{WRID: q.nextID, SGList: q.a.w.cut(q.mr, off, q.size)}
	if err := q.ring.Push(&wr); err != nil {
		q.a.w.fail("%v: shared receive queue: %v", q.a, err)
	}
	q.posted[q.nextID] = slot
	q.nextID++
}

// claim is the receive that completes; it is not posted any more.
func (q *srq) claim(wc *cq.WC) (recv, bool) {
	slot, ok := q.posted[wc.WRID]
	delete(q.posted, wc.WRID)
	return recv{id: wc.WRID, slot: slot, off: q.base + slot*q.size, n: q.size}, ok
}

// again posts a receive for a slot, at once or late.
func (q *srq) again(slot int) {
	q.late++
	life := q.a.life
	q.a.w.lately(func() {
		if q.a.life == life && q.a.up {
			q.late--
			q.post(slot)
		}
	})
}

// finish: each receive is in the queue.
func (q *srq) finish() {
	if len(q.posted) != q.ring.Len() || len(q.posted)+q.late != q.slots {
		q.a.w.fail("%v: of %d receives of a shared queue %d did not complete and %d are in it; %d are late",
			q.a, q.slots, len(q.posted), q.ring.Len(), q.late)
	}
}

// lately has something done at once, or after a while where the world has late
// receives.
func (w *world) lately(do func()) {
	if !w.plan.late || w.rand.IntN(3) > 0 {
		do()
		return
	}
	w.result.Faults[LateRecv]++
	w.after(w.upTo(lateMost), do)
}

// cut cuts a piece of memory into elements.
func (w *world) cut(r *mrtable.Region, off, n int) (l []wq.SGE) {
	sge := func(n int) wq.SGE {
		return wq.SGE{Addr: memBase + uint64(off), Length: uint32(n), LKey: r.LKey()}
	}
	for k := w.rand.IntN(sgeMost); k > 0; k-- {
		m := w.rand.IntN(n + 1)
		l = append(l, sge(m))
		off, n = off+m, n-m
	}
	return append(l, sge(n))
}
