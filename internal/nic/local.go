package nic

import (
	"net/netip"

	"github.com/softroce/softroce/pkg/transport"
)

// Two queue pairs of one adapter meet in memory: the same packets by the same
// engines, captured and counted as on the wire, without a socket. Each is
// built, handled and forgotten while it is in the nearest cache; between two
// workers it goes by a lane. Its ICRC is left out unless somebody captures, and
// then the payloads of Middle packets are lent, not copied (loan.go).

// isLocal says whether an address is the adapter's own.
func (a *Adapter) isLocal(addr netip.Addr) bool {
	entries := a.gids.load()
	for i := range entries {
		if entries[i].addr.WithZone("") == addr {
			return true
		}
	}
	return false
}

// pullLocal takes packets of a queue pair whose peer is on this adapter, at
// most budget bytes, and hands each over. more says that it may have further
// ones; a full lane makes it wait.
func (w *worker) pullLocal(q *qp, budget int) (sent int, more bool) {
	to := w.a.workerOf(q.remote)
	if w.impaired.on {
		return w.pullImpaired(q, to, budget)
	}
	if to == w {
		return w.pullHere(q, budget)
	}
	l := w.laneTo(to)
	for more = true; sent < budget; {
		h := l.room()
		if h == nil {
			w.waiting = append(w.waiting, q)
			more = false
			break
		}
		n, ok := w.give(q, h, budget-sent)
		if !ok {
			sent, more = w.spent(q, sent)
			break
		}
		l.put()
		sent += n
	}
	if l.publish() {
		to.signal()
	}
	return sent, more
}

// pullHere is pullLocal for two queue pairs of this worker.
func (w *worker) pullHere(q *qp, budget int) (sent int, more bool) {
	h := &w.here
	h.loan = loan{} // of a run that ended in a fault
	defer func() {
		if w.current != q { // the peer's memory faulted: q itself goes on
			w.active.push(q)
		}
	}()
	for sent < budget {
		n, ok := w.give(q, h, budget-sent)
		if !ok {
			return w.spent(q, sent)
		}
		sent += n
		w.takeHanded(h)
		w.current = q
	}
	return sent, true
}

// give puts the next packet of a queue pair into a slot, or a run of them, of
// budget bytes and no more than a packet over; n is their length.
func (w *worker) give(q *qp, h *handed, budget int) (n int, ok bool) {
	h.from, h.meta = fromLocal, q.meta
	if n = w.lend(q, h, budget); n > 0 {
		return n, true
	}
	h.n, ok = w.next(q, h.buf[:])
	return h.n, ok
}

// next builds the next packet for a queue pair of this adapter in buf, counts
// and captures it.
func (w *worker) next(q *qp, buf []byte) (n int, ok bool) {
	var tx transport.Transmit
	for {
		if n, tx = q.engine.PollTransmit(w.now, buf); n > 0 {
			break
		}
		if !q.sqWaits {
			return 0, false
		}
		if w.drainSQ(q); q.sqWaits {
			return 0, false
		}
	}
	w.stats.PacketsOut++
	w.stats.BytesOut += uint64(n)
	w.stats.Local++
	if tap := w.a.tap.Load(); tap != nil {
		w.captureOut(tap, &outgoing{
			n: n, q: q, route: q.route, port: tx.Path.SrcPort, tos: tx.Path.TrafficClass, ttl: tx.Path.HopLimit, resend: tx.Resend,
		}, buf[:n])
	}
	return n, true
}

// resumeWaiting has the queue pairs go on that found a lane full.
func (w *worker) resumeWaiting() {
	for i, q := range w.waiting {
		w.active.push(q)
		w.waiting[i] = nil
	}
	w.waiting = w.waiting[:0]
}
