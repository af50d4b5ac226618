package transport_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/mrtable"
	"github.com/softroce/softroce/pkg/qpstate"
	"github.com/softroce/softroce/pkg/transport"
	"github.com/softroce/softroce/pkg/wq"
)

// TestRunsAllocateNothing: nor do they in steady state.
func TestRunsAllocateNothing(t *testing.T) {
	for _, op := range []wq.Opcode{wq.RDMAWrite, wq.Send, wq.RDMARead} {
		x, y := connected(t, options{})
		m := newMill(bth.MTU1024, true)
		step := func() { m.message(op, x, y) }
		for range 70 { // the slots of the receive queue have their lists then
			step()
		}
		if n := testing.AllocsPerRun(20, step); n != 0 {
			t.Errorf("%v: %v allocations a message", op, n)
		}
	}
}

// inStep treats two equal pairs alike up to a point, which prepare leads to, and
// then the one with runs and the other without. It gives the end that is looked
// at.
func inStep(t *testing.T, prepare func(x, y *end) *end, runs, plain func(e *end)) {
	t.Helper()
	var got [2]string
	for i, then := range []func(*end){runs, plain} {
		x, y := connected(t, options{peers: [2]*transport.Peers{transport.NewPeers(0), transport.NewPeers(0)}})
		e := prepare(x, y)
		then(e)
		got[i] = e.qp.Inner()
	}
	if got[0] != got[1] {
		t.Errorf("got\n%s\nwant\n%s", got[0], got[1])
	}
}

// TestRunBehindOwnRequest: what a request left of the window goes back when
// responses follow.
func TestRunBehindOwnRequest(t *testing.T) {
	inStep(t, func(x, y *end) *end {
		x.post(start, wq.SendWR{Opcode: wq.RDMARead, RemoteAddr: memBase, RKey: y.mr.RKey(), SGList: []wq.SGE{x.sge(0, 8<<10)}})
		y.post(start, wq.SendWR{Opcode: wq.RDMAWrite, RemoteAddr: memBase, RKey: x.mr.RKey(), SGList: []wq.SGE{y.sge(0, 2000)}})
		y.poll(start)
		y.handle(start, x.poll(start), x.gid)
		y.poll(start)
		y.poll(start)
		return y
	}, func(y *end) {
		if n, _ := y.qp.PollMiddles(start, make([]byte, 1<<16), 4); n != 0 {
			t.Errorf("%d packets in the place of a request", n)
		}
		y.poll(start)
		if n, _ := y.qp.PollMiddles(start, make([]byte, 1<<16), 4); n != 4 {
			t.Errorf("%d packets, want 4", n)
		}
	}, func(y *end) {
		for range 5 {
			y.poll(start)
		}
	})
}

// TestRunOfLateResponses: responses that come when the request is about to be
// sent again.
func TestRunOfLateResponses(t *testing.T) {
	var late [][]byte
	var now time.Time
	inStep(t, func(x, y *end) *end {
		x.post(start, wq.SendWR{Opcode: wq.RDMARead, RemoteAddr: memBase, RKey: y.mr.RKey(), SGList: []wq.SGE{x.sge(0, 3000), x.sge(3000, 5192)}})
		y.handle(start, x.poll(start), x.gid)
		late = y.pollAll(start)
		now = x.qp.NextTimeout()
		x.qp.HandleTimeout(now)
		x.handle(now, late[0], y.gid)
		return x
	}, func(x *end) {
		run := bytes.Join(late[1:], nil)
		if n := x.qp.HandleMiddles(now, bth.RCReadResponseMiddle, bth.BTH(run).PSN(), run[:6*1040], 1040); n != 6 {
			t.Errorf("took %d packets, want 6", n)
		}
	}, func(x *end) {
		for _, b := range late[1:7] {
			x.handle(now, b, gid4(2))
		}
	})
}

