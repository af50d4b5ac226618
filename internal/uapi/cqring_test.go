package uapi

import (
	"errors"
	"testing"

	"github.com/softroce/softroce/pkg/cq"
)

func TestCQSlot(t *testing.T) {
	mem := segment(t, 4096)
	r, c := newCQ(t, mem, RingRef{Offset: 64, Slots: 2})
	wc := sampleWC()
	r.Put(&wc)
	var got [2]cq.WC
	if n := c.Poll(got[:]); n != 0 {
		t.Fatalf("Poll before Publish: %d", n)
	}
	r.Publish()
	golden(t, "CQSlot", mem.Bytes()[64+RingHeaderSize:][:CQSlotSize])
	if n := c.Poll(got[:]); n != 1 || got[0] != wc {
		t.Errorf("polled %d: %+v, want %+v", n, got[0], wc)
	}
}

// The words of the header lie where both sides and C expect them.
func TestCQHeader(t *testing.T) {
	mem := segment(t, 4096)
	r, c := newCQ(t, mem, RingRef{Slots: 4})
	wc := sampleWC()
	r.Put(&wc)
	r.Put(&wc)
	r.Publish()
	c.Poll(make([]cq.WC, 1))
	c.Arm(true)
	c.EventRead()
	c.EventRead()
	c.EventRead()
	r.MarkDead()
	for _, w := range []struct {
		name string
		off  int
		want uint32
	}{{"producer", 0, 2}, {"dead", 4, 1}, {"consumer", 64, 1}, {"arm", 68, 2}, {"events_read", 72, 3}} {
		if got := mem.Word32(w.off).Load(); got != w.want {
			t.Errorf("%s at %d is %d, want %d", w.name, w.off, got, w.want)
		}
	}
	if !c.Dead() || c.EventsRead() != 3 {
		t.Errorf("Dead() = %t, EventsRead() = %d", c.Dead(), c.EventsRead())
	}
}

func TestCQFlow(t *testing.T) {
	mem := segment(t, 4096)
	r, c := newCQ(t, mem, RingRef{Slots: 4})
	q := cq.New(r)
	var wcs [8]cq.WC
	for round := range uint64(10) {
		for i := range uint64(4) {
			if err := q.Push(&cq.WC{WRID: 4*round + i}, false); err != nil {
				t.Fatal(err)
			}
		}
		if q.Flush() {
			t.Fatal("an event without arming")
		}
		if c.Pending() != 4 || r.Free() != 0 {
			t.Fatalf("%d pending, %d free", c.Pending(), r.Free())
		}
		n := c.Poll(wcs[:3])
		n += c.Poll(wcs[n:])
		if n != 4 || wcs[0].WRID != 4*round || wcs[3].WRID != 4*round+3 {
			t.Fatalf("round %d: polled %d, first %d, last %d", round, n, wcs[0].WRID, wcs[3].WRID)
		}
	}
	if c.Poll(nil) != 0 {
		t.Error("Poll into nothing gave something")
	}
	for range 4 {
		if err := q.Push(&cq.WC{}, false); err != nil {
			t.Fatal(err)
		}
	}
	if err := q.Push(&cq.WC{}, false); !errors.Is(err, cq.ErrOverflow) {
		t.Errorf("Push into a full ring: %v, want cq.ErrOverflow", err)
	}
}

// An index that a program cannot have makes its own queue overflow, no more.
func TestCQTrustsNothing(t *testing.T) {
	for _, consumer := range []uint32{1, 4, 1 << 31, 1<<32 - 5} {
		mem := segment(t, 4096)
		r, _ := newCQ(t, mem, RingRef{Slots: 4})
		mem.Word32(offConsumer).Store(consumer)
		if got := r.Free(); got != 0 {
			t.Errorf("Free() = %d with the consumer at %d and nothing put, want 0", got, consumer)
		}
	}
}

// Arming (IBTA Vol 1 §11.4.2.2): one event, for any completion or for a
// solicited one; any overrides solicited; none while one is unread.
func TestCQArm(t *testing.T) {
	const none, any, sol = "", "any", "solicited"
	rows := []struct {
		name      string
		arms      []string
		solicited bool
		want      bool
	}{
		{"not armed", nil, true, false},
		{"any, plain completion", []string{any}, false, true},
		{"any, solicited completion", []string{any}, true, true},
		{"solicited, plain completion", []string{sol}, false, false},
		{"solicited, solicited completion", []string{sol}, true, true},
		{"any after solicited, plain completion", []string{sol, any}, false, true},
		{"solicited after any, plain completion", []string{any, sol}, false, true},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			r, c := newCQ(t, segment(t, 4096), RingRef{Slots: 4})
			for _, arm := range row.arms {
				c.Arm(arm == sol)
			}
			if got := r.TakeArm(row.solicited); got != row.want {
				t.Errorf("TakeArm(%t) = %t, want %t", row.solicited, got, row.want)
			}
			if got := r.EventsSent(); (got == 1) != row.want {
				t.Errorf("EventsSent() = %d", got)
			}
			c.EventRead()
			if row.want && r.TakeArm(true) {
				t.Error("one arming gave two events")
			}
		})
	}
	r, c := newCQ(t, segment(t, 4096), RingRef{Slots: 4})
	c.Arm(false)
	if !r.TakeArm(false) {
		t.Fatal("no event")
	}
	c.Arm(false)
	if r.TakeArm(false) {
		t.Error("a second event while the first is unread")
	}
	c.EventRead()
	if !r.TakeArm(false) {
		t.Error("the arming was lost while an event was unread")
	}
}

