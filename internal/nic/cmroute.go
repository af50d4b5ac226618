package nic

import (
	"errors"
	"net/netip"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/cm"
	"github.com/softroce/softroce/pkg/bth"
)

// openRoutes opens the host's routing table for questions. The calling thread
// must be in the adapter's namespace. Without it ways are tried, one by one.
func (a *Adapter) openRoutes() {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		a.log.Warn("the routing table cannot be asked: connections begin at the first address that reaches the peer",
			keyAdapter, a.cfg.Name, keyErr, err)
		return
	}
	a.routes = h
}

// addrPortOf is the address of a GID with a port.
func addrPortOf(gid bth.GID, port uint16) netip.AddrPort { return netip.AddrPortFrom(gid.Addr(), port) }

// linkMTU is the path MTU of the link at an index of the GID table.
func (a *Adapter) linkMTU(index uint8) bth.MTU {
	if gids := a.gids.load(); int(index) < len(gids) && gids[index].addr.IsValid() {
		return activeMTU(gids[index].linkMTU)
	}
	return bth.MTU1024
}

// ownIndex is the index of an address of the adapter, -1 for another one's.
func ownIndex(gids []gidEntry, addr netip.Addr) int {
	addr = addr.WithZone("")
	for i := range gids {
		if gids[i].addr.IsValid() && gids[i].addr.WithZone("") == addr {
			return i
		}
	}
	return -1
}

// findWay finds the way to a peer: from own, or where that is not valid, or
// unspecified, from the address of the adapter that the host's routing table
// names. A peer that is the loopback address, or unspecified, is this adapter,
// unless that is on the loopback interface itself. The errors are those of
// rdma_resolve_addr(3) and its events.
func (a *Adapter) findWay(own, peer netip.Addr, tos uint8) (cm.Path, bth.MTU, error) {
	gids := a.gids.load()
	i := -1
	var err error
	if own.IsValid() && !own.IsUnspecified() {
		if i = ownIndex(gids, own); i < 0 {
			return cm.Path{}, 0, refuse(syscall.EADDRNOTAVAIL, "%v is no address of adapter %s", own, a.cfg.Name)
		}
	}
	if peer.IsUnspecified() || peer == loopbackOf(peer) && !onLoopback(gids, peer) {
		if peer, err = a.myself(gids, i, peer); err != nil {
			return cm.Path{}, 0, err
		}
	}
	hop, mtu := uint8(0), 0
	if i < 0 {
		if i, hop, mtu, err = a.chooseSource(gids, peer); err != nil {
			return cm.Path{}, 0, err
		}
	} else if err := a.reaches(&gids[i], peer); err != nil {
		return cm.Path{}, 0, refuse(unreachable(err), "from %v to %v: %v", gids[i].addr, peer, err)
	}
	if hop == 0 {
		hop = defaultHopLimit
	}
	if link := gids[i].linkMTU; mtu == 0 || link < mtu {
		mtu = link
	}
	return cm.Path{
		Local: gids[i].gid, Remote: bth.GIDFromAddr(peer), SGIDIndex: uint8(i), TrafficClass: tos, SL: tos >> 5, HopLimit: hop,
	}, activeMTU(mtu), nil
}

// loopbackOf is the loopback address of an address's family.
func loopbackOf(addr netip.Addr) netip.Addr {
	if addr.Is4() {
		return netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	return netip.IPv6Loopback()
}

// onLoopback says whether the adapter has a loopback address of addr's family: the
// loopback address may then be another adapter's.
func onLoopback(gids []gidEntry, addr netip.Addr) bool {
	for _, e := range gids {
		if e.addr.IsValid() && e.addr.IsLoopback() && e.addr.Is4() == addr.Is4() {
			return true
		}
	}
	return false
}

// myself is the adapter's own address that stands for "this host": the one at
// index i, if there is one, or its first of the family; for the unspecified IPv6
// address of any.
func (a *Adapter) myself(gids []gidEntry, i int, peer netip.Addr) (netip.Addr, error) {
	if i >= 0 {
		return gids[i].addr.WithZone(""), nil
	}
	for _, e := range gids {
		if e.addr.IsValid() && (e.addr.Is4() == peer.Is4() || peer == netip.IPv6Unspecified()) {
			return e.addr.WithZone(""), nil
		}
	}
	return netip.Addr{}, refuse(syscall.ENODEV, "adapter %s has no address of the family of %v", a.cfg.Name, peer)
}

// chooseSource asks the routing table from which address the host would send to
// a peer. Where that is not one of the adapter's, another one on the same
// interface will do, and of a peer on this host any that reaches it.
func (a *Adapter) chooseSource(gids []gidEntry, peer netip.Addr) (index int, hop uint8, mtu int, err error) {
	link, local := 0, true
	if a.routes != nil && a.group.Link() == "" { // else the table is that of the host before the link
		routes, err := a.routes.RouteGet(peer.AsSlice())
		switch {
		case err == nil && len(routes) > 0:
			r := &routes[0]
			if src, ok := netip.AddrFromSlice(r.Src); ok {
				if i := ownIndex(gids, src.Unmap()); i >= 0 {
					return i, uint8(min(r.Hoplimit, 255)), r.MTU, nil
				}
			}
			link, local = r.LinkIndex, r.Type == unix.RTN_LOCAL
		case err != nil && !peer.IsLinkLocalUnicast(): // which has no way without its interface
			return 0, 0, 0, refuse(unreachable(err), "no route to %v: %v", peer, err)
		}
	}
	for i := range gids {
		e := &gids[i]
		if !e.addr.IsValid() || e.addr.Is4() != peer.Is4() || !local && link != 0 && e.ifindex != link {
			continue
		}
		if a.reaches(e, peer) == nil {
			return i, 0, 0, nil
		}
	}
	return 0, 0, 0, refuse(syscall.ENODEV, "no address of adapter %s is on the way to %v", a.cfg.Name, peer)
}

// reaches says whether the host knows a way from one of the adapter's addresses.
func (a *Adapter) reaches(e *gidEntry, peer netip.Addr) error {
	return a.group.Reachable(e.addr, peer)
}

// unreachable is the errno of an event for a way that is not there.
func unreachable(err error) syscall.Errno {
	errno := errnoOf(err, syscall.ENETUNREACH)
	if errors.Is(errno, syscall.EHOSTUNREACH) {
		return errno
	}
	return syscall.ENETUNREACH
}
