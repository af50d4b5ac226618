package transport

import (
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/wq"
)

// replay is what the responder remembers of a READ or an atomic, so that it can
// answer it again, and how much of the answer is still to be sent: the PSNs
// [next, end). Records stay until max_dest_rd_atomic newer ones came.
type replay struct {
	va, swap, compare, old uint64 // atomics: operands and what was there before
	psn                    bth.PSN
	n                      uint32 // PSNs of the request
	rkey, length, msn      uint32
	from, next, end        bth.PSN // of the answer being sent
	limit                  uint32  // READ: where that answer ends, in bytes from va
	op                     bth.Op
	again                  bool // the answer is a repetition
	waiting                bool // next != end
}

// answerMSN is the MSN of an answer: that of the request's completion, and in a
// repetition today's.
func (s *replay) answerMSN(r *responder) uint32 {
	if s.again {
		return r.msn
	}
	return s.msn
}

// replayBlockLen is the number of records that are taken from the slab together.
const replayBlockLen = 8

type replayBlock [replayBlockLen]replay

// replayBlockBytes is what a block counts against the slab's limit.
const replayBlockBytes = replayBlockLen * 88

// replayRing holds the newest max_dest_rd_atomic records in the order of their
// PSNs. It has memory from the first READ or atomic on, until RESET.
type replayRing struct {
	blocks  []*replayBlock
	limit   int // max_dest_rd_atomic
	head    int // oldest
	len     int
	waiting int // records with an answer to send
}

func (w *replayRing) size() int { return len(w.blocks) * replayBlockLen }

func (w *replayRing) at(i int) *replay {
	i = (w.head + i) % w.size()
	return &w.blocks[i/replayBlockLen][i%replayBlockLen]
}

// hasSpace says whether one more record fits: an old one whose answer has left
// makes room. A repetition of it that waits does not matter: a requester that
// asks for more has had the answer.
func (w *replayRing) hasSpace() bool {
	if w.limit == 0 {
		return false
	}
	return w.len < w.limit || !w.at(0).waiting || w.at(0).again
}

// remember gives the record for a new request, nil when the slab has no memory
// for it. The caller fills it at once.
func (r *responder) remember(q *QP) *replay {
	w := &r.replays
	if w.len >= w.limit {
		w.dropOldest()
	}
	if w.len == w.size() {
		pool := wq.PoolOf[replayBlock](q.cfg.Slab, replayBlockBytes)
		b, err := pool.Take()
		if err != nil {
			return nil
		}
		w.insert(b)
	}
	w.len++
	return w.at(w.len - 1)
}

// insert adds a block to a ring that is full.
func (w *replayRing) insert(b *replayBlock) {
	if w.head != 0 {
		w.rotate()
	}
	w.blocks = append(w.blocks, b)
}

// rotate brings the oldest record to the front.
func (w *replayRing) rotate() {
	n := w.size()
	at := func(i int) *replay { return &w.blocks[i/replayBlockLen][i%replayBlockLen] }
	reverse := func(i, j int) {
		for j--; i < j; i, j = i+1, j-1 {
			*at(i), *at(j) = *at(j), *at(i)
		}
	}
	reverse(0, w.head)
	reverse(w.head, n)
	reverse(0, n)
	w.head = 0
}

// dropOldest drops the oldest record and what waits of it.
func (w *replayRing) dropOldest() {
	w.done(w.at(0))
	w.head = (w.head + 1) % w.size()
	w.len--
}

// forget drops the newest record.
func (w *replayRing) forget() { w.len-- }

// find is the record of the request that PSN psn belongs to, nil when it is not
// remembered.
func (r *responder) find(psn bth.PSN) *replay {
	w := &r.replays
	for i := w.len - 1; i >= 0; i-- {
		s := w.at(i)
		if d := psn.Sub(s.psn); d >= 0 && uint32(d) < s.n {
			return s
		}
	}
	return nil
}

// schedule makes n answers of s from PSN psn on wait to be sent, the bytes of a
// READ ending limit bytes behind its start. Those of s that wait are given up.
func (r *responder) schedule(s *replay, psn bth.PSN, n, limit uint32, again bool) {
	if !s.waiting {
		s.waiting = true
		r.replays.waiting++
	}
	s.from, s.next, s.end = psn, psn, psn.Add(n)
	s.limit, s.again = limit, again
}

// pending is the oldest record with an answer to send, nil when there is none.
func (w *replayRing) pending() *replay {
	if w.waiting == 0 {
		return nil
	}
	for i := 0; i < w.len; i++ {
		if s := w.at(i); s.waiting {
			return s
		}
	}
	return nil
}

// done ends the answer of s.
func (w *replayRing) done(s *replay) {
	if s.waiting {
		s.waiting = false
		w.waiting--
	}
}

// cancel ends all answers.
func (w *replayRing) cancel() {
	for i := 0; i < w.len; i++ {
		w.done(w.at(i))
	}
}

// limitReplays sets max_dest_rd_atomic; the oldest records that exceed it go.
func (r *responder) limitReplays(n int) {
	w := &r.replays
	for w.len > n {
		w.dropOldest()
	}
	w.limit = n
}

// release gives the blocks back.
func (w *replayRing) release(q *QP) {
	if len(w.blocks) > 0 {
		pool := wq.PoolOf[replayBlock](q.cfg.Slab, replayBlockBytes)
		for _, b := range w.blocks {
			pool.Give(b)
		}
	}
	*w = replayRing{}
}
