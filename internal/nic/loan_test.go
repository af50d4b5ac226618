package nic

import (
	"fmt"
	"log/slog"
	"math"
	"runtime"
	"runtime/debug"
	"testing"

	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/cq"
	"github.com/softroce/softroce/pkg/qpstate"
	"github.com/softroce/softroce/pkg/verbs"
)

// What is between two queue pairs of an adapter is the lender's memory, by
// reference, while nobody captures.
func TestMiddlesAreLent(t *testing.T) {
	a := startAdapter(t, func(c *Config) { c.Workers = 2 })
	x, y := newEndpoint(t, openDevice(t, a), 1<<16), newEndpoint(t, openDevice(t, a), 1<<16)
	connectPair(t, x, y)
	from, to := a.workerOf(x.qp.Num()), a.workerOf(y.qp.Num())
	if from == to {
		t.Fatal("both queue pairs are on one worker")
	}
	ctx := within(t)
	busy, release := make(chan struct{}), make(chan struct{})
	to.post(func() { close(busy); <-release })
	<-busy
	wr := verbs.SendWR{
		Opcode: verbs.WRRDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{x.mr.SGE(0, 1<<16)}, RemoteAddr: y.mr.Addr(), RKey: y.mr.RKey(),
	}
	if _, err := x.qp.PostSend(wr); err != nil {
		t.Error(err)
	}
	lent := 0
	for done := false; !done && ctx.Err() == nil; {
		from.do(func() {
			l := to.lanes[from.index].Load()
			if l == nil || l.head.Load() == 0 || bth.Opcode(l.slots[l.head.Load()-1].buf[0]) != bth.RCWriteLast {
				return
			}
			done = true
			for i := range l.head.Load() {
				lent += l.slots[i].loan.bytes
			}
		})
	}
	close(release)
	if want := 14 * 4096; lent != want {
		t.Errorf("%d bytes are lent, want %d", lent, want)
	}
	if wc, err := completion(ctx, x.cq); err != nil || wc.Status != cq.Success {
		t.Errorf("%v, %v", wc.Status, err)
	}
	to.do(func() {
		l := to.lanes[from.index].Load()
		for i := range l.slots {
			if l.slots[i].loan.from != nil || l.slots[i].loan.payload != nil {
				t.Error("a loan that was taken is still there")
			}
		}
		if l.lent != l.back.Load() {
			t.Errorf("%d bytes lent, %d given back", l.lent, l.back.Load())
		}
	})
}

// A program whose memory is gone behind the first packet of what it sends is
// ended, on whichever worker that shows, and the receiver goes on.
func TestLendersFault(t *testing.T) {
	for _, op := range []verbs.WROpcode{verbs.WRRDMAWrite, verbs.WRSend} {
		for _, workers := range []int{1, 2} {
			t.Run(fmt.Sprint(op, ", workers ", workers), func(t *testing.T) { lendersFault(t, op, workers) })
		}
	}
}

