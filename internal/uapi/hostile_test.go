package uapi

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/softroce/softroce/internal/shm"
	"github.com/softroce/softroce/pkg/cq"
	"github.com/softroce/softroce/pkg/wq"
)

// adapterSide is all of an adapter's objects over one program's memory.
type adapterSide struct {
	sq   *SQConsumer
	rq   *RQConsumer
	ring *CQRing
	bell *AdapterDoorbell

	send wq.SendWR
	recv wq.RecvWR
	put  uint32 // completions put
}

const (
	hostileSGE    = 3
	hostileInline = 70
	hostileSlots  = 8
	ringArea      = 8192 // room of each ring
	hostileSize   = DoorbellBlock + 3*ringArea
)

func newAdapterSide(tb testing.TB, mem Memory) *adapterSide {
	tb.Helper()
	ref := func(i int) RingRef {
		return RingRef{Offset: uint64(DoorbellBlock + i*ringArea), Slots: hostileSlots, MaxSGE: hostileSGE, MaxInline: hostileInline}
	}
	var a adapterSide
	var errs [4]error
	a.bell, errs[0] = NewAdapterDoorbell(mem, 0)
	a.sq, errs[1] = NewSQConsumer(mem, ref(0))
	a.rq, errs[2] = NewRQConsumer(mem, ref(1))
	a.ring, errs[3] = NewCQRing(mem, ref(2))
	if err := errors.Join(errs[:]...); err != nil {
		tb.Fatal(err)
	}
	return &a
}

// turn does once what a worker does, and says what is wrong with what it got.
func (a *adapterSide) turn() error {
	for range 300 { // a turn is bounded
		i, ok := a.bell.Next()
		if !ok {
			break
		}
		if i >= DoorbellIndices {
			return errors.New("doorbell index outside")
		}
	}
	for range 2 * hostileSlots {
		ok, err := a.sq.Peek(&a.send)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) {
				return err
			}
			a.sq.Skip() // the QP is reset
			break
		}
		if !ok {
			break
		}
		inline := a.send.Flags&wq.SendInline != 0
		switch {
		case len(a.send.SGList) > hostileSGE || len(a.send.Inline) > hostileInline:
			return errors.New("send request beyond its slot")
		case inline && len(a.send.SGList) > 0, !inline && len(a.send.Inline) > 0:
			return errors.New("send request with elements and inline data")
		}
		a.sq.Consume()
	}
	for range 2 * hostileSlots {
		if !a.rq.TakeRecv(&a.recv) {
			break
		}
		if len(a.recv.SGList) > hostileSGE {
			return errors.New("receive request beyond its slot")
		}
	}
	if a.rq.Err() != nil {
		a.rq.Skip()
	}
	free := a.ring.Free()
	if free < 0 || free > hostileSlots {
		return errors.New("completion ring with impossible room")
	}
	if free > 0 {
		a.ring.Put(&cq.WC{WRID: uint64(a.put)})
		a.put++
		a.ring.Publish()
	}
	a.ring.TakeArm(a.put%2 == 0)
	return nil
}

