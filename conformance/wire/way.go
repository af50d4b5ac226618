package wire

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// way is how frames reach the target.
type way struct {
	iface    string
	index    int
	mtu      int
	own, mac net.HardwareAddr // of the interface, and of the target or the router before it
	hop      netip.Addr       // the target or the router before it
	loopback bool
}

// Tuning of our own: how often and how long the neighbour is asked for.
const (
	askTimes  = 3
	askFor    = time.Second
	askPause  = 2 * time.Millisecond
	discard   = 9 // the port that datagrams go to only to make the kernel look for the neighbour
	noMACSize = 6
)

// checkAddrs checks what can be without the host.
func checkAddrs(cfg Config) error {
	local, remote := cfg.Local.Unmap(), cfg.Remote.Unmap()
	switch {
	case !remote.IsValid() || remote.IsUnspecified() || remote.IsMulticast():
		return fmt.Errorf("the target's address %v is not one of a host", remote)
	case local.IsValid() && local.Is4() != remote.Is4():
		return fmt.Errorf("the tester's address %v and the target's %v are not of one IP version", local, remote)
	case remote.Is6() && remote.IsLinkLocalUnicast() && cfg.Iface == "" && remote.Zone() == "":
		return fmt.Errorf("the link-local address %v needs an interface: write %v%%INTERFACE", remote, remote)
	}
	return nil
}

// findWay asks the routing table, and returns the addresses with what it adds.
func findWay(cfg Config) (w way, local, remote netip.Addr, err error) {
	local, remote = cfg.Local.Unmap(), cfg.Remote.Unmap()
	fail := func(format string, args ...any) (way, netip.Addr, netip.Addr, error) {
		return way{}, local, remote, fmt.Errorf(format, args...)
	}
	if cfg.Iface == "" {
		cfg.Iface = remote.Zone()
	}
	route, err := routeTo(remote, local, cfg.Iface)
	if err != nil {
		return fail("find the way to %v%s%s: %w", remote, named(" from ", cfg.Local), named(" by ", cfg.Iface), err)
	}
	if !local.IsValid() {
		src, ok := netip.AddrFromSlice(route.Src)
		if !ok {
			return fail("the routing table names no address to reach %v from: say which the tester has", remote)
		}
		local = src.Unmap()
	}
	if local.WithZone("") == remote.WithZone("") {
		return fail("the tester's address %v is the target's: give the tester another address of this host", local)
	}
	if w, err = wayBy(route); err != nil {
		return fail("%w", err)
	}
	for _, a := range []*netip.Addr{&local, &remote} {
		if a.Is6() && a.IsLinkLocalUnicast() {
			*a = a.WithZone(w.iface)
		}
	}
	w.hop = remote
	if gw, ok := netip.AddrFromSlice(route.Gw); ok {
		w.hop = gw.Unmap()
	}
	return w, local, remote, nil
}

// named is a piece of an error's text for a setting that is there.
func named[T comparable](word string, v T) string {
	var none T
	if v == none {
		return ""
	}
	return fmt.Sprint(word, v)
}

// routeTo asks the routing table. Both netlink's functions use the calling thread's namespace.
func routeTo(remote, local netip.Addr, iface string) (netlink.Route, error) {
	opts := &netlink.RouteGetOptions{Oif: iface}
	if local.IsValid() && !local.IsLinkLocalUnicast() {
		opts.SrcAddr = local.AsSlice()
	}
	routes, err := netlink.RouteGetWithOptions(remote.AsSlice(), opts)
	if err != nil {
		return netlink.Route{}, err
	}
	if len(routes) == 0 {
		return netlink.Route{}, unix.EHOSTUNREACH
	}
	return routes[0], nil
}

