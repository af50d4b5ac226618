package nic

import (
	"bytes"
	"math"
	"net/netip"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/softroce/softroce/internal/capture"
	"github.com/softroce/softroce/internal/testaddr"
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/udp4791"
)

// twoWorkers are workers 0 and 1 of an adapter that has no sockets, and what the
// tap of it gets. They are driven by the test, not by goroutines of their own.
func twoWorkers(t *testing.T) (from, to *worker, tape *bytes.Buffer, flush func()) {
	t.Helper()
	tape = &bytes.Buffer{}
	tap, err := capture.NewWriter(tape, "lanes", capture.WriterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	a := &Adapter{}
	a.tap.Store(&taps{file: tap})
	for i := range 2 {
		a.workers = append(a.workers, &worker{a: a, index: i, asleep: new(atomic.Uint32)})
	}
	return a.workers[0], a.workers[1], tape, func() {
		if err := tap.Flush(); err != nil {
			t.Error(err)
		}
	}
}

// numbered is packet number i for a queue pair of worker 1, which it has not: so
// it is counted there, and shown to the tap.
func numbered(i int) ([]byte, udp4791.RecvMeta) {
	h := bth.BTHFields{Opcode: bth.RCSendOnly, PKey: bth.DefaultPKey, DestQP: 0x11, PSN: bth.PSN(i)}
	b := h.Append(nil)
	for range i % 50 * 4 {
		b = append(b, byte(i))
	}
	return bth.AppendICRC(b, 0), udp4791.RecvMeta{Src: netip.AddrPortFrom(peer4, 0xC123), Dst: host4}
}

// wantInOrder checks that the tap got packets 0 to n-1, each once and whole.
func wantInOrder(t *testing.T, tape *bytes.Buffer, n int) {
	t.Helper()
	i := 0
	err := capture.Decode(tape, func(r capture.Record) {
		if int(r.PSN) != i || r.Payload != i%50*4 {
			t.Errorf("packet %d is number %v with %d bytes, want %d bytes", i, r.PSN, r.Payload, i%50*4)
		}
		i++
	})
	if err != nil || i != n {
		t.Errorf("%d packets came, want %d; %v", i, n, err)
	}
}

// A lane holds so many packets, refuses the next, and gives them in the order
// they were put; what is not published is not there.
func TestLaneIsBoundedAndInOrder(t *testing.T) {
	from, to, tape, flush := twoWorkers(t)
	if to.lanesWait() || to.takeLanes(math.MaxInt) != 0 {
		t.Error("packets wait before there is a lane")
	}
	l := from.laneTo(to)
	if from.laneTo(to) != l || to.laneTo(from) == l {
		t.Error("a pair of workers and a direction have one lane")
	}
	n := 0
	for round := range 3 {
		for l.room() != nil {
			b, m := numbered(n)
			h := l.room()
			h.meta, h.from, h.n = m, fromOther, copy(h.buf[:], b)
			l.put()
			n++
			if to.lanesWait() {
				t.Fatal("a packet that was not published waits")
			}
		}
		if want := laneSlots * (round + 1); n != want {
			t.Fatalf("round %d: %d packets in all, want %d", round, n, want)
		}
		if !l.publish() || l.publish() {
			t.Error("publish is to say that there is something new, once")
		}
		if !to.lanesWait() || to.takeLanes(math.MaxInt) != laneSlots || to.lanesWait() {
			t.Error("what was published is to be taken, all of it")
		}
	}
	flush()
	wantInOrder(t, tape, n)
	if to.stats.Drops[DropNoQP] != uint64(n) || to.stats.PacketsIn != uint64(n) || from.stats != (WorkerStats{}) {
		t.Errorf("counted: %d packets in, %d without a queue pair; want %d", to.stats.PacketsIn, to.stats.Drops[DropNoQP], n)
	}
}

// A packet from the wire for another worker is counted by the one that serves
// it; when the lane is full it is dropped and counted.
func TestHandOver(t *testing.T) {
	from, to, tape, flush := twoWorkers(t)
	const more = 5
	for i := range laneSlots + more {
		b, m := numbered(i)
		from.accept(&m, b, fromWire)
	}
	s := &from.stats
	if s.Handovers != laneSlots || s.Drops[DropHandover] != more || s.PacketsIn != more {
		t.Errorf("%d handed over, %d dropped, %d counted; want %d, %d, %d", s.Handovers, s.Drops[DropHandover], s.PacketsIn, laneSlots, more, more)
	}
	if to.pending.Load() == 0 {
		t.Error("the other worker was not told")
	}
	flush()
	tape.Reset() // what was dropped is there, too
	if n := to.takeLanes(math.MaxInt); n != laneSlots {
		t.Errorf("%d packets taken, want %d", n, laneSlots)
	}
	// One that is for a third one, or comes back, is not passed on for ever.
	b, m := numbered(0)
	from.accept(&m, b, fromOther)
	if s.Handovers != laneSlots || s.Drops[DropHandover] != more+1 || to.lanesWait() {
		t.Error("a packet that was handed over is handed over again")
	}
}

// Two goroutines, one putting and one taking: each packet comes once, whole and
// in order.
func TestLaneBetweenGoroutines(t *testing.T) {
	from, to, tape, flush := twoWorkers(t)
	n := 20_000
	if testing.Short() {
		n = 2000
	}
	go func() {
		for i := 0; i < n; {
			b, m := numbered(i)
			if from.handOver(to, &m, b, fromOther) {
				i++
			} else {
				runtime.Gosched()
			}
		}
	}()
	ctx := within(t)
	for got := 0; got < n; {
		k := to.takeLanes(math.MaxInt)
		if got += k; k == 0 {
			runtime.Gosched()
		}
		if ctx.Err() != nil {
			t.Fatalf("%d of %d packets came", got, n)
		}
	}
	flush()
	wantInOrder(t, tape, n)
}

// A send that holds packets for queue pairs of different steering keys comes to
// the worker of the first. The others get theirs by the lanes: none is lost.
func TestMixedBufferReachesEveryWorker(t *testing.T) {
	for _, workers := range []int{1, 2, 3, 8} {
		a := startAdapter(t, func(c *Config) { c.Workers = workers })
		addr := testaddr.Take(t, 1)[0]
		g, err := udp4791.Open(udp4791.Config{Addrs: []netip.Addr{addr}})
		if err != nil {
			t.Fatal(err)
		}
		defer g.Close()
		if !g.Segments() {
			t.Skip("this kernel has no UDP_SEGMENT")
		}
		ep := g.Endpoint(0)
		flow, port, err := ep.OpenFlow(addr, 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		dev := openDevice(t, a)
		var ends []*endpoint
		for range 16 {
			e := newEndpoint(t, dev, 4096)
			connectRaw(t, e, addr, 100, 0x777)
			ends = append(ends, e)
		}
		const rounds = 30
		for round := range rounds {
			var buf []byte
			for i := range ends {
				e := ends[(i+round)%len(ends)] // each worker's is the first in turn
				p := writeOnly(e, 100+bth.PSN(round), round*8, []byte{byte(round), 1, 2, 3, 4, 5, 6, 7})
				seed := bth.NetHeader{Src: bth.GIDFromAddr(addr), Dst: bth.GIDFromAddr(a.Addrs()[0]), SrcPort: port, DstPort: udp4791.Port, ID: uint16(i)}
				buf = append(buf, bth.AppendICRC(p, bth.ICRC(seed.Seed(len(p)+bth.ICRCLen), p))...)
			}
			s := udp4791.SendSlot{Flow: flow, Dst: a.Addrs()[0], Buf: buf, Segment: len(buf) / len(ends)}
			if n, err := ep.WriteBatch([]udp4791.SendSlot{s}); n != 1 || err != nil {
				t.Fatal(err)
			}
			awaitAcks(t, ep, len(ends))
		}
		var in, handed, receives uint64
		for _, w := range a.Snapshot().Workers {
			in, handed, receives = in+w.Stats.PacketsIn, handed+w.Stats.Handovers, receives+w.Stats.Receives
			for why, n := range w.Stats.Drops {
				if n != 0 {
					t.Errorf("%d workers: %d packets dropped: %v", workers, n, Drop(why))
				}
			}
		}
		if want := uint64(rounds * len(ends)); in != want || workers > 1 && handed == 0 {
			t.Errorf("%d workers: %d packets in %d buffers, %d handed over; want %d packets", workers, in, receives, handed, want)
		}
		t.Logf("%d workers: %d packets in %d buffers, %d handed over", workers, in, receives, handed)
		for _, e := range ends {
			for round := range rounds {
				if got := e.mr.Bytes()[round*8]; got != byte(round) {
					t.Fatalf("%d workers: WRITE %d left %d", workers, round, got)
				}
			}
		}
	}
}

// lanesWait says whether packets wait that other workers handed over.
func (w *worker) lanesWait() bool {
	for i := range w.lanes {
		if l := w.lanes[i].Load(); l != nil && l.tail.Load() != l.head.Load() {
			return true
		}
	}
	return false
}

// A fault at one queue pair of a multicast group does not give the packet a second
// time to those before it, and what is behind it in the lane is served.
func TestFaultInAGroupEndsItsPacket(t *testing.T) {
	from, to, _, _ := twoWorkers(t)
	b, m := numbered(1)
	m.Dst = netip.AddrFrom4([4]byte{239, 1, 2, 3})
	to.groups = map[netip.Addr]*groupHere{m.Dst: {qps: []*qp{nil}}} // touching it is the fault
	n, other := numbered(2)
	if !from.handOver(to, &m, b, fromGroup) || !from.handOver(to, &other, n, fromOther) {
		t.Fatal("the lane is full")
	}
	take := func() (fault any) {
		defer func() { fault = recover() }()
		to.takeLanes(math.MaxInt)
		return nil
	}
	if take() == nil {
		t.Fatal("the group's queue pair was not reached")
	}
	if again := take(); again != nil || to.lanesWait() {
		t.Errorf("the packet was served again: %v", again)
	}
	if to.stats.PacketsIn != 1 {
		t.Errorf("%d packets came in, want the one behind it", to.stats.PacketsIn)
	}
}
