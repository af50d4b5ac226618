package verbs

import (
	"bytes"
	"math"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/shm"
	"github.com/softroce/softroce/internal/uapi"
)

// What a registration asks for, and what the region then is.
func TestRegister(t *testing.T) {
	f, d := newFake(t)
	pd, err := d.AllocPD()
	check(t, err)
	buf := make([]byte, 100)
	at := shm.AddrOf(buf)
	for _, c := range []struct {
		name string
		reg  func() (*MR, error)
		want uapi.RegMRRequest
		size int
	}{
		{
			"RegMR", func() (*MR, error) { return pd.RegMR(buf, AccessLocalWrite) },
			uapi.RegMRRequest{Kind: uapi.MRForeign, Addr: at, IOVA: at, Length: 100, Access: AccessLocalWrite},
			100,
		},
		{
			"zero-based", func() (*MR, error) { return pd.RegMR(buf, AccessZeroBased) },
			uapi.RegMRRequest{Kind: uapi.MRForeign, Addr: at, IOVA: 0, Length: 100, Access: AccessZeroBased},
			100,
		},
		{
			"RegMRIova", func() (*MR, error) { return pd.RegMRIova(buf, 0x10000, AccessRemoteRead) },
			uapi.RegMRRequest{Kind: uapi.MRForeign, Addr: at, IOVA: 0x10000, Length: 100, Access: AccessRemoteRead},
			100,
		},
		{
			"on demand", func() (*MR, error) { return pd.RegMR(buf, AccessOnDemand) },
			uapi.RegMRRequest{Kind: uapi.MRForeign, Addr: at, IOVA: at, Length: 100, Access: AccessOnDemand},
			100,
		},
		{
			"RegImplicit", func() (*MR, error) { return pd.RegImplicit(AccessLocalWrite) },
			uapi.RegMRRequest{Kind: uapi.MRImplicit, Access: AccessLocalWrite | AccessOnDemand},
			math.MaxInt,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			var m uapi.RegMRRequest
			f.answer(uapi.OpRegMR, decodes(t, &m, &uapi.RegMRReply{Handle: f.next(), LKey: 0x300, RKey: 0x301}))
			mr, err := c.reg()
			check(t, err)
			c.want.PD = pd.handle
			if m != c.want {
				t.Errorf("asked for %+v, want %+v", m, c.want)
			}
			if mr.LKey() != 0x300 || mr.RKey() != 0x301 || mr.IOVA() != c.want.IOVA || mr.Addr() != c.want.Addr || mr.Len() != c.size {
				t.Errorf("region %+v", mr)
			}
			if e := mr.SGE(7, 9); e != (SGE{Addr: c.want.IOVA + 7, Length: 9, LKey: 0x300}) {
				t.Errorf("element %+v", e)
			}
			if e := mr.SGEOf(buf[3:5]); e != (SGE{Addr: at + 3, Length: 2, LKey: 0x300}) {
				t.Errorf("element by address %+v", e)
			}
			check(t, mr.Dereg())
		})
	}
	_, err = pd.RegMR(nil, 0)
	want(t, "no memory", err, unix.EINVAL)
}

// Inline data is gathered by the addresses that elements have, not the program's.
func TestInlineOfIova(t *testing.T) {
	f, d := newFake(t)
	o := newObjects(t, d, RC, StateRTS)
	f.answer(uapi.OpRegMR, says(&uapi.RegMRReply{Handle: 1, LKey: 0x300, RKey: 0x300}, 0))
	mr, err := o.pd.RegMRIova([]byte("abcdefgh"), 0x10000, 0)
	check(t, err)
	_, err = o.qp.PostSend(SendWR{Opcode: WRSend, Flags: SendInline, SGList: []SGE{mr.SGE(2, 3), mr.SGE(0, 1)}})
	check(t, err)
	if got := f.sent(o.qp); len(got) != 1 || string(got[0].Inline) != "cdea" {
		t.Errorf("posted %+v", got)
	}
	_, err = o.qp.PostSend(SendWR{Opcode: WRSend, Flags: SendInline, SGList: []SGE{{Addr: mr.Addr(), Length: 1, LKey: 0x300}}})
	want(t, "the program's address", err, unix.EINVAL)
}

