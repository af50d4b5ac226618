package uapi

import (
	"bytes"
	"encoding/binary"
	"errors"
	"reflect"
	"testing"

	"github.com/softroce/softroce/pkg/wq"
)

func TestGeometry(t *testing.T) {
	for _, row := range []struct{ n, want uint32 }{{0, 1}, {1, 1}, {2, 2}, {3, 4}, {1000, 1024}, {1 << 30, 1 << 30}, {1<<30 + 1, 0}, {1<<32 - 1, 0}} {
		if got := SlotCount(row.n); got != row.want {
			t.Errorf("SlotCount(%d) = %d, want %d", row.n, got, row.want)
		}
	}
	for _, row := range []struct {
		name      string
		got, want int
	}{
		{"send slot of no element", SQSlotSize(0, 0), 64},
		{"send slot of one", SQSlotSize(1, 0), 128},
		{"send slot of 4", SQSlotSize(4, 64), 128},
		{"send slot of 5", SQSlotSize(5, 64), 192},
		{"send slot of 65 inline bytes", SQSlotSize(4, 65), 192},
		{"receive slot of no element", RQSlotSize(0), 32},
		{"receive slot of one", RQSlotSize(1), 32},
		{"receive slot of 2", RQSlotSize(2), 64},
		{"send ring", SQRingSize(4, 1, 0), 128 + 4*128},
		{"receive ring", RQRingSize(1, 1), 192},
		{"completion ring", CQRingSize(8), 128 + 8*64},
		{"doorbells", DoorbellSize(3), 3 * 20480},
		{"workers", MaxWorkers, 63},
	} {
		if row.got != row.want {
			t.Errorf("%s: %d, want %d", row.name, row.got, row.want)
		}
	}
}

func TestRingRefuses(t *testing.T) {
	mem := segment(t, 4096)
	for _, row := range []struct {
		name string
		ref  RingRef
	}{
		{"no slot", RingRef{Slots: 0}},
		{"three slots", RingRef{Slots: 3}},
		{"offset in a cache line", RingRef{Offset: 32, Slots: 1}},
		{"offset at the end", RingRef{Offset: 4096, Slots: 1}},
		{"offset beyond", RingRef{Offset: 1<<64 - 64, Slots: 1}},
		{"ends outside", RingRef{Slots: 64}},
		{"too many slots", RingRef{Slots: 1 << 31}},
		{"too many elements", RingRef{Slots: 1, MaxSGE: MaxSGE + 1}},
		{"too long inline data", RingRef{Slots: 1, MaxInline: MaxInline + 1}},
	} {
		t.Run(row.name, func(t *testing.T) {
			errs := map[string]error{
				"SQProducer": second(NewSQProducer(mem, row.ref)), "SQConsumer": second(NewSQConsumer(mem, row.ref)),
				"RQProducer": second(NewRQProducer(mem, row.ref)), "RQConsumer": second(NewRQConsumer(mem, row.ref)),
				"CQRing": second(NewCQRing(mem, row.ref)), "CQConsumer": second(NewCQConsumer(mem, row.ref)),
			}
			if row.ref.MaxSGE > 0 || row.ref.MaxInline > 0 { // others have no such field
				delete(errs, "CQRing")
				delete(errs, "CQConsumer")
			}
			if row.ref.MaxInline > 0 {
				delete(errs, "RQProducer")
				delete(errs, "RQConsumer")
			}
			if row.name == "ends outside" { // 64 receive slots of 32 bytes fit
				delete(errs, "RQProducer")
				delete(errs, "RQConsumer")
			}
			for name, err := range errs {
				if !errors.Is(err, ErrGeometry) {
					t.Errorf("%s: %v, want ErrGeometry", name, err)
				}
			}
		})
	}
}

func second[T any](_ T, err error) error { return err }

func TestSQSlot(t *testing.T) {
	inv := sampleSend()
	inv.Opcode, inv.InvalidateRKey, inv.ImmData, inv.SGList = wq.SendWithInv, 0xa1b2c3d4, 0, nil
	inline := sampleSend()
	inline.Opcode, inline.Flags, inline.SGList, inline.Inline = wq.Send, wq.SendInline, nil, []byte("inline data")
	bind := sampleSend()
	bind.Opcode, bind.ImmData, bind.RemoteAddr, bind.RKey, bind.CompareAdd, bind.Swap = wq.BindMW, 0, 0, 0, 0, 0
	bind.Bind = wq.Bind{RKey: 0xb1b2b3b4, MR: 0xc1c2c3c4, Addr: 0xd1d2d3d4d5d6d7d8, Length: 0xe1e2e3e4e5e6e7e8, Access: 0xf1f2f3f4}
	rows := []struct {
		name string
		wr   wq.SendWR
	}{{"SQSlot", sampleSend()}, {"SQSlotInvalidate", inv}, {"SQSlotInline", inline}, {"SQSlotBind", bind}}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			mem := segment(t, 4096)
			ref := RingRef{Offset: 64, Slots: 2, MaxSGE: 2, MaxInline: 32}
			p, c := newSQ(t, mem, ref)
			if err := p.Put(&row.wr); err != nil {
				t.Fatal(err)
			}
			var got wq.SendWR
			if ok, err := c.Peek(&got); ok || err != nil {
				t.Fatalf("Peek before Publish: %t, %v", ok, err)
			}
			p.Publish()
			golden(t, row.name, mem.Bytes()[64+RingHeaderSize:][:128])
			ok, err := c.Peek(&got)
			if !ok || err != nil {
				t.Fatalf("Peek: %t, %v", ok, err)
			}
			if len(got.SGList) == 0 {
				got.SGList = nil
			}
			if len(got.Inline) == 0 {
				got.Inline = nil
			}
			if !reflect.DeepEqual(got, row.wr) {
				t.Errorf("decoded\n%+v, want\n%+v", got, row.wr)
			}
		})
	}
}