func lendersFault(t *testing.T, op verbs.WROpcode, workers int) {
	a := startAdapter(t, func(c *Config) { c.Workers = workers })
	ctx := within(t)
	dev := openDevice(t, a)
	bad, peer := newEndpoint(t, dev, 1<<14), newEndpoint(t, openDevice(t, a), 1<<14)
	connectPair(t, bad, peer)
	prog := programOf(t, a, bad.qp.Num())
	region, err := a.keys.Register(pdNumber(t, prog), newGoneMemory(t, 1<<14, 4096), 0x7000, 1<<14, allAccess, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = a.keys.Mark(region)
		a.endLoans()
		a.keys.Free(region)
	})
	if _, err := peer.qp.PostRecv(verbs.RecvWR{SGList: []verbs.SGE{peer.mr.SGE(0, 1<<14)}}); err != nil {
		t.Fatal(err)
	}
	wr := verbs.SendWR{
		Opcode: op, Flags: verbs.SendSignaled, SGList: []verbs.SGE{{Addr: 0x7000, Length: 1 << 14, LKey: region.LKey()}},
		RemoteAddr: peer.mr.Addr(), RKey: peer.mr.RKey(),
	}
	if _, err := bad.qp.PostSend(wr); err != nil {
		t.Fatal(err)
	}
	if ev, err := dev.AsyncEvent(ctx); err != nil || ev.Type != verbs.EventQPFatal {
		t.Fatalf("the lender is told of %v, %v", ev.Type, err)
	}
	if q, err := bad.qp.Query(); err != nil || q.State != qpstate.Err {
		t.Errorf("the lender is in %v, %v; want ERR", q.State, err)
	}
	if q, err := peer.qp.Query(); err != nil || q.State != qpstate.RTS {
		t.Errorf("the receiver is in %v, %v; want RTS", q.State, err)
	}
	w := a.workerOf(peer.qp.Num())
	w.do(func() {
		// What was lent came, although the next packet was a fault of the sender's
		// worker.
		if w.stats.Faults == 0 {
			t.Error("no fault was counted where the loan is taken")
		}
		if w.byQPN[peer.qp.Num()].dead {
			t.Error("the receiver was stopped")
		}
	})
}

// A command runs when all is taken that was in the lanes before it came, also
// where the taking meets a fault, which ends nothing but the loan.
func TestCommandsWaitForLanes(t *testing.T) {
	from, to, _, _ := twoWorkers(t)
	a := to.a
	a.tap.Store(nil)
	a.log = slog.New(slog.DiscardHandler)
	lender := &qp{qpn: 0x10, prog: &program{a: a}}
	lender.prog.faulting.Store(true) // as while it is being ended
	gone := newGoneMemory(t, 1<<14, 0)
	put := func(loaned bool) {
		l := from.laneTo(to)
		h := l.room()
		b, m := numbered(1)
		h.meta, h.from, h.n = m, fromLocal, copy(h.buf[:], b)
		if loaned {
			h.n, h.loan = bth.BTHLen+bth.ICRCLen, loan{from: lender, payload: gone.mem, size: 4096, bytes: 1 << 14}
		}
		l.put()
		l.publish()
	}
	put(false)
	put(true)
	put(false)
	ran, seen := 0, uint64(0)
	for range 2 {
		to.post(func() { ran++; seen = to.stats.PacketsIn })
	}
	debug.SetPanicOnFault(true)
	defer debug.SetPanicOnFault(false)
	turns := 0
	for ; ran < 2 && turns < 4; turns++ {
		func() {
			defer func() {
				if r := recover(); r != nil {
					to.fault(r)
				}
			}()
			to.commands()
		}()
	}
	if ran != 2 || seen != 2 || turns != 2 || to.stats.Faults != 1 || to.lanesWait() {
		t.Errorf("%d commands ran in %d turns, behind %d packets and %d faults; want 2, 2, 2, 1", ran, turns, seen, to.stats.Faults)
	}
	if l := from.laneTo(to); l.lent != 1<<14 || l.back.Load() != l.lent || l.slots[1].loan.from != nil {
		t.Errorf("%d bytes lent, %d given back", l.lent, l.back.Load())
	}
}

// Memory is given up when all is taken that a worker lent in the turn in which it
// was asked, also where the receiver's had answered before.
func TestEndLoansIsTwoRounds(t *testing.T) {
	a := startAdapter(t, func(c *Config) { c.Workers = 2 })
	to, from := a.workers[0], a.workers[1] // they are asked in this order
	ctx := within(t)
	busy, lend, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	l := from.laneTo(to)
	from.post(func() { // a turn that looked a key up before it was marked
		close(busy)
		<-lend
		h := l.room()
		b, m := numbered(1)
		h.meta, h.from, h.n = m, fromLocal, copy(h.buf[:], b[:bth.BTHLen+bth.ICRCLen])
		h.loan = loan{from: &qp{}, payload: make([]byte, 4096), size: 4096, bytes: 4096}
		l.put()
		l.publish()
	})
	<-busy
	go func() {
		a.endLoans()
		close(ended)
	}()
	for asked := false; !asked && ctx.Err() == nil; { // the receiver's has answered then
		from.mu.Lock()
		asked = len(from.cmds) > 0
		from.mu.Unlock()
		runtime.Gosched()
	}
	close(lend)
	<-ended
	if l.head.Load() != 1 || l.tail.Load() != 1 {
		t.Errorf("%d loans were given, and %d taken", l.head.Load(), l.tail.Load())
	}
}

