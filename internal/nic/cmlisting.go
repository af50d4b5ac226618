package nic

import (
	"net/netip"
	"strings"

	"github.com/softroce/softroce/internal/cm"
	"github.com/softroce/softroce/internal/uapi"
)

// listCMIDs lists a program's identifiers. What its connections leave behind for
// the time of time-wait is no program's: the gauge of connections counts it.
func (p *program) listCMIDs(after uint32, _ bool) (out []listed) {
	p.a.gsi.w.do(func() {
		if p.cm == nil {
			return
		}
		out = objects(&p.cm.ids, after, func(h uint32, id *cmID) uapi.Resource {
			state, qpn := id.doing(p.a.gsi.machine)
			return uapi.Resource{
				Number: h, Type: strings.ToUpper(id.space.String()), State: state, QPN: qpn, From: endOf(id.own), To: endOf(id.peer),
			}
		})
	})
	return out
}

var cmStageStates = [...]string{
	cmIdle: cm.Idle.String(), cmBound: "ADDR_BOUND", cmAddrKnown: "ADDR_RESOLVED", cmRouteKnown: "ROUTE_RESOLVED", cmListening: "LISTEN",
}

// doing is an identifier's state: that of its connection in the specification's
// words, before there is one as rdma-resource(8) has it. With it comes its queue
// pair, 0 when it is not known.
func (id *cmID) doing(m *cm.Machine) (state string, qpn uint32) {
	if info, ok := m.Info(id.comm); ok {
		return info.State.String(), uint32(info.QPN)
	}
	if int(id.stage) < len(cmStageStates) {
		return cmStageStates[id.stage], 0
	}
	return cm.Idle.String(), 0
}

// endOf is an address with its port, "" when it is not known. The zero address is
// the wildcard of both families.
func endOf(a netip.AddrPort) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}
