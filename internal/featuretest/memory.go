package featuretest

import (
	"runtime"

	"github.com/softroce/softroce/pkg/verbs"
)

const pageSize = 4096

// memory are regions, windows and keys.
var memory = []Case{
	{"mr-foreign", foreignCase},
	{"mr-zero-based", zeroBasedCase},
	{"mr-iova", iovaCase},
	{"mr-relaxed-ordering", relaxedCase},
	{"mr-rereg-translation", reregMemoryCase},
	{"mr-rereg-pd", reregPDCase},
	{"mr-rereg-access", reregAccessCase},
	{"mr-on-demand", onDemandCase},
	{"mr-implicit", implicitCase},
	{"mr-advise", adviseCase},
	{"mr-fast-registration", fastRegCase},
	{"mw-type-1", window1Case},
	{"mw-type-2", window2Case},
	{"mw-bind-outside", bindOutsideCase},
	{"mw-of-another-qp", otherQPCase},
	{"mw-keeps-region", boundRegionCase},
	{"local-invalidate", localInvCase},
	{"send-with-invalidate", sendInvCase},
	{"invalidate-of-another-pd", otherPDCase},
}

// writeTo writes n bytes to an address under a key and expects a status.
func (e *end) writeTo(key verbs.RKey, addr uint64, n int, want verbs.WCStatus) {
	e.t.Helper()
	e.fails(verbs.SendWR{
		Opcode: verbs.WRRDMAWrite, SGList: []verbs.SGE{e.mr.SGE(0, n)}, RemoteAddr: addr, RKey: key,
	}, want)
}

func needForeign(e *end, err error) {
	e.t.Helper()
	if err != nil {
		e.t.Skipf("foreign memory is not allowed here: %v", err)
	}
}

func foreignCase(a, b *end) {
	connect(a, b, verbs.RC)
	buf := make([]byte, 2*long)
	mr, err := b.pd.RegMR(buf, allAccess)
	needForeign(b, err)
	want := a.fill(0, long, 1)
	a.writeTo(mr.RKey(), mr.Addr()+5, long, verbs.WCSuccess)
	if string(buf[5:5+long]) != string(want) {
		b.t.Error("the foreign region does not hold what was written")
	}
	b.must(mr.Dereg())
	a.writeTo(mr.RKey(), mr.Addr(), 10, verbs.WCRemAccessErr)
}

func zeroBasedCase(a, b *end) {
	connect(a, b, verbs.RC)
	mr, err := b.pd.AllocMR(pageSize, allAccess|verbs.AccessZeroBased)
	b.must(err)
	want := a.fill(0, 100, 1)
	a.writeTo(mr.RKey(), 50, 100, verbs.WCSuccess)
	if string(mr.Bytes()[50:150]) != string(want) {
		b.t.Error("offset 50 does not hold what was written there")
	}
	a.writeTo(mr.RKey(), pageSize-50, 100, verbs.WCRemAccessErr)
}

func iovaCase(a, b *end) {
	connect(a, b, verbs.RC)
	const iova = 0x7700000000
	buf := make([]byte, pageSize)
	mr, err := b.pd.RegMRIova(buf, iova, allAccess)
	needForeign(b, err)
	want := a.fill(0, 100, 1)
	a.writeTo(mr.RKey(), iova+8, 100, verbs.WCSuccess)
	if string(buf[8:108]) != string(want) {
		b.t.Error("the region does not hold what was written at its iova")
	}
}

func relaxedCase(a, b *end) {
	connect(a, b, verbs.RC)
	mr, err := b.pd.AllocMR(pageSize, allAccess|verbs.AccessRelaxedOrdering)
	b.must(err)
	a.writeTo(mr.RKey(), mr.Addr(), 100, verbs.WCSuccess)
	_, err = b.pd.AllocMR(pageSize, allAccess|1<<15)
	b.refused("an unknown access flag", err)
}

func reregMemoryCase(a, b *end) {
	connect(a, b, verbs.RC)
	first, second := make([]byte, pageSize), make([]byte, 2*pageSize)
	mr, err := b.pd.RegMR(first, allAccess)
	needForeign(b, err)
	b.must(mr.Rereg(verbs.ReregChangeTranslation, nil, second, 0))
	want := a.fill(0, 100, 1)
	a.writeTo(mr.RKey(), mr.Addr()+pageSize, 100, verbs.WCSuccess)
	if string(second[pageSize:pageSize+100]) != string(want) {
		b.t.Error("the new memory does not hold what was written")
	}
}

func reregPDCase(a, b *end) {
	connect(a, b, verbs.RC)
	mr, err := b.pd.AllocMR(pageSize, allAccess)
	b.must(err)
	other, err := b.dev.AllocPD()
	b.must(err)
	b.must(mr.Rereg(verbs.ReregChangePD, other, nil, 0))
	b.refused("the end of a domain in use", other.Dealloc())
	a.writeTo(mr.RKey(), mr.Addr(), 10, verbs.WCRemAccessErr)
}

