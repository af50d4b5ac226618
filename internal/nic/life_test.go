package nic

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/shm"
	"github.com/softroce/softroce/internal/testaddr"
	"github.com/softroce/softroce/internal/testmatrix"
	"github.com/softroce/softroce/internal/uapi"
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/cq"
	"github.com/softroce/softroce/pkg/mrtable"
	"github.com/softroce/softroce/pkg/qpstate"
	"github.com/softroce/softroce/pkg/verbs"
)

// wantNothingLeft checks that no program left anything on the adapter.
func wantNothingLeft(t *testing.T, a *Adapter) {
	t.Helper()
	if use := a.ledger.usage(); use != [numResources]uint64{} {
		t.Errorf("still booked: %v", use)
	}
	if n := a.keys.Len(); n != 0 {
		t.Errorf("%d keys still registered", n)
	}
	if n := len(a.programList()); n != 0 {
		t.Errorf("%d programs still there", n)
	}
	wantNoGroups(t, a)
	wantNoCM(t, a)
	for i, w := range a.workers {
		w.do(func() {
			timers := len(w.timers.q)
			if w.gsi != nil && w.gsi.q.timerPos >= 0 {
				timers-- // of queue pair 1, for what the network has to forget
			}
			if len(w.links) != 0 || len(w.byQPN) != 0 || timers != 0 {
				t.Errorf("worker %d still has %d programs, %d QPs, %d timers", i, len(w.links), len(w.byQPN), timers)
			}
		})
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.pds) != 0 || len(a.qpns.used) != 0 || a.load[0]+a.load[len(a.load)-1] != 0 {
		t.Errorf("%d PD numbers, %d QPNs, load %v left", len(a.pds), len(a.qpns.used), a.load)
	}
}

// waitAlone waits until the adapter serves n programs.
func waitPrograms(t *testing.T, a *Adapter, n int) {
	t.Helper()
	ctx := within(t)
	for len(a.programList()) != n {
		if ctx.Err() != nil {
			t.Fatalf("%d programs, want %d", len(a.programList()), n)
		}
		runtime.Gosched()
	}
}

// A program that hangs up gives everything back: descriptors, mappings,
// goroutines, keys and what its limits booked.
func TestHangUpGivesEverythingBack(t *testing.T) {
	a := startAdapter(t, nil)
	base := processUsage(t)
	for range 20 {
		t.Run("program", func(t *testing.T) {
			r := rawHello(t, a)
			pd := r.pd()
			for range 4 {
				ch := must[uapi.HandleReply](r, uapi.OpCreateChannel, nil).Handle
				cq := must[uapi.CreateCQReply](r, uapi.OpCreateCQ, &uapi.CreateCQRequest{CQE: 10, Channel: ch}).Handle
				r.qp(pd, cq)
				r.sharedMR(pd, 1<<16)
				s := must[uapi.CreateSRQReply](r, uapi.OpCreateSRQ, &uapi.CreateSRQRequest{PD: pd, Attr: uapi.SRQAttr{MaxWR: 9}}).Handle
				m := rcRequest(pd, cq)
				m.Type, m.SRQ = qpstate.UD, s
				ud := must[uapi.CreateQPReply](r, uapi.OpCreateQP, m).Handle
				gid, _, _ := a.gid(0)
				for range 3 {
					must[uapi.HandleReply](r, uapi.OpCreateAH, &uapi.CreateAHRequest{PD: pd, Attr: qpstate.AHAttr{DGID: gid, IsGlobal: true, PortNum: 1}})
				}
				if testmatrix.Backend(t) == BackendTUN {
					continue // it has no multicast
				}
				if got := r.call(uapi.OpAttachMcast, &uapi.McastRequest{QP: ud, GID: groupOf(a)}); got.errno != 0 {
					t.Fatal(got.errno, got.text)
				}
			}
			if n := a.keys.Len(); n != 4 {
				t.Fatalf("%d keys, want 4", n)
			}
		})
	}
	returnsTo(t, base)
	wantNothingLeft(t, a)
	if n := a.control.deaths.Load(); n != 20 {
		t.Errorf("%d deaths counted, want 20", n)
	}
}

