package transport_test

import (
	"testing"
	"time"

	"github.com/softroce/softroce/internal/simnet"
	"github.com/softroce/softroce/pkg/wq"
)

// unsegmented is what a datagram takes of a socket's buffer: twice its size.
func unsegmented(size int) int { return 2 * size }

const (
	flowPackets  = 100_000
	lanDelay     = 20 * time.Microsecond
	kernelBuffer = 212992 // net.core.rmem_default
	largeBuffer  = 8 << 20
)

// TestWindowAdapts: a receiver with a small buffer, a slow link, a slow reader:
// throughput in proportion, and few packets sent again. ideal is the bytes a
// second that the narrowest place lets through.
func TestWindowAdapts(t *testing.T) {
	for _, c := range []struct {
		name   string
		cfg    fleetConfig
		ideal  float64
		least  float64 // of the ideal
		resent float64 // packets in a million
	}{
		{"loss-free", fleetConfig{net: simnet.Config{Delay: lanDelay, ReadRate: 3e9, Buffer: largeBuffer, Cost: unsegmented}, qps: 1, size: 1 << 20}, 3e9, .95, 0},
		{"loss-free/16", fleetConfig{net: simnet.Config{Delay: lanDelay, ReadRate: 3e9, Buffer: largeBuffer, Cost: unsegmented}, qps: 16, size: 1 << 20}, 3e9, .95, 0},
		{"small buffer", fleetConfig{net: simnet.Config{Delay: lanDelay, ReadRate: 1e9, Buffer: kernelBuffer, Cost: unsegmented}, qps: 1, size: 1 << 20}, 1e9, .85, 1000},
		{"small buffer/16", fleetConfig{net: simnet.Config{Delay: lanDelay, ReadRate: 1e9, Buffer: kernelBuffer, Cost: unsegmented}, qps: 16, size: 1 << 20}, 1e9, .85, 1000},
		{"small buffer/200 of 64 KiB", fleetConfig{net: simnet.Config{Delay: lanDelay, ReadRate: 1e9, Buffer: kernelBuffer, Cost: unsegmented}, qps: 200, size: 64 << 10}, 1e9, .85, 1000},
		{"small buffer/READ", fleetConfig{net: simnet.Config{Delay: lanDelay, ReadRate: 1e9, Buffer: kernelBuffer, Cost: unsegmented}, qps: 1, size: 1 << 20, op: wq.RDMARead}, 1e9, .75, 1000},
		{"small buffer/READ/16", fleetConfig{net: simnet.Config{Delay: lanDelay, ReadRate: 1e9, Buffer: kernelBuffer, Cost: unsegmented}, qps: 16, size: 1 << 20, op: wq.RDMARead}, 1e9, .75, 1000},
		{"slow link", fleetConfig{net: simnet.Config{Delay: lanDelay, Rate: 20e6, LinkQueue: 200 << 10}, qps: 1, size: 1 << 20}, 20e6, .85, 1000},
		{"slow link/16", fleetConfig{net: simnet.Config{Delay: lanDelay, Rate: 20e6, LinkQueue: 200 << 10}, qps: 16, size: 256 << 10}, 20e6, .85, 1000},
		{"slow reader", fleetConfig{net: simnet.Config{Delay: lanDelay, ReadRate: 50e6, Buffer: kernelBuffer, Cost: unsegmented}, qps: 1, size: 1 << 20}, 50e6, .85, 1000},
		{"pausing reader", fleetConfig{net: simnet.Config{Delay: lanDelay, ReadRate: 1e9, Buffer: kernelBuffer, Cost: unsegmented, ReadEvery: 10 * time.Millisecond, ReadPause: 5 * time.Millisecond}, qps: 4, size: 1 << 20}, .5e9, .75, 1000},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.cfg.op == 0 {
				c.cfg.op = wq.RDMAWrite
			}
			f := newFleet(t, c.cfg)
			total := uint64(flowPackets * 4096)
			if testing.Short() {
				total /= 5
				c.resent *= 5 // the first losses weigh more
			}
			f.run(total/10, time.Minute) // it finds the place
			before := f.counts()
			took := f.run(total, time.Minute)
			after := f.counts()
			got := float64(total) / took.Seconds() / c.ideal
			packets := float64(total) / 4096
			again := float64(after.resent-before.resent) / packets * 1e6
			lo, hi := f.done[0], f.done[0]
			for _, d := range f.done {
				lo, hi = min(lo, d), max(hi, d)
			}
			t.Logf("%.3f of the ideal; %.0f packets in a million sent again (first %d), %d timeouts, %d NAKs; queue pairs %d to %d MB; window %v",
				got, again, before.resent, after.timeouts, after.naks, lo>>20, hi>>20, f.hosts[0].ends[0].qp.Window())
			if got < c.least {
				t.Errorf("%.3f of the ideal, want %.2f", got, c.least)
			}
			if again > c.resent {
				t.Errorf("%.0f packets in a million were sent again, want at most %.0f", again, c.resent)
			}
		})
	}
}

