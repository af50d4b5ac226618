package impair

import (
	"container/heap"
	"time"
)

// HoldFor is how long a packet waits at most for those that are to go first: a
// message's last packet has none behind it. Our own choice.
const HoldFor = 20 * time.Millisecond

// A Queue holds packets that wait for their time, or for others to go first.
// Those of one time leave in the order they came. The zero value holds nothing
// and has no room: set Limit.
type Queue[T any] struct {
	// Limit is how many it holds at most.
	Limit int
	heap  waiting[T]
	seq   uint64
	// behind counts those that wait for others.
	behind int
}

type item[T any] struct {
	due    time.Time
	seq    uint64
	stream uint64
	behind int
	v      T
}

// Push takes a packet in that is to leave at due; with behind above 0, once so many
// of its stream have gone, and HoldFor later than due at the latest. False: there
// is no room.
func (q *Queue[T]) Push(due time.Time, stream uint64, behind int, v T) bool {
	if len(q.heap) >= q.Limit {
		return false
	}
	if behind > 0 {
		due = due.Add(HoldFor)
		q.behind++
	}
	q.seq++
	heap.Push(&q.heap, &item[T]{due: due, seq: q.seq, stream: stream, behind: behind, v: v})
	return true
}

// Passed says that a packet of a stream goes: those behind it come closer, and
// are due now when it was the last.
func (q *Queue[T]) Passed(now time.Time, stream uint64) {
	if q.behind == 0 {
		return
	}
	for _, it := range q.heap {
		if it.behind == 0 || it.stream != stream {
			continue
		}
		if it.behind--; it.behind == 0 {
			q.behind--
			it.due = now
		}
	}
	heap.Init(&q.heap)
}

// Pop takes out the next packet that is due.
func (q *Queue[T]) Pop(now time.Time) (v T, ok bool) {
	if len(q.heap) == 0 || q.heap[0].due.After(now) {
		return v, false
	}
	it := heap.Pop(&q.heap).(*item[T])
	if it.behind > 0 {
		q.behind--
	}
	return it.v, true
}

// Next is when Pop has something; false: nothing waits.
func (q *Queue[T]) Next() (time.Time, bool) {
	if len(q.heap) == 0 {
		return time.Time{}, false
	}
	return q.heap[0].due, true
}

// Len is how many wait.
func (q *Queue[T]) Len() int { return len(q.heap) }

// Remove takes out those that f accepts.
func (q *Queue[T]) Remove(f func(T) bool) {
	kept := q.heap[:0]
	for _, it := range q.heap {
		if !f(it.v) {
			kept = append(kept, it)
		} else if it.behind > 0 {
			q.behind--
		}
	}
	clear(q.heap[len(kept):])
	q.heap = kept
	heap.Init(&q.heap)
}

// waiting is a heap by time, then by order of arrival.
type waiting[T any] []*item[T]

func (w waiting[T]) Len() int { return len(w) }

func (w waiting[T]) Less(i, j int) bool {
	if w[i].due.Equal(w[j].due) {
		return w[i].seq < w[j].seq
	}
	return w[i].due.Before(w[j].due)
}

func (w waiting[T]) Swap(i, j int) { w[i], w[j] = w[j], w[i] }

func (w *waiting[T]) Push(x any) { *w = append(*w, x.(*item[T])) }

func (w *waiting[T]) Pop() any {
	old := *w
	it := old[len(old)-1]
	old[len(old)-1] = nil
	*w = old[:len(old)-1]
	return it
}
