package simnet

import (
	"bytes"
	"fmt"
	"testing"
	"time"
)

var start = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// run sends n datagrams through a network and writes down what comes out.
func run(cfg Config, n int) (string, Stats) {
	net := New(cfg, start)
	var out bytes.Buffer
	for i := 0; i < n; i++ {
		net.Send(0, 1, []byte(fmt.Sprintf("datagram %04d", i)))
		for {
			d, ok := net.Take()
			if !ok {
				break
			}
			fmt.Fprintf(&out, "%v %q copy=%v damaged=%v\n", net.Now().Sub(start), d.Data, d.Copy, d.Damaged)
		}
		net.Advance(net.Now().Add(time.Microsecond))
	}
	for at, ok := net.Next(); ok; at, ok = net.Next() {
		net.Advance(at)
		d, _ := net.Take()
		fmt.Fprintf(&out, "%v %q copy=%v damaged=%v\n", net.Now().Sub(start), d.Data, d.Copy, d.Damaged)
	}
	return out.String(), net.Stats()
}

func TestSameSeedSameNetwork(t *testing.T) {
	cfg := Config{Seed: 7, Loss: .1, Duplicate: .1, Reorder: .1, Corrupt: .1, Delay: 10 * time.Microsecond, Jitter: 3 * time.Microsecond}
	a, _ := run(cfg, 500)
	b, _ := run(cfg, 500)
	if a != b {
		t.Error("two runs of one seed differ")
	}
	cfg.Seed = 8
	if c, _ := run(cfg, 500); c == a {
		t.Error("two seeds give the same run")
	}
}

func TestProbabilities(t *testing.T) {
	const n = 20000
	_, s := run(Config{Seed: 1, Loss: .05, Duplicate: .05, Reorder: .05, Corrupt: .05, Delay: time.Microsecond}, n)
	for name, v := range map[string]uint64{"lost": s.Lost, "duplicated": s.Duplicated, "corrupted": s.Corrupted} {
		if v < n*4/100 || v > n*6/100 {
			t.Errorf("%s: %d of %d, want about 5 %%", name, v, n)
		}
	}
	if want := s.Sent - s.Lost + s.Duplicated; s.Delivered != want {
		t.Errorf("delivered %d, want %d", s.Delivered, want)
	}
}

func TestPerfectNetworkKeepsOrder(t *testing.T) {
	out, s := run(Config{Delay: 5 * time.Microsecond}, 100)
	if s.Delivered != 100 || s.Lost+s.Duplicated+s.Reordered+s.Corrupted != 0 {
		t.Errorf("stats %+v", s)
	}
	i := 0
	for _, l := range bytes.Split([]byte(out), []byte("\n")) {
		if len(l) > 0 && !bytes.Contains(l, []byte(fmt.Sprintf("%04d", i))) {
			t.Fatalf("line %d: %s", i, l)
		}
		i++
	}
}

func TestQueueLimit(t *testing.T) {
	net := New(Config{Delay: time.Millisecond, Queue: 3}, start)
	for i := 0; i < 5; i++ {
		net.Send(0, 1, []byte{1})
	}
	if s := net.Stats(); s.Overflowed != 2 || net.Flying() != 3 {
		t.Errorf("overflowed %d, flying %d, want 2 and 3", s.Overflowed, net.Flying())
	}
}

func TestSteadyStateDoesNotAllocate(t *testing.T) {
	net := New(Config{Delay: time.Microsecond}, start)
	b := make([]byte, 1000)
	step := func() {
		for i := 0; i < 8; i++ {
			net.Send(0, 1, b)
		}
		net.Advance(net.Now().Add(time.Microsecond))
		for {
			if _, ok := net.Take(); !ok {
				break
			}
		}
	}
	step()
	if n := testing.AllocsPerRun(100, step); n != 0 {
		t.Errorf("%v allocations a round", n)
	}
}
