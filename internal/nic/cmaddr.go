package nic

import (
	"net/netip"
	"syscall"

	"github.com/softroce/softroce/internal/cm"
	"github.com/softroce/softroce/internal/shm/foreign"
	"github.com/softroce/softroce/internal/uapi"
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/qpstate"
)

// capNetBindService is CAP_NET_BIND_SERVICE (capabilities(7)): whoever has it may
// use the ports below the range that is for everybody.
const capNetBindService = 1 << 10

// bindCM gives an identifier its own address and port. A loopback address that is
// not the adapter's stands for all of its family, as with rdma_bind_addr(3).
func (p *program) bindCM(m *uapi.CMAddrRequest) (reply, error) {
	if err := p.checkPort(m.Own.Port); err != nil {
		return reply{}, err
	}
	return p.onCMID(m.ID, func(g *gsi, id *cmID) (uapi.Body, error) {
		if id.stage != cmIdle {
			return nil, id.errStage("bind")
		}
		if err := g.bind(id, addrOf(&m.Own)); err != nil {
			return nil, err
		}
		return id.addresses(), nil
	})
}

// bind takes a port for an address of the adapter's, or for all of them.
func (g *gsi) bind(id *cmID, own netip.AddrPort) error {
	addr := own.Addr()
	gids := g.a.gids.load()
	switch {
	case addr.IsUnspecified() || ownIndex(gids, addr) >= 0:
	case addr == loopbackOf(addr) && !onLoopback(gids, addr):
		addr = netip.IPv6Unspecified()
		if own.Addr().Is4() {
			addr = netip.IPv4Unspecified()
		}
	default:
		return refuse(syscall.EADDRNOTAVAIL, "%v is no address of adapter %s", addr, g.a.cfg.Name)
	}
	if err := g.ports.bind(id, netip.AddrPortFrom(addr, own.Port())); err != nil {
		return err
	}
	id.stage = cmBound
	return nil
}

// checkPort refuses a port that is not for everybody.
func (p *program) checkPort(port uint16) error {
	open := p.a.gsi.ports.open // does not change
	if port == 0 || port >= open || p.uid == 0 {
		return nil
	}
	if caps, err := foreign.Capabilities(p.cred); err == nil && caps&capNetBindService != 0 {
		return nil
	}
	return refuse(syscall.EACCES, "port %d: those below %d are for root and for programs with CAP_NET_BIND_SERVICE", port, open)
}

// addresses says what is known of an identifier.
func (id *cmID) addresses() *uapi.CMAddrReply {
	r := &uapi.CMAddrReply{Own: cmAddr(id.own), Peer: cmAddr(id.peer), MTU: id.mtu}
	if !id.way.Remote.IsZero() {
		r.AH = vectorOf(&id.way)
	}
	return r
}

func (p *program) queryCM(m *uapi.HandleRequest) (reply, error) {
	return p.onCMID(m.Handle, func(_ *gsi, id *cmID) (uapi.Body, error) { return id.addresses(), nil })
}

// listenCM takes requests for the identifier's address and port; one that is not
// bound takes them for all addresses and a port of the ephemeral range.
func (p *program) listenCM(m *uapi.CMValueRequest) (reply, error) {
	return p.onCMID(m.ID, func(g *gsi, id *cmID) (uapi.Body, error) {
		if id.stage == cmIdle {
			if err := g.bind(id, netip.AddrPortFrom(netip.IPv6Unspecified(), 0)); err != nil {
				return nil, err
			}
		}
		if id.stage != cmBound {
			return nil, id.errStage("listen")
		}
		if o := g.ports.conflict(id.port, true); o != nil {
			return nil, refuse(syscall.EADDRINUSE, "port %d of space %v is in use for %v", id.own.Port(), id.space, o.addr)
		}
		l, err := g.machine.Listen(cm.ListenArgs{
			Type: id.service(), Service: cm.IPService(id.space, id.own.Port()), Addr: id.own.Addr(), Only: id.afOnly,
			Backlog: int(min(m.Value, cm.DefaultBacklog)),
		})
		if err != nil {
			return nil, errCM(err)
		}
		id.stage, id.listener = cmListening, l
		g.byListener[l] = id
		return nil, nil
	})
}

