package mrtable

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
)

// readers look keys up as workers do, and count their turns.
type readers struct {
	turns [2]atomic.Uint64
	stop  atomic.Bool
	wg    sync.WaitGroup
}

// barrier waits until every reader has begun a turn after the call.
func (r *readers) barrier() {
	for i := range r.turns {
		// A turn that has begun may have looked up already: wait for the
		// beginning of the one after next.
		for start := r.turns[i].Load(); r.turns[i].Load() < start+2 && !r.stop.Load(); {
			runtime.Gosched()
		}
	}
}

// TestLookUpAgainstDeregister: readers look up and use regions while others
// are registered, marked, scribbled over and freed. A segment's memory must be
// that of the key asked for. After a mark and a turn's boundary the owner
// writes to the memory without any lock: under the race detector, a reader
// that still reaches it fails the test.
func TestLookUpAgainstDeregister(t *testing.T) {
	const places, lives = 8, 1000
	tab := New(Config{MaxRegions: places + 2, Secret: 11})
	var keys [places]atomic.Uint64 // key << 8 | tag of its memory
	var rd readers
	var hits, misses [2]uint64
	for w := range rd.turns {
		rd.wg.Go(func() {
			buf := make([]byte, 16)
			for !rd.stop.Load() {
				rd.turns[w].Add(1)
				for i := range keys {
					v := keys[i].Load()
					seg, err := tab.Remote(RKey(v>>8), testPD, testQPN, 0x1000, 16, AccessRemoteRead)
					if err != nil {
						misses[w]++
						continue
					}
					hits[w]++
					if err := seg.ReadAt(buf, 0); err != nil || buf[0] != byte(v) || buf[15] != byte(v) {
						t.Errorf("key %#x gave memory %x, want tag %#x (%v)", v>>8, buf, byte(v), err)
						rd.stop.Store(true)
						return
					}
				}
				runtime.Gosched()
			}
		})
	}
	churn(t, tab, keys[:], &rd, lives)
	rd.stop.Store(true)
	rd.wg.Wait()
	if hits[0] == 0 || hits[1] == 0 || misses[0]+misses[1] == 0 {
		t.Errorf("the test did not test: hits %v, misses %v", hits, misses)
	}
}

// churn replaces the regions whose keys the readers use, one after another.
func churn(t *testing.T, tab *Table, keys []atomic.Uint64, rd *readers, lives int) {
	t.Helper()
	var regions [8]*Region
	for life := range lives {
		i := life % len(keys)
		if old := regions[i]; old != nil {
			if err := tab.Mark(old); err != nil {
				t.Error(err)
				return
			}
			rd.barrier()
			if rd.stop.Load() {
				return // a reader failed
			}
			clear(old.Memory().(HeapMemory)) // unmapped, as it were
			tab.Free(old)
		}
		tag := byte(life%255) + 1
		mem := HeapMemory(make([]byte, 16))
		for j := range mem {
			mem[j] = tag
		}
		r, err := tab.Register(testPD, mem, 0x1000, 16, AccessRemoteRead, uint32(life))
		if err != nil {
			t.Error(err)
			return
		}
		regions[i] = r
		keys[i].Store(uint64(r.RKey())<<8 | uint64(tag))
	}
}

// TestMarkOnce: of many marks at once, one succeeds.
func TestMarkOnce(t *testing.T) {
	tab := New(Config{MaxRegions: 1})
	for range 200 {
		r := mustRegister(t, tab, 1, HeapMemory(make([]byte, 8)), 0, 8, 0)
		var wg sync.WaitGroup
		var won atomic.Int32
		for range 4 {
			wg.Go(func() {
				if tab.Mark(r) == nil {
					won.Add(1)
				}
				tab.Free(r)
			})
		}
		wg.Wait()
		if won.Load() != 1 {
			t.Fatalf("%d of 4 marks succeeded", won.Load())
		}
		tab.Free(r)
		if tab.Len() != 0 {
			t.Fatalf("Len() = %d after the region was freed", tab.Len())
		}
	}
}

// TestRegisterConcurrently: many registrations at once get keys of their own.
func TestRegisterConcurrently(t *testing.T) {
	const workers, each = 4, 500
	tab := New(Config{MaxRegions: workers * each, Secret: 8})
	keys := make([][]RKey, workers)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for range each {
				r, err := tab.Register(1, HeapMemory(make([]byte, 8)), 0, 8, 0, uint32(w))
				if err != nil {
					t.Error(err)
					return
				}
				keys[w] = append(keys[w], r.RKey())
			}
		})
	}
	wg.Wait()
	seen := make(map[RKey]bool)
	for _, l := range keys {
		for _, k := range l {
			if seen[k] {
				t.Errorf("key %#x was given twice", k)
			}
			seen[k] = true
		}
	}
	if len(seen) != workers*each {
		t.Errorf("%d keys, want %d", len(seen), workers*each)
	}
}
