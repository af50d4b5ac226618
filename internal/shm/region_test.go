package shm

import (
	"errors"
	"math"
	"sync"
	"testing"
)

func TestRegionBounds(t *testing.T) {
	s := create(t, 4096)
	for _, r := range []struct{ off, n uint64 }{{0, 4097}, {4096, 1}, {4097, 0}, {1, math.MaxUint64}, {math.MaxUint64, 2}} {
		if _, err := NewRegionMemory(s, r.off, r.n); !errors.Is(err, ErrBounds) {
			t.Errorf("region at %d of %d bytes: %v, want ErrBounds", r.off, r.n, err)
		}
	}
	m, err := NewRegionMemory(s, 100, 50)
	if err != nil {
		t.Fatal(err)
	}
	var buf [60]byte
	rows := []struct {
		off uint64
		n   int
		ok  bool
	}{{0, 50, true}, {50, 0, true}, {49, 1, true}, {49, 2, false}, {51, 0, false}, {0, 51, false}, {math.MaxUint64, 1, false}, {math.MaxUint64 - 7, 8, false}}
	for _, r := range rows {
		want := ErrBounds
		if r.ok {
			want = nil
		}
		if err := m.ReadAt(buf[:r.n], r.off); !errors.Is(err, want) {
			t.Errorf("ReadAt %d bytes at %d: %v, want %v", r.n, r.off, err, want)
		}
		if err := m.WriteAt(buf[:r.n], r.off); !errors.Is(err, want) {
			t.Errorf("WriteAt %d bytes at %d: %v, want %v", r.n, r.off, err, want)
		}
		if b := m.Bytes(r.off, uint64(r.n)); (b != nil) != r.ok || len(b) != cap(b) {
			t.Errorf("Bytes(%d, %d) = %d bytes, capacity %d", r.off, r.n, len(b), cap(b))
		}
	}
	if err := m.WriteAt([]byte("abc"), 1); err != nil || string(s.Bytes()[101:104]) != "abc" {
		t.Errorf("WriteAt put %q (%v)", s.Bytes()[101:104], err)
	}
}

func TestRegionReadOnly(t *testing.T) {
	s := create(t, 4096)
	ro, err := Map(s.FD(), true)
	if err != nil {
		t.Fatal(err)
	}
	defer ro.Close()
	if _, err := NewRegionMemory(ro, 0, 8); !errors.Is(err, ErrBounds) {
		t.Errorf("region in a read-only segment: %v, want ErrBounds", err)
	}
}

func TestRegionAtomics(t *testing.T) {
	s := create(t, 4096)
	m, err := NewRegionMemory(s, 64, 64)
	if err != nil {
		t.Fatal(err)
	}
	for _, off := range []uint64{1, 4, 7} {
		if _, err := m.FetchAdd(off, 1); !errors.Is(err, ErrMisaligned) {
			t.Errorf("FetchAdd at %d: %v, want ErrMisaligned", off, err)
		}
	}
	for _, off := range []uint64{57, 64, math.MaxUint64 - 3} {
		if _, err := m.CompareSwap(off, 0, 1); !errors.Is(err, ErrBounds) {
			t.Errorf("CompareSwap at %d: %v, want ErrBounds", off, err)
		}
	}
	if old, err := m.CompareSwap(8, 1, 2); old != 0 || err != nil || s.Word64(72).Load() != 0 {
		t.Errorf("CompareSwap that does not match: old %d, %v, word %d", old, err, s.Word64(72).Load())
	}
	if old, err := m.CompareSwap(8, 0, 41); old != 0 || err != nil {
		t.Errorf("CompareSwap: old %d, %v", old, err)
	}
	if old, err := m.FetchAdd(8, math.MaxUint64); old != 41 || err != nil || s.Word64(72).Load() != 40 {
		t.Errorf("FetchAdd: old %d, %v, word %d", old, err, s.Word64(72).Load())
	}
	const each = 5000
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for range each {
				if i%2 == 0 {
					_, _ = m.FetchAdd(0, 1)
					continue
				}
				for {
					v := s.Word64(64).Load()
					if old, _ := m.CompareSwap(0, v, v+1); old == v {
						break
					}
				}
			}
		})
	}
	wg.Wait()
	if got := s.Word64(64).Load(); got != 4*each {
		t.Errorf("sum %d, want %d", got, 4*each)
	}
}
