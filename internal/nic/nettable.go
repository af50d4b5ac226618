package nic

import (
	"fmt"
	"maps"
	"math"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/softroce/softroce/internal/uapi"
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/udp4791"
)

// found lists the addresses that are the adapter's to have, by the interfaces:
// all those of its interface, or those of its own that are somewhere.
func (n *netWatch) found(list []localInterface) []gidEntry {
	cfg := &n.a.cfg
	if link := n.a.group.Link(); link != "" {
		return ownGIDs(cfg.Addrs, list, link)
	}
	if cfg.Interface == "" {
		var out []gidEntry
		for _, addr := range cfg.Addrs {
			e := gidEntry{gid: bth.GIDFromAddr(addr), addr: addr.Unmap(), linkMTU: unknownLinkMTU}
			if in := interfaceOf(list, e.addr); in != nil {
				e.ifindex, e.ifname, e.linkMTU = in.Index, in.Name, in.MTU
			} else if tryBind(e.addr) != nil { // it may be local by a route only
				continue
			}
			out = append(out, e)
		}
		return out
	}
	for i := range list {
		if list[i].Name == cfg.Interface {
			return list[i].gids()
		}
	}
	return nil
}

// ownGIDs are the entries of addresses that no interface has: on a link of the
// adapter's own, which may be gone.
func ownGIDs(addrs []netip.Addr, list []localInterface, link string) (out []gidEntry) {
	for _, addr := range addrs {
		e := gidEntry{gid: bth.GIDFromAddr(addr), addr: addr.Unmap(), ifname: link, linkMTU: unknownLinkMTU}
		for i := range list {
			if list[i].Name == link {
				e.ifindex, e.linkMTU = list[i].Index, list[i].MTU
			}
		}
		out = append(out, e)
	}
	return out
}

// gids are the entries that an interface's addresses make.
func (in *localInterface) gids() (out []gidEntry) {
	for _, p := range in.prefixes {
		addr := p.Addr()
		if addr.Is6() && addr.IsLinkLocalUnicast() {
			addr = addr.WithZone(in.Name)
		}
		if slices.ContainsFunc(out, func(o gidEntry) bool { return o.addr == addr }) {
			continue
		}
		out = append(out, gidEntry{gid: bth.GIDFromAddr(addr), addr: addr, ifindex: in.Index, ifname: in.Name, linkMTU: in.MTU})
	}
	slices.SortStableFunc(out, func(x, y gidEntry) int { return gidRank(x.addr) - gidRank(y.addr) })
	return out
}

// takeOut empties the entries whose address is gone, so that no other index
// changes, and renews what is known of the others' links.
func (n *netWatch) takeOut(table, found []gidEntry) (changed bool) {
	for i := range table {
		e := &table[i]
		if !e.addr.IsValid() {
			continue
		}
		k := slices.IndexFunc(found, func(o gidEntry) bool { return o.addr == e.addr })
		if k >= 0 && !n.moved(&found[k]) {
			mtu := e.linkMTU
			*e = found[k]
			if e.ifindex == 0 && e.ifname != "" { // its link is gone, and nobody knows that of the next
				e.linkMTU = mtu
			}
			continue
		}
		n.a.log.Info("gid gone", keyAdapter, n.a.cfg.Name, keyIndex, i, keyGID, e.gid.String(), keyInterface, e.ifname)
		n.parked[e.addr] = time.Now()
		*e = gidEntry{}
		changed = true
	}
	return changed
}

// moved says that an address's sockets are bound to an interface that is another
// one now, perhaps of the same name.
func (n *netWatch) moved(e *gidEntry) bool {
	at, ok := n.open[e.addr]
	return ok && at != e.ifindex && e.addr.Zone() != ""
}

// putIn gives new addresses a place: one that the adapter was given, its own;
// another one the first free. missing says that one could not be had.
func (n *netWatch) putIn(table *[]gidEntry, found []gidEntry) (added, missing bool) {
	for i := range found {
		e := &found[i]
		if slices.ContainsFunc(*table, func(o gidEntry) bool { return o.addr == e.addr }) {
			continue
		}
		index := n.indexFor(*table, e.addr)
		if index >= gidTableLen {
			n.warn("no room in the GID table", fmt.Errorf("%v: all %d entries are taken", e.addr, gidTableLen))
			continue
		}
		if err := n.bind(e); err != nil {
			missing = true
			if n.retries == watchRetries-1 {
				n.warn("an address of the interface cannot be used", err)
			}
			continue
		}
		if index == len(*table) {
			*table = append(*table, gidEntry{})
		}
		(*table)[index] = *e
		added = true
		n.a.log.Info("gid", keyAdapter, n.a.cfg.Name, keyIndex, index, keyGID, e.gid.String(), keyInterface, e.ifname, keyLinkMTU, e.linkMTU)
	}
	return added, missing
}

