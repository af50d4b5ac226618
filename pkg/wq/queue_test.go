package wq

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
)

// request is a request of its own for each number: some with elements, some
// inline, some with neither.
func request(i int) *SendWR {
	w := &SendWR{WRID: uint64(i), Opcode: Send, RemoteAddr: uint64(i) * 3, ImmData: uint32(i), Swap: 9}
	switch i % 3 {
	case 0:
		for j := range i % 7 {
			w.SGList = append(w.SGList, SGE{Addr: uint64(i), Length: uint32(j), LKey: 5})
		}
	case 1:
		w.Flags = SendInline
		w.Inline = bytes.Repeat([]byte{byte(i)}, i%200)
	}
	return w
}

func wantRequest(t *testing.T, e *WQE, i int) {
	t.Helper()
	w := request(i)
	if e.WRID != w.WRID || e.Opcode != w.Opcode || e.Flags != w.Flags || e.RemoteAddr != w.RemoteAddr || e.ImmData != w.ImmData || e.Swap != 9 {
		t.Fatalf("entry %+v, want %+v", e.SendWR, *w)
	}
	if !slices.Equal(e.SGList, w.SGList) || !bytes.Equal(e.Inline, w.Inline) {
		t.Fatalf("entry %d: %v, %x; want %v, %x", i, e.SGList, e.Inline, w.SGList, w.Inline)
	}
}

// TestSendQueueAgainstModel pushes and pops at random and compares every entry
// with a list of numbers.
func TestSendQueueAgainstModel(t *testing.T) {
	for seed := range uint64(10) {
		rng := rand.New(rand.NewPCG(seed, 1))
		s := NewSlab(1 << 20)
		q := NewSendQueue(s, 50)
		var model []int
		next := 0
		for range 700 {
			if rng.IntN(100) < 48+2*int(seed) {
				err := q.Push(request(next))
				if full := len(model) == 50; full != errors.Is(err, ErrFull) {
					t.Fatalf("seed %d: push at %d entries: %v", seed, len(model), err)
				}
				if err == nil {
					if q.At(q.Len()-1).User != [4]uint64{} {
						t.Fatalf("seed %d: a new entry has an old one's words", seed)
					}
					q.At(q.Len() - 1).User[3] = uint64(next)
					model = append(model, next)
					next++
				}
			} else {
				q.PopFront()
				model = model[min(1, len(model)):]
			}
			if q.Len() != len(model) {
				t.Fatalf("seed %d: Len() = %d, want %d", seed, q.Len(), len(model))
			}
			for i, n := range model {
				wantRequest(t, q.At(i), n)
				if q.At(i).User[3] != uint64(n) {
					t.Fatalf("seed %d: entry %d lost its words", seed, i)
				}
			}
			if len(model) == 0 && s.InUse() != 0 {
				t.Fatalf("seed %d: the empty queue holds %d bytes", seed, s.InUse())
			}
		}
		q.Reset()
		if q.Len() != 0 || s.InUse() != 0 {
			t.Errorf("seed %d: after Reset: %d entries, %d bytes", seed, q.Len(), s.InUse())
		}
	}
}

// TestSendQueueCopiesDeep: the caller may use its memory again at once.
func TestSendQueueCopiesDeep(t *testing.T) {
	q := NewSendQueue(NewSlab(0), 4)
	w := SendWR{Opcode: Send, SGList: []SGE{{Addr: 1, Length: 2, LKey: 3}}, Inline: []byte("not meant")}
	in := SendWR{Opcode: Send, Flags: SendInline, Inline: []byte("payload")}
	if err := errors.Join(q.Push(&w), q.Push(&in)); err != nil {
		t.Fatal(err)
	}
	w.SGList[0] = SGE{}
	copy(in.Inline, "garbage")
	if got := q.At(0); got.SGList[0] != (SGE{1, 2, 3}) || got.Inline != nil {
		t.Errorf("entry 0: %+v", got)
	}
	if got := q.At(1); string(got.Inline) != "payload" || got.SGList != nil {
		t.Errorf("entry 1: %+v", got)
	}
}

