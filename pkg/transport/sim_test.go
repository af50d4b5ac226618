package transport_test

import (
	"flag"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/softroce/softroce/internal/simnet"
	"github.com/softroce/softroce/pkg/bth"
)

var (
	simSeeds = flag.Int("seeds", 1000, "seeds of the simulated pair; -short takes a tenth")
	simFrom  = flag.Uint64("seed", 0, "first seed of the simulated pair")
	simTrace = flag.Bool("simtrace", false, "print the packets of the simulated pair")
)

// pairOf makes the configuration of a seed: everything about the connection is
// drawn from it.
func pairOf(seed uint64, loss float64) worldConfig {
	r := simnet.NewRand(seed ^ 0x5EED)
	c := worldConfig{
		seed: seed, ops: 40, refuse: r.IntN(2) == 0, late: r.IntN(2) == 0,
		net: simnet.Config{Loss: loss, Duplicate: loss, Reorder: loss, Corrupt: loss, Delay: netDelay, Jitter: time.Duration(r.IntN(10000))},
		opts: options{
			mtu: bth.MTU256 + bth.MTU(r.IntN(5)), rd: uint8(1 + r.IntN(16)), timeout: uint8(7 + r.IntN(4)),
			rnrTimer: uint8(1 + r.IntN(12)), retry: worldRetry, rnrRetry: 7, psnA: bth.PSN(r.Uint64()) & bth.PSNMask,
			psnB: bth.PSNMask - bth.PSN(r.IntN(100)), window: 1 << (12 + r.IntN(8)),
		},
	}
	c.opts.destRD = c.opts.rd
	return c
}

// TestSimulatedPair: two queue pairs under 5 % loss, duplication, reordering and
// corruption, every RC operation in both directions, windows and fast regions
// opened, used, closed and opened anew on the way. No wrong byte, no lost or
// doubled completion, no stuck queue pair.
func TestSimulatedPair(t *testing.T) {
	seeds := *simSeeds
	if testing.Short() {
		seeds = (seeds + 9) / 10
	}
	var total simnet.Stats
	var resent, sent uint64
	var opened, closed, gaveUp int
	for seed := *simFrom; seed < *simFrom+uint64(seeds); seed++ {
		w := newWorld(t, pairOf(seed, .05))
		if *simTrace {
			w.trace = func(s string) { fmt.Println(s) }
		}
		if err := w.run(); err != nil && strings.Contains(err.Error(), "RETRY_EXC_ERR") {
			gaveUp++
			t.Logf("seed %d: %v", seed, err)
		} else if err != nil {
			t.Errorf("seed %d: %v (again: go test -run TestSimulatedPair -seed %d -seeds 1 -simtrace)", seed, err, seed)
		}
		opened += w.opened
		closed += w.closed
		s := w.net.Stats()
		total.Sent += s.Sent
		total.Lost += s.Lost
		total.Duplicated += s.Duplicated
		total.Corrupted += s.Corrupted
		for _, e := range w.sides {
			resent += e.qp.Stats().Retransmits
			sent += e.qp.Stats().SentPkts
		}
	}
	// A request and its answer get through with a chance of 4 in 5; that eight tries
	// in a row fail happens once in some 500,000 requests.
	if gaveUp > 1+seeds/2000 {
		t.Errorf("%d connections used up their retries", gaveUp)
	}
	if opened < seeds || closed < seeds {
		t.Errorf("only %d windows and fast regions were opened, and %d closed by the peer", opened, closed)
	}
	t.Logf("%d windows and fast regions opened, %d closed by the peer", opened, closed)
	t.Logf("%d seeds: %d packets, %d lost, %d doubled, %d corrupted, %d requests sent again", seeds, total.Sent, total.Lost, total.Duplicated, total.Corrupted, resent)
}
