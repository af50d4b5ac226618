package nic

import (
	"errors"
	"syscall"

	"github.com/softroce/softroce/internal/shm"
	"github.com/softroce/softroce/internal/shm/foreign"
	"github.com/softroce/softroce/internal/uapi"
	"github.com/softroce/softroce/pkg/mrtable"
)

func errHandle(what string, handle uint32) error {
	return refuse(syscall.EINVAL, "no %s of this program has the handle %d", what, handle)
}

func errBusy(what string, users int, of string) error {
	return refuse(syscall.EBUSY, "%s is in use by %d %s; end them first", what, users, of)
}

func (p *program) allocPD(*uapi.AllocPDRequest) (reply, error) {
	if err := p.account.charge(ResourcePDs, 1); err != nil {
		return reply{}, err
	}
	h := p.pds.reserve()
	p.pds.put(h, &pdObject{pd: p.a.newPD(), handle: h})
	p.announce()
	return reply{body: &uapi.HandleReply{Handle: h}}, nil
}

func (p *program) deallocPD(m *uapi.HandleRequest) (reply, error) {
	d, ok := p.pds.lookup(m.Handle)
	switch {
	case !ok:
		return reply{}, errHandle("protection domain", m.Handle)
	case d.users > 0:
		return reply{}, errBusy("the protection domain", d.users, "objects in it (memory regions, windows, queue pairs, shared receive queues, address handles)")
	}
	p.pds.remove(m.Handle)
	p.a.freePD(d.pd)
	p.account.release(ResourcePDs, 1)
	return reply{}, nil
}

// regMR registers memory of any kind.
func (p *program) regMR(m *uapi.RegMRRequest, fds []int) (reply, error) {
	d, ok := p.pds.lookup(m.PD)
	if !ok {
		return reply{}, errHandle("protection domain", m.PD)
	}
	o := &mrObject{pd: d, access: m.Access}
	o.setRange(m)
	if err := checkRegister(o); err != nil {
		return reply{}, err
	}
	if err := p.account.charge(ResourceMRs, 1); err != nil {
		return reply{}, err
	}
	if err := p.account.charge(ResourceRegisteredBytes, o.bytes); err != nil {
		p.account.release(ResourceMRs, 1)
		return reply{}, err
	}
	if err := p.newMR(o, m, fds); err != nil {
		p.account.release(ResourceMRs, 1)
		p.account.release(ResourceRegisteredBytes, o.bytes)
		return reply{}, err
	}
	d.users++
	h := p.mrs.add(o)
	return reply{body: &uapi.RegMRReply{Handle: h, LKey: o.region.LKey(), RKey: o.region.RKey()}}, nil
}

// setRange takes over the range of a registration. An implicit region books no
// bytes: nothing of it is mapped or pinned.
func (o *mrObject) setRange(m *uapi.RegMRRequest) {
	o.kind, o.iova, o.length, o.bytes = m.Kind, m.IOVA, m.Length, m.Length
	if m.Kind == uapi.MRImplicit {
		o.length, o.bytes = foreign.Everything, 0
	}
}

// checkRegister says whether a region may be registered with its rights.
func checkRegister(o *mrObject) error {
	if err := o.access.Check(); err != nil {
		return refuse(syscall.EINVAL, "%v", err)
	}
	if o.kind != uapi.MRImplicit {
		return nil
	}
	switch {
	case o.access&mrtable.AccessOnDemand == 0:
		return refuse(syscall.EINVAL, "an implicit region needs on-demand access; access is %#x", uint32(o.access))
	case o.access&mrtable.AccessZeroBased != 0:
		return refuse(syscall.EINVAL, "an implicit region cannot be zero-based")
	case o.iova != 0:
		return refuse(syscall.EINVAL, "an implicit region has its addresses as iova; %#x given", o.iova)
	}
	return nil
}

func (p *program) newMR(o *mrObject, m *uapi.RegMRRequest, fds []int) error {
	mem, err := p.memoryOf(m, fds, o)
	if err != nil {
		return err
	}
	if err := p.register(o, mem); err != nil {
		p.unmap(o.mapping)
		return err
	}
	return nil
}

