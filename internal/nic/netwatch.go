package nic

import (
	"errors"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
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
	gone := n.a.group.Recover()
	if gone != nil {
		n.warn("the link of the adapter cannot be used", gone)
	}
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
	status := n.status(list, next)
	n.a.gidStatus.Store(&status)
	if before != nil { // programs may be there
		n.tell(changed || added, before.up, port.up)
		// An MTU that was lowered for less than a look at the network shows by what was refused meanwhile.
		if n.a.tooLong.Swap(false) || port.linkMTU != before.linkMTU || port.up && !before.up {
			n.a.retrySegments()
		}
	}
	again = n.expire()
	if changed || added {
		n.retries = 0
	}
	if missing || gone != nil {
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
