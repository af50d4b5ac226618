package nic

import (
	"net/netip"
	"os"
	"strconv"
	"strings"
	"syscall"

	"github.com/softroce/softroce/internal/cm"
)

// The ports of Linux where nothing else is configured (ip(7)).
const (
	firstPort, lastPort = 32768, 60999
	unprivilegedPort    = 1024
)

// A portTable knows who has which port of the connection manager's port spaces.
// They have nothing to do with the IP stack's own ports but for the ranges.
type portTable struct {
	at                map[portKey][]*portEntry
	first, last, open uint16 // the ephemeral range, and the first port that is for everybody
	next              uint32
}

type portKey struct {
	space cm.PortSpace
	port  uint16
}

// A portEntry is the use that one identifier makes of a port: for one address, or
// for all of a family or both.
type portEntry struct {
	id   *cmID
	key  portKey
	addr netip.Addr
}

func newPortTable(random uint32) portTable {
	t := portTable{at: make(map[portKey][]*portEntry), first: firstPort, last: lastPort, open: unprivilegedPort, next: random}
	if v := sysctlPorts("/proc/sys/net/ipv4/ip_local_port_range"); len(v) == 2 && v[0] > 0 && v[0] <= v[1] {
		t.first, t.last = v[0], v[1]
	}
	if v := sysctlPorts("/proc/sys/net/ipv4/ip_unprivileged_port_start"); len(v) == 1 {
		t.open = v[0]
	}
	return t
}

// sysctlPorts reads port numbers; nil when there are none.
func sysctlPorts(name string) (ports []uint16) {
	b, err := os.ReadFile(name)
	if err != nil {
		return nil
	}
	for _, f := range strings.Fields(string(b)) {
		v, err := strconv.ParseUint(f, 10, 16)
		if err != nil {
			return nil
		}
		ports = append(ports, uint16(v))
	}
	return ports
}

// bind gives an identifier a port for an address, 0 for any one of the ephemeral
// range, and makes that its own address. In use is EADDRINUSE.
func (t *portTable) bind(id *cmID, addr netip.AddrPort) error {
	e := &portEntry{id: id, key: portKey{id.space, addr.Port()}, addr: addr.Addr()}
	if e.key.port == 0 {
		if !t.pick(e) {
			return refuse(syscall.EADDRNOTAVAIL, "all ports %d to %d of space %v are in use", t.first, t.last, id.space)
		}
	} else if o := t.conflict(e, false); o != nil {
		return refuse(syscall.EADDRINUSE, "port %d of space %v is in use for %v", e.key.port, id.space, o.addr)
	}
	t.at[e.key] = append(t.at[e.key], e)
	id.port, id.own = e, netip.AddrPortFrom(e.addr, e.key.port)
	return nil
}

// pick finds an ephemeral port: one that nobody has, else one that goes with its
// users.
func (t *portTable) pick(e *portEntry) bool {
	n := uint32(t.last-t.first) + 1
	for _, shared := range []bool{false, true} {
		for range n {
			t.next++
			e.key.port = t.first + uint16(t.next%n)
			if users := t.at[e.key]; len(users) == 0 || shared && t.conflict(e, false) == nil {
				return true
			}
		}
	}
	return false
}

// conflict is somebody that e's port cannot be shared with. Those who both set
// the reuse option can, as long as nobody listens.
func (t *portTable) conflict(e *portEntry, listen bool) *portEntry {
	for _, o := range t.at[e.key] {
		if o == e || !overlap(e, o) {
			continue
		}
		if !listen && e.id.reuse && o.id.reuse && o.id.stage != cmListening {
			continue
		}
		return o
	}
	return nil
}

// overlap says whether a request could be for both.
func overlap(a, b *portEntry) bool {
	return covers(a, b.addr) || covers(b, a.addr)
}

func covers(e *portEntry, addr netip.Addr) bool {
	switch {
	case e.addr == addr:
		return true
	case !e.addr.IsUnspecified():
		return false
	case e.addr.Is4():
		return addr.Is4()
	}
	return !addr.Is4() || !e.id.afOnly
}

func (t *portTable) release(id *cmID) {
	e := id.port
	if e == nil {
		return
	}
	id.port = nil
	list := t.at[e.key]
	for i, o := range list {
		if o == e {
			list = append(list[:i], list[i+1:]...)
			break
		}
	}
	if len(list) == 0 {
		delete(t.at, e.key)
	} else {
		t.at[e.key] = list
	}
}
