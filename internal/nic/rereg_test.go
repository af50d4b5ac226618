package nic

import (
	"bytes"
	"errors"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/shm"
	"github.com/softroce/softroce/internal/uapi"
	"github.com/softroce/softroce/pkg/mrtable"
	"github.com/softroce/softroce/pkg/wq"
)

const regionAccess = mrtable.AccessLocalWrite | mrtable.AccessRemoteWrite

// domainOf is the domain behind a handle of the only program.
func domainOf(t *testing.T, a *Adapter, handle uint32) mrtable.PD {
	t.Helper()
	p := a.programList()[0]
	p.mu.Lock()
	defer p.mu.Unlock()
	d, ok := p.pds.lookup(handle)
	if !ok {
		t.Fatalf("no PD %d", handle)
	}
	return d.pd
}

// filled makes a sealed memory file of n bytes of v.
func filled(t *testing.T, n int, v byte) int {
	t.Helper()
	fd := memfd(t, int64(n), 0)
	if _, err := unix.Pwrite(fd, bytes.Repeat([]byte{v}, n), 0); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW); err != nil {
		t.Fatal(err)
	}
	return fd
}

// wantByte checks what a key gives at an address.
func wantByte(t *testing.T, a *Adapter, rep uapi.RegMRReply, pd mrtable.PD, va uint64, need mrtable.Access, want byte) {
	t.Helper()
	s, err := a.keys.Local(rep.LKey, pd, va, 1, need)
	if err != nil {
		t.Errorf("lkey %#x at %#x: %v", uint32(rep.LKey), va, err)
		return
	}
	var b [1]byte
	if err := s.ReadAt(b[:], 0); err != nil || b[0] != want {
		t.Errorf("lkey %#x at %#x: %d (%v), want %d", uint32(rep.LKey), va, b[0], err, want)
	}
}

func wantNoKey(t *testing.T, a *Adapter, rep uapi.RegMRReply, pd mrtable.PD, va uint64, want error) {
	t.Helper()
	if _, err := a.keys.Local(rep.LKey, pd, va, 1, 0); !errors.Is(err, want) {
		t.Errorf("lkey %#x at %#x: %v, want %v", uint32(rep.LKey), va, err, want)
	}
}

// ibv_rereg_mr(3): translation, domain and rights change alone and together;
// the old keys end, the old memory is unmapped, and the books are right.
func TestReregMR(t *testing.T) {
	a := startAdapter(t, nil)
	r := rawHello(t, a)
	pdA, pdB := r.pd(), r.pd()
	numA, numB := domainOf(t, a, pdA), domainOf(t, a, pdB)
	mr := must[uapi.RegMRReply](r, uapi.OpRegMR, &uapi.RegMRRequest{
		PD: pdA, Kind: uapi.MRShared, Length: 4096, IOVA: 0x10000, Access: regionAccess,
	}, filled(t, 4096, 1))
	wantByte(t, a, mr, numA, 0x10fff, mrtable.AccessLocalWrite, 1)
	rereg := func(flags uapi.ReregFlags, m uapi.RegMRRequest, fds ...int) {
		t.Helper()
		old := mr
		mr = must[uapi.RegMRReply](r, uapi.OpReregMR, &uapi.ReregMRRequest{Handle: old.Handle, Flags: flags, MR: m}, fds...)
		if mr.Handle != old.Handle || mr.LKey == old.LKey {
			t.Errorf("rereg %d: handle %d, lkey %#x; was %d, %#x", flags, mr.Handle, uint32(mr.LKey), old.Handle, uint32(old.LKey))
		}
		for _, n := range []mrtable.PD{numA, numB} {
			wantNoKey(t, a, old, n, 0x10000, mrtable.ErrKey)
		}
	}
	rereg(uapi.ReregAccess, uapi.RegMRRequest{PD: 99, Access: mrtable.AccessZeroBased, Length: 1 << 60})
	wantByte(t, a, mr, numA, 0, 0, 1)
	wantNoKey(t, a, mr, numA, 0x10000, mrtable.ErrBounds)
	if _, err := a.keys.Local(mr.LKey, numA, 0, 1, mrtable.AccessLocalWrite); !errors.Is(err, mrtable.ErrAccess) {
		t.Errorf("a right that was taken away: %v", err)
	}
	rereg(uapi.ReregAccess|uapi.ReregPD, uapi.RegMRRequest{PD: pdB, Access: regionAccess})
	wantByte(t, a, mr, numB, 0x10000, mrtable.AccessLocalWrite, 1)
	wantNoKey(t, a, mr, numA, 0x10000, mrtable.ErrPD)
	r.wantRefusal(r.call(uapi.OpDeallocPD, &uapi.HandleRequest{Handle: pdB}), syscall.EBUSY)
	if got := r.call(uapi.OpDeallocPD, &uapi.HandleRequest{Handle: pdA}); got.errno != 0 {
		t.Errorf("the domain that the region left: %v", got.text)
	}
	rereg(uapi.ReregTranslation, uapi.RegMRRequest{Kind: uapi.MRShared, Offset: 4096, Length: 8192, IOVA: 0x20000}, filled(t, 12288, 2))
	wantByte(t, a, mr, numB, 0x21fff, mrtable.AccessLocalWrite, 2)
	wantNoKey(t, a, mr, numB, 0x10000, mrtable.ErrBounds)
	use := a.ledger.usage()
	if use[ResourceMappings] != 1 || use[ResourceMappedBytes] != 12288 || use[ResourceRegisteredBytes] != 8192 || use[ResourceMRs] != 1 {
		t.Errorf("booked %v", use)
	}
	rereg(uapi.ReregTranslation|uapi.ReregPD|uapi.ReregAccess, uapi.RegMRRequest{
		PD: pdB, Kind: uapi.MRShared, Length: 1, IOVA: 7, Access: mrtable.AccessLocalWrite,
	}, filled(t, 1, 3))
	wantByte(t, a, mr, numB, 7, mrtable.AccessLocalWrite, 3)
	if use := a.ledger.usage(); use[ResourceRegisteredBytes] != 1 || use[ResourceMappedBytes] != 1 {
		t.Errorf("booked %v", use)
	}
	if a.keys.Len() != 1 {
		t.Errorf("%d keys, want 1", a.keys.Len())
	}
}

