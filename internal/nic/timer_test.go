package nic

import (
	"math/rand/v2"
	"testing"
	"time"
)

// The heap gives entries back in time order whatever was set, moved and
// removed before.
func TestTimerHeapOrder(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	base := time.Unix(0, 0)
	var h timerHeap
	qps := make([]*qp, 200)
	for i := range qps {
		qps[i] = &qp{timerPos: -1}
	}
	for range 5000 {
		q := qps[rng.IntN(len(qps))]
		if rng.IntN(4) == 0 {
			h.remove(q)
			continue
		}
		h.set(q, base.Add(time.Duration(rng.IntN(1000))*time.Millisecond))
	}
	left := len(h.q)
	last := time.Time{}
	for range left {
		want, ok := h.next()
		q := h.due(base.Add(time.Hour))
		if !ok || q == nil || !q.timerAt.Equal(want) || q.timerAt.Before(last) || q.timerPos != -1 {
			t.Fatalf("entry at %v after %v: got %+v, next said %v %v", q.timerAt, last, q.timerPos, want, ok)
		}
		last = q.timerAt
	}
	if q := h.due(base.Add(time.Hour)); q != nil {
		t.Errorf("the heap should be empty, got an entry at %v", q.timerAt)
	}
}

// An entry is due at its time and not before.
func TestTimerHeapDue(t *testing.T) {
	base := time.Unix(100, 0)
	var h timerHeap
	q := &qp{timerPos: -1}
	h.set(q, base)
	if got := h.due(base.Add(-1)); got != nil {
		t.Error("due a nanosecond before its time")
	}
	if got := h.due(base); got != q {
		t.Error("not due at its time")
	}
}
