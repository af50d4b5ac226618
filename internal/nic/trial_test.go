package nic

import (
	"math/rand/v2"
	"testing"

	"github.com/softroce/softroce/pkg/bth"
)

// A trial fails at the third going back in a row to the second packet of the
// first run; anything between says that the reason is another one.
func TestTrial(t *testing.T) {
	type step struct {
		psn    bth.PSN
		second bth.PSN // of a run that begins here and was sent; 0: none
		failed bool
	}
	again := func(at bth.PSN, failed bool) []step { // a run of four, and a single one
		return []step{{at, at + 1, failed}, {at + 1, 0, failed}, {at + 2, 0, failed}, {at + 3, 0, failed}, {at + 4, 0, failed}}
	}
	join := func(parts ...[]step) (all []step) {
		for _, p := range parts {
			all = append(all, p...)
		}
		return all
	}
	for _, c := range []struct {
		name  string
		steps []step
	}{
		{"nothing is lost", join(again(0, false), again(5, false), again(10, false))},
		{"only the first ones arrive", join(again(0, false), again(1, false), again(2, false), again(3, true))},
		{"over the end of the PSNs", join(again(0xFFFFFE, false)[:2], again(0xFFFFFF, false)[:1], []step{{0, 0, false}}, again(0, false)[:2], again(1, true)[:1])},
		{"the first run is lost whole", join(again(0, false), again(0, false), again(0, false), again(0, false))},
		{"the third packet is lost", join(again(0, false), again(2, false), again(4, false), again(6, false))},
		{"now and then another one", join(again(0, false), again(1, false), again(2, false), again(2, false), again(3, false), again(4, false), again(5, true))},
		{"no run was sent", []step{{0, 0, false}, {1, 0, false}, {1, 0, false}, {2, 0, false}, {2, 0, false}, {3, 0, false}, {3, 0, false}}},
		{"of a later run", join(again(0, false), again(5, false), again(6, false), again(7, false), again(8, false), again(9, true))},
		{"READ requests of five packets, whose answers end with the first", []step{{0, 5, false}, {5, 0, false}, {10, 0, false}, {1, 5, false}, {5, 0, false}, {2, 5, false}, {5, 0, false}, {3, 5, false}, {5, 0, false}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var tr trial
			for i, s := range c.steps {
				if got := tr.packet(s.psn & bth.PSNMask); got != s.failed {
					t.Fatalf("step %d, PSN %v: failed %v, want %v", i, s.psn, got, s.failed)
				}
				if s.second != 0 {
					tr.run(s.second & bth.PSNMask)
				}
			}
		})
	}
}

// Loss by chance looks like a device that spoils runs only seldom: 3 times in a
// row the second packet of the first run. Under 1 per cent that is one in a
// million goings back.
func TestTrialUnderLoss(t *testing.T) {
	for _, c := range []struct {
		loss       float64
		mean, most int // failed trials of 100,000 goings back; most is out of reach for chance
	}{{0.01, 0, 3}, {0.05, 12, 40}} {
		rng := rand.New(rand.NewPCG(47, 91))
		var tr trial
		failed := 0
		const run, window, goings = 15, 60, 100_000
		at := bth.PSN(0)
		for range goings {
			lost := bth.PSN(0)
			for found := false; !found; {
				for i := range bth.PSN(window) { // one window: runs of 15
					psn := at.Add(uint32(i))
					if tr.packet(psn) {
						failed++
						tr = trial{}
						tr.packet(psn)
					}
					if i%run == 0 {
						tr.run(psn.Add(1))
					}
					if !found && rng.Float64() < c.loss {
						lost, found = psn, true
					}
				}
				if !found {
					at = at.Add(window)
				}
			}
			at = lost
		}
		t.Logf("%.0f %% loss: %d of %d goings back fail the trial, about %d by the formula", 100*c.loss, failed, goings, c.mean)
		if failed > c.most {
			t.Errorf("%.0f %% loss: %d of %d goings back fail the trial, want at most %d", 100*c.loss, failed, goings, c.most)
		}
	}
}

// What is watched: the requests of a queue pair and its answers to READs.
func TestWays(t *testing.T) {
	for op, want := range map[bth.Opcode]way{
		bth.RCWriteMiddle: wayRequest, bth.RCSendOnly: wayRequest, bth.RCReadRequest: wayRequest, bth.RCFetchAdd: wayRequest,
		bth.RCReadResponseMiddle: wayResponse, bth.RCReadResponseLast: wayResponse,
		bth.RCAcknowledge: wayNone, bth.RCAtomicAcknowledge: wayNone,
	} {
		if got := wayOf(op); got != want {
			t.Errorf("%v: way %d, want %d", op, got, want)
		}
	}
}
