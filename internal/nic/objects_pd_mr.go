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
	h := p.pds.add(&pdObject{pd: p.a.newPD()})
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

// regMR registers memory of either kind.
func (p *program) regMR(m *uapi.RegMRRequest, fds []int) (reply, error) {
	d, ok := p.pds.lookup(m.PD)
	if !ok {
		return reply{}, errHandle("protection domain", m.PD)
	}
	if err := m.Access.Check(); err != nil {
		return reply{}, refuse(syscall.EINVAL, "%v", err)
	}
	if err := p.account.charge(ResourceMRs, 1); err != nil {
		return reply{}, err
	}
	if err := p.account.charge(ResourceRegisteredBytes, m.Length); err != nil {
		p.account.release(ResourceMRs, 1)
		return reply{}, err
	}
	o, err := p.newMR(d, m, fds)
	if err != nil {
		p.account.release(ResourceMRs, 1)
		p.account.release(ResourceRegisteredBytes, m.Length)
		return reply{}, err
	}
	d.users++
	h := p.mrs.add(o)
	return reply{body: &uapi.RegMRReply{Handle: h, LKey: o.region.LKey(), RKey: o.region.RKey()}}, nil
}

func (p *program) newMR(d *pdObject, m *uapi.RegMRRequest, fds []int) (*mrObject, error) {
	o := &mrObject{pd: d, bytes: m.Length}
	mem, err := p.memoryOf(m, fds, o)
	if err != nil {
		return nil, err
	}
	o.region, err = p.a.keys.Register(d.pd, mem, m.IOVA, m.Length, m.Access, random32())
	if err != nil {
		p.unmap(o.mapping)
		errno := syscall.EINVAL
		if errors.Is(err, mrtable.ErrFull) {
			errno = syscall.ENOMEM
		}
		return nil, refuse(errno, "%v", err)
	}
	return o, nil
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
	case uapi.MRForeign:
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
	mem, err := p.process.Open(m.Addr, m.Length) // sees, too, that the pid is still the program's
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
	if err := p.a.keys.Mark(o.region); err != nil {
		return reply{}, refuse(syscall.EINVAL, "%v", err)
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
