package soak_test

import (
	"flag"
	"fmt"
	"testing"

	"github.com/softroce/softroce/internal/soak"
)

var (
	seeds = flag.Int("seeds", 60, "worlds; -short takes a fifth")
	from  = flag.Uint64("seed", 1, "the first world's seed")
	trace = flag.Bool("soaktrace", false, "print what happens")
)

// TestWorlds is the soak's short form: some worlds, each of a seed.
func TestWorlds(t *testing.T) {
	n := *seeds
	if testing.Short() {
		n = (n + 4) / 5
	}
	var total soak.Result
	for seed := *from; seed < *from+uint64(n); seed++ {
		c := soak.Config{Seed: seed}
		if *trace {
			c.Trace = func(s string) { fmt.Println(s) }
		}
		r, err := soak.Run(c)
		if err != nil {
			t.Errorf("seed %d: %v", seed, err)
		}
		total.Add(&r)
	}
	t.Logf("%d worlds: %v", n, &total)
}
