package transport_test

import (
	"bytes"
	"testing"

	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/cq"
	"github.com/softroce/softroce/pkg/qpstate"
	"github.com/softroce/softroce/pkg/transport"
	"github.com/softroce/softroce/pkg/wq"
)

// TestUC: every operation of an unreliable connection, of all kinds of lengths,
// done without a packet back (UC-01, UC-02, UC-12).
func TestUC(t *testing.T) {
	for _, n := range []int{0, 1, 255, 256, 257, 1000, 70000} {
		a, b := connected(t, options{typ: qpstate.UC, mtu: bth.MTU256, sigAll: true})
		b.postRecv(start, 1, b.sge(0x20000, 70000))
		b.postRecv(start, 2, b.sge(0x40000, 70000))
		b.postRecv(start, 3)
		write := wq.SendWR{WRID: 3, Opcode: wq.RDMAWrite, RemoteAddr: memBase + 0x60000, RKey: b.mr.RKey(), SGList: []wq.SGE{a.sge(2, n)}}
		a.post(start, wq.SendWR{WRID: 1, Opcode: wq.Send, Flags: wq.SendSolicited, SGList: []wq.SGE{a.sge(0, n)}})
		a.post(start, wq.SendWR{WRID: 2, Opcode: wq.SendWithImm, ImmData: 7, SGList: []wq.SGE{a.sge(1, n)}})
		a.post(start, write)
		write.WRID, write.Opcode, write.ImmData, write.RemoteAddr = 4, wq.RDMAWriteWithImm, 8, memBase+0x80000
		a.post(start, write)
		for _, p := range a.pollAll(start) {
			if bth.BTH(p).AckReq() {
				t.Errorf("%s asks for an acknowledgement", packetText(p))
			}
			b.handle(start, p, a.gid)
		}
		if out := b.pollAll(start); len(out) != 0 {
			t.Errorf("the responder says %v", texts(out))
		}
		for i, at := range []int{0x20000, 0x40000, 0x60000, 0x80000} {
			if off := min(i, 2); !bytes.Equal(b.mem[at:at+n], a.mem[off:off+n]) {
				t.Errorf("%d bytes: request %d: data differs", n, i+1)
			}
		}
		if got := len(a.sendCQ.take()); got != 4 {
			t.Errorf("%d bytes: %d of 4 requests completed", n, got)
		}
		for i, wc := range b.recvCQ.wcs {
			op, imm := cq.Recv, i > 0
			if i == 2 {
				op = cq.RecvRDMAWithImm
			}
			if wc.WRID != uint64(i+1) || wc.Opcode != op || int(wc.ByteLen) != n || wc.Flags != 0 != imm || imm && wc.ImmData != uint32(6+i) || b.recvCQ.solicited[i] != (i == 0) {
				t.Errorf("%d bytes: receive %d: %+v", n, i+1, wc)
			}
		}
		if len(b.recvCQ.wcs) != 3 || !a.qp.NextTimeout().IsZero() {
			t.Errorf("%d bytes: %d receives, timer %v", n, len(b.recvCQ.wcs), a.qp.NextTimeout())
		}
	}
}

// TestStageForgets: what was read ahead of a request that is done is not sent for
// the next one, since the program may have changed its memory.
func TestStageForgets(t *testing.T) {
	for _, typ := range []qpstate.Type{qpstate.UC, qpstate.UD} {
		a, b := connected(t, options{typ: typ, mtu: bth.MTU1024, stage: new(transport.Stage)})
		r, err := a.keys.Register(1, unmapped{a.mem}, 0x900000, 4096, 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		wr := a.datagram(1, b, 0)
		wr.SGList = []wq.SGE{{Addr: 0x900000, Length: 1000, LKey: r.LKey()}, {Addr: 0x900000, Length: 2000, LKey: r.LKey()}}
		for i := range 2 {
			a.mem[0], a.mem[1999] = byte(i), byte(i)
			b.postRecv(start, 1, b.sge(0x1000, 4000))
			a.post(start, wr)
			exchange(start, a, b)
			got := b.mem[0x1000+int(b.recvCQ.wcs[i].ByteLen)-3000:]
			for _, at := range []int{0, 1000, 2999} {
				if got[at] != byte(i) {
					t.Errorf("%v, request %d: byte %d is %d", typ, i, at, got[at])
				}
			}
		}
	}
}

// TestUD: datagrams of all kinds of lengths, with and without immediate
// (UD-01 to UD-06, UD-09, UD-10).
func TestUD(t *testing.T) {
	for _, n := range []int{0, 1, 4, 255, 1024, 4096} {
		a, b := connected(t, options{typ: qpstate.UD, sigAll: true})
		b.postRecv(start, 1, b.sge(0x20000, 50), b.sge(0x20100, 4096))
		b.postRecv(start, 2, b.sge(0x30000, n+40))
		wr := wq.SendWR{WRID: 1, Opcode: wq.Send, AH: 1, RemoteQPN: b.qpn, RemoteQKey: udKey, SGList: []wq.SGE{a.sge(0, n)}}
		a.post(start, wr)
		wr.WRID, wr.Opcode, wr.ImmData = 2, wq.SendWithImm, 9
		a.post(start, wr)
		exchange(start, a, b)
		got := append(append([]byte(nil), b.mem[0x20028:0x20032]...), b.mem[0x20100:0x21100]...)
		if !bytes.Equal(got[:n], a.mem[:n]) || !bytes.Equal(b.mem[0x30028:0x30028+n], a.mem[:n]) {
			t.Errorf("%d bytes: data differs", n)
		}
		if got := len(a.sendCQ.take()); got != 2 {
			t.Errorf("%d bytes: %d of 2 requests completed", n, got)
		}
		for i, wc := range b.recvCQ.wcs {
			if wc.WRID != uint64(i+1) || int(wc.ByteLen) != n+40 || wc.SrcQP != a.qpn || wc.Flags&cq.GRH == 0 || (wc.Flags&cq.WithImm != 0) != (i == 1) || i == 1 && wc.ImmData != 9 {
				t.Errorf("%d bytes: receive %d: %+v", n, i+1, wc)
			}
		}
		if len(b.recvCQ.wcs) != 2 {
			t.Errorf("%d bytes: %d receives", n, len(b.recvCQ.wcs))
		}
	}
}
