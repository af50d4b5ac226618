package udp4791

import (
	"net/netip"

	"golang.org/x/sys/unix"
)

// A LateAddr is an address that came after Open: each endpoint adopts its
// receive socket.
type LateAddr struct {
	g     *Group
	local local
	index int   // in Group.locals
	fds   []int // by endpoint; -1: adopted, or not opened
}

// OpenAddr takes one more address and opens its receive sockets, as Open does,
// for Endpoint.Adopt. Any goroutine may call it while the endpoints work, one at
// a time; its thread must be in the network namespace of the group. Errors are
// those of Open, and an *AddrError when the group has the address already or has
// MaxAddrs of them.
func (g *Group) OpenAddr(a netip.Addr) (*LateAddr, error) {
	cfg := Config{Addrs: []netip.Addr{a}}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	l, err := resolve(a.Unmap())
	if err != nil {
		return nil, err
	}
	lock, err := takeLock(l)
	if err != nil {
		return nil, err
	}
	n := &LateAddr{g: g, local: l, fds: make([]int, g.cfg.Workers)}
	for i := range n.fds {
		n.fds[i] = -1
	}
	if err = trialBind(l); err == nil {
		err = g.openAddr(l, func(worker, fd int, _ local) { n.fds[worker] = fd })
	}
	if err == nil && !g.ownNamespace(n.fds[0]) {
		err = &SocketError{
			Op: "open", Addr: l.addr, Err: unix.EXDEV,
			Reason: "the calling thread is in another network namespace than the adapter",
		}
	}
	if err == nil {
		n.index, err = g.place(l, lock)
	}
	if err != nil {
		n.closeSockets()
		unix.Close(lock)
		return nil, err
	}
	return n, nil
}

// place gives a new address and its lock the first free index.
func (g *Group) place(l local, lock int) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, fd := range g.locks {
		if fd < 0 {
			g.locals[i], g.locks[i] = l, lock
			return i, nil
		}
	}
	switch {
	case len(g.locks) == 0:
		return 0, ErrClosed
	case len(g.locals) >= MaxAddrs:
		return 0, &AddrError{Addr: l.addr, Reason: "one too many: the adapter has as many addresses as it can"}
	}
	g.locals, g.locks = append(g.locals, l), append(g.locks, lock)
	return len(g.locals) - 1, nil
}

func (n *LateAddr) closeSockets() {
	for i, fd := range n.fds {
		if fd >= 0 {
			unix.Close(fd)
			n.fds[i] = -1
		}
	}
}

// Close closes the sockets that no endpoint has adopted, and gives the address
// back when none has; with some of them, Endpoint.Drop and CloseAddr do that.
func (n *LateAddr) Close() {
	adopted := false
	for _, fd := range n.fds {
		adopted = adopted || fd < 0
	}
	n.closeSockets()
	if !adopted {
		n.g.CloseAddr(n.local.addr)
	}
}

// Adopt takes over the endpoint's receive socket of a late address and returns
// its descriptor, to poll for input. From now on ReadBatch reads it, and OpenFlow
// knows the address.
func (e *Endpoint) Adopt(n *LateAddr) (fd int) {
	fd = n.fds[e.worker]
	n.fds[e.worker] = -1
	for len(e.recv) <= n.index {
		e.recv, e.locals = append(e.recv, -1), append(e.locals, local{})
		e.socks = append(e.socks, sendSocket{fd: -1})
	}
	e.recv[n.index], e.locals[n.index] = fd, n.local
	s := &e.socks[MaxSendSockets+n.index]
	*s = sendSocket{fd: fd, local: n.index, port: Port, gen: s.nextGen()}
	return fd
}

// Drop closes the endpoint's sockets of an address. Its flows are stale: what
// leaves by them is refused with EBADF, and CloseFlow ignores them. An address
// that the endpoint has not is ignored.
func (e *Endpoint) Drop(a netip.Addr) {
	for i := range e.recv {
		if e.recv[i] < 0 || e.locals[i].addr != a.Unmap() {
			continue
		}
		for k := range e.socks {
			if s := &e.socks[k]; s.fd >= 0 && s.local == i {
				unix.Close(s.fd)
				s.fd, s.refs = -1, 0
			}
		}
		e.recv[i], e.locals[i] = -1, local{}
	}
}

// CloseAddr gives an address back, which every endpoint has dropped.
func (g *Group) CloseAddr(a netip.Addr) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i := range g.locals {
		if g.locks[i] >= 0 && g.locals[i].addr == a.Unmap() {
			unix.Close(g.locks[i])
			g.locals[i], g.locks[i] = local{}, -1
		}
	}
}
