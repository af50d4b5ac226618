package transport_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/qpstate"
	"github.com/softroce/softroce/pkg/transport"
	"github.com/softroce/softroce/pkg/wq"
)

// pollUC returns the packets of a UC queue pair, built one by one or as runs of at
// most so many.
func pollUC(e *end, most int) (out [][]byte, runs int) {
	buf := make([]byte, 1<<16)
	for {
		n, _ := e.qp.PollTransmit(start, e.buf[:])
		if n == 0 {
			return out, runs
		}
		out = append(out, bytes.Clone(e.buf[:n]))
		k, _ := e.qp.PollMiddles(start, buf, most)
		for i, size := 0, e.qp.MiddleLen(); i < k; i++ {
			out = append(out, bytes.Clone(buf[i*size:][:size]))
		}
		runs += k
	}
}

// handleUC gives packets to a UC queue pair, one by one or Middle packets as runs,
// and returns how many went as runs.
func handleUC(e *end, from bth.GID, pkts [][]byte, most int) (runs int) {
	for i := 0; i < len(pkts); i++ {
		p := pkts[i]
		v := e.handle(start, p, from)
		op := bth.Opcode(p[0])
		if op.Info().Position == bth.First {
			op++
		}
		k := 0
		var run []byte
		for ; k < most && i+1+k < len(pkts) && bth.Opcode(pkts[i+1+k][0]) == op && op.Info().Position == bth.Middle; k++ {
			run = append(run, pkts[i+1+k]...)
		}
		if v == transport.Accepted && k > 0 {
			took := e.qp.HandleMiddles(start, op, bth.BTH(p).PSN().Add(1), run, e.qp.MiddleLen())
			i += took
			runs += took
		}
	}
	return runs
}

// TestUCRunsChangeNothing: packets of UC messages, built and taken as runs, are the
// same and leave the same behind as one by one; also where a receive is too small
// or a RETH says less than what comes.
func TestUCRunsChangeNothing(t *testing.T) {
	for _, op := range []wq.Opcode{wq.Send, wq.SendWithImm, wq.RDMAWrite, wq.RDMAWriteWithImm} {
		for _, most := range []int{1, 3, 100} {
			for _, room := range []int{6000, 2000} { // of the receive
				name := fmt.Sprintf("%v/most=%d/room=%d", op, most, room)
				var said [2]string
				var sent [2][][]byte
				for i, m := range []int{0, most} {
					a, b := connected(t, options{typ: qpstate.UC, mtu: bth.MTU256, sigAll: true})
					b.postRecv(start, 1, b.sge(0x20000, 300), b.sge(0x30000, room-300))
					wr := wq.SendWR{
						WRID: 1, Opcode: op, RemoteAddr: memBase + 0x40000, RKey: b.mr.RKey(),
						SGList: []wq.SGE{a.sge(0, 1000), a.sge(0x1000, 3500)},
					}
					a.post(start, wr)
					a.post(start, wr)
					var built int
					sent[i], built = pollUC(a, m)
					taken := handleUC(b, a.gid, sent[i], m)
					if m > 0 && (built == 0 || taken == 0) {
						t.Errorf("%s: %d packets built and %d taken in runs", name, built, taken)
					}
					said[i] = a.qp.Inner() + b.qp.Inner() + fmt.Sprint(a.sendCQ.take(), b.recvCQ.take(), bytes.Equal(b.mem[0x40000:0x40000+1000], a.mem[:1000]))
				}
				if said[0] != said[1] {
					t.Errorf("%s: one by one\n%s\nin runs\n%s", name, said[0], said[1])
				}
				if len(sent[0]) != 36 || fmt.Sprint(sent[0]) != fmt.Sprint(sent[1]) {
					t.Errorf("%s: %d and %d packets, or they differ", name, len(sent[0]), len(sent[1]))
				}
			}
		}
	}
}

// TestUCRunsRefused: a run is not taken where its packets would not be: of another
// service, not the message in progress, not the expected PSN; nor by datagrams.
func TestUCRunsRefused(t *testing.T) {
	a, b := connected(t, options{typ: qpstate.UC, mtu: bth.MTU256})
	b.postRecv(start, 1, b.sge(0, 6000))
	b.handle(start, mustCraft(t, "UC SEND First psn=0x100 data=256"), a.gid)
	run := bytes.Repeat(mustCraft(t, "UC SEND Middle psn=0x101 data=256"), 3)
	size := b.qp.MiddleLen()
	for _, c := range []struct {
		op  bth.Opcode
		psn bth.PSN
	}{{bth.RCSendMiddle, 0x101}, {bth.UCWriteMiddle, 0x101}, {bth.UCSendMiddle, 0x102}, {bth.UCSendMiddle, 0x100}, {bth.RCReadResponseMiddle, 0x101}} {
		if n := b.qp.HandleMiddles(start, c.op, c.psn, run, size); n != 0 {
			t.Errorf("%v at %v: took %d", c.op, c.psn, n)
		}
	}
	if n := b.qp.HandleMiddles(start, bth.UCSendMiddle, 0x101, run, size); n != 3 {
		t.Errorf("took %d of 3", n)
	}
	d, _ := connected(t, options{typ: qpstate.UD})
	if n := d.qp.HandleMiddles(start, bth.RCSendMiddle, 0x200, make([]byte, 64), d.qp.MiddleLen()); n != 0 {
		t.Errorf("a datagram queue pair took %d", n)
	}
	if n, _ := d.qp.PollMiddles(start, make([]byte, 1024), 4); n != 0 {
		t.Errorf("a datagram queue pair built %d", n)
	}
}

// TestUCLends: an unreliable connection lends memory only to who reads it at once,
// since its request is done with the last packet.
func TestUCLends(t *testing.T) {
	a, b := connected(t, options{typ: qpstate.UC, mtu: bth.MTU256, sigAll: true})
	a.qp.OmitICRC(true)
	b.postRecv(start, 1, b.sge(0x20000, 2000))
	a.post(start, wq.SendWR{WRID: 1, Opcode: wq.Send, SGList: []wq.SGE{a.sge(0, 2000)}})
	give := func() {
		t.Helper()
		n, _ := a.qp.PollTransmit(start, a.buf[:])
		if v := b.handle(start, a.buf[:n], a.gid); v != transport.Accepted {
			t.Fatalf("%s: %v", packetText(a.buf[:n]), v)
		}
	}
	give()
	var head [bth.BTHLen + bth.ICRCLen]byte
	if n, _ := a.qp.LendMiddles(start, head[:], 100, false); n != 0 {
		t.Errorf("%d packets are lent for later", n)
	}
	n, payload := a.qp.LendMiddles(start, head[:], 100, true)
	if n != 6 || !bytes.Equal(payload, a.mem[256:256+6*256]) {
		t.Fatalf("%d packets of %d bytes are lent", n, len(payload))
	}
	p := transport.Packet{Src: a.gid, Dst: b.gid}
	if err := p.Parse(head[:]); err != nil {
		t.Fatal(err)
	}
	if n := b.qp.HandleLent(start, &p, payload, 256); n != 6 {
		t.Fatalf("%d packets are taken", n)
	}
	give()
	wantTexts(t, "sends", a.sendCQ.take(), "1 SUCCESS SEND len=2000")
	wantTexts(t, "receives", b.recvCQ.take(), "1 SUCCESS RECV len=2000")
	if !bytes.Equal(b.mem[0x20000:0x20000+2000], a.mem[:2000]) {
		t.Error("data differs")
	}
}
