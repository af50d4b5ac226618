package nic

import (
	"github.com/softroce/softroce/internal/shm"
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/transport"
)

// A loan is memory of a region that is mapped here, in the hand-over between two
// queue pairs of this adapter: the payloads of a run of Middle packets. The
// sender's worker does not read it, the receiver's copies it to where it goes.
// A region's memory is unmapped when no loan can be left: see endLoans.
type loan struct {
	from    *qp // the lender
	payload []byte
	size    int // bytes of each packet's
	bytes   int // of the whole loan; payload is what is left of it
}

// lend puts the Middle packets that a queue pair sends next into a slot by
// reference. It returns their length; 0: there are none that can be lent, and
// next builds what comes. Where packets are captured they have an ICRC, and none
// are lent.
func (w *worker) lend(q *qp, h *handed, budget int) int {
	size := q.engine.MiddleLen()
	n, payload := q.engine.LendMiddles(w.now, h.buf[:], (budget+size-1)/size, h == &w.here)
	if n == 0 {
		return 0
	}
	h.n = bth.BTHLen + bth.ICRCLen
	h.loan = loan{from: q, payload: payload, size: len(payload) / n, bytes: len(payload)}
	w.stats.PacketsOut += uint64(n)
	w.stats.BytesOut += uint64(n * size)
	w.stats.Local += uint64(n)
	return n * size
}

// takeLoan serves a run whose payloads are lent. Its queue pair takes it as a
// whole where it can; of what it does not take, packets are built and served one
// by one. What was served is no longer in the loan.
func (w *worker) takeLoan(h *handed) {
	w.loan = h
	w.takeRun(h)
	for l := &h.loan; len(l.payload) > 0; l.payload = l.payload[l.size:] {
		k := (l.bytes - len(l.payload)) / l.size
		n := transport.BuildLent(w.lentBuf[:], h.buf[:h.n], k, l.payload[:l.size])
		w.accept(&h.meta, w.lentBuf[:n:n], fromLocal)
	}
	w.loan, h.loan = nil, loan{}
}

// takeRun hands a lent run to its queue pair.
func (w *worker) takeRun(h *handed) {
	l := &h.loan
	if len(l.payload) == 0 || w.pkt.Parse(h.buf[:h.n:h.n]) != nil {
		return
	}
	q := w.find(w.pkt.BTH().DestQP())
	if q == nil || q.dead {
		return
	}
	w.setSource(&h.meta, 0)
	w.current = q
	n := q.engine.HandleLent(w.now, &w.pkt, l.payload, l.size)
	w.current = nil
	if n == 0 {
		return
	}
	l.payload = l.payload[n*l.size:]
	w.stats.PacketsIn += uint64(n)
	w.stats.BytesIn += uint64(n * (l.size + h.n))
	w.accepted(q)
}

// lenderOf is the queue pair whose loan has the address, while it is being taken;
// nil: none. Nothing is left of the loan then.
func (w *worker) lenderOf(addr uint64) *qp {
	if w.loan == nil {
		return nil
	}
	l := &w.loan.loan
	if len(l.payload) == 0 || addr-shm.AddrOf(l.payload) >= uint64(len(l.payload)) {
		return nil
	}
	l.payload = nil
	return l.from
}

// endLoans returns once no worker uses memory by a look-up made before the call:
// each has passed a turn's boundary, so that none lends it any more, and then has
// taken all that the others had lent.
func (a *Adapter) endLoans() {
	a.quiesce()
	a.quiesce() // commands wait for what is in the lanes
}
