package nic

import (
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/shm"
	"github.com/softroce/softroce/internal/uapi"
	"github.com/softroce/softroce/pkg/cq"
)

// A rawCQ is a program's completion queue without the library.
type rawCQ struct {
	r      *rawClient
	handle uint32
	segs   []*shm.Segment // of the program, by number
	ring   *uapi.CQConsumer
	o      *cqObject
}

func newRawCQ(r *rawClient, a *Adapter, m *uapi.CreateCQRequest) *rawCQ {
	r.t.Helper()
	q := &rawCQ{r: r}
	q.take(r.call(uapi.OpCreateCQ, m))
	p := a.programList()[0]
	p.mu.Lock()
	defer p.mu.Unlock()
	q.o, _ = p.cqs.lookup(q.handle)
	return q
}

// take takes the ring of a reply.
func (q *rawCQ) take(got answer) {
	t := q.r.t
	t.Helper()
	var rep uapi.CreateCQReply
	if err := rep.Decode(got.body); got.errno != 0 || err != nil {
		t.Fatal(got.errno, got.text, err)
	}
	for _, fd := range got.fds {
		seg, err := shm.Map(fd, false)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = seg.Close() })
		q.segs = append(q.segs, seg)
	}
	ring, err := uapi.NewCQConsumer(q.segs[rep.Ring.Segment], rep.Ring)
	if err != nil {
		t.Fatal(err)
	}
	q.handle, q.ring = rep.Handle, ring
}

func (q *rawCQ) resize(cqe uint32) answer {
	q.r.t.Helper()
	return q.r.call(uapi.OpResizeCQ, &uapi.ResizeCQRequest{Handle: q.handle, CQE: cqe})
}

// put has a worker complete something on the queue and waits until it
// is handed over.
func (q *rawCQ) put(w *worker, wcs ...cq.WC) {
	w.do(func() {
		for i := range wcs {
			q.o.sink(w).Complete(&wcs[i], false)
		}
	})
	for flushed := false; !flushed; {
		w.do(func() { flushed = len(w.dirty) == 0 })
	}
}

// ibv_resize_cq(3): what was not polled is in the new ring, and what does not
// fit is EINVAL and changes nothing.
func TestResizeCQ(t *testing.T) {
	a := startAdapter(t, nil)
	r := rawHello(t, a)
	ch := must[uapi.HandleReply](r, uapi.OpCreateChannel, nil).Handle
	q := newRawCQ(r, a, &uapi.CreateCQRequest{CQE: 8, Channel: ch})
	w := a.workers[0]
	for i := range uint64(5) {
		q.put(w, cq.WC{WRID: i})
	}
	var wcs [16]cq.WC
	q.ring.Poll(wcs[:1])
	q.ring.Arm(false)
	r.wantRefusal(q.resize(2), syscall.EINVAL, "4 completions wait, 2 slots")
	r.wantRefusal(q.resize(0), syscall.EINVAL, "max_cqe")
	r.wantRefusal(q.resize(1<<20+1), syscall.EINVAL, "max_cqe 1048576")
	r.wantRefusal(r.call(uapi.OpResizeCQ, &uapi.ResizeCQRequest{Handle: 77, CQE: 8}), syscall.EINVAL, "handle 77")
	q.take(q.resize(64))
	if q.o.eventsSent() != 0 {
		t.Error("the move raised an event")
	}
	for i := uint64(5); i < 40; i++ {
		q.put(w, cq.WC{WRID: i})
	}
	if n := q.o.eventsSent(); n != 1 {
		t.Errorf("%d events of one arming across a resize, want 1", n)
	}
	n := 0
	for want := uint64(1); want < 40; {
		if n = q.ring.Poll(wcs[:]); n == 0 {
			t.Fatalf("completion %d is missing", want)
		}
		for _, wc := range wcs[:n] {
			if wc.WRID != want {
				t.Fatalf("completion %d came where %d was due", wc.WRID, want)
			}
			want++
		}
	}
	q.take(q.resize(1))
	q.put(w, cq.WC{WRID: 1})
	q.put(w, cq.WC{WRID: 2})
	r.wantRefusal(q.resize(8), syscall.EINVAL, "overflowed")
}

// A program's index that cannot be right moves nothing.
func TestResizeCQOfALiar(t *testing.T) {
	a := startAdapter(t, nil)
	r := rawHello(t, a)
	q := newRawCQ(r, a, &uapi.CreateCQRequest{CQE: 8})
	word := q.segs[0]
	for i := 0; i < 128; i += 4 {
		word.Word32(i).Store(0xFFFFFF00)
	}
	r.wantRefusal(q.resize(16), syscall.EINVAL, "corrupt")
	r.pd() // the connection lives on
}

