package verbs

import (
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/shm"
	"github.com/softroce/softroce/internal/uapi"
)

// ReregFlags say what a re-registration changes (ibv_rereg_mr_flags).
type ReregFlags = uapi.ReregFlags

// What a re-registration changes (ibv_rereg_mr_flags).
const (
	ReregChangeTranslation = uapi.ReregTranslation // the memory
	ReregChangePD          = uapi.ReregPD
	ReregChangeAccess      = uapi.ReregAccess
)

// Rereg changes a region to what flags name: its memory to buf, its domain to
// pd, its rights to access (ibv_rereg_mr). Keys and addresses may be others
// afterwards. buf is memory of the program's own, as for RegMR, or a part of what
// AllocMR allocated for this region, which stays mapped until Dereg. EINVAL: no
// flag or an unknown one, a value that a flag names is missing, or access is
// given without its flag; EBUSY: a window is bound to the region. After an error
// the region is as it was. pd and buf mean nothing without their flags.
func (m *MR) Rereg(flags ReregFlags, pd *PD, buf []byte, access Access) error {
	const op = "reregister MR"
	d := m.pd.dev
	if err := checkRereg(m, flags, pd, buf, access); err != nil {
		return err
	}
	req := uapi.ReregMRRequest{Handle: m.handle, Flags: flags, MR: uapi.RegMRRequest{PD: m.pd.handle, Access: m.access}}
	if flags&ReregChangePD != 0 {
		req.MR.PD = pd.handle
	}
	if flags&ReregChangeAccess != 0 {
		req.MR.Access = access
	}
	var pin *runtime.Pinner
	var fds []int
	if flags&ReregChangeTranslation != 0 {
		var err error
		if pin, fds, err = m.translate(op, &req.MR, buf); err != nil {
			return err
		}
	}
	var rep uapi.RegMRReply
	got, err := d.ctl.call(op, uapi.OpReregMR, &req, &rep, fds)
	closeAll(got)
	if err != nil {
		if pin != nil {
			pin.Unpin()
		}
		return err
	}
	m.reregistered(&req, &rep, pd, buf, pin)
	return nil
}

func checkRereg(m *MR, flags ReregFlags, pd *PD, buf []byte, access Access) error {
	const op = "reregister MR"
	const known = ReregChangeTranslation | ReregChangePD | ReregChangeAccess
	switch {
	case flags == 0 || flags&^known != 0:
		return invalid(op, "flags %#x", uint32(flags))
	case flags&ReregChangePD != 0 && (pd == nil || pd.dev != m.pd.dev):
		return invalid(op, "ReregChangePD without a domain of this device")
	case flags&ReregChangeTranslation != 0 && len(buf) == 0:
		return invalid(op, "ReregChangeTranslation without memory")
	case flags&ReregChangeAccess == 0 && access != 0:
		return invalid(op, "access %#x without ReregChangeAccess", uint32(access))
	}
	return nil
}

// translate fills in the new memory. A pinner is the new memory's.
func (m *MR) translate(op string, req *uapi.RegMRRequest, buf []byte) (pin *runtime.Pinner, fds []int, err error) {
	addr := shm.AddrOf(buf)
	req.Kind, req.Addr, req.Length = uapi.MRForeign, addr, uint64(len(buf))
	req.IOVA = based(addr, req.Access)
	if m.seg != nil {
		if off := addr - shm.AddrOf(m.seg.Bytes()); off < uint64(m.seg.Size()) {
			req.Kind, req.Offset = uapi.MRShared, off
			return nil, []int{m.seg.FD()}, nil
		}
	}
	if err := m.pd.dev.allowTracer(op); err != nil {
		return nil, nil, err
	}
	pin = &runtime.Pinner{}
	pin.Pin(&buf[0])
	return pin, nil, nil
}

// reregistered takes over what the adapter did.
func (m *MR) reregistered(req *uapi.ReregMRRequest, rep *uapi.RegMRReply, pd *PD, buf []byte, pin *runtime.Pinner) {
	if req.Flags&ReregChangeTranslation != 0 {
		if m.pin != nil {
			m.pin.Unpin()
		}
		m.pin, m.buf = pin, buf
		m.iova, m.size = req.MR.IOVA, req.MR.Length
	}
	m.access = req.MR.Access
	d := m.pd.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	if req.Flags&ReregChangePD != 0 {
		m.pd = pd
	}
	m.name(rep.LKey, rep.RKey)
}

// Advice is what AdviseMR is about (ibv_advise_mr_advice).
type Advice uint32

// Advice (specification values: ibv_advise_mr_advice, ibv_advise_mr_flags).
const (
	AdvisePrefetch        Advice = 0 // will be read
	AdvisePrefetchWrite   Advice = 1 // will be written
	AdvisePrefetchNoFault Advice = 2 // only what is in memory

	// AdviseFlush makes AdviseMR return when it is done.
	AdviseFlush uint32 = 1
)

// AdviseMR tells the adapter of memory that requests will soon reach
// (ibv_advise_mr). EINVAL: unknown advice or flags, or a key or range that is
// not a region's of the domain; EPERM: write advice on a region without local
// write; EOPNOTSUPP: the adapter takes no advice.
func (p *PD) AdviseMR(advice Advice, flags uint32, list ...SGE) error {
	const op = "advise MR"
	if advice > AdvisePrefetchNoFault || flags&^AdviseFlush != 0 {
		return invalid(op, "advice %d, flags %#x", uint32(advice), flags)
	}
	if len(list) == 0 || len(list) > uapi.MaxAdviseSGE {
		return &Error{Op: op, Errno: unix.EINVAL, Text: "between 1 and 1024 elements are allowed"}
	}
	req := uapi.AdviseMRRequest{PD: p.handle, Advice: uint32(advice), Flags: flags, SGList: list}
	return p.dev.ctl.do(op, uapi.OpAdviseMR, &req, nil)
}
