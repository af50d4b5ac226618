package nic

import (
	"errors"
	"syscall"
	"testing"

	"github.com/softroce/softroce/internal/uapi"
	"github.com/softroce/softroce/pkg/mrtable"
	"github.com/softroce/softroce/pkg/verbs"
)

// A pairWithWindows is two connected endpoints; the second one's region may have
// windows bound.
type pairWithWindows struct {
	t    *testing.T
	a    *Adapter
	x, y *endpoint
	mr   *verbs.MR
}

func newPairWithWindows(t *testing.T, a *Adapter) *pairWithWindows {
	t.Helper()
	p := &pairWithWindows{t: t, a: a, x: newEndpoint(t, openDevice(t, a), 8192), y: newEndpoint(t, openDevice(t, a), 8192)}
	connectPair(t, p.x, p.y)
	var err error
	if p.mr, err = p.y.pd.AllocMR(8192, verbs.AccessLocalWrite|verbs.AccessMWBind); err != nil {
		t.Fatal(err)
	}
	return p
}

// status is what comes of a request of an endpoint's.
func (p *pairWithWindows) status(e *endpoint, wr verbs.SendWR) verbs.WCStatus {
	p.t.Helper()
	wr.Flags = verbs.SendSignaled
	if _, err := e.qp.PostSend(wr); err != nil {
		p.t.Fatal(err)
	}
	wc, err := completion(within(p.t), e.cq)
	if err != nil {
		p.t.Fatal(err)
	}
	return wc.Status
}

// write has x write one byte through a key of y's.
func (p *pairWithWindows) write(key verbs.RKey, at uint64, v byte) verbs.WCStatus {
	p.t.Helper()
	p.x.mr.Bytes()[0] = v
	return p.status(p.x, verbs.SendWR{Opcode: verbs.WRRDMAWrite, SGList: []verbs.SGE{p.x.mr.SGE(0, 1)}, RemoteAddr: at, RKey: key})
}

// Windows of both types open a part of a region to a peer, hold the region's end
// back, and are closed by their own.
func TestMemoryWindows(t *testing.T) {
	a := startAdapter(t, nil)
	for _, typ := range []verbs.WindowType{verbs.MWType1, verbs.MWType2} {
		p := newPairWithWindows(t, a)
		mw, err := p.y.pd.AllocMW(typ)
		if err != nil {
			t.Fatal(err)
		}
		at := p.mr.Addr() + 100
		if typ == verbs.MWType1 {
			err = p.y.qp.BindMW(mw, verbs.MWBind{Flags: verbs.SendSignaled, MR: p.mr, Addr: at, Length: 10, Access: verbs.AccessRemoteWrite})
			if err == nil {
				var wc verbs.WC
				if wc, err = completion(within(t), p.y.cq); err == nil && wc.Status != verbs.WCSuccess {
					t.Fatal(wc.Status)
				}
			}
			if err != nil {
				t.Fatal(err)
			}
		} else if s := p.status(p.y, mw.BindWR(p.mr, at, 10, verbs.AccessRemoteWrite)); s != verbs.WCSuccess {
			t.Fatalf("bind: %v", s)
		}
		if s := p.write(mw.RKey(), at+9, 7); s != verbs.WCSuccess || p.mr.Bytes()[109] != 7 {
			t.Errorf("type %d: write through the window: %v, byte %d", typ, s, p.mr.Bytes()[109])
		}
		if err := p.mr.Dereg(); !errors.Is(err, syscall.EBUSY) {
			t.Errorf("type %d: the end of a region with a window: %v, want EBUSY", typ, err)
		}
		if err := p.mr.Rereg(verbs.ReregChangeAccess, nil, nil, verbs.AccessLocalWrite); !errors.Is(err, syscall.EBUSY) {
			t.Errorf("type %d: the change of a region with a window: %v, want EBUSY", typ, err)
		}
		if err := p.y.pd.Dealloc(); !errors.Is(err, syscall.EBUSY) {
			t.Errorf("type %d: the end of a domain in use: %v", typ, err)
		}
		key := mw.RKey()
		if err := mw.Dealloc(); err != nil {
			t.Fatal(err)
		}
		if s := p.write(key, at, 8); s != verbs.WCRemAccessErr || p.mr.Bytes()[100] != 0 {
			t.Errorf("type %d: write through a window that is gone: %v, byte %d", typ, s, p.mr.Bytes()[100])
		}
		if err := p.mr.Dereg(); err != nil {
			t.Errorf("type %d: %v", typ, err)
		}
	}
}

