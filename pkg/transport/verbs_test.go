package transport_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/wq"
)

// TestEveryVerbEveryMTU does each operation once at each path MTU, around the
// packet boundaries, with the data split over several elements.
func TestEveryVerbEveryMTU(t *testing.T) {
	for mtu := bth.MTU256; mtu <= bth.MTU4096; mtu++ {
		m := mtu.Bytes()
		for _, n := range []int{0, 1, 2, 3, 4, 63, m - 1, m, m + 1, 2 * m, 3*m - 1, 7*m + 5} {
			t.Run(fmt.Sprintf("mtu=%d/len=%d", m, n), func(t *testing.T) { everyVerb(t, mtu, n) })
		}
	}
}

func everyVerb(t *testing.T, mtu bth.MTU, n int) {
	a, b := connected(t, options{mtu: mtu, sigAll: true})
	now := start
	sg := func(off int) []wq.SGE {
		k := n / 3
		return []wq.SGE{a.sge(off, k), a.sge(0, 0), a.sge(off+k, n-k)}
	}
	rsg := []wq.SGE{b.sge(0x40000, n/2), b.sge(0x40000+n/2, n-n/2+9)}
	b.postRecv(now, 101, rsg...)
	b.postRecv(now, 102, b.sge(0x60000, n))
	b.postRecv(now, 103)
	remote := uint64(memBase)
	key := b.mr.RKey()
	a.post(now, wq.SendWR{WRID: 1, Opcode: wq.Send, SGList: sg(0x1003)})
	a.post(now, wq.SendWR{WRID: 2, Opcode: wq.SendWithImm, ImmData: 0x01020304, SGList: sg(0x11003)})
	a.post(now, wq.SendWR{WRID: 3, Opcode: wq.RDMAWrite, RemoteAddr: remote + 0x80001, RKey: key, SGList: sg(0x21003)})
	a.post(now, wq.SendWR{WRID: 4, Opcode: wq.RDMAWriteWithImm, ImmData: 7, RemoteAddr: remote + 0x90001, RKey: key, SGList: sg(0x31003)})
	a.post(now, wq.SendWR{WRID: 5, Opcode: wq.RDMARead, RemoteAddr: remote + 0x5, RKey: key, SGList: sg(0xA0001)})
	a.post(now, wq.SendWR{WRID: 6, Opcode: wq.AtomicFetchAndAdd, RemoteAddr: remote + 0xC0000, RKey: key, CompareAdd: 5, SGList: []wq.SGE{a.sge(0xC0000, 8)}})
	old := binary.NativeEndian.Uint64(b.mem[0xC0000:])
	a.post(now, wq.SendWR{WRID: 7, Opcode: wq.AtomicCmpAndSwp, RemoteAddr: remote + 0xC0000, RKey: key, CompareAdd: old + 5, Swap: 77, SGList: []wq.SGE{a.sge(0xC0008, 8)}})
	want := append([]byte(nil), b.mem[5:5+n]...)
	exchange(now, a, b)
	got := fmt.Sprint(a.sendCQ.take())
	if w := fmt.Sprintf("[1 SUCCESS SEND len=%d 2 SUCCESS SEND len=%d 3 SUCCESS RDMA_WRITE len=%d 4 SUCCESS RDMA_WRITE len=%d 5 SUCCESS RDMA_READ len=%d 6 SUCCESS FETCH_ADD len=8 7 SUCCESS COMP_SWAP len=8]", n, n, n, n, n); got != w {
		t.Errorf("send completions\n got %s\nwant %s", got, w)
	}
	got = fmt.Sprint(b.recvCQ.take())
	if w := fmt.Sprintf("[101 SUCCESS RECV len=%d 102 SUCCESS RECV len=%d imm=0x1020304 103 SUCCESS RECV_RDMA_WITH_IMM len=%d imm=0x7]", n, n, n); got != w {
		t.Errorf("receive completions\n got %s\nwant %s", got, w)
	}
	for _, c := range [][2][]byte{
		{b.mem[0x40000 : 0x40000+n], a.mem[0x1003 : 0x1003+n]},
		{b.mem[0x60000 : 0x60000+n], a.mem[0x11003 : 0x11003+n]},
		{b.mem[0x80001 : 0x80001+n], a.mem[0x21003 : 0x21003+n]},
		{b.mem[0x90001 : 0x90001+n], a.mem[0x31003 : 0x31003+n]},
		{a.mem[0xA0001 : 0xA0001+n], want},
	} {
		if !bytes.Equal(c[0], c[1]) {
			t.Errorf("data differs")
		}
	}
	if v := binary.NativeEndian.Uint64(b.mem[0xC0000:]); v != 77 {
		t.Errorf("cell holds %d, want 77", v)
	}
	if v := binary.NativeEndian.Uint64(a.mem[0xC0000:]); v != old {
		t.Errorf("FETCH_ADD returned %d, want %d", v, old)
	}
	if v := binary.NativeEndian.Uint64(a.mem[0xC0008:]); v != old+5 {
		t.Errorf("CMP_SWAP returned %d, want %d", v, old+5)
	}
	if d := a.qp.NextTimeout(); !d.IsZero() {
		t.Errorf("timer runs with nothing outstanding: %v", d)
	}
}

