package nic

import (
	"runtime"
	"testing"

	"github.com/softroce/softroce/pkg/cq"
	"github.com/softroce/softroce/pkg/verbs"
)

// Loss, and what is sent again for it, allocates nothing: neither for large
// messages nor for small ones, with and without the kernel's offloads.
func TestLossDoesNotAllocate(t *testing.T) {
	for _, c := range []struct {
		name    string
		offload Offload
	}{{"offload", OffloadOn}, {"no offload", OffloadOff}} {
		t.Run(c.name, func(t *testing.T) {
			change := func(cfg *Config) { cfg.Offload = c.offload }
			a, b := newSite(t, nil, 1<<20, change), newSite(t, nil, 1<<20, change)
			a.filterPackets(t, oneIn300)
			b.filterPackets(t, oneIn300)
			join(t, a, b, 14) // an ACK timer of 67 ms
			ctx := within(t)
			var list [2]verbs.SGE
			run := func(rounds, size int) {
				for i := range rounds {
					list[i%2] = a.e.mr.SGE(0, size)
					wr := verbs.SendWR{
						Opcode: verbs.WRRDMAWrite, Flags: verbs.SendSignaled, SGList: list[i%2 : i%2+1],
						RemoteAddr: b.e.mr.Addr(), RKey: b.e.mr.RKey(),
					}
					if i%2 == 1 {
						wr.Opcode = verbs.WRRDMARead
					}
					if n, err := a.e.qp.PostSend(wr); n != 1 {
						t.Fatal(err)
					}
					if wc, err := completion(ctx, a.e.cq); err != nil || wc.Status != cq.Success {
						t.Fatalf("%v, %v", wc.Status, err)
					}
				}
			}
			for _, size := range []int{64, 1 << 20} {
				rounds := 600
				if size > 64 {
					rounds = 60
				}
				run(rounds/2, size)
				sent := func() uint64 { _, x := a.stats(); _, y := b.stats(); return x + y }
				var before, after runtime.MemStats
				start, again := sent(), uint64(0)
				for try := 0; try < 5 && again == 0; try++ { // chance may spare all packets of one
					runtime.GC()
					runtime.ReadMemStats(&before)
					run(rounds, size)
					runtime.ReadMemStats(&after)
					again = sent() - start
				}
				n := after.Mallocs - before.Mallocs
				if again == 0 {
					t.Errorf("%d bytes: nothing was sent again: the case shows nothing", size)
				}
				t.Logf("%d allocations for %d requests of %d bytes, %d packets sent again", n, rounds, size, again)
				if n > 20 { // the runtime's own, which do not grow with the requests
					t.Errorf("%d allocations for %d requests of %d bytes", n, rounds, size)
				}
			}
		})
	}
}
