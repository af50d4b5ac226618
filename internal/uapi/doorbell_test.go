package uapi

import (
	"errors"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
)

// bells returns both sides of a worker's doorbells and its sleep flag.
func bells(tb testing.TB, worker int) (*ProgramDoorbell, *AdapterDoorbell, *atomic.Uint32) {
	tb.Helper()
	mem, page := segment(tb, DoorbellSize(worker+1)), segment(tb, StatusSize)
	a, err := NewAdapterDoorbell(mem, worker)
	if err != nil {
		tb.Fatal(err)
	}
	p, err := NewProgramDoorbell(mem, page, worker)
	if err != nil {
		tb.Fatal(err)
	}
	return p, a, page.Word32(64 * worker)
}

func all(a *AdapterDoorbell) (got []uint32) {
	for i, ok := a.Next(); ok; i, ok = a.Next() {
		got = append(got, i)
	}
	return got
}

func TestDoorbell(t *testing.T) {
	p, a, asleep := bells(t, 2)
	if a.Any() || len(all(a)) != 0 {
		t.Error("a new doorbell has rung")
	}
	want := []uint32{0, 1, 63, 64, 4095, 4096, 70000, DoorbellIndices - 1}
	for _, i := range want {
		for range 2 {
			if p.Set(i) {
				t.Error("the worker is said to sleep")
			}
		}
	}
	if !a.Any() {
		t.Error("Any() = false")
	}
	if got := all(a); !slices.Equal(got, want) {
		t.Errorf("doorbells %d, want %d", got, want)
	}
	if a.Any() || len(all(a)) != 0 {
		t.Error("a doorbell rang twice")
	}
	asleep.Store(1)
	if !p.Set(5) {
		t.Error("the worker sleeps and nobody is told")
	}
	// In the middle of a round: bits set behind come in the next round, bits
	// ahead may come in this one, none is lost.
	p.Set(100)
	if i, ok := a.Next(); !ok || i != 5 {
		t.Errorf("Next() = %d, %t", i, ok)
	}
	p.Set(5)
	p.Set(101)
	if !a.Any() {
		t.Error("Any() = false in the middle of a round")
	}
	for _, want := range [][]uint32{{100, 101}, {5}, nil} {
		if (len(want) > 0) != a.Any() {
			t.Errorf("Any() = %t before doorbells %d", a.Any(), want)
		}
		if got := all(a); !slices.Equal(got, want) {
			t.Errorf("doorbells %d, want %d", got, want)
		}
	}
}

// A program that sets every bit has no more looked at than it has queue pairs.
func TestDoorbellLimit(t *testing.T) {
	p, a, _ := bells(t, 0)
	a.Limit(65)
	for _, i := range []uint32{127, 128, 5000, DoorbellIndices - 1} {
		p.Set(i)
	}
	if got := all(a); !slices.Equal(got, []uint32{127}) {
		t.Errorf("doorbells %d, want [127]", got)
	}
	if a.Any() {
		t.Error("what is passed over keeps the worker awake")
	}
	a.Limit(DoorbellIndices + 1)
	p.Set(128) // was set before, and its word not taken: it must come now
	p.Set(DoorbellIndices - 1)
	if got := all(a); !slices.Equal(got, []uint32{128, DoorbellIndices - 1}) {
		t.Errorf("doorbells %d, want [128 %d]", got, DoorbellIndices-1)
	}
}

// The levels lie where both sides and C expect them.
func TestDoorbellLayout(t *testing.T) {
	mem, page := segment(t, DoorbellSize(2)), segment(t, StatusSize)
	p, err := NewProgramDoorbell(mem, page, 1)
	if err != nil {
		t.Fatal(err)
	}
	p.Set(70001) // word 1093, bit 49; summary word 17, bit 5
	if got := mem.Word32(20480).Load(); got != 1 {
		t.Errorf("any is %d", got)
	}
	if got := mem.Word64(20480 + 64 + 8*17).Load(); got != 1<<5 {
		t.Errorf("summary word 17 is %#x", got)
	}
	if got := mem.Word64(20480 + 320 + 8*1093).Load(); got != 1<<49 {
		t.Errorf("word 1093 is %#x", got)
	}
}

func TestDoorbellRefuses(t *testing.T) {
	mem, page := segment(t, DoorbellSize(1)), segment(t, StatusSize)
	for _, worker := range []int{-1, 1, MaxWorkers} {
		if _, err := NewAdapterDoorbell(mem, worker); !errors.Is(err, ErrGeometry) {
			t.Errorf("adapter's side of worker %d: %v, want ErrGeometry", worker, err)
		}
		if _, err := NewProgramDoorbell(mem, page, worker); !errors.Is(err, ErrGeometry) {
			t.Errorf("program's side of worker %d: %v, want ErrGeometry", worker, err)
		}
	}
}

