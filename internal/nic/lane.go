package nic

import (
	"sync/atomic"

	"github.com/softroce/softroce/pkg/udp4791"
)

// laneSlots is how many packets wait between two workers at most; our own
// tuning, a power of two.
const laneSlots = 64

// laneLent is how many bytes of lent memory wait between two workers, and
// turnLent how many a turn takes of them, each one loan more at most; our own
// tuning.
const (
	laneLent = 1 << 20
	turnLent = 256 << 10
)

// A lane is the bounded ring by which one worker hands packets to another:
// those between two queue pairs of this adapter, and those that the kernel
// steered to the wrong worker. One goroutine puts, one takes, without a lock.
type lane struct {
	slots [laneSlots]handed
	next  uint32 // the putter's own: what it will publish
	_     [64]byte
	head  atomic.Uint32 // published by the putter
	lent  uint64        // bytes in all loans that were put, the putter's own
	_     [64]byte
	tail  atomic.Uint32 // taken so far
	back  atomic.Uint64 // of lent, what was taken
}

// handed is a packet in a lane, or a run of them whose payloads are lent.
type handed struct {
	meta udp4791.RecvMeta
	n    int
	from origin
	loan loan // none: buf has the packet
	buf  [udp4791.BufferSize]byte
}

// origin says how a packet came to a worker.
type origin uint8

const (
	fromWire    origin = iota
	fromOther          // from the wire, by a worker that it was not meant for
	fromLocal          // from a queue pair of this adapter
	fromGroup          // a copy of one to a multicast group, by the worker that checked it
	fromNowhere        // one that was served, or that a fault ended
)

// laneTo is this worker's lane to another one, made at first use.
func (w *worker) laneTo(to *worker) *lane {
	p := &to.lanes[w.index]
	l := p.Load()
	if l == nil {
		l = new(lane)
		p.Store(l)
	}
	return l
}

// slot is the one for the next packet; nil when all are taken.
func (l *lane) slot() *handed {
	if l.next-l.tail.Load() == laneSlots {
		return nil
	}
	return &l.slots[l.next%laneSlots]
}

// room is the slot for the next packet of a queue pair of this adapter, which can
// wait; nil when the lane is full.
func (l *lane) room() *handed {
	if l.lent-l.back.Load() >= laneLent {
		return nil
	}
	return l.slot()
}

// put takes the packet in the slot that slot or room gave; publish shows it.
func (l *lane) put() {
	l.lent += uint64(l.slots[l.next%laneSlots].loan.bytes)
	l.next++
}

// publish shows the other side what was put, and reports whether that is
// anything new.
func (l *lane) publish() bool {
	if l.head.Load() == l.next {
		return false
	}
	l.head.Store(l.next)
	return true
}

// handOver gives a packet from the wire to the worker that it is meant for;
// false when its lane is full.
func (w *worker) handOver(to *worker, meta *udp4791.RecvMeta, buf []byte, from origin) bool {
	l := w.laneTo(to)
	h := l.slot()
	if h == nil {
		return false
	}
	h.meta, h.from, h.n = *meta, from, copy(h.buf[:], buf)
	l.put()
	l.publish()
	to.signal()
	return true
}

// takeHanded serves what a slot has.
func (w *worker) takeHanded(h *handed) {
	if h.loan.from != nil {
		w.takeLoan(h)
		return
	}
	from := h.from
	switch from {
	case fromGroup:
		h.from = fromNowhere // after a fault nobody gets it twice
	case fromNowhere:
		return
	case fromWire, fromOther, fromLocal:
	}
	w.accept(&h.meta, h.buf[:h.n:h.n], from)
}

// showLanes publishes what this worker put into lanes before a fault took it
// away from there.
func (w *worker) showLanes() {
	for _, to := range w.a.workers {
		if l := to.lanes[w.index].Load(); l != nil && l.publish() {
			to.signal()
		}
	}
}

// takeLanes serves the packets that other workers handed over, of each as many
// as are there now; with some bytes of lent memory it leaves the rest.
func (w *worker) takeLanes(some int) int {
	n := 0
	for i := range w.lanes {
		l := w.lanes[i].Load()
		if l == nil {
			continue
		}
		left := some
		for tail, head := l.tail.Load(), l.head.Load(); tail != head; n++ {
			if left <= 0 {
				w.pending.Store(1)
				break
			}
			h := &l.slots[tail%laneSlots]
			lent := h.loan.bytes
			w.learner.solved = false // of another buffer
			w.takeHanded(h)
			if lent > 0 {
				left -= lent
				l.back.Add(uint64(lent))
			}
			tail++
			l.tail.Store(tail)
		}
	}
	return n
}
