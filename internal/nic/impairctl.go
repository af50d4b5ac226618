package nic

import (
	"os"
	"syscall"

	"github.com/softroce/softroce/internal/impair"
	"github.com/softroce/softroce/internal/uapi"
)

// changeImpairments puts rules in place for a program, or takes them away. They
// concern the packets of every program, so only root and the adapter's own user
// may.
func (p *program) changeImpairments(m *uapi.ImpairRequest) (reply, error) {
	own := uint32(os.Geteuid())
	if p.uid == overflowUID {
		return reply{}, refuse(syscall.EPERM, "only root and the adapter's own user may impair packets, and user %d stands for any whom the kernel cannot name here", p.uid)
	}
	if !mayImpair(p.uid, own) {
		return reply{}, refuse(syscall.EPERM, "only root and the adapter's own user (%d) may impair packets, and this program is of user %d", own, p.uid)
	}
	if m.Mode == uapi.ImpairRemove {
		if !p.a.Unimpair(m.ID) {
			return reply{}, refuse(syscall.ENOENT, "there is no rule %d (softroce impair show)", m.ID)
		}
		return reply{body: &uapi.ImpairReply{}}, nil
	}
	rules, err := impair.Parse(m.Rules)
	if err != nil {
		return reply{}, refuse(syscall.EINVAL, "%v", err)
	}
	ids, err := p.a.Impair(rules, m.Mode == uapi.ImpairAdd)
	if err != nil {
		return reply{}, refuse(syscall.EINVAL, "%v", err)
	}
	return reply{body: &uapi.ImpairReply{IDs: ids}}, nil
}

// mayImpair says whether a user may change what becomes of everybody's packets.
func mayImpair(asker, adapter uint32) bool {
	return asker == 0 || asker == adapter && asker != overflowUID
}

// listImpairments answers with the rules in place. Every program may ask: whoever
// loses packets must be able to find out that it is on purpose.
func (p *program) listImpairments(*uapi.ListImpairRequest) (reply, error) {
	r := &uapi.ListImpairReply{}
	for _, s := range p.a.Impairments() {
		r.Rules = append(r.Rules, uapi.ImpairRule{ID: s.ID, Rule: s.Rule.String(), Matched: s.Matched, Hit: s.Hit, Over: s.Over})
	}
	return reply{body: r}, nil
}