// Whatever a connection does before it is a program, it leaves nothing.
func TestHalfOpenConnectionsLeaveNothing(t *testing.T) {
	a := startAdapter(t, nil)
	base := processUsage(t)
	t.Run("connections", func(t *testing.T) {
		connect(t, a) // says nothing
		rawConn(t, a).call(uapi.OpAllocPD, nil)
		rawConn(t, a).call(uapi.OpHello, &uapi.HelloRequest{Version: 9})
		rawConn(t, a).sendBytes([]byte("not a message at all"))
		rawConn(t, a).call(uapi.OpHello, &uapi.HelloRequest{Version: uapi.Version}, memfd(t, 1, 0), memfd(t, 1, 0))
	})
	returnsTo(t, base)
	wantNothingLeft(t, a)
}

// kill -9: the adapter sees it, by the hang-up or the pidfd, and takes
// everything back; other programs go on.
func TestKilledProgramGivesEverythingBack(t *testing.T) {
	if inOwnProcess(t) {
		return
	}
	a := startAdapter(t, nil)
	socket := serveSocket(t, a)
	other := openDevice(t, a)
	waitPrograms(t, a, 1)
	// The first child makes the runtime's own descriptors and goroutines.
	first := startChild(t, "client", socket)
	first.kill(t)
	first.close()
	waitPrograms(t, a, 1)
	base, booked := processUsage(t), a.ledger.usage()
	for range 5 {
		child := startChild(t, "client", socket)
		if n := a.ledger.usage()[ResourceQPs]; n != 3 {
			t.Fatalf("the child has %d QPs, want 3", n)
		}
		child.kill(t)
		child.close()
		waitPrograms(t, a, 1)
	}
	returnsTo(t, base)
	if got := a.ledger.usage(); got != booked {
		t.Errorf("booked %v before, %v after", booked, got)
	}
	if _, err := other.AllocPD(); err != nil {
		t.Errorf("the other program: %v", err)
	}
}

// A program whose socket a child of its own still holds is dead
// when its process exits.
func TestExitCountsEvenIfTheSocketLivesOn(t *testing.T) {
	if inOwnProcess(t) {
		return
	}
	a := startAdapter(t, nil)
	socket := serveSocket(t, a)
	child := startChild(t, "parent", socket)
	waitPrograms(t, a, 1)
	child.kill(t)
	waitPrograms(t, a, 0)
	wantNothingLeft(t, a)
}

// Closing the adapter sets the alive word, hangs up on every program and
// returns when all is released.
func TestCloseEndsEveryProgram(t *testing.T) {
	base := processUsage(t)
	t.Run("adapter", func(t *testing.T) {
		a := startAdapter(t, nil)
		r := rawConn(t, a)
		got := r.call(uapi.OpHello, &uapi.HelloRequest{Version: uapi.Version})
		page, err := shm.Map(got.fds[0], true)
		if err != nil {
			t.Fatal(err)
		}
		defer page.Close()
		status, err := uapi.NewStatusPage(page)
		if err != nil {
			t.Fatal(err)
		}
		pd := r.pd()
		r.qp(pd, r.cq(4))
		r.sharedMR(pd, 4096)
		socket := serveSocket(t, a)
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
		if !status.Closing() {
			t.Error("the alive word does not say that the adapter closes")
		}
		if _, _, err := r.c.Recv(make([]byte, 64)); err == nil {
			t.Error("no hang-up")
		}
		wantNothingLeftClosed(t, a)
		if _, err := shm.Dial(socket); err == nil {
			t.Error("the socket still accepts")
		}
		late, done := connect(t, a)
		<-done
		if _, _, err := late.Recv(make([]byte, 64)); err == nil {
			t.Error("a closed adapter serves")
		}
		if err := a.Close(); err != nil {
			t.Errorf("second Close: %v", err)
		}
	})
	returnsTo(t, base)
}

// A program on the library sees the adapter's end as DEVICE_FATAL, and every
// later call is an error.
func TestCloseIsDeviceFatal(t *testing.T) {
	a := startAdapter(t, nil)
	d := openDevice(t, a)
	e := newEndpoint(t, d, 4096)
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	ev, err := d.AsyncEvent(within(t))
	if err != nil || ev.Type != verbs.EventDeviceFatal {
		t.Errorf("async event %+v, %v; want DEVICE_FATAL", ev, err)
	}
	if _, err := d.AllocPD(); !errors.Is(err, unix.EIO) {
		t.Errorf("a call on a dead device: %v, want EIO", err)
	}
	if err := e.qp.Modify(&verbs.QPAttr{State: verbs.StateErr}, qpstate.MaskState); !errors.Is(err, unix.EIO) {
		t.Errorf("modify on a dead device: %v, want EIO", err)
	}
}