// A re-registration changes what its flags name, keys included, and nothing when
// it is refused.
func TestRereg(t *testing.T) {
	f, d := newFake(t)
	pd, err := d.AllocPD()
	check(t, err)
	pd2, err := d.AllocPD()
	check(t, err)
	mr := f.region(t, pd, 8192, 0x500, AccessLocalWrite)
	mem, base := mr.Bytes(), mr.Addr()
	var m uapi.ReregMRRequest
	fds := -1
	keep := func(key uint32) {
		f.answer(uapi.OpReregMR, func(body []byte, got []int) (uapi.Body, []int, unix.Errno) {
			check(t, m.Decode(body))
			fds = len(got)
			return &uapi.RegMRReply{Handle: mr.handle, LKey: LKey(key), RKey: RKey(key)}, nil, 0
		})
	}
	keep(0x501)
	check(t, mr.Rereg(ReregChangeAccess|ReregChangePD, pd2, nil, AccessRemoteRead))
	if m.Handle != mr.handle || m.Flags != ReregChangeAccess|ReregChangePD || m.MR.PD != pd2.handle || m.MR.Access != AccessRemoteRead || fds != 0 {
		t.Errorf("asked for %+v with %d descriptors", m, fds)
	}
	if mr.LKey() != 0x501 || mr.Access() != AccessRemoteRead || mr.pd != pd2 || mr.Addr() != base {
		t.Errorf("region %+v", mr)
	}
	if d.mrs[0x501] != mr || d.mrs[0x500] != nil {
		t.Error("the key is not the region's")
	}
	keep(0x502)
	check(t, mr.Rereg(ReregChangeTranslation, nil, mem[4096:6000], 0))
	if m.MR.Kind != uapi.MRShared || m.MR.Offset != 4096 || m.MR.Addr != base+4096 || m.MR.IOVA != base+4096 || m.MR.Length != 1904 || fds != 1 {
		t.Errorf("a part of the memory: %+v with %d descriptors", m.MR, fds)
	}
	if mr.Addr() != base+4096 || mr.Len() != 1904 {
		t.Errorf("region of %d bytes at %#x", mr.Len(), mr.Addr())
	}
	other := make([]byte, 64)
	keep(0x502)
	check(t, mr.Rereg(ReregChangeTranslation|ReregChangeAccess, nil, other, AccessZeroBased))
	if m.MR.Kind != uapi.MRForeign || m.MR.Addr != shm.AddrOf(other) || m.MR.IOVA != 0 || fds != 0 || !bytes.Equal(mr.Bytes(), other) {
		t.Errorf("other memory: %+v with %d descriptors", m.MR, fds)
	}
	mem[0] = 1 // is mapped until Dereg

	f.answer(uapi.OpReregMR, says(nil, unix.EBUSY))
	want(t, "a bound region", mr.Rereg(ReregChangeAccess, nil, nil, 0), unix.EBUSY)
	for what, err := range map[string]error{
		"no flags":                mr.Rereg(0, nil, nil, 0),
		"unknown flags":           mr.Rereg(8, nil, nil, 0),
		"no domain":               mr.Rereg(ReregChangePD, nil, nil, 0),
		"no memory":               mr.Rereg(ReregChangeTranslation, nil, nil, 0),
		"access without its flag": mr.Rereg(ReregChangePD, pd, nil, AccessRemoteRead),
		"a domain of another":     mr.Rereg(ReregChangePD, &PD{}, nil, 0),
	} {
		want(t, what, err, unix.EINVAL)
	}
	if mr.Access() != AccessZeroBased || mr.LKey() != 0x502 || mr.Len() != 64 {
		t.Errorf("after refusals: %+v", mr)
	}
	check(t, mr.Dereg())
}

// A fast registration takes pages under the next key; the keys are the new ones
// once it is posted.
func TestFastRegistration(t *testing.T) {
	f, d := newFake(t)
	o := newObjects(t, d, RC, StateRTS)
	mr := f.region(t, o.pd, 16384, 0x500, AccessLocalWrite)
	var m uapi.AllocMRRequest
	f.answer(uapi.OpAllocMR, decodes(t, &m, &uapi.RegMRReply{Handle: 77, LKey: 0x9900, RKey: 0x9900}))
	fast, err := o.pd.AllocFastMR(16)
	check(t, err)
	if m.PD != o.pd.handle || m.MaxPages != 16 {
		t.Errorf("asked for %+v", m)
	}
	pages := mr.Pages(4096, 6000, 4096)
	if len(pages) != 2 || pages[0] != mr.SGE(4096, 4096) || pages[1] != mr.SGE(8192, 4096) {
		t.Errorf("pages %+v", pages)
	}
	_, err = o.qp.PostSend(fast.RegWR(0xABC000, AccessRemoteRead, pages))
	check(t, err)
	got := f.sent(o.qp)
	if len(got) != 1 || got[0].Opcode != WRRegMR || len(got[0].SGList) != 2 || got[0].Bind != (Bind{RKey: 0x9901, Addr: 0xABC000, Length: 8192, Access: AccessRemoteRead}) {
		t.Errorf("posted %+v", got)
	}
	if fast.RKey() != 0x9901 || fast.LKey() != 0x9901 || fast.SGE(16, 1) != (SGE{Addr: 0xABC010, Length: 1, LKey: 0x9901}) || fast.Len() != 8192 {
		t.Errorf("region %+v", fast)
	}
	check(t, fast.Dereg())
	if len(d.rekeyed) != 0 {
		t.Error("the region is still known")
	}
	_, err = o.pd.AllocFastMR(0)
	want(t, "no pages", err, unix.EINVAL)
}

func TestAdviseMR(t *testing.T) {
	f, d := newFake(t)
	pd, err := d.AllocPD()
	check(t, err)
	var m uapi.AdviseMRRequest
	f.answer(uapi.OpAdviseMR, decodes(t, &m, nil))
	check(t, pd.AdviseMR(AdvisePrefetchWrite, AdviseFlush, SGE{Addr: 1, Length: 2, LKey: 3}, SGE{}))
	if m.PD != pd.handle || m.Advice != 1 || m.Flags != 1 || len(m.SGList) != 2 || m.SGList[0] != (SGE{Addr: 1, Length: 2, LKey: 3}) {
		t.Errorf("asked for %+v", m)
	}
	want(t, "unknown advice", pd.AdviseMR(3, 0, SGE{}), unix.EINVAL)
	want(t, "unknown flags", pd.AdviseMR(0, 2, SGE{}), unix.EINVAL)
	want(t, "no ranges", pd.AdviseMR(0, 0), unix.EINVAL)
	want(t, "too many ranges", pd.AdviseMR(0, 0, make([]SGE, 1025)...), unix.EINVAL)
}