// TestRunBehindGap: a run that fills a gap ends what was said about it.
func TestRunBehindGap(t *testing.T) {
	var pkts [][]byte
	inStep(t, func(x, y *end) *end {
		x.post(start, wq.SendWR{Opcode: wq.RDMAWrite, RemoteAddr: memBase, RKey: y.mr.RKey(), SGList: []wq.SGE{x.sge(0, 8<<10)}})
		pkts = x.pollAll(start)
		y.handle(start, pkts[0], x.gid)
		y.handle(start, pkts[4], x.gid)
		y.poll(start)
		return y
	}, func(y *end) {
		run := bytes.Join(pkts[1:], nil)
		if n := y.qp.HandleMiddles(start, bth.RCWriteMiddle, bth.BTH(run).PSN(), run[:3*1040], 1040); n != 3 {
			t.Errorf("took %d packets, want 3", n)
		}
	}, func(y *end) {
		for _, b := range pkts[1:4] {
			y.handle(start, b, gid4(1))
		}
	})
}

// TestRunTooLong: a run that does not end where its message must is taken as
// far as it goes.
func TestRunTooLong(t *testing.T) {
	for _, c := range []struct {
		op    wq.Opcode
		size  int // of the message
		recv  int
		takes int
	}{{wq.RDMAWrite, 4096, 0, 2}, {wq.RDMAWrite, 4097, 0, 3}, {wq.Send, 4096, 4096, 3}, {wq.Send, 4096, 4095, 2}, {wq.RDMARead, 4096, 0, 2}} {
		x, y := connected(t, options{})
		e, from := y, x
		y.postRecv(start, 1, y.sge(0, c.recv))
		x.post(start, wq.SendWR{Opcode: c.op, RemoteAddr: memBase, RKey: y.mr.RKey(), SGList: []wq.SGE{x.sge(0, c.size)}})
		if c.op == wq.RDMARead {
			y.handle(start, x.poll(start), x.gid)
			e, from = x, y
		}
		first := from.poll(start)
		e.handle(start, first, from.gid)
		op := middleOf[bth.Opcode(first[0]).Info().Op]
		if n := e.qp.HandleMiddles(start, op, bth.BTH(first).PSN().Add(2), make([]byte, 1040), 1040); n != 0 {
			t.Errorf("%v: took %d packets behind a gap", c.op, n)
		}
		if n := e.qp.HandleMiddles(start, op, bth.BTH(first).PSN().Add(1), make([]byte, 10*1040), 1040); n != c.takes {
			t.Errorf("%v of %d bytes: took %d packets, want %d", c.op, c.size, n, c.takes)
		}
	}
}

// unmapped is memory that can only be copied.
type unmapped struct{ mrtable.HeapMemory }

func (unmapped) Bytes(uint64, uint64) []byte { return nil }

