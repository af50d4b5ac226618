package verbs

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/uapi"
)

// region makes a region that the fake gives these keys.
func (f *fake) region(t *testing.T, pd *PD, n int, key uint32, access Access) *MR {
	t.Helper()
	f.answer(uapi.OpRegMR, says(&uapi.RegMRReply{Handle: f.next(), LKey: LKey(key), RKey: RKey(key)}, 0))
	mr, err := pd.AllocMR(n, access)
	check(t, err)
	return mr
}

func (f *fake) window(t *testing.T, pd *PD, typ WindowType, key RKey) *MW {
	t.Helper()
	var m uapi.AllocMWRequest
	f.answer(uapi.OpAllocMW, decodes(t, &m, &uapi.AllocMWReply{Handle: f.next(), RKey: key}))
	w, err := pd.AllocMW(typ)
	check(t, err)
	if m.Type != typ || m.PD != pd.handle || w.Type() != typ || w.RKey() != key {
		t.Errorf("window %+v of the request %+v", w, m)
	}
	return w
}

func TestIncRKey(t *testing.T) {
	for k, want := range map[RKey]RKey{0x12345600: 0x12345601, 0x123456FF: 0x12345600, 0xFFFFFFFF: 0xFFFFFF00, 0: 1} {
		if got := IncRKey(k); got != want {
			t.Errorf("IncRKey(%#x) = %#x, want %#x", uint32(k), uint32(got), uint32(want))
		}
	}
}

// BindMW posts a bind under the next key and hands that out; what the manual
// refuses is refused, and the key then stays.
func TestBindMWType1(t *testing.T) {
	f, d := newFake(t)
	o := newObjects(t, d, RC, StateRTS)
	mr := f.region(t, o.pd, 4096, 0x500, AccessLocalWrite|AccessMWBind)
	w := f.window(t, o.pd, MWType1, 0x77FF)
	check(t, o.qp.BindMW(w, MWBind{WRID: 9, Flags: SendSignaled, MR: mr, Addr: mr.IOVA() + 8, Length: 16, Access: AccessRemoteRead}))
	if w.RKey() != 0x7700 {
		t.Errorf("key %#x after a bind, want 0x7700", uint32(w.RKey()))
	}
	got := f.sent(o.qp)
	wantBind := Bind{RKey: 0x7700, MR: 0x500, Addr: mr.IOVA() + 8, Length: 16, Access: AccessRemoteRead}
	if len(got) != 1 || got[0].Opcode != WRBindMW || got[0].WRID != 9 || got[0].Flags != SendSignaled || got[0].Bind != wantBind {
		t.Errorf("posted %+v, want a bind %+v", got, wantBind)
	}
	check(t, o.qp.BindMW(w, MWBind{}))
	if got := f.sent(o.qp); len(got) != 1 || got[0].Bind != (Bind{RKey: 0x7701}) {
		t.Errorf("an unbind is %+v", got)
	}
	pd2, err := d.AllocPD()
	check(t, err)
	mr2 := f.region(t, pd2, 4096, 0x600, AccessLocalWrite|AccessMWBind)
	w2 := f.window(t, o.pd, MWType2, 0x8800)
	w3 := f.window(t, pd2, MWType1, 0x9900)
	want(t, "type 2", o.qp.BindMW(w2, MWBind{MR: mr, Length: 1}), unix.EINVAL)
	want(t, "no region", o.qp.BindMW(w, MWBind{Length: 1}), unix.EINVAL)
	want(t, "a region of another domain", o.qp.BindMW(w, MWBind{MR: mr2, Length: 1}), unix.EPERM)
	want(t, "a window of another domain", o.qp.BindMW(w3, MWBind{MR: mr, Length: 1}), unix.EPERM)
	o2 := newObjects(t, d, RC, StateInit)
	w4 := f.window(t, o2.pd, MWType1, 0xAA00)
	want(t, "INIT", o2.qp.BindMW(w4, MWBind{}), unix.EINVAL)
	if w.RKey() != 0x7701 || w4.RKey() != 0xAA00 {
		t.Errorf("keys %#x, %#x after refusals", uint32(w.RKey()), uint32(w4.RKey()))
	}
	check(t, w.Dealloc())
	ud := newObjects(t, d, UD, StateRTS)
	w5 := f.window(t, ud.pd, MWType1, 0xBB00)
	want(t, "UD", ud.qp.BindMW(w5, MWBind{}), unix.EINVAL)
}

// A window of type 2 takes the key of the request that was posted.
func TestBindWR(t *testing.T) {
	f, d := newFake(t)
	o := newObjects(t, d, RC, StateRTS)
	mr := f.region(t, o.pd, 4096, 0x500, AccessLocalWrite|AccessMWBind)
	w := f.window(t, o.pd, MWType2, 0x7701)
	wr := w.BindWR(mr, mr.IOVA(), 64, AccessRemoteWrite)
	if w.RKey() != 0x7701 {
		t.Error("the key changed before the post")
	}
	_, err := o.qp.PostSend(wr)
	check(t, err)
	if w.RKey() != 0x7702 {
		t.Errorf("key %#x after the post", uint32(w.RKey()))
	}
	_, err = o.qp.PostSend(SendWR{Opcode: WRLocalInv, InvalidateRKey: w.RKey()}, SendWR{Opcode: WRSendWithInv, InvalidateRKey: 5})
	check(t, err)
	got := f.sent(o.qp)
	if len(got) != 3 || got[1].InvalidateRKey != 0x7702 || got[2].InvalidateRKey != 5 || got[0].Bind.RKey != 0x7702 {
		t.Errorf("posted %+v", got)
	}
}
