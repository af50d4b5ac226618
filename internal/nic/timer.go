package nic

import "time"

// timerHeap is a binary heap of queue pairs by deadline, one entry each. An
// entry may be earlier than the engine's deadline (lazy re-arming), never
// later.
type timerHeap struct{ q []*qp }

// next is the earliest entry.
func (h *timerHeap) next() (time.Time, bool) {
	if len(h.q) == 0 {
		return time.Time{}, false
	}
	return h.q[0].timerAt, true
}

// due removes and returns a queue pair whose entry is not after now, or nil.
func (h *timerHeap) due(now time.Time) *qp {
	if len(h.q) == 0 || h.q[0].timerAt.After(now) {
		return nil
	}
	q := h.q[0]
	h.remove(q)
	return q
}

// set puts q's entry at d.
func (h *timerHeap) set(q *qp, d time.Time) {
	if q.timerPos < 0 {
		q.timerPos = len(h.q)
		h.q = append(h.q, q)
	}
	q.timerAt = d
	h.fix(q.timerPos)
}

// remove takes q's entry out, if it has one.
func (h *timerHeap) remove(q *qp) {
	i, last := q.timerPos, len(h.q)-1
	if i < 0 {
		return
	}
	q.timerPos = -1
	moved := h.q[last]
	h.q[last] = nil
	h.q = h.q[:last]
	if i == last {
		return
	}
	h.q[i], moved.timerPos = moved, i
	h.fix(i)
}

func (h *timerHeap) fix(i int) {
	q := h.q[i]
	for i > 0 {
		p := (i - 1) / 2
		if !q.timerAt.Before(h.q[p].timerAt) {
			break
		}
		h.q[i], h.q[p].timerPos = h.q[p], i
		i = p
	}
	for {
		c := 2*i + 1
		if c >= len(h.q) {
			break
		}
		if c+1 < len(h.q) && h.q[c+1].timerAt.Before(h.q[c].timerAt) {
			c++
		}
		if !h.q[c].timerAt.Before(q.timerAt) {
			break
		}
		h.q[i], h.q[c].timerPos = h.q[c], i
		i = c
	}
	h.q[i], q.timerPos = q, i
}
