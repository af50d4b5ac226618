package nic

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/uapi"
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/udp4791"
)

// Our own tuning of the watch over the network.
const (
	// watchGap is the least time between two looks at the interfaces: a host
	// that makes and ends many of them must not keep the adapter busy.
	watchGap = 50 * time.Millisecond
	// watchRetry is when an address that could not be bound is tried again; the
	// wait doubles each time, and watchRetries times without a change are
	// enough. A new IPv6 address is tentative for a second or two.
	watchRetry   = 20 * time.Millisecond
	watchRetries = 10
	// parkFor is how long the sockets of an interface's address that went away
	// stay open, so that queue pairs go on when it comes back. An address that
	// the adapter was given by name stays for good.
	parkFor = time.Minute
)

// A portState is what the interfaces say of the port.
type portState struct {
	up      bool // a link that the adapter has an address on, or its interface, is up
	enabled bool // up by configuration, whether it has a carrier or not
	linkMTU int  // bytes of the narrowest link; the last one known when there is none
}

// A netWatch keeps the GID table and the port's state as the network interfaces
// have them. It takes every message of the kernel for a reason to look at all of
// it again, so that none that is lost matters. Its goroutine alone changes the
// table.
type netWatch struct {
	a    *Adapter
	sub  *nl.NetlinkSocket
	home int           // descriptor of the adapter's network namespace, until run is there
	poke chan struct{} // something changed
	stop chan struct{}
	done sync.WaitGroup

	open    map[netip.Addr]int       // addresses with sockets, and their interface
	parked  map[netip.Addr]time.Time // those of them that are gone, since when
	log     rateLimit
	retries int
}

// startWatch begins to follow the network. The calling thread must be in the
// adapter's namespace. Without it the table stays as it is, which is said.
func (a *Adapter) startWatch() {
	n := &netWatch{
		a:    a,
		poke: make(chan struct{}, 1), stop: make(chan struct{}),
		open: make(map[netip.Addr]int), parked: make(map[netip.Addr]time.Time),
	}
	for _, e := range a.gids.load() {
		n.open[e.addr] = e.ifindex
	}
	err := n.subscribe()
	again := n.refresh() // also where nothing is followed: the port has its state
	if err != nil {
		a.log.Warn("changes of the network are not followed: GIDs and port state stay as they are", keyAdapter, a.cfg.Name, keyErr, err)
		return
	}
	a.watch = n
	n.done.Add(2)
	go func() {
		defer n.done.Done()
		n.listen(func() error { _, _, err := n.sub.Receive(); return err })
	}()
	go func() {
		defer n.done.Done()
		n.run(again)
	}()
}

// threadNamespace is the network namespace of the calling thread.
const threadNamespace = "/proc/thread-self/ns/net"

func (n *netWatch) subscribe() (err error) {
	if n.home, err = unix.Open(threadNamespace, unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
		return err
	}
	n.sub, err = nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR)
	if err != nil {
		_ = unix.Close(n.home)
	}
	return err
}

// goHome moves the calling goroutine to the namespace that the adapter was
// started in, and closes its descriptor. A thread that had to be moved is never
// given back: it ends with the goroutine.
func (n *netWatch) goHome() error {
	defer unix.Close(n.home)
	runtime.LockOSThread()
	var here, home unix.Stat_t
	if err := unix.Stat(threadNamespace, &here); err != nil {
		return err
	}
	if err := unix.Fstat(n.home, &home); err != nil {
		return err
	}
	if here.Dev == home.Dev && here.Ino == home.Ino {
		runtime.UnlockOSThread()
		return nil
	}
	return unix.Setns(n.home, unix.CLONE_NEWNET)
}

// end stops the watch and waits for it; nil is none.
func (n *netWatch) end() {
	if n == nil {
		return
	}
	close(n.stop)
	n.sub.Close()
	n.done.Wait()
}

func (n *netWatch) wake() {
	select {
	case n.poke <- struct{}{}:
	default: // a look is due already
	}
}

// listen wakes the watch at every message until the subscription is closed. A
// message that did not fit the socket (ENOBUFS) is one, too.
func (n *netWatch) listen(receive func() error) {
	for {
		err := receive()
		n.wake()
		switch {
		case err == nil, errors.Is(err, unix.ENOBUFS), errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN):
		default:
			return
		}
		select {
		case <-n.stop:
			return
		default:
		}
	}
}

func (n *netWatch) run(again time.Duration) {
	if err := n.goHome(); err != nil {
		n.a.log.Warn("changes of the network are not followed: its namespace cannot be entered", keyAdapter, n.a.cfg.Name, keyErr, err)
		<-n.stop
		return
	}
	n.loop(again)
}

// loop looks again whenever it is woken, and after a wait that it was told; 0 is
// for ever.
func (n *netWatch) loop(again time.Duration) {
	timer := time.NewTimer(again)
	defer timer.Stop()
	for {
		if again > 0 {
			timer.Reset(again)
		} else {
			timer.Stop()
		}
		select {
		case <-n.stop:
			return
		case <-n.poke:
			n.retries = 0
		case <-timer.C:
		}
		again = n.refresh()
		select {
		case <-n.stop:
			return
		case <-time.After(watchGap):
		}
	}
}

// refresh looks at the interfaces and makes table and port as they are. It
// returns when to look again without being told, 0 for never.
func (n *netWatch) refresh() (again time.Duration) {
	list, err := localInterfaces()
	if err != nil {
		n.warn("the network interfaces cannot be read", err)
		return n.retry()
	}
	found := n.found(list)
	old := n.a.gids.load()
	next := slices.Clone(old)
	changed := n.takeOut(next, found)
	added, missing := n.putIn(&next, found)
	n.a.gids.entries.Store(&next)
	before := n.a.port.Load()
	port := n.portOf(list, next, before)
	n.a.port.Store(&port)
	if before != nil { // programs may be there
		n.tell(changed || added, before.up, port.up)
	}
	again = n.expire()
	if changed || added {
		n.retries = 0
	}
	if missing {
		if r := n.retry(); r > 0 && (again == 0 || r < again) {
			again = r
		}
	}
	return again
}

// retry is the wait before the next attempt, 0 when there were enough.
func (n *netWatch) retry() time.Duration {
	if n.retries >= watchRetries {
		return 0
	}
	n.retries++
	return watchRetry << (n.retries - 1)
}

func (n *netWatch) warn(text string, err error) {
	if more, ok := n.log.allowSome(time.Now(), logBurst); ok {
		n.a.log.Warn(text, keyAdapter, n.a.cfg.Name, keyErr, err, keySuppressed, more)
	}
}

// found lists the addresses that are the adapter's to have, by the interfaces:
// all those of its interface, or those of its own that are somewhere.
func (n *netWatch) found(list []localInterface) []gidEntry {
	cfg := &n.a.cfg
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
			*e = found[k]
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
		if e.addr.IsValid() && e.ifindex == 0 { // local by a route
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
