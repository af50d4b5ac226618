package nic

import (
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/transport"
)

// transmit pulls packets from the queue pairs that have some, a share each,
// and sends them, until all are empty, the turn's budget is spent or the
// socket is full. Those with little to send go first; bulk senders have a budget
// of their own, so that nobody starves them.
func (w *worker) transmit() int {
	n := w.send()
	w.resumeWaiting()
	w.releaseHeld()
	w.wakeReady()
	n += w.transmitFrom(&w.active.few, turnBytes)
	n += w.transmitFrom(&w.active.bulk, turnBytes)
	n += w.send()
	if n == 0 && !w.batch.blocked() && !w.active.empty() {
		return 1 // what bulk senders gave back lets others go on, in the next turn
	}
	return n
}

// transmitFrom pulls packets from the queue pairs of one list, within a budget.
func (w *worker) transmitFrom(l *qpList, budget int) (n int) {
	for budget > 0 && !w.batch.blocked() {
		q := l.pop()
		if q == nil {
			// What was pulled may have left room for others of the same peer.
			if w.wakeReady(); l.head == nil {
				break
			}
			continue
		}
		if q.removed || q.dead || w.hold(q) {
			continue
		}
		w.current = q
		sent, more := w.pull(q, min(budget, qpTurnBytes))
		w.current = nil
		budget -= sent
		n += sent
		q.bulk = sent >= bulkBytes || q.bulk && sent == 0
		w.settle(q)
		if more {
			w.active.push(q)
		}
	}
	return n
}

// wakeReady lets those go on that waited for their peer's window, and whose turn
// it is.
func (w *worker) wakeReady() {
	for e := w.peers.TakeReady(); e != nil; e = w.peers.TakeReady() {
		if q := w.byQPN[e.QPN()]; q != nil {
			w.active.push(q)
		}
	}
}

// fewPackets is how many packets a turn receives at most for acknowledgements
// to be held; our own tuning.
const fewPackets = 4

// hold keeps a lone acknowledgement back until the next turn: in an exchange of
// single messages the program's answer is about to come, and leaves with it.
func (w *worker) hold(q *qp) bool {
	if q.held || w.got > fewPackets || !q.engine.OnlyAck() {
		q.held = false
		return false
	}
	q.held = true
	w.held = append(w.held, q)
	return true
}

// releaseHeld lets the acknowledgements of the last turn go.
func (w *worker) releaseHeld() {
	for i, q := range w.held {
		w.active.push(q)
		w.held[i] = nil
	}
	w.held = w.held[:0]
}

// pull takes packets of one queue pair, at most budget bytes; more says that
// it may have further ones.
func (w *worker) pull(q *qp, budget int) (sent int, more bool) {
	if q.here {
		return w.pullLocal(q, budget)
	}
	for sent < budget || sent < 2*budget && w.batch.unfinished() {
		if w.batch.full() {
			w.send()
			if w.batch.blocked() || w.batch.full() {
				return sent, true
			}
		}
		n, tx := q.engine.PollTransmit(w.now, w.batch.room())
		if n == 0 {
			if q.gsi != nil && q.gsi.post(w.now) {
				continue
			}
			if q.sqWaits {
				w.drainSQ(q)
				if !q.sqWaits {
					continue
				}
			}
			return w.spent(q, sent)
		}
		if q.datagrams {
			w.batch.addDatagram(q, q.link.ahs.last, n, &tx)
			sent += n
			continue
		}
		w.batch.add(q, n, &tx)
		w.watchSegments(q, &tx)
		sent += n + w.pullMiddles(q, &tx)
	}
	return sent, true
}

// localCost is what a batch of requests that make no packet takes of a turn's
// budget, in bytes; our own tuning.
const localCost = turnBytes / 4

// spent is what a queue pair without packets took of the turn, and whether it has
// more to do: requests that make no packet are carried out some at a time.
func (w *worker) spent(q *qp, sent int) (spent int, more bool) {
	if q.engine.LocalWaiting() {
		return sent + localCost, true
	}
	return sent, false
}

// pullMiddles takes the Middle packets that follow a packet of a long message,
// as far as they make one run.
func (w *worker) pullMiddles(q *qp, tx *transport.Transmit) (sent int) {
	info := tx.Opcode.Info()
	if info.Position != bth.First && info.Position != bth.Middle {
		return 0
	}
	buf, most := w.batch.middles(info.Headers == 0)
	count, first := q.engine.PollMiddles(w.now, buf, most)
	if count == 0 {
		return 0
	}
	n := q.engine.MiddleLen()
	w.batch.addMiddles(count, n, first)
	if q.route.trial {
		for k := range count {
			tx.PSN = first.Add(uint32(k))
			w.watchSegments(q, tx)
		}
	}
	return count * n
}
