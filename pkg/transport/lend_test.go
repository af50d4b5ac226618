package transport_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/mrtable"
	"github.com/softroce/softroce/pkg/qpstate"
	"github.com/softroce/softroce/pkg/transport"
	"github.com/softroce/softroce/pkg/wq"
)

const lentHead = bth.BTHLen + bth.ICRCLen

// near makes two connected queue pairs without ICRC.
func near(t testing.TB, o options) (x, y *end) {
	x, y = connected(t, o)
	x.qp.OmitICRC(true)
	y.qp.OmitICRC(true)
	return x, y
}

// lendTo moves all packets between two ends, Middle packets as loans, until both
// are silent. It returns how many were lent and taken as such.
func lendTo(x, y *end) (lent, taken int) {
	for moved := true; moved; {
		moved = false
		for _, d := range [2][2]*end{{x, y}, {y, x}} {
			from, to := d[0], d[1]
			for {
				to.parsed.Src, to.parsed.Dst = from.gid, to.gid
				if k, payload := from.qp.LendMiddles(start, from.buf[:lentHead], 15, false); k > 0 {
					_ = to.parsed.Parse(from.buf[:lentHead]) // HandleLent looks
					lent += k
					taken += to.qp.HandleLent(start, &to.parsed, payload, len(payload)/k)
				} else if n, _ := from.qp.PollTransmit(start, from.buf[:]); n > 0 {
					if to.parsed.Parse(from.buf[:n]) == nil {
						to.qp.HandlePacket(start, &to.parsed)
					}
				} else {
					break
				}
				moved = true
			}
		}
	}
	return lent, taken
}

// TestLendMessages: each kind of message arrives whole by loans, with the
// completions it has without, and without an allocation.
func TestLendMessages(t *testing.T) {
	const size = 100 << 10
	for _, op := range []wq.Opcode{wq.RDMAWrite, wq.Send, wq.RDMARead} {
		x, y := near(t, options{mtu: bth.MTU4096, sigAll: true})
		src, dst := x, y
		if op == wq.RDMARead {
			src, dst = y, x
		}
		wr := wq.SendWR{Opcode: op, RemoteAddr: memBase, RKey: y.mr.RKey(), SGList: []wq.SGE{x.sge(0, size)}}
		recv := wq.RecvWR{SGList: []wq.SGE{y.sge(0, size)}}
		lent, taken := 0, 0
		step := func() {
			if op == wq.Send {
				if err := y.recv.Push(&recv); err != nil {
					t.Fatal(err)
				}
			}
			if err := x.qp.PostSend(start, &wr); err != nil {
				t.Fatal(err)
			}
			lent, taken = lendTo(x, y)
			if len(x.sendCQ.wcs) != 1 || x.sendCQ.wcs[0].Status != 0 || op == wq.Send && len(y.recvCQ.wcs) != 1 {
				t.Fatalf("%v: completions %v, %v", op, x.sendCQ.take(), y.recvCQ.take())
			}
			x.sendCQ.take0()
			y.recvCQ.take0()
		}
		clear(dst.mem[:size])
		step()
		if !bytes.Equal(x.mem[:size], y.mem[:size]) || src.mem[1] == 0 {
			t.Errorf("%v: the data differ", op)
		}
		if most := size/4096 - 1; lent == 0 || lent != taken || lent > most {
			t.Errorf("%v: %d packets lent, %d taken, of at most %d", op, lent, taken, most)
		}
		for range 70 {
			step()
		}
		if n := testing.AllocsPerRun(20, step); n != 0 {
			t.Errorf("%v: %v allocations a message", op, n)
		}
	}
}

// TestLendIsByReference: what is lent is the region's own memory, and its first
// packet is the one that PollTransmit would have given.
func TestLendIsByReference(t *testing.T) {
	build := func(lend bool) []byte {
		x, y := near(t, options{})
		x.post(start, wq.SendWR{Opcode: wq.RDMAWrite, RemoteAddr: memBase, RKey: y.mr.RKey(), SGList: []wq.SGE{x.sge(100, 8<<10)}})
		x.qp.PollTransmit(start, x.buf[:])
		if !lend {
			x.qp.PollTransmit(start, x.buf[:])
			n, _ := x.qp.PollTransmit(start, x.buf[:])
			return x.buf[:n]
		}
		var head [lentHead]byte
		n, payload := x.qp.LendMiddles(start, head[:], 5, false)
		if n != 5 || len(payload) != 5<<10 || &payload[0] != &x.mem[100+1<<10] {
			t.Fatalf("lent %d packets, %d bytes", n, len(payload))
		}
		n = transport.BuildLent(x.buf[:], head[:], 1, payload[1<<10:2<<10])
		return x.buf[:n]
	}
	if got, want := build(true), build(false); !bytes.Equal(got, want) {
		t.Errorf("got  %s %x\nwant %s %x", packetText(got), got[:16], packetText(want), want[:16])
	}
}