func wantNothingLeftClosed(t *testing.T, a *Adapter) {
	t.Helper()
	if use := a.ledger.usage(); use != [numResources]uint64{} {
		t.Errorf("still booked: %v", use)
	}
	if n := a.keys.Len(); n != 0 {
		t.Errorf("%d keys still registered", n)
	}
}

// transfer writes a pattern from x's region to y's, reads it back by RDMA
// READ and compares, once.
func transfer(ctx context.Context, x, y *endpoint, seed byte) error {
	n := x.mr.Len() / 2
	pattern := bytes.Repeat([]byte{seed, seed ^ 0xff, 3}, n/3+1)[:n]
	copy(x.mr.Bytes(), pattern)
	for _, wr := range []verbs.SendWR{
		{Opcode: verbs.WRRDMAWrite, SGList: []verbs.SGE{x.mr.SGE(0, n)}},
		{Opcode: verbs.WRRDMARead, SGList: []verbs.SGE{x.mr.SGE(n, n)}},
	} {
		wr.Flags = verbs.SendSignaled
		wr.RemoteAddr, wr.RKey = y.mr.Addr(), y.mr.RKey()
		if _, err := x.qp.PostSend(wr); err != nil {
			return err
		}
		wc, err := completion(ctx, x.cq)
		if err != nil {
			return err
		}
		if wc.Status != cq.Success {
			return errors.New(wc.Status.String())
		}
	}
	if !bytes.Equal(x.mr.Bytes()[n:2*n], pattern) {
		return errors.New("data differ")
	}
	return nil
}

// Field case F62: several adapters on one host, two programs on one address.
func TestF62TwoProgramsTwoAdapters(t *testing.T) {
	addrs := testaddr.Take(t, 2)
	a := startAdapter(t, func(c *Config) { c.Addrs = addrs[:1] })
	b := startAdapter(t, func(c *Config) { c.Addrs = addrs[1:] })
	ctx := within(t)
	var wg sync.WaitGroup
	for i := range byte(2) {
		x, y := newEndpoint(t, openDevice(t, a), 1<<16), newEndpoint(t, openDevice(t, b), 1<<16)
		connectPair(t, x, y)
		wg.Go(func() {
			for round := range byte(10) {
				if err := transfer(ctx, x, y, 16*i+round); err != nil {
					t.Errorf("program %d round %d: %v", i, round, err)
				}
			}
		})
	}
	wg.Wait()
	if _, err := New(Config{Addrs: addrs[:1]}); err == nil {
		t.Error("a second adapter took the address of the first")
	}
}

// Field case F51: destroy a QP, a CQ and a region under full load; under
// -race nothing is used after its end, no call is stuck and the neighbours'
// data are right.
func TestF51DestroyUnderLoad(t *testing.T) {
	a := startAdapter(t, nil)
	ctx := within(t)
	x, y := newEndpoint(t, openDevice(t, a), 1<<16), newEndpoint(t, openDevice(t, a), 1<<16)
	connectPair(t, x, y)
	var stop atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		for n := byte(0); !stop.Load() && ctx.Err() == nil; n++ {
			if err := transfer(ctx, x, y, n); err != nil {
				t.Errorf("neighbour: %v", err)
				return
			}
		}
	})
	da, db := openDevice(t, a), openDevice(t, a)
	for range 40 {
		p, q := newEndpoint(t, da, 1<<17), newEndpoint(t, db, 1<<17)
		connectPair(t, p, q)
		for range 12 {
			wr := verbs.SendWR{Opcode: verbs.WRRDMAWrite, SGList: []verbs.SGE{p.mr.SGE(0, 1<<17)}, RemoteAddr: q.mr.Addr(), RKey: q.mr.RKey()}
			if _, err := p.qp.PostSend(wr); err != nil {
				t.Fatal(err)
			}
		}
		// Packets are in flight: end both sides, the memory first.
		for _, end := range []func() error{
			q.mr.Dereg, p.mr.Dereg, q.qp.Destroy, p.qp.Destroy, p.cq.Destroy, q.cq.Destroy, p.pd.Dealloc, q.pd.Dealloc,
		} {
			if err := end(); err != nil {
				t.Fatal(err)
			}
		}
	}
	stop.Store(true)
	wg.Wait()
	if n := a.Snapshot().Control.Faults; n != 0 {
		t.Errorf("%d faults: a worker touched memory after its end", n)
	}
}

