package verbs

import (
	"math"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/shm"
	"github.com/softroce/softroce/internal/uapi"
)

// MR is a memory region (ibv_mr). Rereg, and a request with WRRegMR, change what
// its methods return; they are not to be called at the same time.
type MR struct {
	pd     *PD
	handle uint32
	lkey   LKey
	rkey   RKey
	iova   uint64
	size   uint64 // bytes
	buf    []byte // nil: no memory of one place in the program
	access Access

	once sync.Once
	seg  *shm.Segment // memory of the library's own, shared with the adapter
	pin  *runtime.Pinner
}

// RegMR registers memory of the program's own (ibv_reg_mr). It stays pinned
// until Dereg. The adapter reaches it by process_vm_readv and
// process_vm_writev, which costs a system call per access; memory from
// AllocMR does not. With AccessZeroBased, elements and peers count from 0. EPERM:
// daemon and program are not the same user, or the daemon has a privilege that
// the program lacks; EINVAL: the flags do not go together; ENOMEM: a limit,
// which the text names.
func (p *PD) RegMR(buf []byte, access Access) (*MR, error) {
	return p.regForeign(buf, shm.AddrOf(buf), access)
}

// RegMRIova is RegMR with another address for the region's first byte, by which
// elements and peers name it (ibv_reg_mr_iova).
func (p *PD) RegMRIova(buf []byte, iova uint64, access Access) (*MR, error) {
	return p.regForeign(buf, iova, access)
}

func (p *PD) regForeign(buf []byte, iova uint64, access Access) (*MR, error) {
	const op = "register MR"
	if len(buf) == 0 {
		return nil, invalid(op, "the buffer is empty")
	}
	if err := p.dev.allowTracer(op); err != nil {
		return nil, err
	}
	m := &MR{pd: p, buf: buf, access: access, pin: &runtime.Pinner{}}
	m.pin.Pin(&buf[0])
	req := uapi.RegMRRequest{
		PD: p.handle, Kind: uapi.MRForeign, Addr: shm.AddrOf(buf), IOVA: based(iova, access),
		Length: uint64(len(buf)), Access: access,
	}
	if err := m.register(op, &req, nil); err != nil {
		m.pin.Unpin()
		return nil, err
	}
	return m, nil
}

// based is the first address of a region: 0 for a zero-based one.
func based(iova uint64, access Access) uint64 {
	if access&AccessZeroBased != 0 {
		return 0
	}
	return iova
}

// allowTracer lets the adapter reach the program's own memory.
func (d *Device) allowTracer(op string) error {
	peer, err := d.ctl.conn.PeerCred()
	if err == nil {
		err = shm.AllowTracer(peer.PID)
	}
	if err != nil {
		return &Error{Op: op, Errno: unix.EPERM, Text: err.Error()}
	}
	return nil
}

// AllocMR allocates n bytes of zeroed memory that the adapter maps too, and
// registers them: the fast kind. The memory is [MR.Bytes]; it is unmapped by
// Dereg and must not be touched after that. Errors as for RegMR.
func (p *PD) AllocMR(n int, access Access) (*MR, error) {
	const op = "allocate MR"
	if n <= 0 {
		return nil, invalid(op, "length %d is not positive", n)
	}
	seg, err := shm.Create("softroce-mr", n)
	if err != nil {
		return nil, &Error{Op: op, Errno: unix.ENOMEM, Text: err.Error()}
	}
	m := &MR{pd: p, buf: seg.Bytes()[:n:n], access: access, seg: seg}
	addr := shm.AddrOf(m.buf)
	req := uapi.RegMRRequest{
		PD: p.handle, Kind: uapi.MRShared, Addr: addr, IOVA: based(addr, access),
		Length: uint64(n), Access: access,
	}
	if err := m.register(op, &req, []int{seg.FD()}); err != nil {
		_ = seg.Close() // unmapping what we mapped
		return nil, err
	}
	return m, nil
}