// TestLendLeavesTheRest: what cannot be lent is left to PollTransmit, and nothing
// changed.
func TestLendLeavesTheRest(t *testing.T) {
	const size = 8 << 10
	var head [lentHead]byte
	for _, c := range []struct {
		name   string
		change func(x, y *end, wr *wq.SendWR) // before the first packet
		buf    []byte
		most   int
		want   int
	}{
		{"as it is", func(_, _ *end, _ *wq.SendWR) {}, head[:], 100, 6},
		{"no room for more", func(_, _ *end, _ *wq.SendWR) {}, head[:], 3, 3},
		{"no room", func(_, _ *end, _ *wq.SendWR) {}, head[:], 0, 0},
		{"no room for the header", func(_, _ *end, _ *wq.SendWR) {}, head[:lentHead-1], 100, 0},
		{"with an ICRC", func(x, _ *end, _ *wq.SendWR) { x.qp.OmitICRC(false) }, head[:], 100, 0},
		{"two buffers", func(x, _ *end, wr *wq.SendWR) {
			wr.SGList = []wq.SGE{x.sge(0, 3000), x.sge(3000, size-3000)}
		}, head[:], 100, 1},
		{"inside the second buffer", func(x, _ *end, wr *wq.SendWR) {
			wr.SGList = []wq.SGE{x.sge(0, 1000), x.sge(1000, size-1000)}
		}, head[:], 100, 6},
		{"not mapped here", func(x, _ *end, wr *wq.SendWR) {
			r, err := x.keys.Register(1, unmapped{x.mem}, memBase, memSize, allAccess, 0)
			if err != nil {
				t.Fatal(err)
			}
			wr.SGList[0].LKey = r.LKey()
		}, head[:], 100, 0},
		{"one packet", func(_, _ *end, wr *wq.SendWR) { wr.SGList[0].Length = 1024 }, head[:], 100, 0},
		{"two packets", func(_, _ *end, wr *wq.SendWR) { wr.SGList[0].Length = 2048 }, head[:], 100, 0},
	} {
		x, y := near(t, options{})
		wr := wq.SendWR{Opcode: wq.RDMAWrite, RemoteAddr: memBase, RKey: y.mr.RKey(), SGList: []wq.SGE{x.sge(0, size)}}
		c.change(x, y, &wr)
		x.post(start, wr)
		if n, _ := x.qp.LendMiddles(start, head[:], 100, false); n != 0 {
			t.Errorf("%s: %d packets lent in front of the first", c.name, n)
		}
		x.qp.PollTransmit(start, x.buf[:])
		before := x.qp.Inner()
		n, payload := x.qp.LendMiddles(start, c.buf, c.most, false)
		if n != c.want || len(payload) != n<<10 {
			t.Errorf("%s: %d packets lent, %d bytes; want %d", c.name, n, len(payload), c.want)
		}
		if n == 0 && x.qp.Inner() != before {
			t.Errorf("%s: nothing was lent, but the state changed", c.name)
		}
	}
}

// TestLentIsChecked: a run that is not from the peer, or not what comes next, or
// may not be stored, is not taken, and nothing changed.
func TestLentIsChecked(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(y *end, p *transport.Packet, size *int)
		want   int
	}{
		{"as it is", func(_ *end, _ *transport.Packet, _ *int) {}, 6},
		{"from another", func(_ *end, p *transport.Packet, _ *int) { p.Src = gid4(9) }, 0},
		{"to another", func(_ *end, p *transport.Packet, _ *int) { p.Dst = gid4(9) }, 0},
		{"with another P_Key", func(_ *end, p *transport.Packet, _ *int) { p.Bytes()[3] ^= 1 }, 0},
		{"asks for an acknowledgement", func(_ *end, p *transport.Packet, _ *int) { p.Bytes()[8] |= 0x80 }, 0},
		{"behind a gap", func(_ *end, p *transport.Packet, _ *int) { p.Bytes()[11]++ }, 0},
		{"again", func(_ *end, p *transport.Packet, _ *int) { p.Bytes()[11]-- }, 0},
		{"of another kind", func(_ *end, p *transport.Packet, _ *int) { p.Opcode = bth.RCSendMiddle }, 0},
		{"a Last", func(_ *end, p *transport.Packet, _ *int) { p.Opcode = bth.RCWriteLast }, 0},
		{"not parsed", func(_ *end, p *transport.Packet, _ *int) { p.Info = nil }, 0},
		{"of another path MTU", func(_ *end, _ *transport.Packet, size *int) { *size = 2048 }, 0},
		{"the key is gone", func(y *end, _ *transport.Packet, _ *int) { _ = y.keys.Mark(y.mr) }, 0},
		{"in ERR", func(y *end, _ *transport.Packet, _ *int) { y.qp.Fatal(start) }, 0},
		{"no remote access", func(y *end, _ *transport.Packet, _ *int) {
			a := qpstate.Attr{AccessFlags: uint32(mrtable.AccessRemoteRead)}
			if err := y.qp.Modify(start, &a, qpstate.MaskAccessFlags, nil); err != nil {
				t.Fatal(err)
			}
		}, 0},
	} {
		x, y := near(t, options{})
		x.post(start, wq.SendWR{Opcode: wq.RDMAWrite, RemoteAddr: memBase, RKey: y.mr.RKey(), SGList: []wq.SGE{x.sge(0, 8<<10)}})
		n, _ := x.qp.PollTransmit(start, x.buf[:])
		y.handle(start, x.buf[:n], x.gid)
		var head [lentHead]byte
		_, payload := x.qp.LendMiddles(start, head[:], 100, false)
		p, size := &y.parsed, 1024
		if err := p.Parse(head[:]); err != nil {
			t.Fatal(err)
		}
		c.change(y, p, &size)
		before, mem := y.qp.Inner(), fmt.Sprintf("%x", y.mem[:8<<10])
		if k := y.qp.HandleLent(start, p, payload, size); k != c.want {
			t.Errorf("%s: %d packets taken, want %d", c.name, k, c.want)
		}
		if c.want == 0 && (y.qp.Inner() != before || fmt.Sprintf("%x", y.mem[:8<<10]) != mem) {
			t.Errorf("%s: nothing was taken, but something changed", c.name)
		}
	}
}