// Field case F39: a program scribbles over all its rings and doorbells while
// the adapter serves them; the other program's data stay right, and the
// adapter lives.
func TestF39ScribblerHarmsItselfOnly(t *testing.T) {
	// Real mappings also in race builds: that plain loads race with a
	// scribbler's stores is what the test is about.
	if inOwnProcess(t) {
		return
	}
	a := startAdapter(t, nil)
	ctx := within(t)
	x, y := newEndpoint(t, openDevice(t, a), 1<<15), newEndpoint(t, openDevice(t, a), 1<<15)
	connectPair(t, x, y)
	s := newScribbler(t, a)
	var stop atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		rng := rand.New(rand.NewPCG(3, 9))
		for n := 0; !stop.Load(); n++ {
			s.scribble(rng)
			if n%16 == 0 {
				s.reset(a, s.qps[rng.IntN(len(s.qps))])
			}
			runtime.Gosched()
		}
	})
	for n := range byte(100) {
		if err := transfer(ctx, x, y, n); err != nil {
			t.Errorf("round %d: %v", n, err)
			break
		}
	}
	stop.Store(true)
	wg.Wait()
	if _, err := x.dev.AllocPD(); err != nil {
		t.Errorf("the other program: %v", err)
	}
}

// A scribbler is a program with connected QPs whose shared memory it holds in
// its hands.
type scribbler struct {
	*rawClient
	segs []*shm.Segment
	bell *shm.Segment
	wake []*shm.Doorbell
	qps  []uapi.CreateQPReply
}

func newScribbler(t *testing.T, a *Adapter) *scribbler {
	t.Helper()
	s := &scribbler{rawClient: rawConn(t, a)}
	hello := s.call(uapi.OpHello, &uapi.HelloRequest{Version: uapi.Version})
	s.bell = s.mapped(hello.fds[1])
	for _, fd := range hello.fds[3:] {
		dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		d := shm.DoorbellFromFD(dup)
		t.Cleanup(func() { _ = d.Close() })
		s.wake = append(s.wake, d)
	}
	pd := s.pd()
	for range 4 {
		got := s.call(uapi.OpCreateCQ, &uapi.CreateCQRequest{CQE: 16})
		s.take(got)
		var cq uapi.CreateCQReply
		if err := cq.Decode(got.body); err != nil {
			t.Fatal(err)
		}
		got = s.call(uapi.OpCreateQP, rcRequest(pd, cq.Handle))
		s.take(got)
		var qp uapi.CreateQPReply
		if err := qp.Decode(got.body); err != nil {
			t.Fatal(err)
		}
		s.qps = append(s.qps, qp)
		s.connectTo(a, qp)
	}
	return s
}

func (s *scribbler) mapped(fd int) *shm.Segment {
	s.t.Helper()
	seg, err := shm.Map(fd, false)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = seg.Close() })
	return seg
}

// take maps the ring segments that came with a reply.
func (s *scribbler) take(a answer) {
	s.t.Helper()
	for _, fd := range a.fds {
		s.segs = append(s.segs, s.mapped(fd))
	}
}

// connectTo connects a queue pair to itself, so that it has work.
func (s *scribbler) connectTo(a *Adapter, qp uapi.CreateQPReply) {
	s.t.Helper()
	gid, _, _ := a.gid(0)
	modify := func(m qpstate.Mask, attr qpstate.Attr) {
		s.t.Helper()
		must[uapi.ModifyQPReply](s.rawClient, uapi.OpModifyQP, &uapi.ModifyQPRequest{Handle: qp.Handle, Mask: m | qpstate.MaskState, Attr: attr})
	}
	modify(qpstate.MaskPKeyIndex|qpstate.MaskPort|qpstate.MaskAccessFlags,
		qpstate.Attr{State: qpstate.Init, PortNum: 1, AccessFlags: uint32(mrtable.AccessRemoteWrite)})
	modify(qpstate.MaskAV|qpstate.MaskPathMTU|qpstate.MaskDestQPN|qpstate.MaskRQPSN|qpstate.MaskMaxDestRDAtomic|qpstate.MaskMinRNRTimer,
		qpstate.Attr{
			State: qpstate.RTR, PathMTU: bth.MTU1024, DestQPN: qp.QPN, MinRNRTimer: 1,
			AH: qpstate.AHAttr{DGID: gid, IsGlobal: true, PortNum: 1},
		})
	modify(qpstate.MaskTimeout|qpstate.MaskRetryCnt|qpstate.MaskRNRRetry|qpstate.MaskSQPSN|qpstate.MaskMaxQPRDAtomic,
		qpstate.Attr{State: qpstate.RTS, Timeout: 10, RetryCnt: 1, RNRRetry: 1})
}

