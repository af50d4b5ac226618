package nic

import (
	"testing"

	"github.com/softroce/softroce/pkg/bth"
)

func TestQPNPermutationIsOneToOne(t *testing.T) {
	a := newQPNAllocator(0x1234)
	for _, key := range []int{0, 5} {
		seen := make([]uint64, (a.mask()+1)/64)
		for x := range a.mask() + 1 {
			y := a.permute(key, x)
			if y > a.mask() || seen[y/64]&(1<<(y%64)) != 0 {
				t.Fatalf("key %d: permute(%#x) = %#x: outside or second time", key, x, y)
			}
			seen[y/64] |= 1 << (y % 64)
		}
	}
}

func TestQPNSteersToItsWorker(t *testing.T) {
	a := newQPNAllocator(7)
	for workers := 1; workers <= 8; workers++ {
		for worker := range workers {
			for range 64 {
				q, err := a.alloc(worker, workers)
				if err != nil {
					t.Fatal(err)
				}
				if got := int(q&7) % workers; got != worker {
					t.Fatalf("QPN %#x steers to worker %d of %d, want %d", uint32(q), got, workers, worker)
				}
				if q < 2 || q >= bth.MulticastQPN {
					t.Fatalf("QPN %#x is reserved", uint32(q))
				}
			}
		}
	}
}

func TestQPNUsesEveryKeyOfItsWorker(t *testing.T) {
	a := newQPNAllocator(7)
	var keys [8]int
	for range 80 {
		q, err := a.alloc(0, 1)
		if err != nil {
			t.Fatal(err)
		}
		keys[q&7]++
	}
	for k, n := range keys {
		if n != 10 {
			t.Errorf("key %d has %d of 80 QPs, want 10", k, n)
		}
	}
}

// A freed QPN must not come back before its key's other numbers were used.
func TestQPNIsNotSoonReused(t *testing.T) {
	a := newQPNAllocator(99)
	seen := make(map[bth.QPN]bool)
	for i := range 200_000 {
		q, err := a.alloc(0, 8)
		if err != nil {
			t.Fatal(err)
		}
		if seen[q] {
			t.Fatalf("QPN %#x reused after %d allocations", uint32(q), i)
		}
		seen[q] = true
		a.free(q)
	}
}

func TestQPNRunsOutAndRecovers(t *testing.T) {
	a := newQPNAllocator(3)
	a.bits = 9 // 2^9 numbers a key, and no multicast QPN among them
	var last bth.QPN
	for i := 0; ; i++ {
		q, err := a.alloc(7, 8)
		if err != nil {
			if i != 512 {
				t.Fatalf("out of QPNs after %d, want 512: %v", i, err)
			}
			break
		}
		last = q
	}
	a.free(last)
	if q, err := a.alloc(7, 8); err != nil || q != last {
		t.Fatalf("after a free: got %#x, %v, want %#x", uint32(q), err, uint32(last))
	}
}

// The reserved numbers are never handed out.
func TestQPNSkipsReserved(t *testing.T) {
	a := newQPNAllocator(5)
	a.bits = 4
	for key := range 2 { // 0 and 1 steer to keys 0 and 1
		n := 0
		for ; ; n++ {
			q, err := a.alloc(key, 8)
			if err != nil {
				break
			}
			if q < 2 {
				t.Fatalf("QPN %d handed out", q)
			}
		}
		if n != 15 {
			t.Errorf("key %d gave %d numbers, want 15", key, n)
		}
	}
}