// A turn leaves some of what is lent for the next one.
func TestTurnTakesSomeLoans(t *testing.T) {
	from, to, _, _ := twoWorkers(t)
	mem := make([]byte, 1<<16)
	l := from.laneTo(to)
	n := 0
	for h := l.room(); h != nil; h = l.room() {
		b, m := numbered(1)
		h.meta, h.from, h.n = m, fromLocal, copy(h.buf[:], b)
		h.n, h.loan = bth.BTHLen+bth.ICRCLen, loan{from: &qp{}, payload: mem, size: 4096, bytes: len(mem)}
		l.put()
		n++
	}
	if n != laneLent/len(mem) {
		t.Errorf("%d loans of %d bytes fill a lane", n, len(mem))
	}
	// What comes from the wire cannot wait.
	if b, m := numbered(1); !from.handOver(to, &m, b, fromOther) {
		t.Error("no slot for a packet from the wire")
	}
	to.pending.Store(1)
	for left := n; left > 0; left -= turnLent / len(mem) {
		if to.pending.Load() == 0 {
			t.Fatalf("%d loans are left, and nobody is to look", left)
		}
		if got := to.commands(); got != turnLent/len(mem) {
			t.Fatalf("a turn took %d loans", got)
		}
	}
	if to.commands() != 1 || to.stats.PacketsIn != uint64(n*len(mem)/4096+1) || to.takeLanes(math.MaxInt) != 0 {
		t.Errorf("%d packets came", to.stats.PacketsIn)
	}
}

// The memory of a region that ends, or whose program does, while it is lent, is
// not touched any more when it is unmapped.
func TestMemoryEndsWhileLent(t *testing.T) {
	rounds := 300
	if testing.Short() {
		rounds = 40
	}
	a := startAdapter(t, func(c *Config) { c.Workers = 2 })
	ctx := within(t)
	for i := range rounds {
		const n = 1 << 20
		conn, gone := connect(t, a)
		dev, err := verbs.OpenConn(conn)
		if err != nil {
			t.Fatal(err)
		}
		peer := openDevice(t, a)
		x, y := newEndpoint(t, dev, n), newEndpoint(t, peer, n)
		connectPair(t, x, y)
		// x lends, to its own WRITEs or to its peer's READs.
		by, to, op := x, y, verbs.WRRDMAWrite
		if i%2 == 1 {
			by, to, op = y, x, verbs.WRRDMARead
		}
		wr := verbs.SendWR{
			Opcode: op, Flags: verbs.SendSignaled, SGList: []verbs.SGE{by.mr.SGE(0, n)}, RemoteAddr: to.mr.Addr(), RKey: to.mr.RKey(),
		}
		for range 8 {
			if _, err := by.qp.PostSend(wr); err != nil {
				t.Fatal(err)
			}
		}
		for range i / 2 % 4 {
			if wc, err := completion(ctx, by.cq); err != nil || wc.Status != cq.Success {
				t.Fatalf("round %d: %v, %v", i, wc.Status, err)
			}
		}
		if i/8%2 == 0 {
			if err := x.mr.Dereg(); err != nil {
				t.Fatal(err)
			}
		} else {
			_ = conn.Close() // as the kernel does for a program that was killed
			<-gone
		}
		_ = dev.Close() // may be gone already
		_ = peer.Close()
	}
	for i, w := range a.Snapshot().Workers {
		if w.Stats.Faults != 0 {
			t.Errorf("worker %d: %d memory faults", i, w.Stats.Faults)
		}
	}
}
