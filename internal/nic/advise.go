package nic

import (
	"syscall"

	"github.com/softroce/softroce/internal/uapi"
	"github.com/softroce/softroce/pkg/mrtable"
)

// Values of the verbs API (ibv_advise_mr_advice, ibv_advise_mr_flags).
const (
	advisePrefetchWrite   = 1
	advisePrefetchNoFault = 2
	adviseFlush           = 1
)

// adviseMR checks advice and takes it for followed: there is no page table of an
// adapter to fill. The kernel brings in a page of the program's when it is first
// reached, from here as from the program.
func (p *program) adviseMR(m *uapi.AdviseMRRequest) (reply, error) {
	d, ok := p.pds.lookup(m.PD)
	switch {
	case !ok:
		return reply{}, errHandle("protection domain", m.PD)
	case m.Advice > advisePrefetchNoFault:
		return reply{}, refuse(syscall.EINVAL, "advice %d, want 0 to %d", m.Advice, advisePrefetchNoFault)
	case m.Flags&^adviseFlush != 0:
		return reply{}, refuse(syscall.EINVAL, "advice with flags %#x", m.Flags)
	}
	need := mrtable.Access(0)
	if m.Advice == advisePrefetchWrite {
		need = mrtable.AccessLocalWrite
	}
	for i := range m.SGList {
		e := &m.SGList[i]
		if _, err := p.a.keys.Local(e.LKey, d.pd, e.Addr, uint64(e.Length), need); err != nil {
			return reply{}, refuse(syscall.EINVAL, "element %d (lkey %#x, %d bytes at %#x): %v", i, uint32(e.LKey), e.Length, e.Addr, err)
		}
	}
	return reply{}, nil
}
