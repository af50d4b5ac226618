package rdmatest_test

import (
	"testing"

	"github.com/softroce/softroce/pkg/rdmatest"
	"github.com/softroce/softroce/pkg/verbs"
)

// TestF8AtomicsWhoseResponsesAreLost does many atomics with other requests in
// between, over a network that loses one response in five: each is done once.
func TestF8AtomicsWhoseResponsesAreLost(t *testing.T) {
	net := rdmatest.New(t, rdmatest.Config{Seed: 8})
	a, b := net.Adapter("a"), net.Adapter("b")
	x, y := net.RC(a, b, verbs.RCConfig{}) // asks again after 67 ms
	lost := net.Drop(rdmatest.Sent(b), rdmatest.Opcode("ATOMIC-ACK"), rdmatest.Every(5))
	const rounds = 40
	for i := range rounds {
		x.FetchAdd(y, 1)
		if i%2 == 1 {
			x.Read(y, 8) // behind it, so that what was fetched is overwritten
		}
		for range 1 + i%2 {
			if wc := x.Wait(); wc.Status != verbs.WCSuccess {
				t.Fatalf("round %d: %v", i, wc.Status)
			}
		}
		if want := uint64(i + i%2); x.Word() != want {
			t.Fatalf("round %d got %d, want %d", i, x.Word(), want)
		}
	}
	if y.Word() != rounds || lost.Hit() < rounds/5 {
		t.Errorf("after %d atomics, with %d responses lost, the word is %d", rounds, lost.Hit(), y.Word())
	}
}

// TestF49StormLeavesOthersServed has one queue pair of an adapter ask again and
// again a peer that is never ready: another one works.
func TestF49StormLeavesOthersServed(t *testing.T) {
	net := rdmatest.New(t, rdmatest.Config{})
	a, b := net.Adapter("a"), net.Adapter("b")
	x, y := net.RC(a, b, verbs.RCConfig{MinRNRTimer: 1, RNRRetry: 7}) // 0.01 ms, without end
	naks := net.Count(rdmatest.Sent(b), rdmatest.Opcode("RNR"))
	x.Send(64)
	v, w := net.RC(a, b, verbs.RCConfig{})
	for i := range 20 {
		naks.Wait(uint64(20 * i))
		v.Write(w, 4096)
		if wc := v.Wait(); wc.Status != verbs.WCSuccess {
			t.Fatalf("amid the storm: %v", wc.Status)
		}
	}
	y.Recv(64)
	if wc := x.Wait(); wc.Status != verbs.WCSuccess {
		t.Errorf("after %d RNR NAKs: %v", naks.Hit(), wc.Status)
	}
}