// A region for fast registration gets its pages from a work request.
func TestAllocMR(t *testing.T) {
	a := startAdapter(t, nil)
	p := newPairWithWindows(t, a)
	fast, err := p.y.pd.AllocFastMR(2)
	if err != nil {
		t.Fatal(err)
	}
	pages := []verbs.SGE{p.mr.SGE(4096, 4096), p.mr.SGE(0, 4096)}
	if s := p.status(p.y, fast.RegWR(1<<20, verbs.AccessLocalWrite|verbs.AccessRemoteWrite, pages)); s != verbs.WCSuccess {
		t.Fatalf("fast registration: %v", s)
	}
	if s := p.write(fast.RKey(), 1<<20+4096, 9); s != verbs.WCSuccess || p.mr.Bytes()[0] != 9 {
		t.Errorf("write to the second page: %v, byte %d", s, p.mr.Bytes()[0])
	}
	if s := p.write(fast.RKey(), 1<<20, 3); s != verbs.WCSuccess || p.mr.Bytes()[4096] != 3 {
		t.Errorf("write to the first page: %v, byte %d", s, p.mr.Bytes()[4096])
	}
	if err := p.mr.Dereg(); err != nil {
		t.Errorf("the region that has the pages: %v", err)
	}
	if s := p.write(fast.RKey(), 1<<20, 3); s != verbs.WCRemAccessErr {
		t.Errorf("write to pages that are gone: %v", s)
	}
	if err := fast.Dereg(); err != nil {
		t.Error(err)
	}
}

func TestWindowsBadInput(t *testing.T) {
	a := startAdapter(t, func(c *Config) { c.Limits.Program = Quota{MWs: 2, MRs: 1} })
	r := rawHello(t, a)
	pd := r.pd()
	alloc := func(pd uint32, typ mrtable.WindowType) answer {
		return r.call(uapi.OpAllocMW, &uapi.AllocMWRequest{PD: pd, Type: typ})
	}
	r.wantRefusal(alloc(9, 1), syscall.EINVAL, "handle 9")
	r.wantRefusal(alloc(pd, 0), syscall.EINVAL, "window type")
	r.wantRefusal(alloc(pd, 3), syscall.EINVAL, "window type")
	one := must[uapi.AllocMWReply](r, uapi.OpAllocMW, &uapi.AllocMWRequest{PD: pd, Type: 1})
	two := must[uapi.AllocMWReply](r, uapi.OpAllocMW, &uapi.AllocMWRequest{PD: pd, Type: 2})
	if one.RKey == two.RKey || one.Handle == two.Handle {
		t.Errorf("windows %+v and %+v", one, two)
	}
	r.wantRefusal(alloc(pd, 1), syscall.ENOMEM, "memory windows", "limit 2")
	for _, pages := range []uint32{0, mrtable.MaxPages + 1, 1<<32 - 1} {
		r.wantRefusal(r.call(uapi.OpAllocMR, &uapi.AllocMRRequest{PD: pd, MaxPages: pages}), syscall.EINVAL, "limit 512")
	}
	r.wantRefusal(r.call(uapi.OpAllocMR, &uapi.AllocMRRequest{PD: 9, MaxPages: 1}), syscall.EINVAL, "handle 9")
	fast := must[uapi.RegMRReply](r, uapi.OpAllocMR, &uapi.AllocMRRequest{PD: pd, MaxPages: 1})
	r.wantRefusal(r.call(uapi.OpAllocMR, &uapi.AllocMRRequest{PD: pd, MaxPages: 1}), syscall.ENOMEM, "memory regions")
	r.wantRefusal(r.call(uapi.OpReregMR, &uapi.ReregMRRequest{Handle: fast.Handle, Flags: uapi.ReregAccess}), syscall.EINVAL, "fast registration")
	r.wantRefusal(r.call(uapi.OpDeallocPD, &uapi.HandleRequest{Handle: pd}), syscall.EBUSY, "3 objects")
	for _, h := range []uint32{one.Handle, two.Handle} {
		must[uapi.Empty](r, uapi.OpDeallocMW, &uapi.HandleRequest{Handle: h})
		r.wantRefusal(r.call(uapi.OpDeallocMW, &uapi.HandleRequest{Handle: h}), syscall.EINVAL, "handle")
	}
	must[uapi.Empty](r, uapi.OpDeregMR, &uapi.HandleRequest{Handle: fast.Handle})
	must[uapi.Empty](r, uapi.OpDeallocPD, &uapi.HandleRequest{Handle: pd})
	if use := a.ledger.usage(); use[ResourceMWs] != 0 || use[ResourceMRs] != 0 || a.keys.Len() != 0 {
		t.Errorf("booked %v, %d keys", use, a.keys.Len())
	}
}