// FuzzAdapterRings gives the adapter's side memory and changes of it, byte by
// byte, between its turns.
func FuzzAdapterRings(f *testing.F) {
	mem, err := shm.Create("fuzz", hostileSize)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = mem.Close() })
	seed := func(writes ...uint32) (b []byte) {
		for _, w := range writes {
			b = binary.LittleEndian.AppendUint32(b, w)
		}
		return b
	}
	const sq, rq, cqr = DoorbellBlock, DoorbellBlock + ringArea, DoorbellBlock + 2*ringArea
	f.Add(seed(sq+RingHeaderSize+sqNumSGE-2, 3<<16, sq, 1))
	f.Add(seed(sq+RingHeaderSize+sqFlags, 8, sq+RingHeaderSize+sqInlineLen, hostileInline+1, sq, 1))
	f.Add(seed(rq+RingHeaderSize+rqNumSGE, 4, rq, 1))
	f.Add(seed(cqr+64, 9, cqr+68, 1, bellAny, 1, bellSummary, 1, bellWords, 0xffffffff))
	f.Fuzz(func(t *testing.T, b []byte) {
		clear(mem.Bytes())
		a := newAdapterSide(t, mem)
		for ; len(b) >= 8; b = b[8:] {
			off := binary.LittleEndian.Uint32(b) % (hostileSize / 4) * 4
			if o := binary.LittleEndian.Uint32(b); o < hostileSize-3 && o%4 == 0 {
				off = o
			}
			copy(mem.Bytes()[off:off+4], b[4:8])
			if err := a.turn(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// F39: a thread scribbles over the rings while the adapter serves them. The
// adapter's own state and what it decoded stay in bounds, and another program's
// rings work on. The memory is a real mapping, also under -race: the race is
// the point.
func TestF39ScribbledRings(t *testing.T) {
	mem, err := shm.CreateMapped("hostile", hostileSize)
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	a := newAdapterSide(t, mem)
	goodSend, goodConsumer := newSQ(t, segment(t, 4096), RingRef{Slots: 4, MaxSGE: 1})

	var stop atomic.Bool
	var wg sync.WaitGroup
	for i := range 2 {
		wg.Go(func() { scribble(mem, rand.New(rand.NewPCG(39, uint64(i))), &stop) })
	}
	defer wg.Wait()
	defer stop.Store(true)
	var wr wq.SendWR
	for i := range uint64(20000) {
		if err := a.turn(); err != nil {
			t.Fatalf("turn %d: %v", i, err)
		}
		_ = goodSend.Put(&wq.SendWR{WRID: i})
		goodSend.Publish()
		if ok, err := goodConsumer.Peek(&wr); !ok || err != nil || wr.WRID != i {
			t.Fatalf("another program's request %d: %t, %v, got %d", i, ok, err, wr.WRID)
		}
		goodConsumer.Consume()
	}
}

// F39: a field that is right when it is checked and wrong when it is used. The
// program does nothing but change it, the adapter nothing but look.
func TestF39FieldChangesAfterCheck(t *testing.T) {
	const looks = 500000 / patience
	for _, row := range []struct {
		name       string
		off        int    // of the word in the slot
		good, evil uint32 // its values
		rq         bool
		inline     bool
	}{
		{name: "elements of a send slot", off: sqOpcode, good: 1 << 16, evil: 0xffff << 16},
		{name: "inline length", off: sqInlineLen, good: 1, evil: 1 << 30, inline: true},
		{name: "elements of a receive slot", off: rqNumSGE, good: 1, evil: 1 << 30, rq: true},
	} {
		t.Run(row.name, func(t *testing.T) {
			mem, err := shm.CreateMapped("hostile", 4096)
			if err != nil {
				t.Fatal(err)
			}
			defer mem.Close()
			ref := RingRef{Slots: 1, MaxSGE: 1, MaxInline: 1}
			sq, err := NewSQConsumer(mem, ref)
			if err != nil {
				t.Fatal(err)
			}
			rq, err := NewRQConsumer(mem, ref)
			if err != nil {
				t.Fatal(err)
			}
			if row.inline {
				mem.Word32(RingHeaderSize + sqFlags).Store(hostOrder(uint32(wq.SendInline)))
			}
			var stop atomic.Bool
			var wg sync.WaitGroup
			wg.Go(func() {
				w, good, evil := mem.Word32(RingHeaderSize+row.off), hostOrder(row.good), hostOrder(row.evil)
				for !stop.Load() {
					w.Store(good)
					w.Store(evil)
				}
			})
			defer wg.Wait()
			defer stop.Store(true)
			var send wq.SendWR
			var recv wq.RecvWR
			for range looks {
				rq.next, rq.err, sq.err = 0, nil, nil
				mem.Word32(offProducer).Store(1)
				switch {
				case row.rq:
					if rq.TakeRecv(&recv) && len(recv.SGList) > 1 {
						t.Fatalf("%d elements", len(recv.SGList))
					}
				default:
					if ok, _ := sq.Peek(&send); ok && len(send.SGList)+len(send.Inline) > 1 {
						t.Fatalf("%d elements, %d inline bytes", len(send.SGList), len(send.Inline))
					}
				}
			}
		})
	}
}

// hostOrder returns the word whose bytes in memory are v in little-endian order.
func hostOrder(v uint32) uint32 {
	return binary.NativeEndian.Uint32(binary.LittleEndian.AppendUint32(nil, v))
}

// scribble writes likely and unlikely values to likely and unlikely places.
func scribble(mem *shm.Segment, rnd *rand.Rand, stop *atomic.Bool) {
	likely := []int{bellAny, bellSummary, bellWords}
	for i := range 3 {
		ring := DoorbellBlock + i*ringArea
		likely = append(likely, ring, ring+offConsumer, ring+offArm, ring+offRead)
		for s := range hostileSlots {
			slot := ring + RingHeaderSize + s*SQSlotSize(hostileSGE, hostileInline)
			likely = append(likely, slot+sqNumSGE-2, slot+sqFlags, slot+sqInlineLen)
		}
	}
	for !stop.Load() {
		for range 64 {
			off, v := likely[rnd.IntN(len(likely))], rnd.Uint32N(2*hostileSlots)
			if rnd.IntN(4) == 0 {
				off, v = rnd.IntN(hostileSize/4)*4, rnd.Uint32()
			}
			mem.Word32(off).Store(v)
		}
	}
}

func FuzzSQSlot(f *testing.F) {
	mem, err := shm.Create("fuzz", 4096)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = mem.Close() })
	f.Add(make([]byte, 64))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, c := newSQ(t, mem, RingRef{Slots: 2, MaxSGE: 4, MaxInline: 100})
		clear(mem.Bytes()[RingHeaderSize:])
		copy(mem.Bytes()[RingHeaderSize:RingHeaderSize+c.slotSize], b)
		mem.Word32(offProducer).Store(1)
		var wr, again wq.SendWR
		if ok, err := c.Peek(&wr); !ok {
			if !errors.Is(err, ErrCorrupt) {
				t.Fatal(err)
			}
			return
		}
		// What was decoded can be put and decodes to the same.
		c.Consume()
		p.Reset()
		wr.SGList, wr.Inline = append([]wq.SGE(nil), wr.SGList...), append([]byte(nil), wr.Inline...)
		if err := p.Put(&wr); err != nil {
			t.Fatal(err)
		}
		p.Publish()
		if ok, err := c.Peek(&again); !ok || err != nil {
			t.Fatal(ok, err)
		}
		if string(again.Inline) != string(wr.Inline) || len(again.SGList) != len(wr.SGList) || again.WRID != wr.WRID ||
			again.ImmData != wr.ImmData || again.InvalidateRKey != wr.InvalidateRKey || again.Flags != wr.Flags {
			t.Fatalf("decoded %+v, put and decoded %+v", wr, again)
		}
	})
}