func TestStatusPage(t *testing.T) {
	mem := segment(t, StatusSize)
	page, err := NewStatusPage(mem)
	if err != nil {
		t.Fatal(err)
	}
	w, err := page.SleepWord(62)
	if err != nil {
		t.Fatal(err)
	}
	w.Store(1)
	if mem.Word32(64*62).Load() != 1 {
		t.Error("the sleep flag of worker 62 is elsewhere")
	}
	for _, worker := range []int{-1, 63} {
		if _, err := page.SleepWord(worker); !errors.Is(err, ErrGeometry) {
			t.Errorf("sleep flag of worker %d: %v, want ErrGeometry", worker, err)
		}
	}
	if page.Closing() {
		t.Error("a new adapter closes")
	}
	page.SetClosing()
	if !page.Closing() || mem.Word32(4032).Load() != 1 {
		t.Error("the closing word is elsewhere")
	}
}

// The whole way of a wake-up, with many programs' threads: publish, set the
// bits, look at the sleep flag, ring; and the worker: take, set the flag, look
// again, sleep. Each thread waits for its work to be done before it posts more,
// so one lost wake-up stops everything for good.
func TestDoorbellLosesNoWakeup(t *testing.T) {
	const threads, posts = 8, 3000
	p, a, asleep := bells(t, 0)
	indices := [threads]uint32{0, 1, 64, 65, 4096, 4097, 100000, DoorbellIndices - 1}
	var published [threads]atomic.Uint32
	var done [threads]chan struct{}
	for i := range done {
		done[i] = make(chan struct{}, 1)
	}
	eventfd := make(chan struct{}, 1)
	ring := func() {
		select {
		case eventfd <- struct{}{}:
		default:
		}
	}
	var wg sync.WaitGroup
	for i := range threads {
		wg.Go(func() {
			for range posts {
				published[i].Add(1)
				if p.Set(indices[i]) {
					ring()
				}
				<-done[i]
			}
		})
	}
	var stop atomic.Bool
	worker := make(chan int)
	go func() {
		var taken [threads]uint32
		sleeps := 0
		for !stop.Load() {
			for i, ok := a.Next(); ok; i, ok = a.Next() {
				n := slices.Index(indices[:], i)
				if now := published[n].Load(); now != taken[n] {
					taken[n] = now
					done[n] <- struct{}{}
				}
			}
			asleep.Store(1)
			if !a.Any() && !stop.Load() {
				sleeps++
				<-eventfd
			}
			asleep.Store(0)
		}
		worker <- sleeps
	}()
	wg.Wait()
	stop.Store(true)
	ring()
	if sleeps := <-worker; sleeps == 0 {
		t.Error("the worker never slept: nothing was tested")
	}
}

// The order of the levels, on either side: what was set before a round began is
// taken in that round or the next, though the taker ran all through the set.
func TestDoorbellSetIsSeen(t *testing.T) {
	const sets, index, other = 200000 / patience, 4097, 9000
	p, a, _ := bells(t, 0)
	var published, seen, rounds atomic.Uint32
	var stop atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		for !stop.Load() {
			for i, ok := a.Next(); ok; i, ok = a.Next() {
				if i == index {
					seen.Store(published.Load())
				}
			}
			rounds.Add(1)
			if rounds.Load()%64 == 0 {
				runtime.Gosched()
			}
		}
	})
	defer wg.Wait()
	defer stop.Store(true)
	for i := range uint32(sets) {
		p.Set(other) // so that a round may be under way
		published.Store(i + 1)
		p.Set(index)
		began := rounds.Load()
		for spins := 0; seen.Load() != i+1; spins++ {
			// Three, as one may have begun before: the second began after.
			if rounds.Load()-began >= 3 && seen.Load() != i+1 {
				t.Fatalf("set %d was not taken in two rounds", i)
			}
			if spins%64 == 63 {
				runtime.Gosched()
			}
		}
	}
}

// Everything set is taken, with setters and the taker at full speed.
func TestDoorbellTakesAll(t *testing.T) {
	const threads, sets = 4, 20000
	p, a, _ := bells(t, 0)
	var set, got [threads * 32]atomic.Uint32 // per index: a stamp that rises
	var wg sync.WaitGroup
	for i := range threads {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(i), 1))
			for range sets {
				n := i*32 + rnd.IntN(32)
				set[n].Add(1)
				p.Set(uint32(n * 997))
			}
		})
	}
	finished := make(chan struct{})
	go func() { wg.Wait(); close(finished) }()
	drain := func() {
		for i, ok := a.Next(); ok; i, ok = a.Next() {
			got[i/997].Store(set[i/997].Load())
		}
	}
	for running := true; running; {
		select {
		case <-finished:
			running = false
		default:
		}
		drain()
	}
	drain()
	for i := range set {
		if set[i].Load() != got[i].Load() {
			t.Errorf("index %d: %d set, last seen at %d", i*997, set[i].Load(), got[i].Load())
		}
	}
}

func TestDoorbellAllocatesNothing(t *testing.T) {
	p, a, _ := bells(t, 0)
	if n := testing.AllocsPerRun(100, func() {
		p.Set(7)
		p.Set(70000)
		for _, ok := a.Next(); ok; _, ok = a.Next() {
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkDoorbell(b *testing.B) {
	p, a, _ := bells(b, 0)
	b.Run("set+take", func(b *testing.B) {
		for b.Loop() {
			p.Set(7)
			a.Next()
			a.Next()
		}
	})
	b.Run("set again", func(b *testing.B) {
		for b.Loop() {
			p.Set(7)
		}
	})
	all(a)
	b.Run("empty", func(b *testing.B) {
		for b.Loop() {
			a.Next()
		}
	})
}