func reregAccessCase(a, b *end) {
	connect(a, b, verbs.RC)
	mr, err := b.pd.AllocMR(pageSize, allAccess)
	b.must(err)
	a.writeTo(mr.RKey(), mr.Addr(), 10, verbs.WCSuccess)
	b.must(mr.Rereg(verbs.ReregChangeAccess, nil, nil, verbs.AccessLocalWrite|verbs.AccessRemoteRead))
	a.writeTo(mr.RKey(), mr.Addr(), 10, verbs.WCRemAccessErr)
}

func onDemandCase(a, b *end) {
	connect(a, b, verbs.RC)
	attr, err := b.dev.Query()
	b.must(err)
	if attr.ODPGeneral&verbs.ODPSupport == 0 || attr.ODPRC&verbs.ODPSupportWrite == 0 {
		b.t.Errorf("on-demand paging: capabilities %#x, RC %#x", attr.ODPGeneral, attr.ODPRC)
	}
	mr, err := b.pd.AllocMR(pageSize, allAccess&^verbs.AccessMWBind|verbs.AccessOnDemand)
	b.must(err)
	a.writeTo(mr.RKey(), mr.Addr(), 100, verbs.WCSuccess)
}

// implicitCase: a region over the whole address space.
func implicitCase(a, b *end) {
	connect(a, b, verbs.RC)
	mr, err := b.pd.RegImplicit(allAccess &^ verbs.AccessMWBind)
	needForeign(b, err)
	buf := make([]byte, pageSize)
	var pin runtime.Pinner // else it may lie on a stack that moves
	pin.Pin(&buf[0])
	defer pin.Unpin()
	want := a.fill(0, 100, 1)
	sge := mr.SGEOf(buf)
	a.writeTo(mr.RKey(), sge.Addr+7, 100, verbs.WCSuccess)
	if string(buf[7:107]) != string(want) {
		b.t.Error("memory of the program does not hold what was written")
	}
	a.writeTo(mr.RKey(), 8, 100, verbs.WCRemAccessErr) // nothing is mapped there
}

func adviseCase(a, _ *end) {
	a.must(a.pd.AdviseMR(verbs.AdvisePrefetchWrite, verbs.AdviseFlush, a.mr.SGE(0, regionSize)))
	bad := a.mr.SGE(0, regionSize)
	bad.Length++
	a.refused("advice beyond the region", a.pd.AdviseMR(verbs.AdvisePrefetch, 0, bad))
}

// fastRegCase: pages in another order under a new key, then invalidated, then
// registered again.
func fastRegCase(a, b *end) {
	connect(a, b, verbs.RC)
	mr, err := b.pd.AllocFastMR(4)
	b.must(err)
	a.fill(0, 2*pageSize, 1)
	pages := []verbs.SGE{b.mr.SGE(3*pageSize, pageSize), b.mr.SGE(pageSize, pageSize)}
	const iova = 0x10000
	if wc := b.do(mr.RegWR(iova, allAccess&^verbs.AccessMWBind, pages)); wc.Opcode != verbs.WCRegMR {
		b.t.Errorf("completion %+v", wc)
	}
	old := mr.RKey()
	a.writeTo(old, iova, 2*pageSize, verbs.WCSuccess)
	b.same(3*pageSize, a.mr.Bytes()[:pageSize])
	b.same(pageSize, a.mr.Bytes()[pageSize:2*pageSize])
	b.do(verbs.SendWR{Opcode: verbs.WRLocalInv, InvalidateRKey: old})
	b.do(mr.RegWR(iova, allAccess&^verbs.AccessMWBind, pages[:1]))
	a.writeTo(mr.RKey(), iova, pageSize, verbs.WCSuccess)
	a.writeTo(old, iova, 10, verbs.WCRemAccessErr)
}

func (e *end) window(typ verbs.WindowType) *verbs.MW {
	e.t.Helper()
	w, err := e.pd.AllocMW(typ)
	e.must(err)
	return w
}

// bind2 binds a window of type 2 to part of the region.
func (e *end) bind2(w *verbs.MW, off, n int) {
	e.t.Helper()
	wr := w.BindWR(e.mr, e.mr.Addr()+uint64(off), uint64(n), verbs.AccessRemoteWrite|verbs.AccessRemoteRead)
	if wc := e.do(wr); wc.Opcode != verbs.WCBindMW {
		e.t.Errorf("completion %+v", wc)
	}
}

