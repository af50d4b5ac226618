package soak_test

import (
	"flag"
	"fmt"
	"hash/fnv"
	"testing"

	"github.com/softroce/softroce/internal/simnet"
	"github.com/softroce/softroce/internal/soak"
)

var (
	seeds    = flag.Int("seeds", 80, "worlds; -short takes a tenth")
	from     = flag.Uint64("seed", 1, "the first world's seed")
	requests = flag.Int("requests", 1000, "of each world; 0: drawn, as make soak does")
	trace    = flag.Bool("soaktrace", false, "print what happens")
)

// TestWorlds is the soak's short form: some worlds, each of a seed. In them
// everything happens that the soak is about.
func TestWorlds(t *testing.T) {
	n := *seeds
	if testing.Short() {
		n = (n + 9) / 10
	}
	var total soak.Result
	for seed := *from; seed < *from+uint64(n); seed++ {
		c := soak.Config{Seed: seed, Requests: *requests}
		if *trace {
			c.Trace = func(s string) { fmt.Println(s) }
		}
		r, err := soak.Run(c)
		if err != nil {
			t.Errorf("seed %d: %v\n(again: go test ./internal/soak -run TestWorlds -seed %d -seeds 1 -requests %d -soaktrace)", seed, err, seed, *requests)
		}
		total.Add(&r)
	}
	t.Logf("%d worlds: %v", n, &total)
	if n < 50 {
		return // too few for all to happen
	}
	for f := range soak.Faults {
		if total.Faults[f] == 0 {
			t.Errorf("no %v in %d worlds", f, n)
		}
	}
	s := &total.Net
	for k, v := range map[simnet.FaultKind]uint64{
		simnet.Lost: s.Lost, simnet.Duplicated: s.Duplicated, simnet.Reordered: s.Reordered, simnet.Corrupted: s.Corrupted,
		simnet.Overflowed: s.Overflowed, simnet.Blocked: s.Blocked, simnet.Discarded: s.Discarded,
	} {
		if v == 0 {
			t.Errorf("no packet was %v in %d worlds", k, n)
		}
	}
	if total.UCReceived < total.UCSent/4 || total.UDReceived < total.UDSent/4 || total.Deaths == 0 {
		t.Errorf("hardly anything arrives: %v", &total)
	}
}

// TestSameSeedSameWorld: everything that happens is the same, in the same order.
func TestSameSeedSameWorld(t *testing.T) {
	for seed := uint64(500); seed < 506; seed++ {
		var sums [2]uint64
		for i := range sums {
			h := fnv.New64a()
			lines := 0
			_, err := soak.Run(soak.Config{Seed: seed, Requests: 400, Trace: func(s string) {
				lines++
				_, _ = h.Write([]byte(s + "\n"))
			}})
			if err != nil || lines < 400 {
				t.Fatalf("seed %d: %d lines, %v", seed, lines, err)
			}
			sums[i] = h.Sum64()
		}
		if sums[0] != sums[1] {
			t.Errorf("seed %d: two runs differ", seed)
		}
	}
}

// TestNumberOfAdapters: what the caller says holds.
func TestNumberOfAdapters(t *testing.T) {
	for _, n := range []int{2, 16} {
		if r, err := soak.Run(soak.Config{Seed: 77, Adapters: n, Requests: 300}); err != nil || r.Requests < 300 {
			t.Errorf("%d adapters: %v, %v", n, &r, err)
		}
	}
}
