package nic

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/udp4791"
)

// headerRoom is what the active MTU leaves of the link's MTU for headers
// (docs/operations.md): 40 IPv6, 8 UDP, 12 BTH, 16 RETH, 4 ICRC, as kernel rxe counts.
const headerRoom = 80

// unknownLinkMTU stands for a link whose interface was not found (an address
// that is local by a route only): Ethernet's.
const unknownLinkMTU = 1500

// A gidEntry is one address of the adapter.
type gidEntry struct {
	gid     bth.GID
	addr    netip.Addr // with its zone when link-local; the zero Addr: a hole
	ifindex int        // 0: not known
	ifname  string
	linkMTU int // bytes
}

// A gidTable is the adapter's GIDs by index: read without a lock by workers,
// replaced as a whole.
type gidTable struct {
	entries atomic.Pointer[[]gidEntry]
}

// load returns the entries, not to be changed.
func (t *gidTable) load() []gidEntry {
	if p := t.entries.Load(); p != nil {
		return *p
	}
	return nil
}

// gid returns the GID and the local address at index i. Safe for concurrent
// use; takes no lock.
func (a *Adapter) gid(i int) (bth.GID, netip.Addr, bool) {
	entries := a.gids.load()
	if i < 0 || i >= len(entries) || !entries[i].addr.IsValid() {
		return bth.GID{}, netip.Addr{}, false
	}
	return entries[i].gid, entries[i].addr, true
}

// resolveGIDs finds the adapter's GIDs: exactly the addresses given, in their
// order, or the bindable addresses of the interface, IPv4 first, link-local
// last. None is invented.
func resolveGIDs(addrs []netip.Addr, ifname string) ([]gidEntry, error) {
	switch {
	case len(addrs) > 0 && ifname != "":
		return nil, fmt.Errorf("nic: both addresses (%v) and an interface (%s) given; give one", addrs, ifname)
	case ifname != "":
		return interfaceGIDs(ifname)
	case len(addrs) == 0:
		return nil, fmt.Errorf("nic: neither an address nor an interface given")
	}
	local, err := localInterfaces()
	if err != nil {
		return nil, err
	}
	entries := make([]gidEntry, 0, len(addrs))
	for _, addr := range addrs {
		e := gidEntry{gid: bth.GIDFromAddr(addr), addr: addr.Unmap(), linkMTU: unknownLinkMTU}
		if in := interfaceOf(local, addr.Unmap()); in != nil {
			e.ifindex, e.ifname, e.linkMTU = in.Index, in.Name, in.MTU
		}
		entries = append(entries, e)
	}
	return entries, nil
}

func interfaceGIDs(name string) ([]gidEntry, error) {
	in, err := net.InterfaceByName(name)
	if err != nil {
		return nil, fmt.Errorf("nic: interface %q: %w; \"ip link\" lists those of this network namespace", name, err)
	}
	prefixes, err := prefixesOf(in)
	if err != nil {
		return nil, err
	}
	var entries []gidEntry
	var refused []string
	for _, p := range prefixes {
		addr := p.Addr()
		if addr.Is6() && addr.IsLinkLocalUnicast() {
			addr = addr.WithZone(in.Name)
		}
		if err := tryBind(addr); err != nil {
			refused = append(refused, fmt.Sprintf("%v (%v)", addr, err))
			continue
		}
		e := gidEntry{gid: bth.GIDFromAddr(addr), addr: addr, ifindex: in.Index, ifname: in.Name, linkMTU: in.MTU}
		if !slices.ContainsFunc(entries, func(o gidEntry) bool { return o.addr == addr }) {
			entries = append(entries, e)
		}
	}
	switch {
	case len(entries) == 0 && len(refused) > 0:
		return nil, fmt.Errorf("nic: interface %s: no address of it can be bound: %s", name, strings.Join(refused, ", "))
	case len(entries) == 0:
		return nil, fmt.Errorf("nic: interface %s has no address; give it one, an adapter invents none", name)
	case len(entries) > udp4791.MaxAddrs:
		return nil, fmt.Errorf("nic: interface %s has %d addresses, an adapter takes at most %d; name the ones to use",
			name, len(entries), udp4791.MaxAddrs)
	}
	slices.SortStableFunc(entries, func(x, y gidEntry) int { return gidRank(x.addr) - gidRank(y.addr) })
	return entries, nil
}

// gidRank orders a table: IPv4-mapped, other IPv6, link-local.
func gidRank(a netip.Addr) int {
	switch {
	case a.Is4():
		return 0
	case a.IsLinkLocalUnicast():
		return 2
	}
	return 1
}

// tryBind binds a UDP socket to addr and any port, and closes it.
func tryBind(addr netip.Addr) error {
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, 0)))
	if err != nil {
		var errno syscall.Errno
		if errno = errnoOf(err, 0); errno != 0 {
			return errno
		}
		return err
	}
	return c.Close()
}

// A localInterface is an interface with its prefixes.
type localInterface struct {
	net.Interface
	prefixes []netip.Prefix
}

func localInterfaces() ([]localInterface, error) {
	list, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("nic: list interfaces: %w", err)
	}
	out := make([]localInterface, 0, len(list))
	for i := range list {
		prefixes, err := prefixesOf(&list[i])
		if err != nil {
			continue // it went away meanwhile
		}
		out = append(out, localInterface{list[i], prefixes})
	}
	return out, nil
}

func prefixesOf(in *net.Interface) ([]netip.Prefix, error) {
	addrs, err := in.Addrs()
	if err != nil {
		return nil, fmt.Errorf("nic: addresses of interface %s: %w", in.Name, err)
	}
	var out []netip.Prefix
	for _, a := range addrs {
		n, ok := a.(*net.IPNet)
		if !ok {
			continue
		}
		ip, ok := netip.AddrFromSlice(n.IP)
		if !ok {
			continue
		}
		ip = ip.Unmap()
		ones, _ := n.Mask.Size()
		if p := netip.PrefixFrom(ip, ones); p.IsValid() {
			out = append(out, p)
		}
	}
	return out, nil
}

// interfaceOf returns the interface that has addr, or a loopback interface
// whose prefix covers it (all of 127.0.0.0/8 is local), or nil.
func interfaceOf(list []localInterface, addr netip.Addr) *localInterface {
	plain := addr.WithZone("")
	for i := range list {
		if addr.Zone() != "" && addr.Zone() != list[i].Name {
			continue
		}
		for _, p := range list[i].prefixes {
			if p.Addr() == plain {
				return &list[i]
			}
		}
	}
	for i := range list {
		if list[i].Flags&net.FlagLoopback == 0 {
			continue
		}
		for _, p := range list[i].prefixes {
			if p.Contains(plain) {
				return &list[i]
			}
		}
	}
	return nil
}

// activeMTU returns the path MTU of a link: the largest of 256 to 4096 not
// above linkMTU - 80 bytes; 256 if none.
func activeMTU(linkMTU int) bth.MTU {
	m := bth.MTU256
	for _, c := range []bth.MTU{bth.MTU512, bth.MTU1024, bth.MTU2048, bth.MTU4096} {
		if c.Bytes() <= linkMTU-headerRoom {
			m = c
		}
	}
	return m
}
