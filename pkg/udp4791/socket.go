package udp4791

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// local is one of the group's addresses, resolved.
type local struct {
	addr netip.Addr
	zone uint32 // interface index of a link-local address, else 0
	// index is the interface of an IPv6 address, by which multicast leaves and
	// comes; 0 when it is not known. With IPv4 the kernel goes by the address.
	index uint32
}

func (l local) sockaddr(port int) unix.Sockaddr {
	if l.addr.Is4() {
		return &unix.SockaddrInet4{Port: port, Addr: l.addr.As4()}
	}
	return &unix.SockaddrInet6{Port: port, Addr: l.addr.As16(), ZoneId: l.zone}
}

func (l local) family() int {
	if l.addr.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// resolve looks up the zone of a link-local address.
func resolve(a netip.Addr) (local, error) {
	z := a.Zone()
	if z == "" {
		l := local{addr: a}
		if a.Is6() {
			l.index = interfaceOf(a)
		}
		return l, nil
	}
	if n, err := strconv.ParseUint(z, 10, 32); err == nil {
		return local{a, uint32(n), uint32(n)}, nil
	}
	ifi, err := net.InterfaceByName(z)
	if err != nil {
		return local{}, &AddrError{Addr: a, Reason: "on an interface that this host does not have", Err: err}
	}
	return local{a, uint32(ifi.Index), uint32(ifi.Index)}, nil
}

// option is one integer socket option and its name for messages.
type option struct {
	level, opt, val int
	name            string
	optional        bool // an old kernel may lack it; a note, not an error
}

// commonOptions are set on every socket of an address: what the IP header of
// sent datagrams looks like, see the package comment, and which way multicast
// leaves: by the interface that has the address, as IPv4 does anyway.
func commonOptions(l local) []option {
	if l.addr.Is4() {
		return []option{
			{unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE, "IP_MTU_DISCOVER", false},
			{unix.IPPROTO_IP, unix.IP_TTL, DefaultTTL, "IP_TTL", false},
			{unix.IPPROTO_IP, unix.IP_TOS, 0, "IP_TOS", false},
			{unix.IPPROTO_IP, unix.IP_MULTICAST_TTL, DefaultTTL, "IP_MULTICAST_TTL", false},
		}
	}
	options := []option{
		{unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE, "IPV6_MTU_DISCOVER", false},
		{unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, DefaultTTL, "IPV6_UNICAST_HOPS", false},
		{unix.IPPROTO_IPV6, unix.IPV6_TCLASS, 0, "IPV6_TCLASS", false},
		{unix.IPPROTO_IPV6, unix.IPV6_AUTOFLOWLABEL, 0, "IPV6_AUTOFLOWLABEL", true},
		{unix.IPPROTO_IPV6, ipv6FlowInfoSend, 1, "IPV6_FLOWINFO_SEND", true},
		{unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, DefaultTTL, "IPV6_MULTICAST_HOPS", false},
	}
	if l.index != 0 {
		options = append(options, option{unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_IF, int(l.index), "IPV6_MULTICAST_IF", true})
	}
	return options
}

// ipv6FlowInfoSend makes sendmsg take the flow label from sin6_flowinfo
// (linux/in6.h; x/sys has no name for it).
const ipv6FlowInfoSend = 33

// receiveOptions ask for the IP facts of received datagrams. A zero UDP
// checksum is accepted on IPv4 anyway (RFC 768), on IPv6 by option (RFC 6936,
// RoCEv2 is protected by its ICRC).
func receiveOptions(family int) []option {
	if family == unix.AF_INET {
		return []option{
			{unix.IPPROTO_IP, unix.IP_RECVTOS, 1, "IP_RECVTOS", false},
			{unix.IPPROTO_IP, unix.IP_RECVTTL, 1, "IP_RECVTTL", false},
		}
	}
	return []option{
		{unix.IPPROTO_IPV6, unix.IPV6_RECVTCLASS, 1, "IPV6_RECVTCLASS", false},
		{unix.IPPROTO_IPV6, unix.IPV6_RECVHOPLIMIT, 1, "IPV6_RECVHOPLIMIT", false},
		{unix.IPPROTO_UDP, udpNoCheck6RX, 1, "UDP_NO_CHECK6_RX", true},
	}
}

// udpNoCheck6RX is UDP_NO_CHECK6_RX (linux/udp.h).
const udpNoCheck6RX = 102

// newSocket makes an unbound, non-blocking UDP socket with the common
// options. missing collects the names of optional options the kernel lacks.
func newSocket(l local, extra []option, missing *[]string) (int, error) {
	fd, err := unix.Socket(l.family(), unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.IPPROTO_UDP)
	if err != nil {
		return -1, explainSocket(l, err)
	}
	for _, o := range append(commonOptions(l), extra...) {
		if err := unix.SetsockoptInt(fd, o.level, o.opt, o.val); err != nil {
			if o.optional {
				*missing = append(*missing, o.name)
				continue
			}
			unix.Close(fd)
			return -1, &SocketError{
				Op: "set " + o.name, Addr: l.addr, Err: err,
				Reason: "this kernel or sandbox does not offer what the adapter needs",
			}
		}
	}
	return fd, nil
}

// setBuffer sets a socket buffer, by force where the process may, and returns
// what the kernel gave, in the unit that was asked (the kernel stores twice
// that).
func setBuffer(fd, force, plain, size int) int {
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, force, size) != nil {
		// Refused without CAP_NET_ADMIN. The plain option never fails, it
		// gives less: read back below.
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, plain, size)
	}
	n, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, plain)
	if err != nil {
		return 0
	}
	return n / 2
}

