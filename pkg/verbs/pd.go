package verbs

import (
	"runtime"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/shm"
	"github.com/softroce/softroce/internal/uapi"
)

// PD is a protection domain (ibv_pd): regions and queue pairs of different
// domains do not meet.
type PD struct {
	dev    *Device
	handle uint32
}

// AllocPD makes a protection domain (ibv_alloc_pd). ENOMEM: the adapter's or
// the program's limit is reached.
func (d *Device) AllocPD() (*PD, error) {
	var rep uapi.HandleReply
	if err := d.ctl.do("allocate PD", uapi.OpAllocPD, &uapi.AllocPDRequest{}, &rep); err != nil {
		return nil, err
	}
	return &PD{dev: d, handle: rep.Handle}, nil
}

// Dealloc ends the domain (ibv_dealloc_pd). EBUSY: something still uses it.
func (p *PD) Dealloc() error {
	return p.dev.ctl.do("deallocate PD", uapi.OpDeallocPD, &uapi.HandleRequest{Handle: p.handle}, nil)
}

// MR is a memory region (ibv_mr).
type MR struct {
	pd     *PD
	handle uint32
	lkey   LKey
	rkey   RKey
	buf    []byte
	access Access

	once sync.Once
	seg  *shm.Segment // memory of the library's own, shared with the adapter
	pin  runtime.Pinner
}

// RegMR registers memory of the program's own (ibv_reg_mr). It stays pinned
// until Dereg. The adapter reaches it by process_vm_readv and
// process_vm_writev, which costs a system call per access; memory from
// AllocMR does not. EPERM: daemon and program are not the same user, or the
// daemon has a privilege that the program lacks; EINVAL: the flags do not go
// together; ENOMEM: a limit, which the text names.
func (p *PD) RegMR(buf []byte, access Access) (*MR, error) {
	const op = "register MR"
	if len(buf) == 0 {
		return nil, invalid(op, "the buffer is empty")
	}
	peer, err := p.dev.ctl.conn.PeerCred()
	if err == nil {
		err = shm.AllowTracer(peer.PID)
	}
	if err != nil {
		return nil, &Error{Op: op, Errno: unix.EPERM, Text: err.Error()}
	}
	m := &MR{pd: p, buf: buf, access: access}
	m.pin.Pin(&buf[0])
	addr := shm.AddrOf(buf)
	req := uapi.RegMRRequest{
		PD: p.handle, Kind: uapi.MRForeign, Addr: addr, IOVA: addr,
		Length: uint64(len(buf)), Access: access,
	}
	if err := m.register(op, &req, nil); err != nil {
		m.pin.Unpin()
		return nil, err
	}
	return m, nil
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
		PD: p.handle, Kind: uapi.MRShared, Addr: addr, IOVA: addr,
		Length: uint64(n), Access: access,
	}
	if err := m.register(op, &req, []int{seg.FD()}); err != nil {
		_ = seg.Close() // unmapping what we mapped
		return nil, err
	}
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
	m.handle, m.lkey, m.rkey = rep.Handle, rep.LKey, rep.RKey
	d.mu.Lock()
	d.mrs[m.lkey] = m
	d.mu.Unlock()
	return nil
}

// Addr is the region's first address in the program, which peers use too.
func (m *MR) Addr() uint64 { return shm.AddrOf(m.buf) }

// Len is the region's length in bytes.
func (m *MR) Len() int { return len(m.buf) }

// LKey is the key for the program's own requests.
func (m *MR) LKey() LKey { return m.lkey }

// RKey is the key to give to peers.
func (m *MR) RKey() RKey { return m.rkey }

// Bytes is the region's memory.
func (m *MR) Bytes() []byte { return m.buf }

// SGE names n bytes of the region from offset off. It does not check them;
// the adapter does.
func (m *MR) SGE(off, n int) SGE {
	return SGE{Addr: m.Addr() + uint64(off), Length: uint32(n), LKey: m.lkey}
}

// Dereg ends the region (ibv_dereg_mr): when it returns, the adapter touches
// the memory no more and its keys are dead.
func (m *MR) Dereg() error {
	d := m.pd.dev
	err := d.ctl.do("deregister MR", uapi.OpDeregMR, &uapi.HandleRequest{Handle: m.handle}, nil)
	if err != nil && !d.gone.Load() {
		return err
	}
	d.mu.Lock()
	delete(d.mrs, m.lkey)
	d.mu.Unlock()
	m.release()
	return err
}

func (m *MR) release() {
	m.once.Do(func() {
		m.pin.Unpin()
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
	off := e.Addr - m.Addr()
	if off > uint64(len(m.buf)) || uint64(e.Length) > uint64(len(m.buf))-off {
		return nil, false
	}
	return m.buf[off : off+uint64(e.Length)], true
}
