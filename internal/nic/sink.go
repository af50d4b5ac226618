package nic

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/softroce/softroce/internal/shm"
	"github.com/softroce/softroce/internal/uapi"
	"github.com/softroce/softroce/pkg/cq"
	"github.com/softroce/softroce/pkg/transport"
)

// channel is the adapter's end of a completion channel: a non-blocking pipe.
type channel struct {
	pipe *shm.RecordWriter
}

// post writes the record of one completion queue. At most one per queue is
// outstanding, so the pipe fills only when the program lies about what it has
// read; then the record is lost and counted by the caller.
func (c *channel) post(handle uint32) bool {
	return c.pipe.Write(uapi.AppendChannelRecord(nil, handle))
}

// cqueue is one completion queue. Workers stage the completions of a turn and
// take the lock once to hand them over.
type cqueue struct {
	a      *Adapter
	handle uint32
	prog   *program
	ch     *channel    // nil when the queue has none
	stages []*stage    // one per worker
	over   atomic.Bool // it overflowed: queue pairs that use it are to end

	mu   sync.Mutex
	cq   *cq.CQ
	ring *uapi.CQRing
	dead bool // overflowed or destroyed

	users int // queue pairs, counted by the control plane under the program's lock
}

// stage holds one worker's completions for one queue until the end of its
// turn. It is that worker's alone.
type stage struct {
	c        *cqueue
	w        *worker
	wcs      []staged
	queued   bool
	overflow bool // met since the last flush
}

// maxStaged bounds what a stage holds: more goes into the ring before the end
// of the turn. Our own tuning.
const maxStaged = 1024

type staged struct {
	wc        cq.WC
	solicited bool
}

func newCQueue(a *Adapter, ring *uapi.CQRing, ch *channel, handle uint32, prog *program) *cqueue {
	c := &cqueue{a: a, handle: handle, prog: prog, ch: ch, ring: ring, cq: cq.New(ring)}
	c.stages = make([]*stage, len(a.workers))
	for i, w := range a.workers {
		c.stages[i] = &stage{c: c, w: w}
	}
	return c
}

// sink is where queue pairs of worker w put their completions.
func (c *cqueue) sink(w *worker) transport.Sink { return c.stages[w.index] }

// Complete stages one completion.
func (s *stage) Complete(wc *cq.WC, solicited bool) {
	s.wcs = append(s.wcs, staged{*wc, solicited})
	if !s.queued {
		s.queued = true
		s.w.dirty = append(s.w.dirty, s)
	}
	if len(s.wcs) == maxStaged {
		s.c.mu.Lock()
		s.push()
		s.c.mu.Unlock()
	}
}

// push moves what is staged into the ring, which shows it at the next Flush.
// The queue's lock is held.
func (s *stage) push() {
	stamp := s.w.a.stamps.stamp(s.w.now)
	for i := range s.wcs {
		if s.c.dead {
			break // destroyed: its ring is no longer ours to write
		}
		s.wcs[i].wc.Timestamp = stamp
		if err := s.c.cq.Push(&s.wcs[i].wc, s.wcs[i].solicited); err != nil {
			s.overflow = s.overflow || errors.Is(err, cq.ErrOverflow)
			s.w.stats.CQLost++
		}
	}
	s.wcs = s.wcs[:0]
}

// flush hands what is staged to the program, and wakes it when it asked.
func (s *stage) flush(w *worker) {
	c := s.c
	s.queued = false
	c.mu.Lock()
	s.push()
	if !c.dead && c.cq.Flush() {
		c.notify(w)
	}
	c.mu.Unlock()
	if s.overflow {
		s.overflow = false
		w.overflow(c)
	}
}

// notify writes one event. The ring has made sure that the last one was read.
func (c *cqueue) notify(w *worker) {
	if c.ch == nil {
		return
	}
	if !c.ch.post(c.handle) {
		w.stats.EventsLost++
		return
	}
	w.stats.CQEvents++
}

// overflow gives up a completion queue that had no room: CQ_ERR, and its
// queue pairs go to ERR (IBTA Vol 1 §11.6.3.1; fault class G) at the end of the
// flush.
func (w *worker) overflow(c *cqueue) {
	w.stats.CQOverflows++
	if n, ok := w.cqLog.allow(w.now); ok {
		w.a.log.Warn("completion queue overflow: a completion is lost, its queue pairs go to ERR",
			keyPID, c.prog.pid, keyCQ, c.handle, keySuppressed, n)
	}
	c.prog.postAsync(uapi.EventCQErr, uapi.ElementCQ, c.handle)
	c.over.Store(true)
	w.endUsersOf(c.prog)
}

// endUsersOf has those queue pairs of a program end, at the end of the turn, that
// use a queue that was given up.
func (w *worker) endUsersOf(p *program) {
	if !slices.Contains(w.over, p) {
		w.over = append(w.over, p)
	}
}

// endUsers ends the queue pairs of the queues that were given up: one look at
// each of a program's queue pairs, however many of its queues did.
func (w *worker) endUsers() {
	for _, p := range w.over {
		for _, other := range w.a.workers {
			if other == w {
				w.fatalUsers(p)
				continue
			}
			other.post(func() { other.fatalUsers(p) })
		}
	}
	clear(w.over)
	w.over = w.over[:0]
}

// overQueue says that a queue which the queue pair uses was given up.
func (q *qp) overQueue() bool {
	return q.sendCQ.over.Load() || q.recvCQ.over.Load() || q.srq != nil && q.srq.over.Load()
}

// fatalUsers ends this worker's queue pairs of p that use a queue that
// was given up.
func (w *worker) fatalUsers(p *program) {
	for _, l := range w.links {
		if l.owner != p {
			continue
		}
		for _, q := range l.qps {
			// A dead one's engine may be half-way through something.
			if q != nil && !q.dead && q.overQueue() {
				q.engine.Fatal(w.now)
				w.active.push(q)
			}
		}
	}
}

// retire makes later completions and events of the queue vanish. The control
// plane calls it when the queue is destroyed.
func (c *cqueue) retire() {
	c.mu.Lock()
	c.dead = true
	c.mu.Unlock()
}
