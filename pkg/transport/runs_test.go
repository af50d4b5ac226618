package transport_test

import (
	"testing"
	"time"

	"github.com/softroce/softroce/internal/simnet"
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/wq"
)

// runsOf is the configuration of a seed: half of them without jitter, so that
// packets arrive in runs, some without losses.
func runsOf(seed uint64) worldConfig {
	c := pairOf(seed, []float64{0, .01, .05}[seed%3])
	c.refuse = false // it draws by the packet
	if seed%2 == 0 {
		c.net.Jitter = 0
	}
	if seed%5 > 1 {
		c.opts.window = 1 << 20
	}
	c.opts.mtu = bth.MTU256 + bth.MTU(seed/2%3)
	return c
}

// TestRunsChangeNothing: packets built and handled as runs are the same, byte
// for byte, and leave the same state behind, as those built and handled one by
// one.
func TestRunsChangeNothing(t *testing.T) {
	seeds := *simSeeds / 8
	if testing.Short() {
		seeds = (seeds + 9) / 10
	}
	sent, taken := 0, 0
	for seed := *simFrom; seed < *simFrom+uint64(seeds); seed++ {
		r := twins(t, func() worldConfig { return runsOf(seed) })
		sent += r.sent
		taken += r.taken
	}
	t.Logf("%d seeds: %d packets sent and %d handled in runs", seeds, sent, taken)
	if sent == 0 || taken == 0 {
		t.Error("no runs")
	}
}

// TestRunsOfMany: the same with queue pairs that share the windows to a peer, and
// with runs that are lent, as the packets have no ICRC.
func TestRunsOfMany(t *testing.T) {
	for _, op := range []wq.Opcode{wq.RDMAWrite, wq.RDMARead} {
		for seed := range uint64(6) {
			if testing.Short() && seed%2 == 0 {
				continue
			}
			var pair [2]*twin
			for i := range pair {
				f := newFleet(t, fleetConfig{
					net: simnet.Config{Seed: seed, Delay: netDelay, Loss: []float64{0, .002}[seed%2]},
					qps: int(1 + 3*seed), op: op, size: 200 << 10, mtu: bth.MTU256 + bth.MTU(seed%5),
				})
				pair[i] = newTwin(i == 1, seed)
				f.twin = pair[i]
				f.run(2<<20, time.Second)
			}
			if s := pair[1].differ(pair[0]); s != "" {
				t.Fatalf("%v, seed %d: %s", op, seed, s)
			}
			if pair[1].sent == 0 || pair[1].taken == 0 || pair[1].lent == 0 {
				t.Errorf("%v, seed %d: no runs, or nothing lent", op, seed)
			}
		}
	}
}

// FuzzRuns compares twins while bytes choose what happens to each packet.
func FuzzRuns(f *testing.F) {
	f.Add([]byte{}, uint16(0))
	f.Add([]byte{0, 0, 1, 0, 0, 0, 0, 2, 3, 4}, uint16(2))
	f.Fuzz(func(t *testing.T, fates []byte, seed uint16) {
		twins(t, func() worldConfig {
			c := runsOf(uint64(seed))
			c.ops = 12
			c.net.Choose = func(seq uint64, _ int) (fate simnet.Fate) {
				if seq < uint64(len(fates)) {
					fate.Drop = fates[seq]&3 == 1
					fate.Hold = time.Duration(fates[seq]>>2) * time.Microsecond
				}
				return fate
			}
			return c
		})
	})
}