// wayBy is the way by a route's interface.
func wayBy(route netlink.Route) (way, error) {
	link, err := netlink.LinkByIndex(route.LinkIndex)
	if err != nil {
		return way{}, fmt.Errorf("find interface %d: %w", route.LinkIndex, err)
	}
	at := link.Attrs()
	w := way{iface: at.Name, index: at.Index, mtu: min(at.MTU, 0xFFFF), own: at.HardwareAddr, loopback: at.Flags&net.FlagLoopback != 0}
	if w.loopback {
		w.own, w.mac = make(net.HardwareAddr, noMACSize), make(net.HardwareAddr, noMACSize)
		return w, nil
	}
	if at.EncapType != "ether" || len(w.own) != noMACSize {
		return way{}, fmt.Errorf("interface %s has no Ethernet frames (%s): the tester needs an Ethernet or loopback interface",
			at.Name, at.EncapType)
	}
	return w, nil
}

// macFor is where a packet goes: to the neighbour, or to the group that its destination is.
func (w *way) macFor(ip []byte) net.HardwareAddr {
	switch {
	case w.loopback:
	case len(ip) >= ipv4Len && ip[0]>>4 == 4 && ip[16]>>4 == 0xE:
		return net.HardwareAddr{0x01, 0x00, 0x5E, ip[17] & 0x7F, ip[18], ip[19]}
	case len(ip) >= ipv6Len && ip[0]>>4 == 6 && ip[24] == 0xFF:
		return net.HardwareAddr{0x33, 0x33, ip[36], ip[37], ip[38], ip[39]}
	}
	return w.mac
}

// resolve finds the neighbour's MAC address.
func (w *way) resolve(local, remote netip.Addr) error {
	if w.loopback {
		return w.checkLoopback(local, remote)
	}
	for range askTimes {
		if found, err := w.lookup(); found || err != nil {
			return err
		}
		if err := provoke(local, remote); err != nil {
			return fmt.Errorf("look for %v on %s: %w", w.hop, w.iface, err)
		}
		for until := time.Now().Add(askFor); time.Now().Before(until); {
			if found, err := w.lookup(); found || err != nil {
				return err
			}
			time.Sleep(askPause)
		}
	}
	return fmt.Errorf("nobody on %s answers for %v: the target is down, or not on this network", w.iface, w.hop)
}

// lookup asks the kernel's table of neighbours, which names a MAC address only while it holds.
func (w *way) lookup() (bool, error) {
	neighs, err := netlink.NeighList(w.index, family(w.hop))
	if err != nil {
		return false, fmt.Errorf("list the neighbours on %s: %w", w.iface, err)
	}
	for _, n := range neighs {
		a, ok := netip.AddrFromSlice(n.IP)
		if ok && a.Unmap() == w.hop.WithZone("") && len(n.HardwareAddr) == noMACSize {
			w.mac = n.HardwareAddr
			return true, nil
		}
	}
	return false, nil
}

// provoke makes the kernel look for the neighbour, by a datagram to the target.
func provoke(local, remote netip.Addr) error {
	fd, err := unix.Socket(family(local), unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := bindUDP(fd, local, 0); err != nil {
		return err
	}
	var to unix.Sockaddr = &unix.SockaddrInet6{Port: discard, Addr: remote.As16(), ZoneId: zoneID(remote)}
	if remote.Is4() {
		to = &unix.SockaddrInet4{Port: discard, Addr: remote.As4()}
	}
	err = unix.Sendto(fd, nil, 0, to)
	if errors.Is(err, unix.EHOSTUNREACH) { // of the attempt before
		return nil
	}
	return err
}

// checkLoopback says what the host must allow before it takes IPv4 frames with an address of its own from a loopback device. It
// looks into the calling thread's namespace.
func (w *way) checkLoopback(local, remote netip.Addr) error {
	need := "accept_local"
	switch {
	case local.Is6():
		return nil
	case local.IsLoopback() || remote.IsLoopback():
		need = "route_localnet"
	}
	for _, dev := range []string{"all", w.iface} {
		b, err := os.ReadFile("/proc/sys/net/ipv4/conf/" + dev + "/" + need)
		if err == nil && strings.TrimSpace(string(b)) != "0" {
			return nil
		}
	}
	return fmt.Errorf("%v is on this host, whose %s does not take the tester's packets: allow it by "+
		"sysctl -w net.ipv4.conf.%s.%s=1, or run the tester in a network namespace or on a host of its own",
		remote, w.iface, w.iface, need)
}