// A re-registration that is refused leaves the region as it was.
func TestReregMRBadInput(t *testing.T) {
	a := startAdapter(t, func(c *Config) { c.Limits.Program = Quota{RegisteredBytes: 8192, MRs: 1} })
	r := rawHello(t, a)
	pd := r.pd()
	num := domainOf(t, a, pd)
	mr := must[uapi.RegMRReply](r, uapi.OpRegMR, &uapi.RegMRRequest{
		PD: pd, Kind: uapi.MRShared, Length: 4096, Access: regionAccess,
	}, filled(t, 4096, 1))
	before := a.ledger.usage()
	shared := uapi.RegMRRequest{Kind: uapi.MRShared, Length: 4096}
	for _, row := range []struct {
		name  string
		flags uapi.ReregFlags
		m     uapi.RegMRRequest
		fds   []int
		errno syscall.Errno
		word  string
	}{
		{"nothing", 0, shared, nil, syscall.EINVAL, "changes nothing"},
		{"unknown flags", 8, shared, nil, syscall.EINVAL, "flags 0x8"},
		{"unknown domain", uapi.ReregPD, uapi.RegMRRequest{PD: 9}, nil, syscall.EINVAL, "handle 9"},
		{"unknown kind", uapi.ReregTranslation, uapi.RegMRRequest{Kind: 4}, nil, syscall.EINVAL, "kind 4"},
		{"remote write without local", uapi.ReregAccess, uapi.RegMRRequest{Access: mrtable.AccessRemoteWrite}, nil, syscall.EINVAL, "local write"},
		{"no descriptor", uapi.ReregTranslation, shared, nil, syscall.EINVAL, "descriptor"},
		{"a descriptor without use", uapi.ReregAccess, uapi.RegMRRequest{Access: 1}, []int{filled(t, 1, 1)}, syscall.EINVAL, "descriptor"},
		{"unsealed", uapi.ReregTranslation, shared, []int{memfd(t, 4096, 0)}, syscall.EINVAL, "seal"},
		{"outside the file", uapi.ReregTranslation, uapi.RegMRRequest{Kind: uapi.MRShared, Offset: 1, Length: 4096}, []int{filled(t, 4096, 1)}, syscall.EINVAL, ""},
		{"wraps", uapi.ReregTranslation, uapi.RegMRRequest{Kind: uapi.MRShared, Length: 4096, IOVA: 1<<64 - 1}, []int{filled(t, 4096, 1)}, syscall.EINVAL, "wraps"},
		{"over the limit", uapi.ReregTranslation, uapi.RegMRRequest{Kind: uapi.MRShared, Length: 8193}, []int{filled(t, 12288, 1)}, syscall.ENOMEM, "registered bytes"},
	} {
		t.Run(row.name, func(t *testing.T) {
			got := r.call(uapi.OpReregMR, &uapi.ReregMRRequest{Handle: mr.Handle, Flags: row.flags, MR: row.m}, row.fds...)
			r.wantRefusal(got, row.errno, row.word)
			wantByte(t, a, mr, num, 0, mrtable.AccessLocalWrite, 1)
			if use := a.ledger.usage(); use != before || a.keys.Len() != 1 {
				t.Errorf("booked %v and %d keys, was %v", use, a.keys.Len(), before)
			}
		})
	}
	r.wantRefusal(r.call(uapi.OpReregMR, &uapi.ReregMRRequest{Handle: 7, Flags: 4}), syscall.EINVAL, "handle 7")
	// Bytes at the limit: the difference counts, not the sum.
	mr = must[uapi.RegMRReply](r, uapi.OpReregMR, &uapi.ReregMRRequest{
		Handle: mr.Handle, Flags: uapi.ReregTranslation, MR: uapi.RegMRRequest{Kind: uapi.MRShared, Length: 8192},
	}, filled(t, 8192, 4))
	wantByte(t, a, mr, num, 8191, 0, 4)
}

