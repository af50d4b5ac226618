package nic

import (
	"errors"
	"fmt"
	"math/bits"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/softroce/softroce/internal/uapi"
	"github.com/softroce/softroce/pkg/bth"
)

// gidType is how the verbs' tools call the only type that there is.
const gidType = "RoCE v2"

// Flags of an IPv6 address in if_inet6 (if_addr.h).
const (
	addrTentative = 0x40
	addrDADFailed = 0x08
)

// status says of each address that is in the table, or that the adapter should
// have, whether it can be used and why not. It runs in the adapter's namespace.
func (n *netWatch) status(list []localInterface, table []gidEntry) []uapi.GIDStatus {
	var out []uapi.GIDStatus
	flags := ipv6Flags()
	for i := range table {
		e := &table[i]
		if !e.addr.IsValid() {
			continue
		}
		s := uapi.GIDStatus{
			Index: i, GID: e.gid.String(), Address: e.addr.String(), Type: gidType, Interface: e.ifname, LinkMTU: e.linkMTU, Usable: true,
		}
		if why := linkTrouble(list, e); why != "" {
			s.Usable, s.Why = false, why
		}
		out = append(out, s)
	}
	for _, addr := range n.wanted(list) {
		if slices.ContainsFunc(table, func(e gidEntry) bool { return e.addr == addr }) {
			continue
		}
		s := uapi.GIDStatus{Index: -1, GID: bth.GIDFromAddr(addr).String(), Address: addr.String(), Type: gidType}
		if in := interfaceOf(list, addr); in != nil {
			s.Interface, s.LinkMTU = in.Name, in.MTU
		}
		s.Why = n.whyNot(list, addr, flags)
		out = append(out, s)
	}
	if n.a.cfg.Interface != "" && !slices.ContainsFunc(list, func(in localInterface) bool { return in.Name == n.a.cfg.Interface }) {
		out = append(out, uapi.GIDStatus{
			Index: -1, Type: gidType, Interface: n.a.cfg.Interface, Why: fmt.Sprintf("interface %s is gone", n.a.cfg.Interface),
		})
	}
	return out
}

// wanted are the addresses that the adapter was given, or those of its interface.
func (n *netWatch) wanted(list []localInterface) (out []netip.Addr) {
	for _, a := range n.a.cfg.Addrs {
		out = append(out, a.Unmap())
	}
	for i := range list {
		if n.a.cfg.Interface != "" && list[i].Name == n.a.cfg.Interface {
			for _, e := range list[i].gids() {
				out = append(out, e.addr)
			}
		}
	}
	return out
}

// linkTrouble says what is wrong with the link of an address, "" when nothing is, or
// when the address is local by a route and has none.
func linkTrouble(list []localInterface, e *gidEntry) string {
	if e.ifname == "" {
		return ""
	}
	i := slices.IndexFunc(list, func(in localInterface) bool { return in.Index == e.ifindex })
	switch {
	case i < 0:
		return fmt.Sprintf("link gone: there is no interface %s any more", e.ifname)
	case list[i].Flags&net.FlagUp == 0:
		return fmt.Sprintf("link down: interface %s is not up (ip link set %s up)", list[i].Name, list[i].Name)
	case list[i].Flags&net.FlagRunning == 0:
		return fmt.Sprintf("link down: interface %s has no carrier", list[i].Name)
	}
	return ""
}

// whyNot says why an address is not in the table.
func (n *netWatch) whyNot(list []localInterface, addr netip.Addr, flags map[netip.Addr]uint64) string {
	switch f := flags[addr.WithZone("")]; {
	case f&addrDADFailed != 0:
		return "another host on the link has this address (duplicate address detection failed)"
	case f&addrTentative != 0:
		return "tentative: duplicate address detection has not ended"
	}
	err := tryBind(addr)
	switch {
	case err == nil && len(n.a.gids.load()) >= gidTableLen:
		return fmt.Sprintf("no room: all %d entries of the table are taken", gidTableLen)
	case err == nil:
		return "lost: its sockets or its lock could not be had again; the log says why"
	case interfaceOf(list, addr) == nil:
		return "the address is on no interface (ip address add)"
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return "the kernel does not let a socket bind to it yet"
	}
	return err.Error()
}

// ipv6Flags reads the flags of the host's IPv6 addresses; nil where they cannot be
// read.
func ipv6Flags() map[netip.Addr]uint64 {
	text, err := os.ReadFile("/proc/thread-self/net/if_inet6")
	if err != nil {
		return nil
	}
	out := make(map[netip.Addr]uint64)
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) < 5 || len(f[0]) != 32 {
			continue
		}
		hi, err1 := strconv.ParseUint(f[0][:16], 16, 64)
		lo, err2 := strconv.ParseUint(f[0][16:], 16, 64)
		v, err3 := strconv.ParseUint(f[4], 16, 64)
		if errors.Join(err1, err2, err3) != nil {
			continue
		}
		var b [16]byte
		for i := range 8 {
			b[i], b[8+i] = byte(bits.RotateLeft64(hi, 8*(i+1))), byte(bits.RotateLeft64(lo, 8*(i+1)))
		}
		out[netip.AddrFrom16(b)] = v
	}
	return out
}

// listGIDs answers with what the last look at the network found: a change of it is
// a reason for a look.
func (p *program) listGIDs(*uapi.ListGIDsRequest) (reply, error) {
	r := &uapi.ListGIDsReply{}
	if s := p.a.gidStatus.Load(); s != nil {
		r.GIDs = *s
	}
	return reply{body: r}, nil
}

// noGID refuses an index that has no entry, and says what the table has.
func (a *Adapter) noGID(index int) error {
	var have []string
	for i, e := range a.gids.load() {
		if e.addr.IsValid() && len(have) < 8 {
			have = append(have, fmt.Sprintf("%d (%v)", i, e.addr))
		}
	}
	text := "is empty"
	if len(have) > 0 {
		text = "has " + strings.Join(have, ", ")
	}
	return &gidError{&Error{syscall.EINVAL, fmt.Sprintf("sgid_index %d: the GID table of %s has no such entry, it %s; softroce gids shows why an address is not in it",
		index, a.cfg.Name, text)}}
}

// A gidError is the refusal of a wrong GID index, which the log tells, too.
type gidError struct{ refusal *Error }

// Error is the refusal's text.
func (e *gidError) Error() string { return e.refusal.Text }

// Unwrap returns the refusal.
func (e *gidError) Unwrap() error { return e.refusal }

// noteGID logs the refusal of a wrong GID index.
func (p *program) noteGID(what string, err error) {
	if g := (*gidError)(nil); errors.As(err, &g) {
		p.a.logRefused(what+" refused: a wrong GID index", p.pid, err)
	}
}