// reset brings a queue pair that its own rubbish ended back to life.
func (s *scribbler) reset(a *Adapter, qp uapi.CreateQPReply) {
	s.t.Helper()
	got := s.call(uapi.OpModifyQP, &uapi.ModifyQPRequest{Handle: qp.Handle, Mask: qpstate.MaskState, Attr: qpstate.Attr{State: qpstate.Reset}})
	if got.errno == 0 {
		s.connectTo(a, qp)
	}
}

// scribble overwrites the words of the rings in use with values that are
// sometimes plausible, and rings a doorbell.
func (s *scribbler) scribble(rng *rand.Rand) {
	for range 64 {
		seg := s.segs[rng.IntN(len(s.segs))]
		off := 4 * rng.IntN(1<<13)
		v := rng.Uint32()
		if rng.IntN(2) == 0 {
			v %= 9
		}
		seg.Word32(off).Store(v)
	}
	qp := s.qps[rng.IntN(len(s.qps))]
	s.bell.Word32(int(qp.Worker)*uapi.DoorbellBlock + 4*rng.IntN(uapi.DoorbellBlock/4)).Store(rng.Uint32())
	s.bell.Word32(int(qp.Worker) * uapi.DoorbellBlock).Store(1)
	s.wake[qp.Worker].Ring()
}

// The keys of a dead program grant nothing from the moment of its death, and
// its number is not at once another's.
func TestKeysDieWithTheProgram(t *testing.T) {
	a := startAdapter(t, nil)
	var key uapi.RegMRReply
	var pd mrtable.PD
	t.Run("program", func(t *testing.T) {
		r := rawHello(t, a)
		key = r.sharedMR(r.pd(), 4096)
		a.mu.Lock()
		for n := range a.pds {
			pd = n
		}
		a.mu.Unlock()
		if _, err := a.keys.Remote(key.RKey, pd, 0, 0x10000, 8, mrtable.AccessRemoteWrite); err != nil {
			t.Fatal(err)
		}
	})
	if _, err := a.keys.Remote(key.RKey, pd, 0, 0x10000, 8, mrtable.AccessRemoteWrite); !errors.Is(err, mrtable.ErrKey) {
		t.Errorf("look-up after death: %v, want %v", err, mrtable.ErrKey)
	}
	r := rawHello(t, a)
	if again := r.sharedMR(r.pd(), 4096); again.RKey == key.RKey {
		t.Errorf("the next region has the dead one's key %#x", again.RKey)
	}
}

// A deregistration ends look-ups at once, and unmaps only after
// every worker has passed a turn's boundary. A worker that is in the middle
// of a turn still reads what it looked up before.
func TestDeregWaitsForEveryWorker(t *testing.T) {
	a := startAdapter(t, nil)
	r := rawHello(t, a)
	mr := r.sharedMR(r.pd(), 4096)
	a.mu.Lock()
	pd := a.lastPD
	a.mu.Unlock()
	seg, err := a.keys.Remote(mr.RKey, pd, 0, 0x10000, 8, mrtable.AccessRemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	ctx := within(t)
	busy, done := make(chan struct{}), make(chan struct{})
	a.workers[len(a.workers)-1].post(func() {
		defer close(done)
		close(busy)
		for ctx.Err() == nil {
			if _, err := a.keys.Remote(mr.RKey, pd, 0, 0x10000, 8, mrtable.AccessRemoteWrite); err != nil {
				break
			}
			runtime.Gosched()
		}
		// Marked: the control plane goes on as far as it dares.
		for range 2000 {
			runtime.Gosched()
		}
		if n := a.ledger.usage()[ResourceMappings]; n != 1 {
			t.Errorf("the memory is unmapped while a worker is in its turn")
			return
		}
		var b [8]byte
		if err := seg.ReadAt(b[:], 0); err != nil {
			t.Errorf("read of a segment got before: %v", err)
		}
	})
	<-busy
	must[uapi.Empty](r, uapi.OpDeregMR, &uapi.HandleRequest{Handle: mr.Handle})
	<-done
	if n := a.ledger.usage()[ResourceMappings]; n != 0 {
		t.Errorf("%d mappings after the deregistration", n)
	}
}
