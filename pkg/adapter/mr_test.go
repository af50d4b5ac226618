package adapter_test

import (
	"bytes"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/pkg/verbs"
)

// Addresses of the program's choice: an iova, and zero-based, for elements and
// for peers, in memory of both kinds.
func TestIovaAndZeroBased(t *testing.T) {
	a, b := pair(t, shape{}, verbs.RCConfig{}, nil)
	buf := make([]byte, 8192)
	const iova = 0x7000_0000_0000
	byIova, err := b.pd.RegMRIova(buf, iova, allAccess)
	must(t, err)
	zero, err := b.pd.RegMR(buf, allAccess|verbs.AccessZeroBased)
	must(t, err)
	shared, err := b.pd.AllocMR(8192, allAccess|verbs.AccessZeroBased)
	must(t, err)
	for i, c := range []struct {
		mr   *verbs.MR
		base uint64
	}{{byIova, iova}, {zero, 0}, {shared, 0}} {
		fill(a.mr.Bytes()[:3000], i)
		if c.mr.IOVA() != c.base {
			t.Errorf("region %d counts from %#x, want %#x", i, c.mr.IOVA(), c.base)
		}
		a.do(a.through(c.mr.RKey(), c.base+100, 3000))
		if !bytes.Equal(c.mr.Bytes()[100:3100], a.mr.Bytes()[:3000]) {
			t.Errorf("region %d: other bytes arrived", i)
		}
		// As local memory: read back from it.
		a.recv(9, 4096, 3000)
		b.do(verbs.SendWR{Opcode: verbs.WRSend, SGList: []verbs.SGE{c.mr.SGE(100, 3000)}})
		a.status(9, verbs.WCSuccess)
		if !bytes.Equal(a.mr.Bytes()[4096:7096], a.mr.Bytes()[:3000]) {
			t.Errorf("region %d: other bytes were sent", i)
		}
		refused(a, b, "past the end", a.through(c.mr.RKey(), c.base+8192, 1))
		if c.base != 0 {
			refused(a, b, "the program's address", a.through(c.mr.RKey(), c.mr.Addr(), 1))
		}
	}
}

// ibv_rereg_mr(3): rights, memory and domain change; the old rights, the old
// memory and the old domain are gone.
func TestReregMR(t *testing.T) {
	a, b := pair(t, shape{}, verbs.RCConfig{}, nil)
	mr, err := b.pd.AllocMR(8192, allAccess)
	must(t, err)
	mem, start := mr.Bytes(), mr.Addr()
	fill(a.mr.Bytes()[:100], 1)
	a.do(a.through(mr.RKey(), start, 100))

	must(t, mr.Rereg(verbs.ReregChangeAccess, nil, nil, verbs.AccessLocalWrite|verbs.AccessRemoteRead))
	refused(a, b, "a right taken away", a.through(mr.RKey(), start, 1))
	must(t, mr.Rereg(verbs.ReregChangeAccess, nil, nil, allAccess))
	a.do(a.through(mr.RKey(), start, 100))

	must(t, mr.Rereg(verbs.ReregChangeTranslation, nil, mem[4096:4196], 0))
	if mr.Addr() != start+4096 || mr.Len() != 100 {
		t.Errorf("the region is %d bytes at %#x", mr.Len(), mr.Addr())
	}
	a.do(a.through(mr.RKey(), start+4096, 100))
	if !bytes.Equal(mem[4096:4196], a.mr.Bytes()[:100]) {
		t.Error("other bytes arrived in the new part")
	}
	refused(a, b, "the memory before", a.through(mr.RKey(), start, 1))

	own := make([]byte, 5000)
	must(t, mr.Rereg(verbs.ReregChangeTranslation, nil, own, 0))
	a.do(a.through(mr.RKey(), mr.Addr(), 100))
	if !bytes.Equal(own[:100], a.mr.Bytes()[:100]) {
		t.Error("other bytes arrived in the program's own memory")
	}
	must(t, mr.Rereg(verbs.ReregChangeTranslation, nil, mem, 0))

	pd, err := b.dev.AllocPD()
	must(t, err)
	must(t, mr.Rereg(verbs.ReregChangePD, pd, nil, 0))
	refused(a, b, "another domain", a.through(mr.RKey(), start, 1))
	wantErrno(t, "the new domain is in use", pd.Dealloc(), unix.EBUSY)
	must(t, mr.Rereg(verbs.ReregChangePD, b.pd, nil, 0))
	must(t, pd.Dealloc())
	a.do(a.through(mr.RKey(), start, 100))
	wantErrno(t, "rights that do not go together", mr.Rereg(verbs.ReregChangeAccess, nil, nil, verbs.AccessRemoteWrite), unix.EINVAL)
	a.do(a.through(mr.RKey(), start, 100)) // as before
	must(t, mr.Dereg())
}

