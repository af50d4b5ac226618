package uapi

import (
	"encoding/binary"
	"errors"
	"reflect"
	"testing"

	"github.com/softroce/softroce/pkg/wq"
)

func TestRQSlot(t *testing.T) {
	mem := segment(t, 4096)
	p, c := newRQ(t, mem, RingRef{Offset: 64, Slots: 2, MaxSGE: 3})
	wr := wq.RecvWR{WRID: 0xa1b2c3d4e5f60718, SGList: sampleSend().SGList}
	if err := p.Put(&wr); err != nil {
		t.Fatal(err)
	}
	p.Publish()
	golden(t, "RQSlot", mem.Bytes()[64+RingHeaderSize:][:64])
	var got wq.RecvWR
	if !c.TakeRecv(&got) || !reflect.DeepEqual(got, wr) {
		t.Errorf("decoded %+v, want %+v (%v)", got, wr, c.Err())
	}
}

func TestRQFlow(t *testing.T) {
	mem := segment(t, 4096)
	p, c := newRQ(t, mem, RingRef{Slots: 4, MaxSGE: 1})
	got := wq.RecvWR{WRID: 77}
	if c.TakeRecv(&got) || got.WRID != 77 {
		t.Errorf("TakeRecv of an empty ring gave %+v", got)
	}
	for round := range uint64(10) {
		for i := range uint64(4) {
			if err := p.Put(&wq.RecvWR{WRID: 4*round + i}); err != nil {
				t.Fatal(err)
			}
		}
		if err := p.Put(&wq.RecvWR{}); !errors.Is(err, ErrRingFull) || p.Free() != 0 {
			t.Fatalf("Put into a full ring: %v, want ErrRingFull", err)
		}
		if c.TakeRecv(&got) {
			t.Fatal("TakeRecv before Publish")
		}
		p.Publish()
		if c.Pending() != 4 || p.Outstanding() != 4 {
			t.Fatalf("%d pending, %d outstanding, want 4", c.Pending(), p.Outstanding())
		}
		for i := range uint64(4) {
			if !c.TakeRecv(&got) || got.WRID != 4*round+i {
				t.Fatalf("TakeRecv: request %d, want %d", got.WRID, 4*round+i)
			}
		}
		if p.Outstanding() != 0 {
			t.Fatalf("%d outstanding", p.Outstanding())
		}
	}
	if err := p.Put(&wq.RecvWR{SGList: make([]wq.SGE, 2)}); !errors.Is(err, ErrTooManySGE) {
		t.Errorf("Put of 2 elements: %v, want ErrTooManySGE", err)
	}
	_ = p.Put(&wq.RecvWR{})
	p.Rollback()
	_ = p.Put(&wq.RecvWR{WRID: 5})
	p.Publish()
	if c.Pending() != 1 {
		t.Errorf("%d pending, want 1", c.Pending())
	}
	c.Skip()
	p.Reset()
	if c.Pending() != 0 || p.Free() != 4 {
		t.Errorf("after a reset: %d pending, %d free", c.Pending(), p.Free())
	}
}

func TestRQTrustsNothing(t *testing.T) {
	for _, row := range []struct {
		name    string
		corrupt func(mem Memory)
	}{
		{"index too far", func(mem Memory) { mem.Word32(offProducer).Store(5) }},
		{"index behind", func(mem Memory) { mem.Word32(offProducer).Store(1<<32 - 1) }},
		{"too many elements", func(mem Memory) { binary.LittleEndian.PutUint32(mem.Bytes()[RingHeaderSize+rqNumSGE:], 3) }},
		{"most elements", func(mem Memory) {
			binary.LittleEndian.PutUint32(mem.Bytes()[RingHeaderSize+rqNumSGE:], 1<<32-1)
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			mem := segment(t, 4096)
			p, c := newRQ(t, mem, RingRef{Slots: 4, MaxSGE: 2})
			_ = p.Put(&wq.RecvWR{WRID: 1})
			p.Publish()
			row.corrupt(mem)
			var wr wq.RecvWR
			for range 2 {
				if c.TakeRecv(&wr) || !errors.Is(c.Err(), ErrCorrupt) {
					t.Errorf("TakeRecv gave %+v, %v; want ErrCorrupt", wr, c.Err())
				}
			}
		})
	}
}

func TestRQAllocatesNothing(t *testing.T) {
	mem := segment(t, 4096)
	p, c := newRQ(t, mem, RingRef{Slots: 4, MaxSGE: 2})
	wr, got := wq.RecvWR{SGList: make([]wq.SGE, 2)}, wq.RecvWR{SGList: make([]wq.SGE, 0, 2)}
	if n := testing.AllocsPerRun(100, func() {
		_ = p.Put(&wr)
		p.Publish()
		if !c.TakeRecv(&got) {
			t.Fatal(c.Err())
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// A ring moves to one of another size: what waits goes with it, in order, and
// the indices go on.
func TestRQMoveTo(t *testing.T) {
	mem := segment(t, 1<<14)
	p, c := newRQ(t, mem, RingRef{Slots: 4, MaxSGE: 2})
	post := func(p *RQProducer, ids ...uint64) {
		t.Helper()
		for _, id := range ids {
			if err := p.Put(&wq.RecvWR{WRID: id, SGList: []wq.SGE{{Addr: id}}}); err != nil {
				t.Fatal(err)
			}
		}
		p.Publish()
	}
	take := func(c *RQConsumer, ids ...uint64) {
		t.Helper()
		var wr wq.RecvWR
		for _, id := range ids {
			if !c.TakeRecv(&wr) || wr.WRID != id || len(wr.SGList) != 1 || wr.SGList[0].Addr != id {
				t.Fatalf("took %+v, want %d (%v)", wr, id, c.Err())
			}
		}
	}
	post(p, 1, 2, 3)
	take(c, 1, 2)
	post(p, 4, 5)
	for _, row := range []struct {
		ref  RingRef
		want error
	}{
		{RingRef{Offset: 4096, Slots: 2, MaxSGE: 2}, ErrRingFull},
		{RingRef{Offset: 4096, Slots: 8, MaxSGE: 1}, ErrGeometry},
		{RingRef{Offset: 4097, Slots: 8, MaxSGE: 2}, ErrGeometry},
	} {
		if _, err := c.MoveTo(mem, row.ref); !errors.Is(err, row.want) {
			t.Errorf("move to %+v: %v, want %v", row.ref, err, row.want)
		}
	}
	ref := RingRef{Offset: 4096, Slots: 8, MaxSGE: 2}
	to, err := c.MoveTo(mem, ref)
	if err != nil {
		t.Fatal(err)
	}
	q, err := NewRQProducer(mem, ref)
	if err != nil || q.Outstanding() != 3 || q.Free() != 5 || to.Pending() != 3 {
		t.Fatalf("after the move: %v, %d outstanding, %d free, %d pending", err, q.Outstanding(), q.Free(), to.Pending())
	}
	post(q, 6, 7)
	take(to, 3, 4, 5, 6, 7)
	p.producer.Store(c.next + 99)
	if _, err := c.MoveTo(mem, ref); !errors.Is(err, ErrCorrupt) {
		t.Errorf("move of a corrupt ring: %v, want ErrCorrupt", err)
	}
}