// register gives an object's memory its keys.
func (p *program) register(o *mrObject, mem mrtable.Memory) (err error) {
	o.region, err = p.a.keys.Register(o.pd.pd, mem, o.iova, o.length, o.access, random32())
	return refuseKeys(err)
}

// refuseKeys puts an error of the key table into a refusal; nil stays nil.
func refuseKeys(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, mrtable.ErrFull):
		return refuse(syscall.ENOMEM, "%v", err)
	}
	return refuse(syscall.EINVAL, "%v", err)
}

// memoryOf opens the memory that a registration names.
func (p *program) memoryOf(m *uapi.RegMRRequest, fds []int, o *mrObject) (mrtable.Memory, error) {
	switch m.Kind {
	case uapi.MRShared:
		if len(fds) != 1 {
			return nil, refuse(syscall.EINVAL, "a shared region needs the descriptor of its memory file; %d came", len(fds))
		}
		mp, err := p.mapFile(fds[0])
		if err != nil {
			return nil, err
		}
		mem, err := shm.NewRegionMemory(mp.seg, m.Offset, m.Length)
		if err != nil {
			p.unmap(mp)
			return nil, refuse(syscall.EINVAL, "%v", err)
		}
		o.mapping = mp
		return mem, nil
	case uapi.MRForeign, uapi.MRImplicit:
		if len(fds) != 0 {
			return nil, refuse(syscall.EINVAL, "a foreign region takes no descriptor; %d came", len(fds))
		}
		return p.foreignMemory(m)
	}
	return nil, refuse(syscall.EINVAL, "region of unknown kind %d", uint32(m.Kind))
}

// foreignMemory opens memory of the program's own address space, if the
// adapter gains no right by it that the program's user lacks.
func (p *program) foreignMemory(m *uapi.RegMRRequest) (mrtable.Memory, error) {
	if err := foreign.Allowed(p.cred); err != nil {
		return nil, refuse(syscall.EPERM, "%v", err)
	}
	if p.pidfd == nil {
		return nil, refuse(syscall.EPERM, "foreign memory: no pidfd of the program; use shared regions")
	}
	open := func() (*foreign.Memory, error) { return p.process.Open(m.Addr, m.Length) }
	if m.Kind == uapi.MRImplicit {
		if m.Addr != 0 || m.Length != 0 {
			return nil, refuse(syscall.EINVAL, "an implicit region has no address and length of its own; %d bytes at %#x given", m.Length, m.Addr)
		}
		open = p.process.OpenAll
	}
	mem, err := open() // sees, too, that the pid is still the program's
	switch {
	case errors.Is(err, foreign.ErrBounds):
		return nil, refuse(syscall.EINVAL, "%v", err)
	case err != nil:
		return nil, refuse(errnoOf(err, syscall.EFAULT), "%v", err)
	}
	return mem, nil
}

// deregMR ends a region: look-ups fail from now on, every worker passes a
// turn's boundary and has taken all loans of it, then its memory goes.
func (p *program) deregMR(m *uapi.HandleRequest) (reply, error) {
	o, ok := p.mrs.lookup(m.Handle)
	if !ok {
		return reply{}, errHandle("memory region", m.Handle)
	}
	if err := p.markMR(o); err != nil {
		return reply{}, err
	}
	p.a.endLoans()
	p.mrs.remove(m.Handle)
	p.a.keys.Free(o.region)
	p.unmap(o.mapping)
	o.pd.users--
	p.account.release(ResourceMRs, 1)
	p.account.release(ResourceRegisteredBytes, o.bytes)
	return reply{}, nil
}

// markMR ends the look-ups of a region. EBUSY while windows are bound to it.
func (p *program) markMR(o *mrObject) error {
	err := p.a.keys.Mark(o.region)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, mrtable.ErrBound):
		return refuse(syscall.EBUSY, "%v; invalidate or free them first", err)
	}
	return refuse(syscall.EINVAL, "%v", err)
}