// No order of arming, polling and reading loses a wake-up: everything put is
// polled though the program sleeps whenever it has armed and found nothing.
func TestCQLosesNoEvent(t *testing.T) {
	const total = 20000
	mem := segment(t, 1<<16)
	r, c := newCQ(t, mem, RingRef{Slots: 64})
	events := make(chan struct{}, 1) // the pipe: one record at most is under way
	room := make(chan struct{}, 1)   // wakes the adapter when it waits for slots
	go func() {
		q := cq.New(r)
		for i := uint64(0); i < total; {
			for r.Free() == 0 {
				<-room
			}
			if err := q.Push(&cq.WC{WRID: i}, i%3 == 0); err != nil {
				t.Error(err)
				return
			}
			i++
			if i%5 == 0 || r.Free() == 0 || i == total {
				if q.Flush() {
					select {
					case events <- struct{}{}:
					default:
						t.Error("a second record while one is under way")
					}
				}
			}
		}
	}()
	var wcs [7]cq.WC
	for next := uint64(0); next < total; {
		c.Arm(false)
		for {
			n := c.Poll(wcs[:])
			if n == 0 {
				break
			}
			for i := range wcs[:n] {
				if wcs[i].WRID != next {
					t.Fatalf("completion %d, want %d", wcs[i].WRID, next)
				}
				next++
			}
			select {
			case room <- struct{}{}:
			default:
			}
		}
		if next < total {
			<-events
			c.EventRead()
		}
	}
}

func TestCQAllocatesNothing(t *testing.T) {
	r, c := newCQ(t, segment(t, 4096), RingRef{Slots: 4})
	wc := sampleWC()
	var wcs [4]cq.WC
	if n := testing.AllocsPerRun(100, func() {
		r.Put(&wc)
		r.Put(&wc)
		r.Publish()
		c.Arm(false)
		if r.TakeArm(false) {
			c.EventRead()
		}
		if c.Poll(wcs[:]) != 2 {
			t.Fatal("lost a completion")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkCQ(b *testing.B) {
	r, c := newCQ(b, segment(b, 1<<16), RingRef{Slots: 64})
	var wc cq.WC
	var wcs [16]cq.WC
	b.ReportAllocs()
	for b.Loop() {
		for range 16 {
			r.Put(&wc)
		}
		r.Publish()
		c.Poll(wcs[:])
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*16), "ns/completion")
}

func BenchmarkCQPollEmpty(b *testing.B) {
	_, c := newCQ(b, segment(b, 1<<16), RingRef{Slots: 64})
	var wcs [16]cq.WC
	for b.Loop() {
		c.Poll(wcs[:])
	}
}

// A ring that moves goes on with its completions, staged ones too, its indices
// and its events.
func TestCQMoveTo(t *testing.T) {
	mem := segment(t, 8192)
	r, c := newCQ(t, mem, RingRef{Slots: 4})
	var got [8]cq.WC
	put := func(r *CQRing, id uint64) { r.Put(&cq.WC{WRID: id}) }
	for id := range uint64(3) {
		put(r, id)
	}
	r.Publish()
	c.Poll(got[:2])
	c.Arm(false)
	if !r.TakeArm(false) {
		t.Fatal("no event")
	}
	c.EventRead()
	c.Arm(true)
	put(r, 3) // staged
	small := RingRef{Offset: 4096, Slots: 1}
	if _, err := r.MoveTo(mem, small); !errors.Is(err, ErrRingFull) {
		t.Errorf("2 completions into 1 slot: %v", err)
	}
	if _, err := r.MoveTo(mem, RingRef{Offset: 4096, Slots: 3}); !errors.Is(err, ErrGeometry) {
		t.Errorf("3 slots: %v", err)
	}
	to := RingRef{Offset: 4096, Slots: 8}
	n, err := r.MoveTo(mem, to)
	if err != nil {
		t.Fatal(err)
	}
	c, err = NewCQConsumer(mem, to)
	if err != nil {
		t.Fatal(err)
	}
	if c.Pending() != 1 || c.EventsRead() != 1 || n.EventsSent() != 1 || n.Free() != 6 {
		t.Errorf("%d pending, %d events read, %d sent, %d free", c.Pending(), c.EventsRead(), n.EventsSent(), n.Free())
	}
	n.Publish()
	if n.TakeArm(false) || !n.TakeArm(true) {
		t.Error("armed for solicited completions before the move, and not after")
	}
	for id := uint64(4); id < 10; id++ {
		put(n, id)
	}
	n.Publish()
	if k := c.Poll(got[:]); k != 8 || c.Produced() != 10 {
		t.Fatalf("%d polled, %d produced, want 8 and 10", k, c.Produced())
	}
	for i, wc := range got {
		if wc.WRID != uint64(i+2) {
			t.Errorf("completion %d where %d was due", wc.WRID, i+2)
		}
	}
	mem.Word32(4096 + offConsumer).Store(77) // the program lies
	if _, err := n.MoveTo(mem, RingRef{Slots: 16}); !errors.Is(err, ErrCorrupt) {
		t.Errorf("an index that cannot be right: %v", err)
	}
}
