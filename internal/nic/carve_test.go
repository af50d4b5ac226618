package nic

import (
	"errors"
	"math/rand/v2"
	"syscall"
	"testing"
)

func testCarver(t *testing.T, ringBytes uint64) (*carver, *ledger) {
	t.Helper()
	l := newLedger(Limits{Program: Quota{RingBytes: ringBytes}}.withDefaults())
	a, err := l.open(0)
	if err != nil {
		t.Fatal(err)
	}
	c := newCarver(a, "test")
	t.Cleanup(c.close)
	return c, l
}

// Areas never overlap, are aligned and come with a clean header, whatever the
// order of alloc and release; all released, each segment is one hole again.
func TestCarveRandomOrder(t *testing.T) {
	c, _ := testCarver(t, 64<<20)
	rng := rand.New(rand.NewPCG(1, 2))
	var live []ringArea
	for range 5000 {
		if len(live) > 0 && rng.IntN(2) == 0 {
			i := rng.IntN(len(live))
			c.release(live[i])
			live[i] = live[len(live)-1]
			live = live[:len(live)-1]
			continue
		}
		n := 1 + rng.IntN(40_000)
		a, err := c.alloc(n)
		if err != nil {
			t.Fatal(err)
		}
		if a.off%ringAlign != 0 || a.n < n {
			t.Fatalf("area at %d of %d bytes for %d bytes", a.off, a.n, n)
		}
		bytes := a.mem.Bytes()[a.off : a.off+a.n]
		for i, b := range bytes[:ringAlign] {
			if b != 0 {
				t.Fatalf("header byte %d of a new ring is %#x", i, b)
			}
		}
		for _, o := range live {
			if o.segment == a.segment && a.off < o.off+o.n && o.off < a.off+a.n {
				t.Fatalf("areas overlap: [%d,%d) and [%d,%d)", a.off, a.off+a.n, o.off, o.off+o.n)
			}
		}
		bytes[0], bytes[len(bytes)-1] = 0xff, 0xff
		live = append(live, a)
	}
	for _, a := range live {
		c.release(a)
	}
	for i, s := range c.segs {
		if len(s.free) != 1 || s.free[0] != (span{0, s.seg.Size()}) {
			t.Errorf("segment %d: holes %v of %d bytes after all was released", i, s.free, s.seg.Size())
		}
	}
}

// Many QPs' rings must need few mappings and descriptors: segments grow.
func TestCarveNeedsFewSegments(t *testing.T) {
	c, _ := testCarver(t, 1<<30)
	for range 20_000 {
		if _, err := c.alloc(128 + 128*128); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(c.segs); n > 9 {
		t.Errorf("%d segments for 20,000 rings of 16 KiB, want at most 9 (1, 2, 4 ... 256 MiB)", n)
	}
}

func TestCarveReusesBeforeItGrows(t *testing.T) {
	c, _ := testCarver(t, 8<<20)
	for range 10_000 {
		a, err := c.alloc(300 << 10)
		if err != nil {
			t.Fatal(err)
		}
		c.release(a)
	}
	if len(c.segs) != 1 {
		t.Errorf("%d segments, want 1", len(c.segs))
	}
}

func TestCarveLimit(t *testing.T) {
	c, l := testCarver(t, 3<<20)
	var err error
	n := 0
	for ; err == nil; n++ {
		_, err = c.alloc(512 << 10)
	}
	if !errors.Is(err, syscall.ENOMEM) {
		t.Fatalf("got %v, want ENOMEM", err)
	}
	if n-1 != 6 {
		t.Errorf("%d rings of 512 KiB in 3 MiB, want 6", n-1)
	}
	if got := l.usage()[ResourceRingBytes]; got != 3<<20 {
		t.Errorf("%d bytes booked, want %d", got, 3<<20)
	}
	if _, err := c.alloc(16 << 20); !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("one ring over the limit: %v, want ENOMEM", err)
	}
	if _, err := c.alloc(0); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("ring of 0 bytes: %v, want EINVAL", err)
	}
}