func window1Case(a, b *end) {
	connect(a, b, verbs.RC)
	w := b.window(verbs.MWType1)
	bind := verbs.MWBind{
		WRID: 1, Flags: verbs.SendSignaled, MR: b.mr, Addr: b.mr.Addr() + 100, Length: 50, Access: verbs.AccessRemoteWrite,
	}
	b.must(b.qp.BindMW(w, bind))
	b.next(1, verbs.WCSuccess)
	old := w.RKey()
	want := a.fill(0, 50, 1)
	a.writeTo(old, b.mr.Addr()+100, 50, verbs.WCSuccess)
	b.same(100, want)
	bind.Addr = b.mr.Addr() + 200 // type 1: bound anew without invalidation
	b.must(b.qp.BindMW(w, bind))
	b.next(1, verbs.WCSuccess)
	a.writeTo(w.RKey(), b.mr.Addr()+200, 50, verbs.WCSuccess)
	a.writeTo(old, b.mr.Addr()+100, 50, verbs.WCRemAccessErr)
}

func window2Case(a, b *end) {
	connect(a, b, verbs.RC)
	w := b.window(verbs.MWType2)
	b.bind2(w, 100, 50)
	want := a.fill(0, 50, 1)
	a.writeTo(w.RKey(), b.mr.Addr()+100, 50, verbs.WCSuccess)
	b.same(100, want)
	a.writeTo(w.RKey(), b.mr.Addr()+101, 50, verbs.WCRemAccessErr)
}

func bindOutsideCase(a, b *end) {
	connect(a, b, verbs.RC)
	w := b.window(verbs.MWType2)
	b.fails(w.BindWR(b.mr, b.mr.Addr()+1, regionSize, verbs.AccessRemoteWrite), verbs.WCMWBindErr)
	b.ends(b.qp)
}

// otherQPCase: a window of type 2 belongs to the queue pair that bound it.
func otherQPCase(a, b *end) {
	connect(a, b, verbs.RC)
	w := b.window(verbs.MWType2)
	b.bind2(w, 0, 100)
	qa, qb := a.newQP(verbs.RC, nil), b.newQP(verbs.RC, nil)
	join(a, b, qa, qb, verbs.RCConfig{})
	a.qp = qa
	a.writeTo(w.RKey(), b.mr.Addr(), 10, verbs.WCRemAccessErr)
}

func boundRegionCase(a, b *end) {
	connect(a, b, verbs.RC)
	mr, err := b.pd.AllocMR(pageSize, allAccess)
	b.must(err)
	w := b.window(verbs.MWType2)
	b.do(w.BindWR(mr, mr.Addr(), 100, verbs.AccessRemoteWrite))
	b.refused("the end of a region with a window", mr.Dereg())
	key := w.RKey()
	b.must(w.Dealloc())
	b.must(mr.Dereg())
	a.writeTo(key, mr.Addr(), 10, verbs.WCRemAccessErr)
}

func localInvCase(a, b *end) {
	connect(a, b, verbs.RC)
	w := b.window(verbs.MWType2)
	b.bind2(w, 0, 100)
	if wc := b.do(verbs.SendWR{Opcode: verbs.WRLocalInv, InvalidateRKey: w.RKey()}); wc.Opcode != verbs.WCLocalInv {
		b.t.Errorf("completion %+v", wc)
	}
	old := w.RKey()
	b.bind2(w, 0, 100) // free to be bound again
	a.writeTo(w.RKey(), b.mr.Addr(), 10, verbs.WCSuccess)
	a.writeTo(old, b.mr.Addr(), 10, verbs.WCRemAccessErr)
}

func sendInvCase(a, b *end) {
	connect(a, b, verbs.RC)
	w := b.window(verbs.MWType2)
	b.bind2(w, 0, 100)
	key := w.RKey()
	a.writeTo(key, b.mr.Addr(), 10, verbs.WCSuccess)
	b.recv(1, 1000, long)
	wr := a.send(0, long)
	wr.Opcode, wr.InvalidateRKey = verbs.WRSendWithInv, key
	a.do(wr)
	if wc := b.next(1, verbs.WCSuccess); wc.Flags&verbs.WCWithInv == 0 || verbs.RKey(wc.InvalidatedRKey) != key {
		b.t.Errorf("completion %+v, want invalidated key %#x", wc, uint32(key))
	}
	a.writeTo(key, b.mr.Addr(), 10, verbs.WCRemAccessErr)
}

// otherPDCase: nobody invalidates a key of another domain. The receiver's queue
// pair ends without an answer (fault class J).
func otherPDCase(a, b *end) {
	connect(a, b, verbs.RC)
	w := b.window(verbs.MWType2)
	b.bind2(w, 0, 100)
	other := newEnd(b.t, b.dev)
	peer := newEnd(a.t, a.dev)
	connect(peer, other, verbs.RC)
	other.recv(1, 0, 100)
	wr := peer.send(0, 10)
	wr.Opcode, wr.InvalidateRKey = verbs.WRSendWithInv, w.RKey()
	peer.fails(wr, verbs.WCRetryExcErr)
	if wc := other.nextOf(other.cq); wc.Status == verbs.WCSuccess || wc.WRID != 1 {
		other.t.Errorf("completion %+v, want an error of the receive", wc)
	}
	other.ends(other.qp)
	a.writeTo(w.RKey(), b.mr.Addr(), 10, verbs.WCSuccess)
}
