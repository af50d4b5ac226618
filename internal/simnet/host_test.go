package simnet

import (
	"testing"
	"time"
)

// deliveries runs a network until nothing is on its way and says when each
// datagram came.
func deliveries(net *Net) (at []time.Duration) {
	for {
		next, ok := net.Next()
		if !ok {
			return at
		}
		net.Advance(next)
		for _, ok := net.Take(); ok; _, ok = net.Take() {
			at = append(at, net.Now().Sub(start))
		}
	}
}

func wantTimes(t *testing.T, got []time.Duration, want ...time.Duration) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("deliveries at %v, want %v", got, want)
	}
	for i := range got {
		if got[i] != want[i] {
			t.Fatalf("deliveries at %v, want %v", got, want)
		}
	}
}

const ms = time.Millisecond

func TestLinkRate(t *testing.T) {
	net := New(Config{Delay: ms, Rate: 1000, LinkQueue: 35}, start)
	for range 5 {
		net.Send(0, 1, make([]byte, 10))
	}
	wantTimes(t, deliveries(net), 11*ms, 21*ms, 31*ms)
	if s := net.Stats(); s.Overflowed != 2 {
		t.Errorf("%d overflowed, want 2", s.Overflowed)
	}
}

func TestReceiveBuffer(t *testing.T) {
	net := New(Config{Delay: ms, Buffer: 50, Cost: func(n int) int { return 2 * n }, ReadRate: 1000}, start)
	for range 4 {
		net.Send(0, 1, make([]byte, 10))
	}
	// Two fit; two are lost at 1 ms.
	wantTimes(t, deliveries(net), 11*ms, 21*ms)
	if s := net.Stats(); s.Overflowed != 2 || s.Delivered != 2 {
		t.Errorf("%+v, want 2 overflowed and 2 delivered", s)
	}
	net.Send(0, 1, make([]byte, 10))
	wantTimes(t, deliveries(net), 32*ms)
}

func TestReadersPause(t *testing.T) {
	net := New(Config{Delay: ms, ReadEvery: 10 * ms, ReadPause: 4 * ms}, start)
	net.Send(0, 1, []byte{1})
	net.Advance(start.Add(6 * ms))
	net.Send(0, 1, []byte{1}) // arrives at 7 ms, in the pause
	wantTimes(t, deliveries(net), 6*ms, 10*ms)
}