// service is the transport service of the identifier's port space.
func (id *cmID) service() qpstate.Type {
	if id.datagrams() {
		return qpstate.UD
	}
	return qpstate.RC
}

// resolveCMAddr finds the way to a peer: from where, by which GID, how wide. A way
// that is not there is an event, as with rdma_resolve_addr(3).
func (p *program) resolveCMAddr(m *uapi.CMAddrRequest) (reply, error) {
	peer := addrOf(&m.Peer)
	var own netip.Addr
	var tos uint8
	if err := p.checkPort(m.Own.Port); err != nil {
		return reply{}, err
	}
	if _, err := p.onCMID(m.ID, func(g *gsi, id *cmID) (uapi.Body, error) {
		if err := g.mayResolve(id, m, peer); err != nil {
			return nil, err
		}
		own, tos = id.own.Addr(), id.tos
		return nil, nil
	}); err != nil {
		return reply{}, err
	}
	way, mtu, err := p.a.findWay(own, peer.Addr(), tos) // the kernel is asked, which no worker waits for
	return p.onCMID(m.ID, func(g *gsi, id *cmID) (uapi.Body, error) {
		rec := uapi.CMRecord{Event: uapi.CMAddrResolved}
		if err == nil {
			id.resolved(&way, mtu, peer.Port())
		} else {
			id.peer = peer
			rec.Event, rec.Status = uapi.CMAddrError, -int32(errnoOf(err, syscall.ENETUNREACH))
		}
		g.tell(id, &rec)
		return id.addresses(), nil
	})
}

// mayResolve checks a request for a way, and binds the identifier.
func (g *gsi) mayResolve(id *cmID, m *uapi.CMAddrRequest, peer netip.AddrPort) error {
	own := addrOf(&m.Own)
	switch {
	case id.stage != cmIdle && id.stage != cmBound:
		return id.errStage("resolve address")
	case peer.Port() == 0:
		return refuse(syscall.EINVAL, "resolve address: the peer's port is 0")
	case m.Peer.GID.IsMulticast() && !id.datagrams():
		return refuse(syscall.EINVAL, "resolve address: %v is a multicast group, which only UD reaches", peer.Addr())
	}
	if err := id.mayWait(); err != nil {
		return err
	}
	if id.stage == cmIdle {
		if own.Addr().IsUnspecified() && peer.Addr().Is4() {
			own = netip.AddrPortFrom(netip.IPv4Unspecified(), own.Port())
		}
		return g.bind(id, own)
	}
	return nil
}

// mayWait refuses a call that makes an event when too many wait: the program
// does not read its channel.
func (id *cmID) mayWait() error {
	if id.waiting >= maxCMWaiting {
		return refuse(syscall.ENOBUFS, "%d events of the identifier wait to be read", id.waiting)
	}
	return nil
}

// resolved notes a way. The flow label is the kernel's, of both ports, so that
// both directions of a connection spread alike.
func (id *cmID) resolved(way *cm.Path, mtu bth.MTU, port uint16) {
	id.way, id.mtu, id.stage = *way, mtu, cmAddrKnown
	id.own, id.peer = addrPortOf(way.Local, id.own.Port()), addrPortOf(way.Remote, port)
	id.way.FlowLabel = (uint32(id.own.Port())*31 + uint32(port)) & 0xFFFFF
}

// resolveCMRoute tells that the route is known: on Ethernet it came with the
// address.
func (p *program) resolveCMRoute(m *uapi.HandleRequest) (reply, error) {
	return p.onCMID(m.Handle, func(g *gsi, id *cmID) (uapi.Body, error) {
		if id.stage != cmAddrKnown {
			return nil, id.errStage("resolve route")
		}
		id.stage = cmRouteKnown
		id.way.TrafficClass, id.way.SL = id.tos, id.tos>>5
		g.tell(id, &uapi.CMRecord{Event: uapi.CMRouteResolved})
		return nil, nil
	})
}