// Workers complete while the queue is resized again and again: each completion
// once, in order.
func TestResizeCQUnderLoad(t *testing.T) {
	const each, room = 2000, 32
	a := startAdapter(t, func(c *Config) { c.Workers = 2 })
	r := rawHello(t, a)
	q := newRawCQ(r, a, &uapi.CreateCQRequest{CQE: 2 * room})
	var polled [2]atomic.Int64
	var wg sync.WaitGroup
	ctx := within(t)
	for k, w := range a.workers {
		wg.Go(func() {
			for i := range int64(each) {
				for i-polled[k].Load() >= room {
					if ctx.Err() != nil {
						return
					}
					runtime.Gosched()
				}
				w.post(func() { q.o.sink(w).Complete(&cq.WC{WRID: uint64(k)<<32 | uint64(i)}, false) })
			}
		})
	}
	var next [2]uint64
	var wcs [7]cq.WC
	for round, left := 0, 2*each; left > 0; round++ {
		if ctx.Err() != nil {
			t.Fatalf("%d completions are missing", left)
		}
		for range 3 {
			n := q.ring.Poll(wcs[:])
			for _, wc := range wcs[:n] {
				k := wc.WRID >> 32
				if wc.WRID != k<<32|next[k] {
					t.Fatalf("completion %#x where number %d of worker %d was due", wc.WRID, next[k], k)
				}
				next[k]++
				polled[k].Add(1)
				left--
			}
		}
		q.take(q.resize(uint32(2*room) << (round % 3)))
	}
	wg.Wait()
	if n := a.Snapshot().Workers[0].Stats.CQLost; n != 0 {
		t.Errorf("%d lost", n)
	}
}

// Completions carry the time of their hand-over on the clock that programs
// read, CLOCK_MONOTONIC.
func TestCompletionTimestamps(t *testing.T) {
	a := startAdapter(t, nil)
	r := rawHello(t, a)
	attr := must[uapi.QueryDeviceReply](r, uapi.OpQueryDevice, nil).Attr
	if attr.CompletionTimestampMask != 1<<64-1 || attr.HCACoreClock != 1000000 {
		t.Errorf("timestamps %#x, clock %d kHz", attr.CompletionTimestampMask, attr.HCACoreClock)
	}
	q := newRawCQ(r, a, &uapi.CreateCQRequest{CQE: 8})
	now := func() uint64 {
		var ts unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
			t.Fatal(err)
		}
		return uint64(ts.Nano())
	}
	last := uint64(0)
	for i := range a.workers {
		a.workers[i].quiesce()
		before := now()
		a.workers[i].quiesce() // its clock is read after before
		q.put(a.workers[i], cq.WC{WRID: 1})
		var wcs [2]cq.WC
		if n := q.ring.Poll(wcs[:]); n != 1 {
			t.Fatalf("%d completions", n)
		}
		got, after := wcs[0].Timestamp, now()
		if got < before-clockSlack || got > after || got < last {
			t.Errorf("worker %d: handed over between %d and %d, timestamp %d, the last was %d", i, before, after, got, last)
		}
		last = got
	}
}

// clockSlack is how far the two clocks' common point may be off: they are read
// one after the other. Generous, since the test's process may be stopped between.
const clockSlack = 1e9

// A completion vector is a worker; vector 0 leaves it to the adapter.
func TestCompletionVectors(t *testing.T) {
	a := startAdapter(t, func(c *Config) { c.Workers = 3 })
	r := rawHello(t, a)
	if n := must[uapi.QueryDeviceReply](r, uapi.OpQueryDevice, nil).Attr.NumCompVectors; n != 3 {
		t.Errorf("%d completion vectors, want 3", n)
	}
	pd := r.pd()
	for _, v := range []uint32{2, 1, 2} {
		c := must[uapi.CreateCQReply](r, uapi.OpCreateCQ, &uapi.CreateCQRequest{CQE: 8, Vector: v}).Handle
		for range 2 {
			if q := r.qp(pd, c); q.Worker != v || uint32(q.QPN&7)%3 != v {
				t.Errorf("vector %d: worker %d, QPN %#x", v, q.Worker, q.QPN)
			}
		}
	}
	seen := map[uint32]bool{}
	for range 3 {
		seen[r.qp(pd, r.cq(8)).Worker] = true
	}
	if !seen[0] {
		t.Errorf("vector 0 never chose the idle worker 0: %v", seen)
	}
	r.wantRefusal(r.call(uapi.OpCreateCQ, &uapi.CreateCQRequest{CQE: 8, Vector: 3}), syscall.EINVAL, "comp_vector 3")
}