// RegImplicit registers the program's whole address space, on demand
// (ibv_reg_mr from address 0, of length SIZE_MAX, with IBV_ACCESS_ON_DEMAND,
// which is added to access): elements name any memory of the program by its
// address, see [MR.SGEOf]. What is not mapped when it is reached fails the
// request. Errors as for RegMR.
func (p *PD) RegImplicit(access Access) (*MR, error) {
	const op = "register implicit MR"
	if err := p.dev.allowTracer(op); err != nil {
		return nil, err
	}
	access |= AccessOnDemand
	m := &MR{pd: p, access: access}
	if err := m.register(op, &uapi.RegMRRequest{PD: p.handle, Kind: uapi.MRImplicit, Access: access}, nil); err != nil {
		return nil, err
	}
	m.size = math.MaxUint64
	return m, nil
}

func (m *MR) register(op string, req *uapi.RegMRRequest, fds []int) error {
	d := m.pd.dev
	var rep uapi.RegMRReply
	got, err := d.ctl.call(op, uapi.OpRegMR, req, &rep, fds)
	closeAll(got)
	if err != nil {
		return err
	}
	m.handle, m.iova, m.size = rep.Handle, req.IOVA, req.Length
	d.mu.Lock()
	m.name(rep.LKey, rep.RKey)
	d.mu.Unlock()
	return nil
}

// name gives the region its keys; the device's mu is held.
func (m *MR) name(l LKey, r RKey) {
	d := m.pd.dev
	m.unname()
	m.lkey, m.rkey = l, r
	d.mrs[l] = m
}

func (m *MR) unname() {
	if d := m.pd.dev; d.mrs[m.lkey] == m {
		delete(d.mrs, m.lkey)
	}
}

// Addr is the region's first address in the program, which peers use too, unless
// it is zero-based or has an iova; see [MR.IOVA]. It is 0 for an implicit region
// and for one that has its memory by fast registration.
func (m *MR) Addr() uint64 { return shm.AddrOf(m.buf) }

// IOVA is the address by which elements and peers name the region's first byte:
// Addr, the iova that was given, or 0 when it is zero-based.
func (m *MR) IOVA() uint64 { return m.iova }

// Len is the region's length in bytes; an implicit region's is the most that an
// int holds.
func (m *MR) Len() int { return int(min(m.size, math.MaxInt)) }

// LKey is the key for the program's own requests.
func (m *MR) LKey() LKey { return m.lkey }

// RKey is the key to give to peers.
func (m *MR) RKey() RKey { return m.rkey }

// Access are the rights that the region was registered with.
func (m *MR) Access() Access { return m.access }

// Bytes is the region's memory; nil for an implicit region and for one that has
// its memory by fast registration.
func (m *MR) Bytes() []byte { return m.buf }

// SGE names n bytes of the region from offset off. It does not check them;
// the adapter does.
func (m *MR) SGE(off, n int) SGE {
	return SGE{Addr: m.iova + uint64(off), Length: uint32(n), LKey: m.lkey}
}

// SGEOf names memory of the program by its address, for an implicit region. The
// caller keeps buf where it is until the completion: Go's own memory is kept by
// a runtime.Pinner.
func (m *MR) SGEOf(buf []byte) SGE {
	return SGE{Addr: shm.AddrOf(buf), Length: uint32(len(buf)), LKey: m.lkey}
}

// Dereg ends the region (ibv_dereg_mr): when it returns, the adapter touches
// the memory no more and its keys are dead. EBUSY: a window is bound to it.
func (m *MR) Dereg() error {
	d := m.pd.dev
	err := d.ctl.do("deregister MR", uapi.OpDeregMR, &uapi.HandleRequest{Handle: m.handle}, nil)
	if err != nil && !d.gone.Load() {
		return err
	}
	d.mu.Lock()
	m.unname()
	d.mu.Unlock()
	d.forget(m, m.rkey)
	m.release()
	return err
}

func (m *MR) release() {
	m.once.Do(func() {
		if m.pin != nil {
			m.pin.Unpin()
		}
		if m.seg != nil {
			_ = m.seg.Close() // unmapping what we mapped
		}
	})
}

// bytesOf gives the program's memory behind an element, for inline data.
func (d *Device) bytesOf(e SGE) ([]byte, bool) {
	d.mu.Lock()
	m := d.mrs[e.LKey]
	d.mu.Unlock()
	if m == nil {
		return nil, false
	}
	off := e.Addr - m.iova
	if off > uint64(len(m.buf)) || uint64(e.Length) > uint64(len(m.buf))-off {
		return nil, false
	}
	return m.buf[off : off+uint64(e.Length)], true
}
