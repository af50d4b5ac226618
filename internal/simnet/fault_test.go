package simnet

import (
	"testing"
	"time"
)

func TestPartition(t *testing.T) {
	net := New(Config{Delay: ms}, start)
	net.Send(0, 1, []byte{1}) // on its way when the partition begins
	net.Partition(1, 0)
	net.Send(0, 1, []byte{1})
	net.Send(1, 0, []byte{1})
	net.Send(2, 0, []byte{1})
	net.Heal(0, 1)
	net.Send(1, 0, []byte{1})
	wantTimes(t, deliveries(net), ms, ms, ms)
	if s := net.Stats(); s.Blocked != 2 || s.Sent != 5 {
		t.Errorf("%+v, want 5 sent and 2 blocked", s)
	}
}

// TestRestart: what the host has not read, and what has not left it, is gone; the
// rest arrives.
func TestRestart(t *testing.T) {
	net := New(Config{Delay: ms, Rate: 1000, ReadRate: 1000}, start)
	for range 3 {
		net.Send(0, 1, make([]byte, 10)) // leave at 10, 20 and 30 ms
	}
	net.Send(1, 0, make([]byte, 10)) // leaves at 10 ms, is there at 11 ms
	net.Advance(start.Add(15 * ms))
	if _, ok := net.Take(); ok {
		t.Fatal("read before its time")
	}
	net.Restart(0) // two of its own wait, one lies in its buffer
	wantTimes(t, deliveries(net), 21*ms)
	if s := net.Stats(); s.Discarded != 3 || s.Delivered != 1 {
		t.Errorf("%+v, want 3 discarded and 1 delivered", s)
	}
}

func TestHosts(t *testing.T) {
	net := New(Config{Delay: ms, Rate: 1000, Hosts: []Host{{}, {Rate: 500, Delay: 5 * ms}}}, start)
	net.Send(0, 1, make([]byte, 10))
	net.Send(1, 0, make([]byte, 10))
	wantTimes(t, deliveries(net), 11*ms, 26*ms)
}

func TestFaultsAreTold(t *testing.T) {
	var told [FaultKinds]uint64
	cfg := Config{Seed: 3, Loss: .1, Duplicate: .1, Reorder: .1, Corrupt: .1, Delay: 10 * time.Microsecond, Queue: 5}
	cfg.OnFault = func(f Fault) {
		if f.From != 0 || f.To != 1 || len(f.Data) != 13 {
			t.Fatalf("%+v", f)
		}
		told[f.Kind]++
	}
	_, s := run(cfg, 500)
	want := [FaultKinds]uint64{Lost: s.Lost, Duplicated: s.Duplicated, Reordered: s.Reordered, Corrupted: s.Corrupted, Overflowed: s.Overflowed}
	if told != want || s.Overflowed == 0 || s.Lost == 0 {
		t.Errorf("told %v, counted %v", told, want)
	}
	if Lost.String() != "lost" || Discarded.String() != "discarded" {
		t.Error("names")
	}
}
