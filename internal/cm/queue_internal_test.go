package cm

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// TestQueue is a queue beside a slice, with every pattern of pushes and takes.
func TestQueue(t *testing.T) {
	var q queue[int]
	var model []int
	r := rand.New(rand.NewPCG(1, 2))
	pushes := 0
	for range 200000 {
		if r.IntN(1000) < 490 || len(model) < r.IntN(40) {
			pushes++
			q.push(pushes)
			model = append(model, pushes)
		} else {
			got, ok := q.pop()
			if ok != (len(model) > 0) || ok && got != model[0] {
				t.Fatalf("popped %d, %v, want the first of %v", got, ok, model)
			}
			if ok {
				model = model[1:]
			}
		}
		if q.len() != len(model) || cap(q.items) > 4096 {
			t.Fatalf("length %d, capacity %d, want %d", q.len(), cap(q.items), len(model))
		}
	}
	for range 10000 {
		q.push(0)
	}
	for q.len() > 0 {
		q.pop()
	}
	if _, ok := q.pop(); ok || cap(q.items) > keepItems {
		t.Errorf("an empty queue keeps room for %d", cap(q.items))
	}
}

// TestTimers: what is due comes in order, wherever it was moved meanwhile.
func TestTimers(t *testing.T) {
	base := time.Unix(0, 0)
	r := rand.New(rand.NewPCG(3, 4))
	var ts timers
	conns := make([]*conn, 50)
	for i := range conns {
		conns[i] = &conn{id: CommID(i), slot: noSlot}
	}
	waiting := map[*conn]time.Time{}
	for range 20000 {
		c := conns[r.IntN(len(conns))]
		switch r.IntN(4) {
		case 0:
			ts.stop(c)
			delete(waiting, c)
		case 1:
			now := base.Add(time.Duration(r.IntN(100)))
			for due := ts.due(now); due != nil; due = ts.due(now) {
				if waiting[due].After(now) || slices.Min(times(waiting)) != waiting[due].UnixNano() {
					t.Fatalf("%v is due at %v, others at %v", waiting[due], now, times(waiting))
				}
				delete(waiting, due)
			}
		default:
			at := base.Add(time.Duration(r.IntN(1000)))
			ts.set(c, at)
			waiting[c] = at
		}
		if len(waiting) != len(ts.heap) {
			t.Fatalf("%d wait, want %d", len(ts.heap), len(waiting))
		}
		if next := ts.next(); len(waiting) > 0 && next.UnixNano() != slices.Min(times(waiting)) {
			t.Fatalf("next is %v, want the least of %v", next, times(waiting))
		}
	}
}

func times(waiting map[*conn]time.Time) (all []int64) {
	for _, at := range waiting {
		all = append(all, at.UnixNano())
	}
	return all
}
