package udp4791

import (
	"errors"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Multicast is the receive socket of one multicast group: bound to the group's
// address and port 4791, joined on the interfaces of the adapter's addresses of
// that family (IGMP or MLD is the kernel's business). There is one in an
// adapter for each group, not one for each worker: the kernel gives every
// socket of a group a copy.
type Multicast struct {
	group  netip.Addr
	fd     int
	locals []local // of the family
}

// Options that x/sys has no name for (linux/in6.h).
const ipv6MulticastAll = 29

// OpenMulticast joins a group (224.0.0.0/4 or ff00::/8) and opens its receive
// socket, which Endpoint.Listen has an endpoint read. Any goroutine may call it,
// also while the endpoints work, as long as the group is open; its thread must
// be in the network namespace of the group. It fails with an *AddrError for an
// address that is no multicast group or of a family of which the adapter has no
// address, and with a *SocketError for what the system refuses.
func (g *Group) OpenMulticast(group netip.Addr) (*Multicast, error) {
	group = group.Unmap().WithZone("")
	if !group.IsValid() || !group.IsMulticast() {
		return nil, &AddrError{Addr: group, Reason: "not a multicast group"}
	}
	m := &Multicast{group: group}
	g.mu.Lock()
	for _, l := range g.locals {
		if l.addr.IsValid() && l.addr.Is4() == group.Is4() {
			m.locals = append(m.locals, l)
		}
	}
	g.mu.Unlock()
	if len(m.locals) == 0 {
		return nil, &AddrError{Addr: group, Reason: "a group of an address family of which the adapter has no address"}
	}
	if err := m.open(g); err != nil {
		return nil, err
	}
	return m, nil
}

func (m *Multicast) open(g *Group) (err error) {
	l := local{addr: m.group, zone: m.locals[0].index}
	options := append(receiveOptions(l.family()), option{unix.SOL_SOCKET, unix.SO_REUSEADDR, 1, "SO_REUSEADDR", false})
	if l.addr.Is4() {
		// Only what comes by the interfaces that this socket joined on.
		options = append(options, option{unix.IPPROTO_IP, unix.IP_MULTICAST_ALL, 0, "IP_MULTICAST_ALL", true})
	} else {
		options = append(options, option{unix.IPPROTO_IPV6, ipv6MulticastAll, 0, "IPV6_MULTICAST_ALL", true})
	}
	if g.merges {
		options = append(options, option{unix.IPPROTO_UDP, unix.UDP_GRO, 1, "UDP_GRO", true})
	}
	var ignored []string
	if m.fd, err = newSocket(l, options, &ignored); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			unix.Close(m.fd)
		}
	}()
	if !g.ownNamespace(m.fd) {
		return &SocketError{
			Op: "open a multicast socket", Addr: m.group, Err: unix.EXDEV,
			Reason: "the calling thread is in another network namespace than the adapter",
		}
	}
	setBuffer(m.fd, unix.SO_RCVBUFFORCE, unix.SO_RCVBUF, g.cfg.RecvBuffer)
	if err := unix.Bind(m.fd, l.sockaddr(Port)); err != nil {
		return explainBind(l, err)
	}
	return m.join()
}

// join joins the group on every interface once.
func (m *Multicast) join() error {
	for _, l := range m.locals {
		var err error
		if m.group.Is4() {
			// By address: the kernel knows which interface has it.
			err = unix.SetsockoptIPMreqn(m.fd, unix.IPPROTO_IP, unix.IP_ADD_MEMBERSHIP,
				&unix.IPMreqn{Multiaddr: m.group.As4(), Address: l.addr.As4()})
		} else {
			err = unix.SetsockoptIPv6Mreq(m.fd, unix.IPPROTO_IPV6, unix.IPV6_JOIN_GROUP,
				&unix.IPv6Mreq{Multiaddr: m.group.As16(), Interface: l.index})
		}
		switch {
		case err == nil, errors.Is(err, unix.EADDRINUSE): // joined by another address of that interface
		case errors.Is(err, unix.ENODEV), errors.Is(err, unix.EADDRNOTAVAIL):
			return &SocketError{Op: "join the group", Addr: m.group, Err: err, Reason: "the interface of " + l.addr.String() + " takes no multicast"}
		case errors.Is(err, unix.ENOBUFS):
			return &SocketError{
				Op: "join the group", Addr: m.group, Err: err,
				Reason: "the kernel takes no more; see sysctl net.ipv4.igmp_max_memberships and net.core.optmem_max",
			}
		default:
			return &SocketError{Op: "join the group", Addr: m.group, Err: err}
		}
	}
	return nil
}

// Group returns the group's address, without a zone.
func (m *Multicast) Group() netip.Addr { return m.group }

// FD returns the descriptor to poll for input.
func (m *Multicast) FD() int { return m.fd }

// Close leaves the group and closes the socket. No endpoint may listen to it
// any more.
func (m *Multicast) Close() error {
	if m.fd < 0 {
		return nil
	}
	err := unix.Close(m.fd)
	m.fd = -1
	return err
}

// Listen has ReadBatch read the group's socket, too: RecvMeta.Dst is the group
// then. A socket belongs to one endpoint.
func (e *Endpoint) Listen(m *Multicast) { e.groups = append(e.groups, m) }

// Unlisten undoes Listen.
func (e *Endpoint) Unlisten(m *Multicast) {
	for i, x := range e.groups {
		if x == m {
			e.groups = append(e.groups[:i], e.groups[i+1:]...)
			return
		}
	}
}

// interfaceOf returns the index of the interface that has an address, 0 when
// there is none to be found.
func interfaceOf(a netip.Addr) uint32 {
	list, err := net.Interfaces()
	if err != nil {
		return 0
	}
	for i := range list {
		addrs, err := list[i].Addrs()
		if err != nil {
			continue
		}
		for _, x := range addrs {
			if n, ok := x.(*net.IPNet); ok {
				if ip, ok := netip.AddrFromSlice(n.IP); ok && ip.Unmap() == a {
					return uint32(list[i].Index)
				}
			}
		}
	}
	return 0
}