func TestSQFlow(t *testing.T) {
	mem := segment(t, 1<<16)
	p, c := newSQ(t, mem, RingRef{Slots: 4, MaxSGE: 2, MaxInline: 64})
	var wr wq.SendWR
	for round := range uint64(10) {
		for i := range uint64(4) {
			if got := p.Free(); got != 4-int(i) {
				t.Fatalf("round %d: Free() = %d with %d put", round, got, i)
			}
			if err := p.Put(&wq.SendWR{WRID: 4*round + i}); err != nil {
				t.Fatal(err)
			}
		}
		if err := p.Put(&wq.SendWR{}); !errors.Is(err, ErrRingFull) {
			t.Fatalf("Put into a full ring: %v, want ErrRingFull", err)
		}
		p.Publish()
		if c.Pending() != 4 {
			t.Fatalf("Pending() = %d, want 4", c.Pending())
		}
		for i := range uint64(4) {
			for range 2 { // a request that is not consumed comes again
				if ok, err := c.Peek(&wr); !ok || err != nil || wr.WRID != 4*round+i {
					t.Fatalf("Peek: %t, %v, request %d, want %d", ok, err, wr.WRID, 4*round+i)
				}
			}
			c.Consume()
		}
		if ok, err := c.Peek(&wr); ok || err != nil {
			t.Fatalf("Peek of an empty ring: %t, %v", ok, err)
		}
	}
	if err := p.Put(&wq.SendWR{SGList: make([]wq.SGE, 3)}); !errors.Is(err, ErrTooManySGE) {
		t.Errorf("Put of 3 elements: %v, want ErrTooManySGE", err)
	}
	if err := p.Put(&wq.SendWR{Flags: wq.SendInline, Inline: make([]byte, 65)}); !errors.Is(err, ErrInlineTooLong) {
		t.Errorf("Put of 65 inline bytes: %v, want ErrInlineTooLong", err)
	}
	if err := p.Put(&wq.SendWR{WRID: 99}); err != nil {
		t.Fatal(err)
	}
	p.Rollback()
	p.Publish()
	if c.Pending() != 0 {
		t.Error("a request that was rolled back is there")
	}
	_ = p.Put(&wq.SendWR{WRID: 100})
	p.Publish()
	c.Skip()
	p.Reset()
	if c.Pending() != 0 || p.Free() != 4 {
		t.Errorf("after a reset: %d pending, %d free", c.Pending(), p.Free())
	}
}

// New memory for a ring may be an old ring's: whatever lies there is gone.
func TestNewRingIsEmpty(t *testing.T) {
	mem := segment(t, 4096)
	for i := range mem.Bytes() {
		mem.Bytes()[i] = 0xff
	}
	ref := RingRef{Slots: 4, MaxSGE: 1}
	_, sq := newSQ(t, mem, ref)
	if sq.Pending() != 0 {
		t.Error("a new send ring is not empty")
	}
	ref.Offset = 1024
	_, rq := newRQ(t, mem, ref)
	if rq.Pending() != 0 {
		t.Error("a new receive ring is not empty")
	}
	ref.Offset = 2048
	r, c := newCQ(t, mem, ref)
	if c.Pending() != 0 || r.Free() != 4 || r.TakeArm(true) || c.Dead() || c.EventsRead() != 0 {
		t.Error("a new completion ring is not empty")
	}
}

