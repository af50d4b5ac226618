package soak

import "time"

// alarm is something that is due at a time: a call, or a look at a queue pair's
// deadline.
type alarm struct {
	at    time.Time
	order uint64
	do    func()
	q     *queue
}

// alarms is a heap by time, then by order of setting.
type alarms struct {
	heap  []alarm
	order uint64
}

func (a *alarms) less(i, j int) bool {
	x, y := &a.heap[i], &a.heap[j]
	if x.at.Equal(y.at) {
		return x.order < y.order
	}
	return x.at.Before(y.at)
}

func (a *alarms) push(x alarm) {
	x.order = a.order
	a.order++
	a.heap = append(a.heap, x)
	for i := len(a.heap) - 1; i > 0; {
		up := (i - 1) / 2
		if !a.less(i, up) {
			break
		}
		a.heap[i], a.heap[up] = a.heap[up], a.heap[i]
		i = up
	}
}

func (a *alarms) pop() alarm {
	top := a.heap[0]
	end := len(a.heap) - 1
	a.heap[0] = a.heap[end]
	a.heap[end] = alarm{}
	a.heap = a.heap[:end]
	for i := 0; ; {
		c := 2*i + 1
		if c >= end {
			break
		}
		if c+1 < end && a.less(c+1, c) {
			c++
		}
		if !a.less(c, i) {
			break
		}
		a.heap[i], a.heap[c] = a.heap[c], a.heap[i]
		i = c
	}
	return top
}

// next is when the first alarm is due.
func (a *alarms) next() (time.Time, bool) {
	if len(a.heap) == 0 {
		return time.Time{}, false
	}
	return a.heap[0].at, true
}
