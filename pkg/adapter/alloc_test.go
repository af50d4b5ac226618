package adapter_test

import (
	"runtime"
	"testing"

	"github.com/softroce/softroce/pkg/verbs"
)

// Posting, transfer and polling allocate nothing once they are warm, in the
// program and in both adapters of this process: some 3,000 requests leave less
// than one allocation for ten of them, which is the runtime's own.
func TestHotPathDoesNotAllocate(t *testing.T) {
	a, b := pair(t, shape{}, verbs.RCConfig{}, nil)
	write, read := a.write(b, 0, 0, 10000), a.read(b, 0, 0, 10000)
	inline := verbs.SendWR{Opcode: verbs.WRSend, Flags: verbs.SendInline, SGList: []verbs.SGE{a.mr.SGE(0, 32)}}
	for _, wr := range []*verbs.SendWR{&write, &read, &inline} {
		wr.Flags |= verbs.SendSignaled
	}
	recv := verbs.RecvWR{SGList: []verbs.SGE{b.mr.SGE(0, 64)}}
	const rounds = 1000
	run := func() {
		for range rounds {
			if _, err := b.qp.PostRecv(recv); err != nil {
				t.Fatal(err)
			}
			if n, err := a.qp.PostSend(write, read, inline); n != 3 {
				t.Fatal(err)
			}
			for range 3 {
				if wc, ok := pollOne(a.cq); !ok || wc.Status != verbs.WCSuccess {
					t.Fatal(wc.Status)
				}
			}
			if wc, ok := pollOne(b.cq); !ok || wc.Status != verbs.WCSuccess {
				t.Fatal(wc.Status)
			}
		}
	}
	run()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	run()
	runtime.ReadMemStats(&after)
	n := after.Mallocs - before.Mallocs
	t.Logf("%d allocations for %d requests and %d receives", n, 3*rounds, rounds)
	if n > 3*rounds/10 {
		t.Errorf("%d allocations for %d requests", n, 3*rounds)
	}
}