// explainSocket puts a failed socket(2) into words.
func explainSocket(l local, err error) error {
	e := &SocketError{Op: "socket", Addr: l.addr, Err: err}
	switch {
	case errors.Is(err, unix.EAFNOSUPPORT) && l.addr.Is6():
		e.Reason = "this host or container has no IPv6; give the adapter an IPv4 address"
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		e.Reason = "a security policy (seccomp, SELinux, AppArmor) forbids UDP sockets; allow them for this program"
	case errors.Is(err, unix.EMFILE):
		e.Reason = "too many open descriptors in this process; raise \"ulimit -n\""
	case errors.Is(err, unix.ENFILE):
		e.Reason = "too many open descriptors on this host; raise sysctl fs.file-max"
	}
	return e
}

// explainBind puts a failed bind(2) to port 4791 into words.
func explainBind(l local, err error) error {
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		return busyByPort(l.addr)
	case errors.Is(err, unix.EADDRNOTAVAIL):
		reason := "not an address of this host in this network namespace"
		if l.addr.Is6() {
			if ipv6Disabled() {
				reason = "unusable: IPv6 is switched off here (sysctl net.ipv6.conf.all.disable_ipv6)"
			} else {
				reason += ", or duplicate address detection has not finished"
			}
		}
		return &AddrError{Addr: l.addr, Reason: reason, Err: err}
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return &SocketError{
			Op: fmt.Sprintf("bind port %d", Port), Addr: l.addr, Err: err,
			Reason: fmt.Sprintf("a security policy forbids it, or sysctl net.ipv4.ip_unprivileged_port_start is above %d"+
				" and CAP_NET_BIND_SERVICE is missing", Port),
		}
	case errors.Is(err, unix.ENODEV):
		return &AddrError{Addr: l.addr, Reason: "on an interface that this host does not have", Err: err}
	}
	return &SocketError{Op: fmt.Sprintf("bind port %d", Port), Addr: l.addr, Err: err}
}

// Reachable says whether this host knows a way from a local address of the group
// to another: nil when it does, or when the calling thread is in another network
// namespace and cannot tell. Nothing is sent. It fails with an *AddrError for a
// local address that is not the group's, and else with a *SocketError whose
// errno is the kernel's: ENETUNREACH, EHOSTUNREACH, EINVAL where a loopback
// address would have to leave the host.
func (g *Group) Reachable(from, to netip.Addr) error {
	g.mu.Lock()
	i := slices.IndexFunc(g.locals, func(l local) bool { return l.addr == from.Unmap() })
	var l local
	if i >= 0 {
		l = g.locals[i]
	}
	g.mu.Unlock()
	if i < 0 || !l.addr.IsValid() {
		return &AddrError{Addr: from, Reason: "not one of the adapter's"}
	}
	return g.findWay(l, to.Unmap())
}

func (g *Group) findWay(l local, to netip.Addr) error {
	var ignored []string
	fd, err := newSocket(l, nil, &ignored)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if !g.ownNamespace(fd) {
		return nil
	}
	if err := unix.Bind(fd, l.sockaddr(0)); err != nil {
		return explainBind(l, err)
	}
	if to.Is4() != l.addr.Is4() {
		return &SocketError{Op: "find a way", Addr: to, Err: unix.EAFNOSUPPORT}
	}
	peer := local{addr: to}
	if to.IsLinkLocalUnicast() || to.IsLinkLocalMulticast() {
		peer.zone = l.index
	}
	// The connect of a UDP socket looks up the route, no more (udp(7)).
	if err := unix.Connect(fd, peer.sockaddr(Port)); err != nil {
		return &SocketError{Op: "find a way", Addr: to, Err: err}
	}
	return nil
}