// TestSendQueueSlabFull: a push that the slab refuses leaves the queue as it
// was, also the first one of a chunk.
func TestSendQueueSlabFull(t *testing.T) {
	s := NewSlab(chunkWQEs*wqeBytes + 64)
	q := NewSendQueue(s, 100)
	in := SendWR{Opcode: Send, Flags: SendInline, Inline: make([]byte, 64)}
	big := SendWR{Opcode: Send, Flags: SendInline, Inline: make([]byte, 65)}
	if err := q.Push(&big); !errors.Is(err, ErrFull) || q.Len() != 0 || s.InUse() != 0 {
		t.Errorf("into an empty queue: %v, %d entries, %d bytes", err, q.Len(), s.InUse())
	}
	if err := q.Push(&in); err != nil {
		t.Fatal(err)
	}
	before := s.InUse()
	if err := q.Push(&in); !errors.Is(err, ErrSlab) || q.Len() != 1 || s.InUse() != before {
		t.Errorf("second: %v, %d entries, %d bytes", err, q.Len(), s.InUse())
	}
	for range chunkWQEs - 1 {
		if err := q.Push(&SendWR{Opcode: Send}); err != nil {
			t.Fatal(err)
		}
	}
	if err := q.Push(&SendWR{Opcode: Send}); !errors.Is(err, ErrSlab) || q.Len() != chunkWQEs {
		t.Errorf("a second chunk: %v, %d entries", err, q.Len())
	}
	q.PopFront()
	if s.InUse() != before-64 {
		t.Errorf("after the front was popped: %d bytes, want %d", s.InUse(), before-64)
	}
}

func TestSendQueueAtPanics(t *testing.T) {
	q := NewSendQueue(NewSlab(0), 4)
	if err := q.Push(request(0)); err != nil {
		t.Fatal(err)
	}
	for _, i := range []int{-1, 1} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("At(%d) of a queue of one did not panic", i)
				}
			}()
			q.At(i)
		}()
	}
}

func TestRecvQueue(t *testing.T) {
	q := NewRecvQueue(3)
	var dst RecvWR
	dst.SGList = append(dst.SGList, SGE{Addr: 99})
	if q.TakeRecv(&dst) || len(dst.SGList) != 1 {
		t.Error("an empty queue gave a request, or touched dst")
	}
	posted, taken := 0, 0
	for range 20 {
		for q.Len() < 3 {
			w := RecvWR{WRID: uint64(posted), SGList: []SGE{{Addr: uint64(posted)}, {Length: 7}}}
			if err := q.Push(&w); err != nil {
				t.Fatal(err)
			}
			w.SGList[0].Addr = 12345 // the queue has a copy
			posted++
		}
		if err := q.Push(&RecvWR{}); !errors.Is(err, ErrFull) {
			t.Errorf("fourth request: %v", err)
		}
		for range 2 {
			if !q.TakeRecv(&dst) || dst.WRID != uint64(taken) || len(dst.SGList) != 2 || dst.SGList[0].Addr != uint64(taken) || dst.SGList[1].Length != 7 {
				t.Fatalf("request %d: got %+v", taken, dst)
			}
			taken++
		}
	}
}

// TestNoAllocation: in steady state nothing here allocates, whatever the depth
// a queue goes to and back.
func TestNoAllocation(t *testing.T) {
	q := NewSendQueue(NewSlab(0), 1000)
	wrs := make([]*SendWR, 300)
	for i := range wrs {
		wrs[i] = request(i)
	}
	fill := func(n int) {
		for i := range n {
			if err := q.Push(wrs[i]); err != nil {
				t.Error(err)
			}
		}
		for q.Len() > 0 {
			q.PopFront()
		}
	}
	fill(300)
	if n := testing.AllocsPerRun(20, func() { fill(300); fill(1) }); n != 0 {
		t.Errorf("send queue: %v allocations", n)
	}
	r := NewRecvQueue(4)
	var dst RecvWR
	w := RecvWR{SGList: make([]SGE, 3)}
	turn := func() {
		if err := r.Push(&w); err != nil || !r.TakeRecv(&dst) {
			t.Error("receive queue refused")
		}
	}
	for range 4 {
		turn()
	}
	if n := testing.AllocsPerRun(20, turn); n != 0 {
		t.Errorf("receive queue: %v allocations", n)
	}
	good := SendWR{Opcode: RDMAWrite, SGList: make([]SGE, 2)}
	if n := testing.AllocsPerRun(20, func() {
		if err := Check(rc, &good, Limits{MaxSGE: 2}); err != nil {
			t.Error(err)
		}
	}); n != 0 {
		t.Errorf("check: %v allocations", n)
	}
}

func BenchmarkPushPop(b *testing.B) {
	q := NewSendQueue(NewSlab(0), 1000)
	w := SendWR{Opcode: RDMAWrite, SGList: make([]SGE, 1)}
	b.ReportAllocs()
	for b.Loop() {
		if err := q.Push(&w); err != nil {
			b.Fatal(err)
		}
		q.PopFront()
	}
}
