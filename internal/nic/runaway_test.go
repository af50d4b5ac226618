package nic

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/softroce/softroce/internal/uapi"
	"github.com/softroce/softroce/pkg/qpstate"
)

// Words of a ring's header and of a worker's doorbells.
const (
	ringProducer = 0
	ringConsumer = 64
	bellSummary  = 64
	bellWords    = 320
)

// A program posts faster than the adapter flushes: its queue pair is in ERR,
// where each request completes at once, and it moves its rings' indices on
// behind the adapter's for ever. A turn must end all the same, or the worker
// serves nobody else and the completions that it staged fill memory.
func TestRunawayPostingDoesNotHoldTheWorker(t *testing.T) {
	if inOwnProcess(t) {
		return // real mappings, as for the scribbler
	}
	for _, ring := range []struct {
		name string
		ref  func(*uapi.CreateQPReply) uapi.RingRef
	}{
		{"send", func(q *uapi.CreateQPReply) uapi.RingRef { return q.SQ }},
		{"receive", func(q *uapi.CreateQPReply) uapi.RingRef { return q.RQ }},
	} {
		t.Run(ring.name, func(t *testing.T) {
			a := startAdapter(t, func(c *Config) { c.Workers = 1 })
			ctx := within(t)
			x, y := newEndpoint(t, openDevice(t, a), 1<<15), newEndpoint(t, openDevice(t, a), 1<<15)
			connectPair(t, x, y)
			s := newScribbler(t, a)
			qp := s.big(a, s.bigCQ(16), 2048)
			s.toErr(qp)
			var stop atomic.Bool
			var wg sync.WaitGroup
			defer wg.Wait()
			defer stop.Store(true)
			wg.Go(func() {
				for !stop.Load() {
					s.runAhead(qp, ring.ref(qp))
				}
			})
			for n := byte(0); n < 20 || a.Snapshot().Workers[0].Stats.CQLost == 0; n++ {
				if err := transfer(ctx, x, y, n); err != nil {
					t.Fatalf("round %d: %v", n, err)
				}
			}
			wantStagedBounded(t, a)
		})
	}
}

// A program says that its queue pairs have full receive queues, which costs it
// one word each, and lets the completion queue that they share overflow. The
// adapter's memory does not grow with what is flushed.
func TestOverflowOfManyFullQueuesIsBounded(t *testing.T) {
	if inOwnProcess(t) {
		return
	}
	a := startAdapter(t, func(c *Config) { c.Workers = 1 })
	ctx := within(t)
	x, y := newEndpoint(t, openDevice(t, a), 1<<15), newEndpoint(t, openDevice(t, a), 1<<15)
	connectPair(t, x, y)
	s := newScribbler(t, a)
	const qps, slots = 48, 1 << 15
	cq := s.bigCQ(1)
	for range qps {
		qp := s.big(a, cq, slots)
		s.segs[qp.RQ.Segment].Word32(int(qp.RQ.Offset) + ringProducer).Store(slots)
		if qp.RQ.Slots != slots {
			t.Fatalf("a ring of %d slots", qp.RQ.Slots)
		}
	}
	s.toErr(&s.qps[len(s.qps)-1]) // flushes more than one
	for n := byte(0); a.Snapshot().Workers[0].Stats.CQLost < qps*slots/2; n++ {
		if err := transfer(ctx, x, y, n); err != nil {
			t.Fatalf("round %d, %d completions lost: %v", n, a.Snapshot().Workers[0].Stats.CQLost, err)
		}
	}
	wantStagedBounded(t, a)
}

// wantStagedBounded checks what the stages of all completion queues had to
// hold.
func wantStagedBounded(t *testing.T, a *Adapter) {
	t.Helper()
	for _, p := range a.programList() {
		p.mu.Lock()
		for h, c := range p.cqs.byHandle {
			for i, s := range c.stages {
				a.workers[i].do(func() {
					if n := cap(s.wcs); n > 2*maxStaged {
						t.Errorf("completion queue %d had %d completions staged, want %d at most", h, n, maxStaged)
					}
				})
			}
		}
		p.mu.Unlock()
	}
}

// bigCQ makes a completion queue whose ring is mapped.
func (s *scribbler) bigCQ(cqe uint32) uint32 {
	s.t.Helper()
	got := s.call(uapi.OpCreateCQ, &uapi.CreateCQRequest{CQE: cqe})
	s.take(got)
	var cq uapi.CreateCQReply
	if err := cq.Decode(got.body); err != nil {
		s.t.Fatal(err)
	}
	return cq.Handle
}

// big makes a queue pair with long queues and connects it.
func (s *scribbler) big(a *Adapter, cq, wr uint32) *uapi.CreateQPReply {
	s.t.Helper()
	m := rcRequest(s.pd(), cq)
	m.Cap.MaxRecvSGE = 0
	m.Cap.MaxSendWR, m.Cap.MaxRecvWR = wr, wr
	got := s.call(uapi.OpCreateQP, m)
	s.take(got)
	var qp uapi.CreateQPReply
	if err := qp.Decode(got.body); err != nil {
		s.t.Fatal(err)
	}
	s.connectTo(a, qp)
	s.qps = append(s.qps, qp)
	return &qp
}

func (s *scribbler) toErr(qp *uapi.CreateQPReply) {
	s.t.Helper()
	must[uapi.ModifyQPReply](s.rawClient, uapi.OpModifyQP, &uapi.ModifyQPRequest{
		Handle: qp.Handle, Mask: qpstate.MaskState, Attr: qpstate.Attr{State: qpstate.Err},
	})
}

// runAhead rings a queue pair's doorbell and fills a ring of it again and
// again, as fast as the adapter empties it.
func (s *scribbler) runAhead(qp *uapi.CreateQPReply, ref uapi.RingRef) {
	bells := int(qp.Worker) * uapi.DoorbellBlock
	word := qp.DoorbellIndex / 64
	s.bell.Word64(bells + bellWords + 8*int(word)).Or(1 << (qp.DoorbellIndex % 64))
	s.bell.Word64(bells + bellSummary + 8*int(word/64)).Or(1 << (word % 64))
	s.bell.Word32(bells).Store(1)
	s.wake[qp.Worker].Ring()
	seg, off := s.segs[ref.Segment], int(ref.Offset)
	for range 4096 {
		seg.Word32(off + ringProducer).Store(seg.Word32(off+ringConsumer).Load() + ref.Slots)
	}
}