// TestLentToAnotherService: an unreliable connection in the middle of a message
// takes no run of a reliable one.
func TestLentToAnotherService(t *testing.T) {
	u, v := connected(t, options{typ: qpstate.UC})
	u.post(start, wq.SendWR{Opcode: wq.RDMAWrite, RemoteAddr: memBase, RKey: v.mr.RKey(), SGList: []wq.SGE{u.sge(0, 8<<10)}})
	v.handle(start, u.poll(start), u.gid)
	x, y := near(t, options{})
	x.post(start, wq.SendWR{Opcode: wq.RDMAWrite, RemoteAddr: memBase, RKey: y.mr.RKey(), SGList: []wq.SGE{x.sge(0, 8<<10)}})
	x.qp.PollTransmit(start, x.buf[:])
	var head [lentHead]byte
	if n, payload := x.qp.LendMiddles(start, head[:], 100, false); n == 0 || v.parsed.Parse(head[:]) != nil {
		t.Error("nothing is lent")
	} else if k := v.qp.HandleLent(start, &v.parsed, payload, 1024); k != 0 {
		t.Errorf("%d packets taken", k)
	}
}

// gate is memory whose writes panic when it is shut, as a write does from memory
// that is gone.
type gate struct {
	mrtable.HeapMemory
	shut bool
}

func (g *gate) WriteAt(b []byte, off uint64) error {
	if g.shut {
		panic("shut")
	}
	return g.HeapMemory.WriteAt(b, off)
}

// TestLentFaultLeavesTheReceiver: a panic while a loan is read leaves the
// receiver as it was, so that it can go on.
func TestLentFaultLeavesTheReceiver(t *testing.T) {
	for _, op := range []wq.Opcode{wq.RDMAWrite, wq.Send, wq.RDMARead} {
		x, y := near(t, options{})
		src, dst := x, y
		if op == wq.RDMARead {
			src, dst = y, x
		}
		mem := &gate{HeapMemory: dst.mem}
		var err error
		if dst.mr, err = dst.keys.Register(1, mem, memBase, memSize, allAccess, 0); err != nil {
			t.Fatal(err)
		}
		y.postRecv(start, 1, y.sge(0, 1000), y.sge(1000, 7192))
		x.post(start, wq.SendWR{Opcode: op, RemoteAddr: memBase, RKey: y.mr.RKey(), SGList: []wq.SGE{x.sge(0, 8<<10)}})
		if op == wq.RDMARead {
			n, _ := x.qp.PollTransmit(start, x.buf[:])
			y.handle(start, x.buf[:n], x.gid)
		}
		n, _ := src.qp.PollTransmit(start, src.buf[:])
		dst.handle(start, src.buf[:n], src.gid)
		var head [lentHead]byte
		k, payload := src.qp.LendMiddles(start, head[:], 100, false)
		if k == 0 {
			t.Fatalf("%v: nothing is lent", op)
		}
		if err := dst.parsed.Parse(head[:]); err != nil {
			t.Fatal(err)
		}
		before := dst.qp.Inner()
		mem.shut = true
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%v: no panic", op)
				}
			}()
			dst.qp.HandleLent(start, &dst.parsed, payload, 1024)
		}()
		if after := dst.qp.Inner(); after != before {
			t.Errorf("%v: got\n%s\nwant\n%s", op, after, before)
		}
		mem.shut = false
		if got := dst.qp.HandleLent(start, &dst.parsed, payload, 1024); got != k {
			t.Errorf("%v: took %d packets then, want %d", op, got, k)
		}
	}
}
