package featuretest

import (
	"encoding/binary"

	"github.com/softroce/softroce/pkg/verbs"
)

// longer than any path MTU, and no multiple of one
const long = 10007

// connected are the operations of RC and UC.
var connected = []Case{
	{"rc-send", func(a, b *end) { sendCase(a, b, verbs.RC, verbs.WRSend) }},
	{"rc-send-imm", func(a, b *end) { sendCase(a, b, verbs.RC, verbs.WRSendWithImm) }},
	{"rc-write", func(a, b *end) { writeCase(a, b, verbs.RC, verbs.WRRDMAWrite) }},
	{"rc-write-imm", func(a, b *end) { writeCase(a, b, verbs.RC, verbs.WRRDMAWriteWithImm) }},
	{"rc-read", readCase},
	{"rc-cmp-swap", cmpSwapCase},
	{"rc-fetch-add", fetchAddCase},
	{"rc-rnr", rnrCase},
	{"uc-send", func(a, b *end) { sendCase(a, b, verbs.UC, verbs.WRSend) }},
	{"uc-send-imm", func(a, b *end) { sendCase(a, b, verbs.UC, verbs.WRSendWithImm) }},
	{"uc-write", func(a, b *end) { writeCase(a, b, verbs.UC, verbs.WRRDMAWrite) }},
	{"uc-write-imm", func(a, b *end) { writeCase(a, b, verbs.UC, verbs.WRRDMAWriteWithImm) }},
	{"uc-refuses-read", ucReadCase},
	{"uc-drops-without-receive", ucNoReceiveCase},
	{"inline", inlineCase},
	{"sge-lists", sgeCase},
	{"unsignaled", unsignaledCase},
	{"fence", fenceCase},
	{"batch", batchCase},
}

func sendCase(a, b *end, typ verbs.QPType, op verbs.WROpcode) {
	connect(a, b, typ)
	for i, n := range []int{1, 64, 4096, long} {
		b.recv(uint64(i), 0, long)
		want := a.fill(0, n, i)
		a.do(verbs.SendWR{Opcode: op, ImmData: 0xA1B2C3D4, SGList: []verbs.SGE{a.mr.SGE(0, n)}})
		wc := b.next(uint64(i), verbs.WCSuccess)
		b.received(wc, verbs.WCRecv, n, op == verbs.WRSendWithImm)
		b.same(0, want)
	}
}

// received checks what a receive's completion says.
func (e *end) received(wc verbs.WC, op verbs.WCOpcode, n int, imm bool) {
	e.t.Helper()
	if wc.Opcode != op || int(wc.ByteLen) != n || (wc.Flags&verbs.WCWithImm != 0) != imm || imm && wc.ImmData != 0xA1B2C3D4 {
		e.t.Errorf("completion %+v, want %v of %d bytes, immediate data %v", wc, op, n, imm)
	}
}

func writeCase(a, b *end, typ verbs.QPType, op verbs.WROpcode) {
	connect(a, b, typ)
	for i, n := range []int{1, 4096, long} {
		want := a.fill(0, n, i)
		wr := a.rdma(op, b, 512, n)
		wr.ImmData = 0xA1B2C3D4
		if op == verbs.WRRDMAWriteWithImm {
			b.recv(uint64(i), 0, 0)
			a.do(wr)
			b.received(b.next(uint64(i), verbs.WCSuccess), verbs.WCRecvRDMAWithImm, n, true)
		} else {
			arrived := arrivals(a, b)
			a.do(wr)
			arrived()
		}
		b.same(512, want)
	}
}

func readCase(a, b *end) {
	connect(a, b, verbs.RC)
	for i, n := range []int{1, 4096, long} {
		want := b.fill(512, n, i)
		if wc := a.do(a.rdma(verbs.WRRDMARead, b, 512, n)); wc.Opcode != verbs.WCRDMARead || int(wc.ByteLen) != n {
			a.t.Errorf("completion %+v", wc)
		}
		a.same(0, want)
	}
}

func (e *end) cell(off int) uint64 { return binary.NativeEndian.Uint64(e.mr.Bytes()[off:]) }

func (e *end) setCell(off int, v uint64) { binary.NativeEndian.PutUint64(e.mr.Bytes()[off:], v) }

func cmpSwapCase(a, b *end) {
	connect(a, b, verbs.RC)
	b.setCell(64, 5)
	wr := a.rdma(verbs.WRAtomicCmpAndSwp, b, 64, 8)
	wr.CompareAdd, wr.Swap = 5, 9
	a.do(wr)
	if a.cell(0) != 5 || b.cell(64) != 9 {
		a.t.Errorf("equal: %d came back, %d is there; want 5, 9", a.cell(0), b.cell(64))
	}
	a.do(wr)
	if a.cell(0) != 9 || b.cell(64) != 9 {
		a.t.Errorf("unequal: %d came back, %d is there; want 9, 9", a.cell(0), b.cell(64))
	}
}

