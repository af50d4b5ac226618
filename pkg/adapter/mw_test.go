package adapter_test

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/pkg/verbs"
)

// windowed is a pair whose b has a region that windows may be bound to. Peers of
// a need no right of the region itself.
func windowed(t *testing.T) (a, b *program) {
	t.Helper()
	a = start(t, nil).open(t, shape{})
	b = start(t, nil).open(t, shape{access: verbs.AccessLocalWrite | verbs.AccessMWBind})
	connect(a, b, verbs.RCConfig{})
	return a, b
}

// again takes both ends of a pair that failed to RESET, and connects them.
func again(a, b *program) {
	a.t.Helper()
	for _, p := range []*program{a, b} {
		must(a.t, p.qp.Modify(&verbs.QPAttr{State: verbs.StateReset}, verbs.QPStateMask))
	}
	for _, p := range []*program{a, b} {
		for {
			var wcs [16]verbs.WC
			if n, err := p.cq.Poll(wcs[:]); n == 0 {
				must(a.t, err)
				break
			}
		}
	}
	connect(a, b, verbs.RCConfig{})
}

// through is a WRITE of n bytes by a key.
func (p *program) through(k verbs.RKey, addr uint64, n int) verbs.SendWR {
	return verbs.SendWR{
		Opcode: verbs.WRRDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{p.mr.SGE(0, n)}, RemoteAddr: addr, RKey: k,
	}
}

// refused posts a request that the peer's memory refuses, and connects again.
func refused(a, b *program, what string, wr verbs.SendWR) {
	a.t.Helper()
	a.post(wr)
	if wc := a.next(); wc.Status != verbs.WCRemAccessErr {
		a.t.Errorf("%s: %v, want IBV_WC_REM_ACCESS_ERR", what, wc.Status)
	}
	again(a, b)
}

// A window of type 1: bound by ibv_bind_mw, moved, unbound; its old keys are
// dead, its range and rights are its own.
func TestWindowType1(t *testing.T) {
	a, b := windowed(t)
	w, err := b.pd.AllocMW(verbs.MWType1)
	must(t, err)
	at := b.mr.Addr() + 1000
	bind := func(n uint64, access verbs.Access) verbs.RKey {
		t.Helper()
		mwb := verbs.MWBind{WRID: 3, Flags: verbs.SendSignaled, MR: b.mr, Addr: at, Length: n, Access: access}
		if n == 0 {
			mwb.MR = nil
		}
		must(t, b.qp.BindMW(w, mwb))
		if wc := b.status(3, verbs.WCSuccess); wc.Opcode != verbs.WCBindMW {
			t.Errorf("a bind completes as %v", wc.Opcode)
		}
		return w.RKey()
	}
	first := bind(100, verbs.AccessRemoteWrite)
	fill(a.mr.Bytes()[:100], 1)
	a.do(a.through(first, at, 100))
	if got := b.mr.Bytes()[1000]; got != a.mr.Bytes()[0] {
		t.Errorf("byte %d arrived", got)
	}
	refused(a, b, "beyond the window", a.through(first, at+1, 100))
	refused(a, b, "the region itself", a.through(b.mr.RKey(), at, 1))
	read := a.through(first, at, 8)
	read.Opcode = verbs.WRRDMARead
	refused(a, b, "a right that the window lacks", read)
	wantErrno(t, "a region with a window", b.mr.Dereg(), unix.EBUSY)
	second := bind(8, verbs.AccessRemoteRead|verbs.AccessRemoteWrite)
	read.RKey = second
	a.do(read)
	refused(a, b, "the key before", a.through(first, at, 1))
	bind(0, 0)
	refused(a, b, "unbound", a.through(w.RKey(), at, 1))
	must(t, w.Dealloc())
	must(t, b.mr.Dereg())
}

