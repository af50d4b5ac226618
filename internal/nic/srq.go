package nic

import (
	"sync"
	"sync/atomic"

	"github.com/softroce/softroce/internal/uapi"
	"github.com/softroce/softroce/pkg/wq"
)

// srqueue is one shared receive queue. Queue pairs of several workers take from
// it, in the order in which the program posted.
type srqueue struct {
	handle  uint32
	prog    *program
	sources []srqSource // one per worker
	over    atomic.Bool // its ring is corrupt: queue pairs that use it are to end

	mu    sync.Mutex
	ring  *uapi.RQConsumer
	limit uint32 // SRQ_LIMIT_REACHED below so many requests; 0: not armed
}

// srqSource is what queue pairs of one worker take from.
type srqSource struct {
	s *srqueue
	w *worker
}

func newSRQueue(p *program, ring *uapi.RQConsumer, handle uint32) *srqueue {
	s := &srqueue{handle: handle, prog: p, ring: ring, sources: make([]srqSource, len(p.a.workers))}
	for i, w := range p.a.workers {
		s.sources[i] = srqSource{s, w}
	}
	return s
}

// source is where queue pairs of worker w take their receives from.
func (s *srqueue) source(w *worker) wq.RecvSource { return &s.sources[w.index] }

// TakeRecv implements wq.RecvSource. What takes the queue below its limit raises
// SRQ_LIMIT_REACHED and disarms it (IBTA Vol 1 §11.5.2.3, ibv_modify_srq(3)).
func (x *srqSource) TakeRecv(dst *wq.RecvWR) bool {
	s := x.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ring.TakeRecv(dst) {
		if err := s.ring.Err(); err != nil && !s.over.Swap(true) {
			x.w.badSRQ(s, err)
		}
		return false
	}
	if s.limit != 0 && uint32(s.ring.Pending()) < s.limit {
		s.limit = 0
		s.prog.postAsync(uapi.EventSRQLimitReached, uapi.ElementSRQ, s.handle)
	}
	return true
}

// badSRQ gives up a shared receive queue whose ring holds what no library
// writes: SRQ_ERR, and its queue pairs go to ERR at the end of the turn (fault
// class G).
func (w *worker) badSRQ(s *srqueue, err error) {
	w.stats.BadSlots++
	if n, ok := w.ringLog.allow(w.now); ok {
		w.a.log.Warn("bad slot in a shared receive queue, its queue pairs go to ERR",
			keyPID, s.prog.pid, keySRQ, s.handle, keyErr, err, keySuppressed, n)
	}
	s.prog.postAsync(uapi.EventSRQErr, uapi.ElementSRQ, s.handle)
	w.endUsersOf(s.prog)
}

// moveTo has the queue go on in another ring, with what waits; the lock is held.
// On an error nothing is changed.
func (s *srqueue) moveTo(area ringArea, ref uapi.RingRef) error {
	ring, err := s.ring.MoveTo(area.mem, ref)
	if err == nil {
		s.ring = ring
	}
	return err
}