// TestRunsLeaveTheRest: what is not simple is left to PollTransmit and
// HandlePacket, and nothing changed.
func TestRunsLeaveTheRest(t *testing.T) {
	const size = 8 << 10
	for _, c := range []struct {
		name         string
		op           wq.Opcode
		change       func(x, y *end) // behind the first packet
		polls, takes int
	}{
		{"WRITE", wq.RDMAWrite, func(_, _ *end) {}, 6, 6},
		{"SEND", wq.Send, func(_, _ *end) {}, 6, 6},
		{"sender's key is gone", wq.RDMAWrite, func(x, _ *end) { _ = x.keys.Mark(x.mr) }, 0, 0},
		{"receiver's key is gone", wq.RDMAWrite, func(_, y *end) { _ = y.keys.Mark(y.mr) }, 6, 0},
		{"receive's key is gone", wq.Send, func(_, y *end) { _ = y.keys.Mark(y.mr) }, 6, 0},
		{"an answer waits", wq.RDMAWrite, func(x, y *end) {
			y.post(start, wq.SendWR{Opcode: wq.RDMAWrite, RemoteAddr: memBase, RKey: x.mr.RKey(), SGList: []wq.SGE{y.sge(0, 8)}})
			x.handle(start, y.poll(start), y.gid)
		}, 0, 0},
		{"no remote access any more", wq.RDMAWrite, func(_, y *end) {
			a := qpstate.Attr{AccessFlags: uint32(mrtable.AccessRemoteRead)}
			if err := y.qp.Modify(start, &a, qpstate.MaskAccessFlags, nil); err != nil {
				t.Fatal(err)
			}
		}, 6, 0},
		{"sender in ERR", wq.RDMAWrite, func(x, _ *end) { x.qp.Fatal(start) }, 0, 0},
		{"receiver in ERR", wq.RDMAWrite, func(_, y *end) { y.qp.Fatal(start) }, 6, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			x, y := connected(t, options{})
			y.postRecv(start, 1, y.sge(0, size))
			x.post(start, wq.SendWR{Opcode: c.op, RemoteAddr: memBase, RKey: y.mr.RKey(), SGList: []wq.SGE{x.sge(0, size)}})
			first := x.poll(start)
			y.handle(start, first, x.gid)
			c.change(x, y)
			buf := make([]byte, 64<<10)
			before := x.qp.Inner()
			n, psn := x.qp.PollMiddles(start, buf, 100)
			if n != c.polls {
				t.Fatalf("built %d packets, want %d", n, c.polls)
			}
			if n == 0 {
				if x.qp.Inner() != before {
					t.Errorf("nothing was built, but the state changed")
				}
				return
			}
			op, ln := bth.Opcode(buf[0]), bth.BTHLen+1024+bth.ICRCLen
			before = y.qp.Inner()
			for _, bad := range []struct {
				op   bth.Opcode
				psn  bth.PSN
				size int
			}{{bth.RCReadResponseMiddle, psn, ln}, {bth.RCSendLast, psn, ln}, {op ^ bth.RCSendMiddle ^ bth.RCWriteMiddle, psn, ln}, {op, psn + 1, ln}, {op, psn - 1, ln}, {op, psn, ln / 2}, {op, psn, 2 * ln}} {
				if k := y.qp.HandleMiddles(start, bad.op, bad.psn, buf[:n*ln], bad.size); k != 0 {
					t.Errorf("took %d packets, opcode %v, PSN %v, size %d", k, bad.op, bad.psn, bad.size)
				}
			}
			if y.qp.Inner() != before {
				t.Errorf("nothing was taken, but the state changed")
			}
			if k := y.qp.HandleMiddles(start, op, psn, buf[:n*ln+17], ln); k != c.takes {
				t.Errorf("took %d packets, want %d", k, c.takes)
			}
		})
	}
}

// TestRunsOfCopiedMemory: memory that is not mapped is not sent in runs, but is
// written by them.
func TestRunsOfCopiedMemory(t *testing.T) {
	const size = 8 << 10
	copied := func(e *end) {
		r, err := e.keys.Register(1, unmapped{e.mem}, memBase, memSize, allAccess, 0)
		if err != nil {
			t.Fatal(err)
		}
		e.mr = r
	}
	x, y := connected(t, options{})
	copied(x)
	x.post(start, wq.SendWR{Opcode: wq.RDMAWrite, RemoteAddr: memBase, RKey: y.mr.RKey(), SGList: []wq.SGE{x.sge(0, size)}})
	for x.poll(start) != nil {
		if n, _ := x.qp.PollMiddles(start, make([]byte, 1<<16), 100); n != 0 {
			t.Fatalf("a run of %d packets from memory that is not mapped", n)
		}
	}
	x, y = connected(t, options{})
	copied(y)
	m := newMill(bth.MTU1024, true)
	m.message(wq.RDMAWrite, x, y)
	if !bytes.Equal(x.mem[:benchRunSize], y.mem[:benchRunSize]) {
		t.Error("the message differs")
	}
}