func (n *netWatch) indexFor(table []gidEntry, addr netip.Addr) int {
	for i, own := range n.a.cfg.Addrs {
		if own.Unmap() == addr {
			return i
		}
	}
	for i := range table {
		if !table[i].addr.IsValid() {
			return i
		}
	}
	return len(table)
}

// bind makes sure that the workers can send from an address and receive on it.
func (n *netWatch) bind(e *gidEntry) error {
	if n.moved(e) {
		n.drop(e.addr)
	}
	if err := tryBind(e.addr); err != nil { // tentative, for example
		return err
	}
	if _, ok := n.open[e.addr]; ok {
		delete(n.parked, e.addr)
		return nil
	}
	if len(n.open) >= udp4791.MaxAddrs {
		for addr := range n.parked {
			n.drop(addr)
			break
		}
	}
	late, err := n.a.group.OpenAddr(e.addr)
	if err != nil {
		return err
	}
	defer late.Close()
	for _, w := range n.a.workers {
		err := n.a.errStopped()
		w.do(func() {
			err = w.poller.Add(w.ep.Adopt(late), tokenSocket)
			w.forgetWays(e.addr)
		})
		if err != nil {
			n.open[e.addr] = e.ifindex
			n.drop(e.addr)
			return err
		}
	}
	n.open[e.addr] = e.ifindex
	return nil
}

// drop closes the sockets of an address. Queue pairs that still send from it
// lose what they send.
func (n *netWatch) drop(addr netip.Addr) {
	for _, w := range n.a.workers {
		w.do(func() { w.ep.Drop(addr); w.forgetWays(addr) })
	}
	n.a.group.CloseAddr(addr)
	delete(n.open, addr)
	delete(n.parked, addr)
}

// expire closes the sockets of addresses that stayed away, and returns when the
// next are due, 0 for never.
func (n *netWatch) expire() (next time.Duration) {
	if n.a.cfg.Interface == "" {
		return 0
	}
	now := time.Now()
	for addr, since := range maps.Clone(n.parked) {
		left := parkFor - now.Sub(since)
		if left <= 0 {
			n.drop(addr)
		} else if next == 0 || left < next {
			next = left
		}
	}
	return next
}

// portOf is the port's state by the links that the table's addresses are on, and
// by the adapter's interface.
func (n *netWatch) portOf(list []localInterface, table []gidEntry, before *portState) portState {
	p := portState{linkMTU: math.MaxInt}
	for i := range list {
		in := &list[i]
		ours := in.Name == n.a.cfg.Interface ||
			slices.ContainsFunc(table, func(e gidEntry) bool { return e.addr.IsValid() && e.ifindex == in.Index })
		if !ours {
			continue
		}
		up := in.Flags&net.FlagUp != 0
		p.enabled = p.enabled || up
		p.up = p.up || up && in.Flags&net.FlagRunning != 0
		p.linkMTU = min(p.linkMTU, in.MTU)
	}
	for _, e := range table {
		if e.addr.IsValid() && e.ifindex == 0 && e.ifname == "" { // local by a route
			p.up, p.enabled, p.linkMTU = true, true, min(p.linkMTU, e.linkMTU)
		}
	}
	if p.linkMTU == math.MaxInt {
		p.linkMTU = unknownLinkMTU
		if before != nil {
			p.linkMTU = before.linkMTU
		}
	}
	return p
}

// tell posts what changed to every program, once.
func (n *netWatch) tell(gids, wasUp, isUp bool) {
	var events []uapi.AsyncEvent
	if gids {
		events = append(events, uapi.EventGIDChange)
	}
	switch {
	case wasUp && !isUp:
		events = append(events, uapi.EventPortErr)
		n.a.control.linkDowns.Add(1)
		n.a.log.Warn("port down", keyAdapter, n.a.cfg.Name)
	case isUp && !wasUp:
		events = append(events, uapi.EventPortActive)
		n.a.log.Info("port active", keyAdapter, n.a.cfg.Name)
	}
	if len(events) == 0 {
		return
	}
	for _, p := range n.a.programList() {
		p.portEvents(events)
	}
}

// portEvents posts events of the port to a program that has said hello. One that
// has not will read what is now.
func (p *program) portEvents(events []uapi.AsyncEvent) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.async == nil {
		return
	}
	for _, e := range events {
		p.postAsync(e, uapi.ElementPort, 1)
	}
}
