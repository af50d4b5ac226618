package nic

import (
	"syscall"

	"github.com/softroce/softroce/internal/uapi"
	"github.com/softroce/softroce/pkg/mrtable"
)

// reregMR changes a region (ibv_rereg_mr): it is registered anew under new
// keys, and its old life ends as that of a deregistered one. An error leaves
// the region as it was.
func (p *program) reregMR(m *uapi.ReregMRRequest, fds []int) (reply, error) {
	o, ok := p.mrs.lookup(m.Handle)
	switch {
	case !ok:
		return reply{}, errHandle("memory region", m.Handle)
	case m.Flags == 0:
		return reply{}, refuse(syscall.EINVAL, "re-registration that changes nothing")
	case o.fast:
		return reply{}, refuse(syscall.EINVAL, "memory region %d is for fast registration; a work request changes it", m.Handle)
	case m.Flags&uapi.ReregTranslation == 0 && len(fds) != 0:
		return reply{}, refuse(syscall.EINVAL, "a descriptor came with a re-registration that keeps its memory")
	}
	next, err := p.rereg(m, o, fds)
	if err != nil {
		return reply{}, err
	}
	old := *o
	*o = *next
	p.a.endLoans()
	p.a.keys.Free(old.region)
	p.unmap(old.mapping)
	old.pd.users--
	o.pd.users++
	if old.bytes > o.bytes {
		p.account.release(ResourceRegisteredBytes, old.bytes-o.bytes)
	}
	return reply{body: &uapi.RegMRReply{Handle: m.Handle, LKey: o.region.LKey(), RKey: o.region.RKey()}}, nil
}

// rereg makes the region that m turns o into, and ends the look-ups of the old
// one. What it books is the difference of the two, where that is more.
func (p *program) rereg(m *uapi.ReregMRRequest, o *mrObject, fds []int) (*mrObject, error) {
	next, err := p.reregObject(m, o)
	if err != nil {
		return nil, err
	}
	more := next.bytes - min(o.bytes, next.bytes)
	if err := p.account.charge(ResourceRegisteredBytes, more); err != nil {
		return nil, err
	}
	var mem mrtable.Memory
	if m.Flags&uapi.ReregTranslation != 0 {
		mem, err = p.memoryOf(&m.MR, fds, next)
	} else {
		if next.mapping = o.mapping; next.mapping != nil {
			next.mapping.refs++
		}
		mem = o.region.Memory()
	}
	if err == nil {
		if err = p.register(next, mem); err == nil {
			if err = p.markMR(o); err == nil {
				return next, nil
			}
			_ = p.a.keys.Mark(next.region) // nobody has its keys yet
			p.a.endLoans()                 // but may have guessed them
			p.a.keys.Free(next.region)
		}
		p.unmap(next.mapping)
	}
	p.account.release(ResourceRegisteredBytes, more)
	return nil, err
}

// reregObject is what a re-registration leaves of an object and what it changes,
// before it is registered.
func (p *program) reregObject(m *uapi.ReregMRRequest, o *mrObject) (*mrObject, error) {
	next := &mrObject{pd: o.pd, bytes: o.bytes, iova: o.iova, length: o.length, access: o.access, kind: o.kind}
	if m.Flags&uapi.ReregPD != 0 {
		var ok bool
		if next.pd, ok = p.pds.lookup(m.MR.PD); !ok {
			return nil, errHandle("protection domain", m.MR.PD)
		}
	}
	if m.Flags&uapi.ReregAccess != 0 {
		next.access = m.MR.Access
	}
	if m.Flags&uapi.ReregTranslation != 0 {
		next.setRange(&m.MR)
	}
	return next, checkRegister(next)
}