func fetchAddCase(a, b *end) {
	connect(a, b, verbs.RC)
	b.setCell(64, 40)
	wr := a.rdma(verbs.WRAtomicFetchAdd, b, 64, 8)
	wr.CompareAdd = 2
	a.do(wr)
	if a.cell(0) != 40 || b.cell(64) != 42 {
		a.t.Errorf("%d came back, %d is there; want 40, 42", a.cell(0), b.cell(64))
	}
}

// rnrCase: a SEND waits until the peer has a receive.
func rnrCase(a, b *end) {
	connect(a, b, verbs.RC)
	want := a.fill(0, 100, 1)
	a.post(verbs.SendWR{WRID: 1, Opcode: verbs.WRSend, Flags: verbs.SendSignaled, SGList: []verbs.SGE{a.mr.SGE(0, 100)}})
	a.none()
	b.recv(2, 0, 100)
	a.next(1, verbs.WCSuccess)
	b.next(2, verbs.WCSuccess)
	b.same(0, want)
}

func ucReadCase(a, b *end) {
	connect(a, b, verbs.UC)
	for _, op := range []verbs.WROpcode{verbs.WRRDMARead, verbs.WRAtomicFetchAdd, verbs.WRSendWithInv} {
		_, err := a.qp.PostSend(a.rdma(op, b, 0, 8))
		a.refused(op.String()+" on UC", err)
	}
}

// ucNoReceiveCase: a SEND without a receive is lost, alone.
func ucNoReceiveCase(a, b *end) {
	connect(a, b, verbs.UC)
	a.fill(0, long, 1)
	arrived := arrivals(a, b)
	a.do(a.send(0, long))
	arrived()
	want := a.fill(long, 100, 2)
	b.recv(3, 0, 200)
	a.do(verbs.SendWR{Opcode: verbs.WRSend, SGList: []verbs.SGE{a.mr.SGE(long, 100)}})
	b.received(b.next(3, verbs.WCSuccess), verbs.WCRecv, 100, false)
	b.same(0, want)
	b.state(b.qp, verbs.StateRTS)
}

func inlineCase(a, b *end) {
	connect(a, b, verbs.RC)
	b.recv(1, 0, 128)
	want := append([]byte(nil), a.fill(0, 100, 3)...)
	a.post(verbs.SendWR{
		WRID: 2, Opcode: verbs.WRSend, Flags: verbs.SendInline | verbs.SendSignaled, SGList: []verbs.SGE{a.mr.SGE(0, 100)},
	})
	a.fill(0, 100, 4) // ours again at once
	a.next(2, verbs.WCSuccess)
	b.next(1, verbs.WCSuccess)
	b.same(0, want)
}

func sgeCase(a, b *end) {
	connect(a, b, verbs.RC)
	want := a.fill(0, 6000, 5)
	_, err := b.qp.PostRecv(verbs.RecvWR{WRID: 1, SGList: []verbs.SGE{b.mr.SGE(0, 1), b.mr.SGE(1, 4500), b.mr.SGE(4501, 1499)}})
	b.must(err)
	a.do(verbs.SendWR{Opcode: verbs.WRSend, SGList: []verbs.SGE{a.mr.SGE(0, 5000), a.mr.SGE(5000, 0), a.mr.SGE(5000, 1000)}})
	b.next(1, verbs.WCSuccess)
	b.same(0, want)
}

func unsignaledCase(a, b *end) {
	connect(a, b, verbs.RC)
	for range 10 {
		a.post(a.rdma(verbs.WRRDMAWrite, b, 0, 64))
	}
	a.do(a.rdma(verbs.WRRDMAWrite, b, 0, 64))
	a.none()
}

// fenceCase: what follows a READ with a fence sees what the READ brought.
func fenceCase(a, b *end) {
	connect(a, b, verbs.RC)
	want := b.fill(0, long, 6)
	b.recv(1, 2*long, long)
	a.post(a.rdma(verbs.WRRDMARead, b, 0, long))
	a.do(verbs.SendWR{Opcode: verbs.WRSend, Flags: verbs.SendFence, SGList: []verbs.SGE{a.mr.SGE(0, long)}})
	b.next(1, verbs.WCSuccess)
	b.same(2*long, want)
}

// batchCase: extended posting, completed and aborted.
func batchCase(a, b *end) {
	connect(a, b, verbs.RC)
	want := a.fill(0, 100, 7)
	batch := a.qp.WRStart()
	batch.WRID = 1
	batch.RDMAWrite(b.mr.RKey(), b.mr.Addr())
	batch.SetSGE(a.mr.LKey(), a.mr.Addr(), 100)
	batch.WRAbort()
	a.none()
	b.recv(9, 500, 100)
	batch = a.qp.WRStart()
	batch.WRID = 2
	batch.RDMAWrite(b.mr.RKey(), b.mr.Addr()+1000)
	batch.SetSGE(a.mr.LKey(), a.mr.Addr(), 100)
	batch.WRID, batch.Flags = 3, verbs.SendSignaled
	batch.SendImm(0xA1B2C3D4)
	batch.SetInlineData(want)
	a.must(batch.WRComplete())
	a.next(3, verbs.WCSuccess)
	b.received(b.next(9, verbs.WCSuccess), verbs.WCRecv, 100, true)
	b.same(500, want)
	b.same(1000, want)
}