// On demand: a region, and the whole address space under one key, with memory
// that was allocated after the registration; what is not mapped fails the
// request; advice; and what the device says of it.
func TestOnDemandRegions(t *testing.T) {
	a, b := pair(t, shape{}, verbs.RCConfig{}, nil)
	dev, err := b.dev.Query()
	must(t, err)
	const rc = verbs.ODPSupportSend | verbs.ODPSupportRecv | verbs.ODPSupportWrite | verbs.ODPSupportRead | verbs.ODPSupportAtomic
	if dev.ODPGeneral != verbs.ODPSupport|verbs.ODPSupportImplicit || dev.ODPRC&rc != rc {
		t.Errorf("ODP capabilities %#x, RC %#x", dev.ODPGeneral, dev.ODPRC)
	}
	some, err := b.pd.RegMR(make([]byte, 4096), allAccess|verbs.AccessOnDemand)
	must(t, err)
	a.do(a.through(some.RKey(), some.Addr(), 64))
	all, err := b.pd.RegImplicit(allAccess)
	must(t, err)
	later := make([]byte, 20000)
	var pin runtime.Pinner
	defer pin.Unpin()
	pin.Pin(&later[0])
	e := all.SGEOf(later)
	fill(a.mr.Bytes()[:20000], 4)
	a.do(a.through(all.RKey(), e.Addr, 20000))
	if !bytes.Equal(later, a.mr.Bytes()[:20000]) {
		t.Error("other bytes arrived")
	}
	a.recv(1, 30000, 20000)
	b.do(verbs.SendWR{Opcode: verbs.WRSend, SGList: []verbs.SGE{e}})
	a.status(1, verbs.WCSuccess)
	if !bytes.Equal(a.mr.Bytes()[30000:50000], later) {
		t.Error("other bytes were sent")
	}
	must(t, b.pd.AdviseMR(verbs.AdvisePrefetch, verbs.AdviseFlush, e, some.SGE(0, 4096)))
	must(t, b.pd.AdviseMR(verbs.AdvisePrefetchWrite, 0, some.SGE(0, 4096)))
	must(t, b.pd.AdviseMR(verbs.AdvisePrefetchNoFault, 0, some.SGE(0, 1)))
	bad := some.SGE(0, 4097)
	wantErrno(t, "advice past the end", b.pd.AdviseMR(verbs.AdvisePrefetch, 0, bad), unix.EINVAL)
	bad = some.SGE(0, 1)
	bad.LKey ^= 0x5500
	wantErrno(t, "advice on no region", b.pd.AdviseMR(verbs.AdvisePrefetch, 0, bad), unix.EINVAL)
	refused(a, b, "memory that is not mapped", a.through(all.RKey(), 0x1000, 64))
	must(t, all.Dereg())
	refused(a, b, "after the end", a.through(all.RKey(), e.Addr, 64))
}

// Fast registration: pages of two regions in one order, seen from an iova, by a
// peer and by the program; invalidated by either side; then other pages under
// the next key.
func TestFastRegistration(t *testing.T) {
	a, b := pair(t, shape{}, verbs.RCConfig{}, nil)
	second, err := b.pd.AllocMR(16384, verbs.AccessLocalWrite)
	must(t, err)
	fast, err := b.pd.AllocFastMR(4)
	must(t, err)
	const iova, page = 0xABC000, 4096
	pages := append(second.Pages(4096, page, page), b.mr.Pages(8192, 2*page, page)...)
	b.do(fast.RegWR(iova, allAccess, pages))
	if fast.Len() != 3*page || fast.IOVA() != iova {
		t.Errorf("the region is %d bytes from %#x", fast.Len(), fast.IOVA())
	}
	fill(a.mr.Bytes()[:3*page], 6)
	a.do(a.through(fast.RKey(), iova, 3*page))
	want := a.mr.Bytes()[:3*page]
	if !bytes.Equal(second.Bytes()[4096:8192], want[:page]) || !bytes.Equal(b.mr.Bytes()[8192:][:2*page], want[page:]) {
		t.Error("other bytes arrived in the pages")
	}
	a.recv(1, 20000, 3*page)
	b.do(verbs.SendWR{Opcode: verbs.WRSend, SGList: []verbs.SGE{fast.SGE(0, 3*page)}})
	a.status(1, verbs.WCSuccess)
	if !bytes.Equal(a.mr.Bytes()[20000:][:3*page], want) {
		t.Error("other bytes were sent from the pages")
	}
	old := fast.RKey()
	b.do(verbs.SendWR{Opcode: verbs.WRLocalInv, InvalidateRKey: old})
	refused(a, b, "invalidated", a.through(old, iova, 1))
	b.do(fast.RegWR(0, verbs.AccessLocalWrite|verbs.AccessRemoteWrite, second.Pages(0, page, page)))
	a.do(a.through(fast.RKey(), 0, page))
	if !bytes.Equal(second.Bytes()[:page], want[:page]) {
		t.Error("other bytes arrived in the next pages")
	}
	refused(a, b, "the key before", a.through(old, 0, 1))
	b.recv(2, 0, 64)
	a.do(verbs.SendWR{Opcode: verbs.WRSendWithInv, InvalidateRKey: fast.RKey()})
	b.status(2, verbs.WCSuccess)
	refused(a, b, "invalidated by the peer", a.through(fast.RKey(), 0, 1))

	// A list that may not be.
	for _, c := range []struct {
		name string
		wr   verbs.SendWR
		want verbs.WCStatus
	}{
		{"more pages than allocated", fast.RegWR(0, 0, b.mr.Pages(0, 5*page, page)), verbs.WCLocQPOpErr},
		{"a page past its region", fast.RegWR(0, 0, second.Pages(16384-100, page, page)), verbs.WCLocProtErr},
	} {
		c.wr.Flags = verbs.SendSignaled
		b.post(c.wr)
		if wc := b.next(); wc.Status != c.want {
			t.Errorf("%s: %v, want %v", c.name, wc.Status, c.want)
		}
		again(a, b)
	}
	_, err = b.qp.PostSend(fast.RegWR(0, 0, []verbs.SGE{b.mr.SGE(0, 100)}))
	wantErrno(t, "a page of 100 bytes", err, unix.EINVAL)
	must(t, fast.Dereg())
}
