package nic

import (
	"syscall"

	"github.com/softroce/softroce/internal/uapi"
	"github.com/softroce/softroce/pkg/bth"
)

// joinCM makes a group known to an identifier of UD: the event says where its
// datagrams go. The host joins the group when the first queue pair is attached to
// it, without which none of its packets has a receiver.
func (p *program) joinCM(m *uapi.CMMcastRequest) (reply, error) {
	return p.onCMID(m.ID, func(g *gsi, id *cmID) (uapi.Body, error) {
		if err := g.mayJoin(id, m); err != nil {
			return nil, err
		}
		if err := p.account.charge(ResourceMcast, 1); err != nil {
			return nil, err
		}
		if id.joined == nil {
			id.joined = make(map[bth.GID]struct{})
		}
		id.joined[m.Group] = struct{}{}
		way := id.way
		way.Remote, way.TrafficClass, way.FlowLabel, way.HopLimit = m.Group, id.tos, 0, defaultHopLimit
		rec := uapi.CMRecord{
			Event: uapi.CMMulticastJoin, Param: uapi.CMParam{QPN: bth.MulticastQPN, QKey: udpQKey, AH: vectorOf(&way)},
		}
		g.tell(id, &rec)
		return nil, nil
	})
}

// mayJoin checks a join: the identifier has an address of the group's family.
func (g *gsi) mayJoin(id *cmID, m *uapi.CMMcastRequest) error {
	_, twice := id.joined[m.Group]
	switch {
	case !id.datagrams():
		return refuse(syscall.EINVAL, "join: only identifiers of the UDP port space have multicast")
	case !m.Group.IsMulticast():
		return refuse(syscall.EINVAL, "join: %s is no multicast group (ff00::/8 or ::ffff:224.0.0.0/100)", m.Group)
	case id.stage == cmIdle:
		return id.errStage("join")
	case twice:
		return refuse(syscall.EADDRINUSE, "join: %s is joined already", m.Group)
	}
	if err := id.mayWait(); err != nil {
		return err
	}
	if !id.way.Local.IsZero() && id.way.Local.Is4() == m.Group.Is4() {
		return nil
	}
	gids := g.a.gids.load()
	i := ownIndex(gids, id.own.Addr())
	for k := 0; i < 0 && k < len(gids); k++ {
		if gids[k].addr.IsValid() && gids[k].gid.Is4() == m.Group.Is4() {
			i = k
		}
	}
	if i < 0 || gids[i].gid.Is4() != m.Group.Is4() {
		return refuse(syscall.ENODEV, "join: the identifier has no address of the family of %s", m.Group)
	}
	id.way.Local, id.way.SGIDIndex = gids[i].gid, uint8(i)
	return nil
}

// leaveCM ends what joinCM began.
func (p *program) leaveCM(m *uapi.CMMcastRequest) (reply, error) {
	return p.onCMID(m.ID, func(_ *gsi, id *cmID) (uapi.Body, error) {
		if _, ok := id.joined[m.Group]; !ok {
			return nil, refuse(syscall.EADDRNOTAVAIL, "leave: %s is not joined", m.Group)
		}
		delete(id.joined, m.Group)
		p.account.release(ResourceMcast, 1)
		return nil, nil
	})
}