// A window of type 2 belongs to its queue pair, and ends by the owner's local
// invalidation or by the peer's SEND with invalidate, which tells the key.
func TestWindowType2(t *testing.T) {
	a, b := windowed(t)
	w, err := b.pd.AllocMW(verbs.MWType2)
	must(t, err)
	at := b.mr.Addr()
	bind := func() verbs.RKey {
		t.Helper()
		b.do(w.BindWR(b.mr, at, 64, verbs.AccessRemoteWrite|verbs.AccessRemoteRead))
		return w.RKey()
	}
	key := bind()
	a.do(a.through(key, at, 64))
	b.do(verbs.SendWR{Opcode: verbs.WRLocalInv, InvalidateRKey: key})
	refused(a, b, "invalidated by the owner", a.through(key, at, 64))

	key = bind()
	a.do(a.through(key, at, 64))
	b.recv(5, 4096, 64)
	a.do(verbs.SendWR{Opcode: verbs.WRSendWithInv, InvalidateRKey: key, SGList: []verbs.SGE{a.mr.SGE(0, 8)}})
	wc := b.status(5, verbs.WCSuccess)
	if wc.Opcode != verbs.WCRecv || wc.Flags != verbs.WCWithInv || wc.InvalidatedRKey != uint32(key) || wc.ByteLen != 8 {
		t.Errorf("SEND with invalidate: %+v, want key %#x", wc, uint32(key))
	}
	refused(a, b, "invalidated by the peer", a.through(key, at, 64))

	// Another queue pair of the domain does not have it.
	key = bind()
	mine, theirs := b.qp, a.qp
	a.qp, b.qp = a.newQP(8, false), b.newQP(8, false)
	connect(a, b, verbs.RCConfig{})
	refused(a, b, "by another queue pair", a.through(key, at, 64))
	a.qp, b.qp = theirs, mine
	a.do(a.through(key, at, 64))
	wantErrno(t, "type 2 by ibv_bind_mw", b.qp.BindMW(w, verbs.MWBind{MR: b.mr, Addr: at, Length: 8}), unix.EINVAL)
	must(t, w.Dealloc())
	refused(a, b, "the window is gone", a.through(key, at, 64))
}

// A bind that may not be fails with MW_BIND_ERR, and so does what is bound
// already.
func TestWindowBindErrors(t *testing.T) {
	a, b := windowed(t)
	w, err := b.pd.AllocMW(verbs.MWType2)
	must(t, err)
	plain, err := b.pd.AllocMR(4096, verbs.AccessLocalWrite)
	must(t, err)
	readOnly, err := b.pd.AllocMR(4096, verbs.AccessMWBind)
	must(t, err)
	end := b.mr.Addr() + uint64(b.mr.Len())
	for _, c := range []struct {
		name string
		wr   verbs.SendWR
	}{
		{"outside of the region", w.BindWR(b.mr, end-8, 9, verbs.AccessRemoteRead)},
		{"before the region", w.BindWR(b.mr, b.mr.Addr()-1, 9, verbs.AccessRemoteRead)},
		{"a region without the right", w.BindWR(plain, plain.Addr(), 8, verbs.AccessRemoteRead)},
		{"remote write of a region without local write", w.BindWR(readOnly, readOnly.Addr(), 8, verbs.AccessRemoteWrite)},
		{"no bytes", w.BindWR(b.mr, b.mr.Addr(), 0, verbs.AccessRemoteRead)},
	} {
		c.wr.Flags = verbs.SendSignaled
		b.post(c.wr)
		if wc := b.next(); wc.Status != verbs.WCMWBindErr {
			t.Errorf("%s: %v, want IBV_WC_MW_BIND_ERR", c.name, wc.Status)
		}
		again(a, b)
	}
	b.do(w.BindWR(b.mr, b.mr.Addr(), 8, verbs.AccessRemoteRead))
	bad := w.BindWR(b.mr, b.mr.Addr(), 8, verbs.AccessRemoteRead)
	bad.Flags = verbs.SendSignaled
	b.post(bad)
	b.status(0, verbs.WCMWBindErr)
	_, err = b.pd.AllocMW(3)
	wantErrno(t, "a window of type 3", err, unix.EINVAL)
	wantErrno(t, "a domain with a window", b.pd.Dealloc(), unix.EBUSY)
}
