package cm

import (
	"container/heap"
	"time"
)

// noSlot is the slot of an id that waits for no time.
const noSlot = -1

// timers are the ids that wait for a time, a heap by deadline and id.
type timers struct{ heap timerHeap }

func (t *timers) next() time.Time {
	if len(t.heap) == 0 {
		return time.Time{}
	}
	return t.heap[0].deadline
}

// set makes c wait until at, in place of what it waited for.
func (t *timers) set(c *conn, at time.Time) {
	c.deadline = at
	if c.slot == noSlot {
		heap.Push(&t.heap, c)
		return
	}
	heap.Fix(&t.heap, c.slot)
}

func (t *timers) stop(c *conn) {
	if c.slot != noSlot {
		heap.Remove(&t.heap, c.slot)
	}
}

// due takes out an id whose time has come, nil when there is none.
func (t *timers) due(now time.Time) *conn {
	if len(t.heap) == 0 || t.heap[0].deadline.After(now) {
		return nil
	}
	c := t.heap[0]
	t.stop(c)
	return c
}

type timerHeap []*conn

func (h timerHeap) Len() int { return len(h) }

func (h timerHeap) Less(i, j int) bool {
	if c := h[i].deadline.Compare(h[j].deadline); c != 0 {
		return c < 0
	}
	return h[i].id < h[j].id
}

func (h timerHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].slot, h[j].slot = i, j
}

// Push is container/heap's.
func (h *timerHeap) Push(x any) {
	c, _ := x.(*conn)
	c.slot = len(*h)
	*h = append(*h, c)
}

// Pop is container/heap's.
func (h *timerHeap) Pop() any {
	last := len(*h) - 1
	c := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	c.slot = noSlot
	return c
}