// lan is a fast network whose hosts have small receive buffers.
func lan() simnet.Config {
	return simnet.Config{Delay: lanDelay, ReadRate: 1e9, Buffer: kernelBuffer, Cost: unsegmented}
}

// TestManyShareOnePeer: 1,000 queue pairs to one peer have a window for far
// fewer. All get their turn, and none much more than another.
func TestManyShareOnePeer(t *testing.T) {
	for _, op := range []wq.Opcode{wq.RDMAWrite, wq.RDMARead} {
		f := newFleet(t, fleetConfig{net: lan(), qps: 1000, size: 16 << 10, op: op})
		total := 300e6
		if testing.Short() {
			total /= 3
		}
		took := f.run(uint64(total), time.Minute)
		if got := total / took.Seconds() / 1e9; got < .8 {
			t.Errorf("%v: %.2f of the ideal", op, got)
		}
		c := f.counts()
		if again := float64(c.resent) / float64(c.sent); again > .05 {
			t.Errorf("%v: %d of %d packets were sent again", op, c.resent, c.sent)
		}
		lo, hi := f.done[0], f.done[0]
		for _, d := range f.done {
			lo, hi = min(lo, d), max(hi, d)
		}
		t.Logf("%v: %.3f s, %d KB to %d KB a queue pair, %+v", op, took.Seconds(), lo>>10, hi>>10, c)
		if lo < hi/3 && !testing.Short() { // the first loss of a queue pair may cost it an ACK timeout
			t.Errorf("%v: a queue pair moved %d KB, another %d KB", op, lo>>10, hi>>10)
		}
	}
}

// TestDeafPeersHoldNobodyUp: packets that are never acknowledged do not count for
// ever, even when no ACK timer tells that they are lost.
func TestDeafPeersHoldNobodyUp(t *testing.T) {
	for _, noTime := range []bool{false, true} {
		f := newFleet(t, fleetConfig{net: lan(), qps: 8, size: 256 << 10, op: wq.RDMAWrite, deaf: 6, noTime: noTime})
		const total = 200 << 20
		took := f.run(total, time.Minute/4)
		got := total / took.Seconds() / 1e9
		t.Logf("no timers %v: %.2f of the ideal", noTime, got)
		if got < .3 {
			t.Errorf("no timers %v: %.2f of the ideal", noTime, got)
		}
	}
	// Only the deaf: the window is full, and stays so, but for a time.
	f := newFleet(t, fleetConfig{net: lan(), qps: 40, size: 256 << 10, op: wq.RDMAWrite, deaf: 39, noTime: true})
	f.run(1<<20, time.Minute)
	if f.done[39] == 0 {
		t.Error("a queue pair waits for ever behind deaf ones")
	}
}

// TestRNRCostsLittle: a receiver that posts one receive at a time gets few packets
// for nothing.
func TestRNRCostsLittle(t *testing.T) {
	a, b := connected(t, options{rnrTimer: 1, sendWR: 64})
	now := start
	const messages = 400
	posted, done := 0, 0
	for done < messages {
		for posted < messages && posted-done < 32 {
			a.post(now, wq.SendWR{Opcode: wq.Send, Flags: wq.SendSignaled, SGList: []wq.SGE{a.sge(0, 4000)}})
			posted++
		}
		if b.recv.Len() == 0 {
			b.postRecv(now, 1, b.sge(0, 4000))
		}
		exchange(now, a, b)
		done += len(a.sendCQ.take())
		if d := a.qp.NextTimeout(); !d.IsZero() {
			now = d
			a.qp.HandleTimeout(now)
		}
	}
	s := a.qp.Stats()
	t.Logf("%d messages: %d packets, %d again", messages, s.SentPkts, s.Retransmits)
	if s.Retransmits > 4*messages {
		t.Errorf("%d packets were sent again for %d messages", s.Retransmits, messages)
	}
}