// TestInlineOfSeveralPackets: inline data longer than the path MTU.
func TestInlineOfSeveralPackets(t *testing.T) {
	a, b := connected(t, options{mtu: bth.MTU256, sigAll: true})
	b.postRecv(start, 1, b.sge(0x1000, 500))
	data := append([]byte(nil), a.mem[3:503]...)
	a.post(start, wq.SendWR{WRID: 1, Opcode: wq.Send, Flags: wq.SendInline, Inline: data})
	a.post(start, wq.SendWR{WRID: 2, Opcode: wq.RDMAWrite, Flags: wq.SendInline, Inline: data, RemoteAddr: memBase + 0x2000, RKey: b.mr.RKey()})
	want := append([]byte(nil), data...)
	clear(data)
	exchange(start, a, b)
	if !bytes.Equal(b.mem[0x1000:0x1000+500], want) || !bytes.Equal(b.mem[0x2000:0x2000+500], want) {
		t.Error("data differs")
	}
	wantTexts(t, "completions", a.sendCQ.take(), "1 SUCCESS SEND len=500", "2 SUCCESS RDMA_WRITE len=500")
}

// TestOmitICRC: packets for a peer in the same process need no ICRC; all else in
// them is as ever.
func TestOmitICRC(t *testing.T) {
	build := func(omit bool) (out [][]byte) {
		a, b := connected(t, options{})
		a.qp.OmitICRC(omit)
		b.qp.OmitICRC(omit)
		a.post(start, wq.SendWR{Opcode: wq.RDMAWrite, RemoteAddr: memBase, RKey: b.mr.RKey(), SGList: []wq.SGE{a.sge(0, 1999)}})
		a.post(start, wq.SendWR{Opcode: wq.RDMARead, RemoteAddr: memBase, RKey: b.mr.RKey(), SGList: []wq.SGE{a.sge(0, 1001)}})
		a.post(start, wq.SendWR{Opcode: wq.AtomicFetchAndAdd, RemoteAddr: memBase, RKey: b.mr.RKey(), SGList: []wq.SGE{a.sge(0, 8)}})
		for _, d := range [2][2]*end{{a, b}, {b, a}} {
			for n, tx := d[0].qp.PollTransmit(start, d[0].buf[:]); n > 0; n, tx = d[0].qp.PollTransmit(start, d[0].buf[:]) {
				p := append([]byte(nil), d[0].buf[:n]...)
				icrc := p[n-bth.ICRCLen:]
				if is0 := tx.ICRC == 0 && bytes.Equal(icrc, make([]byte, bth.ICRCLen)); is0 != omit {
					t.Errorf("omit %v: %s: ICRC %#x, told %#x", omit, packetText(p), icrc, tx.ICRC)
				}
				out = append(out, p[:n-bth.ICRCLen])
				d[1].handle(start, p, d[0].gid)
			}
		}
		return out
	}
	with, without := build(false), build(true)
	if len(with) != len(without) || len(with) < 6 {
		t.Fatalf("%d and %d packets", len(with), len(without))
	}
	for i := range with {
		if !bytes.Equal(with[i], without[i]) {
			t.Errorf("packet %d differs: %x\n%x", i, with[i], without[i])
		}
	}
}