// IBV_ACCESS_ON_DEMAND over the whole address space: whatever the program has
// mapped can be reached under one key, what it has not fails at the access.
func TestImplicitRegion(t *testing.T) {
	a := startAdapter(t, nil)
	r := rawHello(t, a)
	pd := r.pd()
	num := domainOf(t, a, pd)
	ok := uapi.RegMRRequest{PD: pd, Kind: uapi.MRImplicit, Access: regionAccess | mrtable.AccessOnDemand}
	with := func(f func(*uapi.RegMRRequest)) *uapi.RegMRRequest { m := ok; f(&m); return &m }
	for word, m := range map[string]*uapi.RegMRRequest{
		"on-demand":  with(func(m *uapi.RegMRRequest) { m.Access = regionAccess }),
		"zero-based": with(func(m *uapi.RegMRRequest) { m.Access |= mrtable.AccessZeroBased }),
		"iova":       with(func(m *uapi.RegMRRequest) { m.IOVA = 4096 }),
		"length":     with(func(m *uapi.RegMRRequest) { m.Length = 1 }),
		"0x1000":     with(func(m *uapi.RegMRRequest) { m.Addr = 4096 }),
		"handle 9":   with(func(m *uapi.RegMRRequest) { m.PD = 9 }),
	} {
		r.wantRefusal(r.call(uapi.OpRegMR, m), syscall.EINVAL, word)
	}
	r.wantRefusal(r.call(uapi.OpRegMR, &ok, memfd(t, 4096, 0)), syscall.EINVAL, "descriptor")
	mr := must[uapi.RegMRReply](r, uapi.OpRegMR, &ok)
	if use := a.ledger.usage(); use[ResourceRegisteredBytes] != 0 || use[ResourceMRs] != 1 {
		t.Errorf("booked %v", use)
	}
	// This process is the program.
	mem, err := unix.Mmap(-1, 0, 8192, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Mprotect(mem[4096:], unix.PROT_NONE); err != nil {
		t.Fatal(err)
	}
	at := shm.AddrOf(mem)
	s, err := a.keys.Local(mr.LKey, num, at, 8192, mrtable.AccessLocalWrite)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.WriteAt([]byte("on demand"), 0); err != nil || !bytes.HasPrefix(mem, []byte("on demand")) {
		t.Errorf("wrote %q, %v", mem[:9], err)
	}
	if err := s.WriteAt([]byte{1}, 4096); !errors.Is(err, unix.EFAULT) {
		t.Errorf("a page that is not there: %v", err)
	}
	if _, err := a.keys.Local(mr.LKey, num, 1<<64-2, 2, 0); !errors.Is(err, mrtable.ErrBounds) {
		t.Errorf("the end of the address space: %v", err)
	}
	// A region may become implicit, and stop being so.
	mr = must[uapi.RegMRReply](r, uapi.OpReregMR, &uapi.ReregMRRequest{
		Handle: mr.Handle, Flags: uapi.ReregTranslation, MR: uapi.RegMRRequest{Kind: uapi.MRForeign, Addr: at, Length: 16, IOVA: at},
	})
	wantByte(t, a, mr, num, at, 0, 'o')
	wantNoKey(t, a, mr, num, at+16, mrtable.ErrBounds)
	if err := unix.Munmap(mem); err != nil {
		t.Fatal(err)
	}
}

// A program whose memory may not be reached gets no implicit region either.
func TestImplicitRegionNeedsPermission(t *testing.T) {
	a := startAdapter(t, nil)
	r := rawHello(t, a)
	pd := r.pd()
	p := a.programList()[0]
	p.mu.Lock()
	p.cred.UID++ // as another user's program
	p.mu.Unlock()
	got := r.call(uapi.OpRegMR, &uapi.RegMRRequest{PD: pd, Kind: uapi.MRImplicit, Access: mrtable.AccessOnDemand})
	r.wantRefusal(got, syscall.EPERM, "shared regions")
}

// ibv_advise_mr(3): EINVAL for what is wrong, else done.
func TestAdviseMR(t *testing.T) {
	a := startAdapter(t, nil)
	r := rawHello(t, a)
	pd, other := r.pd(), r.pd()
	rw := must[uapi.RegMRReply](r, uapi.OpRegMR, &uapi.RegMRRequest{
		PD: pd, Kind: uapi.MRShared, Length: 4096, IOVA: 4096, Access: regionAccess | mrtable.AccessOnDemand,
	}, filled(t, 4096, 1))
	ro := must[uapi.RegMRReply](r, uapi.OpRegMR, &uapi.RegMRRequest{PD: pd, Kind: uapi.MRShared, Length: 4096}, filled(t, 4096, 1))
	good := wq.SGE{Addr: 4096, Length: 4096, LKey: rw.LKey}
	for _, row := range []struct {
		name string
		m    uapi.AdviseMRRequest
		word string // "": done
	}{
		{"prefetch", uapi.AdviseMRRequest{PD: pd, SGList: []wq.SGE{good, good}}, ""},
		{"for writing, flushed", uapi.AdviseMRRequest{PD: pd, Advice: 1, Flags: 1, SGList: []wq.SGE{good}}, ""},
		{"without fault", uapi.AdviseMRRequest{PD: pd, Advice: 2, SGList: []wq.SGE{{LKey: ro.LKey, Length: 9}}}, ""},
		{"nothing", uapi.AdviseMRRequest{PD: pd}, ""},
		{"the most elements", uapi.AdviseMRRequest{PD: pd, SGList: make([]wq.SGE, uapi.MaxAdviseSGE)}, ""},
		{"unknown advice", uapi.AdviseMRRequest{PD: pd, Advice: 3}, "advice 3"},
		{"unknown flags", uapi.AdviseMRRequest{PD: pd, Flags: 2}, "flags 0x2"},
		{"unknown domain", uapi.AdviseMRRequest{PD: 9}, "handle 9"},
		{"another domain", uapi.AdviseMRRequest{PD: other, SGList: []wq.SGE{good}}, "another protection domain"},
		{"no such key", uapi.AdviseMRRequest{PD: pd, SGList: []wq.SGE{good, {Addr: 4096, Length: 1, LKey: 5}}}, "element 1"},
		{"outside", uapi.AdviseMRRequest{PD: pd, SGList: []wq.SGE{{Addr: 4097, Length: 4096, LKey: rw.LKey}}}, "outside"},
		{"write to what is read only", uapi.AdviseMRRequest{PD: pd, Advice: 1, SGList: []wq.SGE{{Length: 9, LKey: ro.LKey}}}, "does not grant"},
	} {
		t.Run(row.name, func(t *testing.T) {
			got := r.call(uapi.OpAdviseMR, &row.m)
			if row.word != "" {
				r.wantRefusal(got, syscall.EINVAL, row.word)
			} else if got.errno != 0 {
				t.Errorf("%v: %s", got.errno, got.text)
			}
		})
	}
}
