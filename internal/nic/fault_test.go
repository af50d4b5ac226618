package nic

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/uapi"
	"github.com/softroce/softroce/pkg/cq"
	"github.com/softroce/softroce/pkg/mrtable"
	"github.com/softroce/softroce/pkg/qpstate"
	"github.com/softroce/softroce/pkg/verbs"
)

// goneMemory is a region whose pages are not there, but for the first ones: every
// touch is a fault of the processor, as with a hole that the memory charge does
// not fill.
type goneMemory struct{ mem []byte }

// newGoneMemory makes a region of n bytes, of which the first keep are there.
func newGoneMemory(t *testing.T, n, keep int) *goneMemory {
	t.Helper()
	mem, err := unix.Mmap(-1, 0, n, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err == nil && keep > 0 {
		err = unix.Mprotect(mem[:keep], unix.PROT_READ|unix.PROT_WRITE)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(mem) })
	return &goneMemory{mem}
}

func (g *goneMemory) ReadAt(dst []byte, off uint64) error  { copy(dst, g.mem[off:]); return nil }
func (g *goneMemory) WriteAt(src []byte, off uint64) error { copy(g.mem[off:], src); return nil }
func (g *goneMemory) CompareSwap(off, _, _ uint64) (uint64, error) {
	return uint64(g.mem[off]), nil
}
func (g *goneMemory) FetchAdd(off, _ uint64) (uint64, error) { return uint64(g.mem[off]), nil }
func (g *goneMemory) Bytes(off, n uint64) []byte             { return g.mem[off : off+n] }

// pdNumber finds the adapter's number of the only PD of a program.
func pdNumber(t *testing.T, p *program) mrtable.PD {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, d := range p.pds.byHandle {
		return d.pd
	}
	t.Fatal("the program has no PD")
	return 0
}

// programOf finds the program that has the QP.
func programOf(t *testing.T, a *Adapter, n verbs.QPN) (found *program) {
	t.Helper()
	w := a.workerOf(n)
	w.do(func() {
		if q := w.byQPN[n]; q != nil {
			found = q.prog
		}
	})
	if found == nil {
		t.Fatalf("no QP %v", n)
	}
	return found
}

// A fault on a program's memory ends that program's queue pairs,
// all of them, tells it, and is counted; the next program is not disturbed.
func TestMemoryFaultEndsItsProgramOnly(t *testing.T) {
	for _, c := range []struct {
		name    string
		op      verbs.WROpcode
		n, keep int // bytes of the request, and of the memory that is there
	}{
		{"written by the peer", verbs.WRRDMAWrite, 64, 0},
		{"read by the peer", verbs.WRRDMARead, 64, 0},
		{"added to by the peer", verbs.WRAtomicFetchAdd, 8, 0},
		// Behind the first packet payloads are lent.
		{"written by the peer, further on", verbs.WRRDMAWrite, 1 << 14, 4096},
		{"read by the peer, further on", verbs.WRRDMARead, 1 << 14, 4096},
	} {
		for _, workers := range []int{1, 2} { // one serves the peer as well; each serves one
			t.Run(fmt.Sprint(c.name, ", workers ", workers), func(t *testing.T) { memoryFault(t, c.op, c.n, c.keep, workers) })
		}
	}
}

func memoryFault(t *testing.T, op verbs.WROpcode, n, keep, workers int) {
	a := startAdapter(t, func(c *Config) { c.Workers = workers })
	ctx := within(t)
	good, peer := newEndpoint(t, openDevice(t, a), 1<<14), newEndpoint(t, openDevice(t, a), 1<<14)
	connectPair(t, good, peer)

	dev := openDevice(t, a)
	bad, second := newEndpoint(t, dev, 1<<14), newEndpoint(t, openDevice(t, a), 1<<14)
	connectPair(t, bad, second)
	other, err := bad.pd.CreateQP(&verbs.QPInitAttr{
		SendCQ: bad.cq, RecvCQ: bad.cq, Type: verbs.RC, Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := other.ToInit(verbs.AccessRemoteWrite); err != nil {
		t.Fatal(err)
	}
	prog := programOf(t, a, bad.qp.Num())
	region, err := a.keys.Register(pdNumber(t, prog), newGoneMemory(t, 1<<14, keep), 0x7000, 1<<14, allAccess, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = a.keys.Mark(region)
		a.quiesce()
		a.keys.Free(region)
	})
	// The peer reaches for the memory that is not there.
	wr := verbs.SendWR{
		Opcode: op, Flags: verbs.SendSignaled, SGList: []verbs.SGE{second.mr.SGE(0, n)},
		RemoteAddr: 0x7000, RKey: region.RKey(),
	}
	if _, err := second.qp.PostSend(wr); err != nil {
		t.Fatal(err)
	}
	// Both of the program's QPs end, and it is told of both.
	told := map[verbs.QPN]int{}
	for len(told) < 2 {
		ev, err := dev.AsyncEvent(ctx)
		if err != nil {
			t.Fatalf("told of %v only: %v", told, err)
		}
		if ev.Type == verbs.EventQPFatal {
			told[ev.QP.Num()]++
		}
	}
	for _, qp := range []*verbs.QP{bad.qp, other} {
		if q, err := qp.Query(); err != nil || q.State != qpstate.Err {
			t.Errorf("QP %v of the program: state %v, %v; want ERR", qp.Num(), q.State, err)
		}
	}
	s := a.Snapshot()
	var faults uint64
	for _, w := range s.Workers {
		faults += w.Stats.Faults
	}
	if s.Control.Faults == 0 || faults == 0 {
		t.Errorf("%d programs, %d faults counted", s.Control.Faults, faults)
	}
	if err := transfer(ctx, good, peer, 5); err != nil {
		t.Errorf("the neighbour: %v", err)
	}
	// The peer's request ends by its own timer or a NAK, not never.
	if wc, err := completion(ctx, second.cq); err != nil || wc.Status == cq.Success {
		t.Errorf("the peer's request: %v, %v", wc.Status, err)
	}
	w := a.workerOf(second.qp.Num())
	w.do(func() {
		if w.byQPN[second.qp.Num()].dead {
			t.Error("the peer was stopped for a fault that is not its own")
		}
	})
	// The program may go on with new QPs.
	again, fresh := newEndpoint(t, dev, 1<<14), newEndpoint(t, openDevice(t, a), 1<<14)
	connectPair(t, again, fresh)
	if err := transfer(ctx, again, fresh, 9); err != nil {
		t.Errorf("the program's new QP: %v", err)
	}
}

// fault called twice ends every QP, and the reply to a destroy counts the
// event that told of it.
func TestFaultTellsOfEveryQP(t *testing.T) {
	a := startAdapter(t, nil)
	r := newScribbler(t, a)
	var prog *program
	for _, p := range a.programList() {
		prog = p
	}
	prog.fault("test")
	prog.fault("test again")
	ctx := within(t)
	for _, qp := range r.qps {
		for {
			q := must[uapi.QueryQPReply](r.rawClient, uapi.OpQueryQP, &uapi.HandleRequest{Handle: qp.Handle})
			if q.Attr.State == qpstate.Err {
				break
			}
			if ctx.Err() != nil {
				t.Fatalf("QP %v in %v, want ERR", qp.QPN, q.Attr.State)
			}
		}
		d := must[uapi.DestroyReply](r.rawClient, uapi.OpDestroyQP, &uapi.HandleRequest{Handle: qp.Handle})
		if d.AsyncEvents != 1 {
			t.Errorf("QP %v: the reply to its end counts %d async events, want 1", qp.QPN, d.AsyncEvents)
		}
	}
}