func TestSQTrustsNothing(t *testing.T) {
	ref := RingRef{Slots: 4, MaxSGE: 2, MaxInline: 40}
	slot := func(mem []byte) []byte { return mem[RingHeaderSize:] }
	le := binary.LittleEndian
	rows := []struct {
		name    string
		corrupt func(mem Memory)
	}{
		{"index too far", func(mem Memory) { mem.Word32(offProducer).Store(5) }},
		{"index behind", func(mem Memory) { mem.Word32(offProducer).Store(1<<32 - 1) }},
		{"too many elements", func(mem Memory) { le.PutUint16(slot(mem.Bytes())[sqNumSGE:], 3) }},
		{"most elements", func(mem Memory) { le.PutUint16(slot(mem.Bytes())[sqNumSGE:], 0xffff) }},
		{"too long inline data", func(mem Memory) {
			le.PutUint32(slot(mem.Bytes())[sqFlags:], uint32(wq.SendInline))
			le.PutUint32(slot(mem.Bytes())[sqInlineLen:], 41)
		}},
		{"longest inline data", func(mem Memory) {
			le.PutUint32(slot(mem.Bytes())[sqFlags:], uint32(wq.SendInline))
			le.PutUint32(slot(mem.Bytes())[sqInlineLen:], 1<<32-1)
		}},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			mem := segment(t, 4096)
			p, c := newSQ(t, mem, ref)
			_ = p.Put(&wq.SendWR{WRID: 1})
			p.Publish()
			row.corrupt(mem)
			var wr wq.SendWR
			for range 2 {
				if ok, err := c.Peek(&wr); ok || !errors.Is(err, ErrCorrupt) {
					t.Errorf("Peek: %t, %v, want ErrCorrupt", ok, err)
				}
			}
			if !errors.Is(c.Err(), ErrCorrupt) {
				t.Errorf("Err() = %v", c.Err())
			}
			c.Skip()
			if ok, err := c.Peek(&wr); ok || err != nil {
				t.Errorf("Peek after Skip: %t, %v", ok, err)
			}
		})
	}
	// A consumer's own index is not read back.
	mem := segment(t, 4096)
	p, c := newSQ(t, mem, ref)
	_ = p.Put(&wq.SendWR{WRID: 1})
	p.Publish()
	mem.Word32(offConsumer).Store(1)
	var wr wq.SendWR
	if ok, err := c.Peek(&wr); !ok || err != nil || wr.WRID != 1 {
		t.Errorf("Peek with a forged consumer index: %t, %v, request %d", ok, err, wr.WRID)
	}
}

// F39: what Peek gave stays what it was, whatever the program does to the slot.
func TestF39SQCopiesOnce(t *testing.T) {
	mem := segment(t, 4096)
	p, c := newSQ(t, mem, RingRef{Slots: 2, MaxSGE: 2, MaxInline: 32})
	_ = p.Put(&wq.SendWR{WRID: 1, SGList: []wq.SGE{{Addr: 2, Length: 3, LKey: 4}}})
	_ = p.Put(&wq.SendWR{Flags: wq.SendInline, Inline: []byte("abcd")})
	p.Publish()
	var wr wq.SendWR
	scribble := func() {
		for i := range mem.Bytes()[RingHeaderSize:] {
			mem.Bytes()[RingHeaderSize+i] = 0xee
		}
	}
	saved := bytes.Clone(mem.Bytes())
	if ok, err := c.Peek(&wr); !ok || err != nil {
		t.Fatal(ok, err)
	}
	scribble()
	if wr.WRID != 1 || wr.SGList[0] != (wq.SGE{Addr: 2, Length: 3, LKey: 4}) {
		t.Errorf("the request changed with the slot: %+v", wr)
	}
	copy(mem.Bytes()[RingHeaderSize:], saved[RingHeaderSize:])
	c.Consume()
	if ok, err := c.Peek(&wr); !ok || err != nil {
		t.Fatal(ok, err)
	}
	scribble()
	if string(wr.Inline) != "abcd" {
		t.Errorf("inline data changed with the slot: %q", wr.Inline)
	}
	if cap(wr.Inline) != 4 {
		t.Errorf("inline data has capacity %d: an append would reach the copy", cap(wr.Inline))
	}
}

func TestSQAllocatesNothing(t *testing.T) {
	mem := segment(t, 4096)
	p, c := newSQ(t, mem, RingRef{Slots: 4, MaxSGE: 2, MaxInline: 32})
	wr := wq.SendWR{SGList: make([]wq.SGE, 2)}
	inline := wq.SendWR{Flags: wq.SendInline, Inline: make([]byte, 32)}
	got := wq.SendWR{SGList: make([]wq.SGE, 0, 2)}
	if n := testing.AllocsPerRun(100, func() {
		_ = p.Put(&wr)
		_ = p.Put(&inline)
		p.Publish()
		for range 2 {
			if ok, err := c.Peek(&got); !ok || err != nil {
				t.Fatal(ok, err)
			}
			c.Consume()
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkSQ(b *testing.B) {
	mem := segment(b, 1<<20)
	for _, batch := range []int{1, 16} {
		b.Run(map[int]string{1: "single", 16: "batch16"}[batch], func(b *testing.B) {
			p, c := newSQ(b, mem, RingRef{Slots: 64, MaxSGE: 4, MaxInline: 64})
			wr := wq.SendWR{SGList: make([]wq.SGE, 1)}
			var got wq.SendWR
			b.ReportAllocs()
			for b.Loop() {
				for range batch {
					_ = p.Put(&wr)
				}
				p.Publish()
				for range batch {
					if ok, err := c.Peek(&got); !ok || err != nil {
						b.Fatal(ok, err)
					}
					c.Consume()
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*batch), "ns/request")
		})
	}
}