// A program that dies with windows bound and fast regions registered gives
// everything back, and its keys stop.
func TestDeathWithWindows(t *testing.T) {
	a := startAdapter(t, nil)
	base := processUsage(t)
	t.Run("program", func(t *testing.T) {
		p := newPairWithWindows(t, a)
		for range 3 {
			mw, err := p.y.pd.AllocMW(verbs.MWType2)
			if err != nil {
				t.Fatal(err)
			}
			if s := p.status(p.y, mw.BindWR(p.mr, p.mr.Addr(), 10, verbs.AccessRemoteWrite)); s != verbs.WCSuccess {
				t.Fatal(s)
			}
			fast, err := p.y.pd.AllocFastMR(1)
			if err != nil {
				t.Fatal(err)
			}
			if s := p.status(p.y, fast.RegWR(0, verbs.AccessLocalWrite, []verbs.SGE{p.mr.SGE(0, 4096)})); s != verbs.WCSuccess {
				t.Fatal(s)
			}
			if _, err := p.y.pd.RegImplicit(verbs.AccessOnDemand); err != nil {
				t.Fatal(err)
			}
		}
	})
	returnsTo(t, base)
	wantNothingLeft(t, a)
}

// Many requests that make no packet are carried out some at a time, and all of
// them, whether the peer is on the wire, on another worker or on the same one.
func TestManyBindsAreAllDone(t *testing.T) {
	for _, c := range []struct {
		name     string
		workers  int
		adapters int
	}{{"over the wire", 1, 2}, {"between two workers", 2, 1}, {"on one worker", 1, 1}} {
		t.Run(c.name, func(t *testing.T) {
			as := []*Adapter{startAdapter(t, func(cfg *Config) { cfg.Workers = c.workers }), nil}
			if as[1] = as[0]; c.adapters == 2 {
				as[1] = startAdapter(t, nil)
			}
			x, y := newEndpoint(t, openDevice(t, as[0]), 8192), newEndpoint(t, openDevice(t, as[1]), 8192)
			const binds = 300
			qp, err := x.pd.CreateQP(&verbs.QPInitAttr{SendCQ: x.cq, RecvCQ: x.cq, Type: verbs.RC, Cap: verbs.QPCap{MaxSendWR: 2*binds + 1, MaxSendSGE: 1}})
			if err != nil {
				t.Fatal(err)
			}
			x.qp = qp
			connectPair(t, x, y)
			mr, err := x.pd.AllocMR(4096, verbs.AccessLocalWrite|verbs.AccessMWBind)
			if err != nil {
				t.Fatal(err)
			}
			mw, err := x.pd.AllocMW(verbs.MWType2)
			if err != nil {
				t.Fatal(err)
			}
			var wrs []verbs.SendWR
			key := mw.RKey()
			for range binds {
				wr := mw.BindWR(mr, mr.Addr(), 64, verbs.AccessRemoteRead)
				key = verbs.IncRKey(key)
				wr.Bind.RKey = key
				wrs = append(wrs, wr, verbs.SendWR{Opcode: verbs.WRLocalInv, InvalidateRKey: key})
			}
			wrs = append(wrs, verbs.SendWR{
				WRID: 77, Opcode: verbs.WRRDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{x.mr.SGE(0, 8)}, RemoteAddr: y.mr.Addr(), RKey: y.mr.RKey(),
			})
			if _, err := x.qp.PostSend(wrs...); err != nil {
				t.Fatal(err)
			}
			if wc, err := completion(within(t), x.cq); err != nil || wc.Status != verbs.WCSuccess || wc.WRID != 77 {
				t.Fatalf("%+v, %v", wc, err)
			}
		})
	}
}
