package transport

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/softroce/softroce/pkg/bth"
)

// TestFlowCounts: whatever queue pairs do to a flow, it counts what the shares
// hold that were touched in this round and the one before, and never less than
// nothing.
func TestFlowCounts(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	set := NewPeers(0)
	p := &peer{set: set}
	f := &p.flows[outbound]
	f.open(initialWindow, 1<<20, 9216)
	f.ready = &set.ready
	qps := make([]*QP, 30)
	for i := range qps {
		qps[i] = &QP{peer: p}
		f.join(&qps[i].req.shares[outbound])
	}
	for step := range 200_000 {
		q := qps[r.IntN(len(qps))]
		s := &q.req.shares[outbound]
		switch r.IntN(12) {
		case 0:
			f.giveBack(s)
		case 1:
			full := f.lost(s, bth.PSN(step))
			f.goBack(s, full)
		case 2:
			f.forgive(s)
		case 3:
			f.nextRound()
		case 4, 5, 6, 7:
			f.ack(s, min(s.flight, uint32(r.IntN(100_000))))
		default:
			cost := uint32(512 + r.IntN(4096))
			if !f.take(q, s, cost) {
				q.wait(time.Time{}, outbound, cost, cost)
				break
			}
			q.leaveLine()
			s.credit -= cost
			s.flight += cost
		}
		if r.IntN(3) == 0 {
			set.TakeReady()
		}
		var sum uint32
		for _, q := range qps {
			if s := &q.req.shares[outbound]; f.round-s.round <= 1 {
				sum += s.sum()
			}
		}
		if f.used() != sum {
			t.Fatalf("step %d: the flow counts %d, its shares hold %d", step, f.used(), sum)
		}
		if f.window < f.least || f.window > f.limit {
			t.Fatalf("step %d: window %d", step, f.window)
		}
	}
}

// TestTurnEndsMessage: whose turn comes gets what lets a message of 64 KiB end,
// where that is not much more than a quantum and the window has room for several
// such; else a quantum, and never less than the packet that waits.
func TestTurnEndsMessage(t *testing.T) {
	const packet, message = 4096 + packetCost, 16 * (4096 + packetCost)
	for _, c := range []struct{ window, need, whole, want uint32 }{
		{2 << 20, packet, message, message},
		{2 << 20, packet, packet, maxQuantum},
		{2 << 20, packet, 3 * maxQuantum, maxQuantum},
		{256 << 10, packet, message, maxQuantum}, // a quarter of the window is the most
		{16 << 10, packet, message, packet},
	} {
		p := &peer{set: NewPeers(0)}
		f := &p.flows[outbound]
		f.open(c.window, c.window, 2*packet)
		f.ready = &p.set.ready
		q := &QP{peer: p}
		s := &q.req.shares[outbound]
		f.join(s)
		q.wait(time.Time{}, outbound, c.need, c.whole)
		if got := f.turn(q, s); got != c.want {
			t.Errorf("window %d, packet %d, message %d: a turn is %d, want %d", c.window, c.need, c.whole, got, c.want)
		}
	}
}
