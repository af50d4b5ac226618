package udp4791

import (
	"fmt"
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"
)

// Group is an adapter's hold on its addresses: their locks and, for each
// address, one receive socket per worker.
type Group struct {
	cfg        Config
	mu         sync.Mutex // guards locals, locks and buffers, which change with OpenAddr
	locals     []local    // by index; a free index has no address
	locks      []int      // their locks; -1: a free index
	endpoints  []*Endpoint
	recvBuffer int      // smallest effective, bytes; guarded by mu
	sendBuffer int      // guarded by mu
	missing    []string // optional socket options the kernel lacks
	namespace  uint64   // cookie of the network namespace, 0 when the kernel has none
	segments   bool     // UDP_SEGMENT works
	merges     bool     // UDP_GRO is on, on every receive socket
	sink       bool     // the receive sockets take nothing: they hold the port
}

// Open takes the addresses of cfg and opens the receive sockets, all or
// nothing. It fails with a *BusyError when an address has another owner in
// this network namespace, an *AddrError when it cannot be an adapter's, and
// a *SocketError for anything else the system refuses.
//
// The sockets belong to the network namespace of the calling thread.
func Open(cfg Config) (*Group, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return openGroup(cfg, false)
}

// openGroup is Open of a valid config; the receive sockets of a sink take
// nothing.
func openGroup(cfg Config, sink bool) (*Group, error) {
	g := &Group{cfg: cfg.withDefaults(), sink: sink}
	if err := g.open(); err != nil {
		_ = g.Close()
		return nil, err
	}
	return g, nil
}

func (g *Group) open() error {
	for _, a := range g.cfg.Addrs {
		l, err := resolve(a)
		if err != nil {
			return err
		}
		g.locals = append(g.locals, l)
		fd, err := takeLock(l)
		if err != nil {
			return err
		}
		g.locks = append(g.locks, fd)
		if err := trialBind(l); err != nil {
			return err
		}
	}
	if err := g.probeOffload(); err != nil {
		return err
	}
	for w := range g.cfg.Workers {
		g.endpoints = append(g.endpoints, newEndpoint(g, w))
	}
	for _, l := range g.locals {
		if err := g.openAddr(l, g.addReceiver); err != nil {
			return err
		}
	}
	g.namespace = namespaceOf(g.endpoints[0].recv[0])
	for _, e := range g.endpoints {
		e.ready()
	}
	return nil
}

// addReceiver gives an endpoint that does not work yet its next address.
func (g *Group) addReceiver(worker, fd int, l local) {
	e := g.endpoints[worker]
	e.recv, e.locals = append(e.recv, fd), append(e.locals, l)
}

// openAddr opens the receive sockets of one address and hands each over as soon
// as it is open, also when a later step fails. A socket's index in the kernel's
// group, which the steering program returns, is the order of binding, so worker
// w binds as number w.
func (g *Group) openAddr(l local, take func(worker, fd int, l local)) error {
	for w := range g.cfg.Workers {
		fd, err := newSocket(l, receiveOptions(l.family()), &g.missing)
		if err != nil {
			return err
		}
		take(w, fd, l)
		g.noteBuffers(fd)
		if g.merges {
			if err := unix.SetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_GRO, 1); err != nil {
				return &SocketError{Op: "set UDP_GRO", Addr: l.addr, Err: err, Reason: "switch offload off"}
			}
		}
		if g.cfg.Workers > 1 {
			if err := joinGroup(fd, w, g.cfg.Workers); err != nil {
				return &SocketError{
					Op: "steering by SO_REUSEPORT", Addr: l.addr, Err: err,
					Reason: "run with one worker",
				}
			}
		}
		if g.sink {
			if err := attachFilter(fd, unix.SO_ATTACH_FILTER, dropProgram()); err != nil {
				return &SocketError{Op: "attach a filter", Addr: l.addr, Err: err}
			}
		}
		if err := unix.Bind(fd, l.sockaddr(Port)); err != nil {
			return explainBind(l, err)
		}
	}
	return nil
}

// joinGroup lets an unbound socket share its address. The first one brings
// the program, before it is bound: no datagram is steered by hash, and the
// kernel lets a socket that has a group of its own join no other one, so that
// nobody can slip in between the trial bind and this one.
func joinGroup(fd, worker, workers int) error {
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
		return err
	}
	if worker > 0 {
		return nil
	}
	return attachFilter(fd, unix.SO_ATTACH_REUSEPORT_CBPF, steeringProgram(workers))
}

func (g *Group) noteBuffers(fd int) {
	r := setBuffer(fd, unix.SO_RCVBUFFORCE, unix.SO_RCVBUF, g.cfg.RecvBuffer)
	s := setBuffer(fd, unix.SO_SNDBUFFORCE, unix.SO_SNDBUF, g.cfg.SendBuffer)
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.recvBuffer == 0 || r < g.recvBuffer {
		g.recvBuffer = r
	}
	if g.sendBuffer == 0 || s < g.sendBuffer {
		g.sendBuffer = s
	}
}

// Close closes all sockets, send sockets included, and then gives the
// addresses back. No endpoint may be in use. A second Close does nothing.
func (g *Group) Close() error {
	var first error
	keep := func(err error) {
		if err != nil && first == nil {
			first = fmt.Errorf("udp4791: close: %w", err)
		}
	}
	for _, e := range g.endpoints {
		keep(e.close())
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, fd := range g.locks {
		if fd >= 0 {
			keep(unix.Close(fd))
		}
	}
	g.locks = nil
	return first
}

// Endpoint returns the endpoint of a worker, 0 <= worker < Config.Workers.
func (g *Group) Endpoint(worker int) *Endpoint { return g.endpoints[worker] }

// Workers returns the number of endpoints.
func (g *Group) Workers() int { return len(g.endpoints) }

// Addrs returns the group's addresses, IPv4-mapped ones as IPv4, in the order
// of the Config; those of OpenAddr take the place of a closed one or come last.
// The caller may keep the slice.
func (g *Group) Addrs() []netip.Addr {
	g.mu.Lock()
	defer g.mu.Unlock()
	out := make([]netip.Addr, 0, len(g.locals))
	for _, l := range g.locals {
		if l.addr.IsValid() {
			out = append(out, l.addr)
		}
	}
	return out
}

// RecvBuffer returns the smallest effective receive buffer of the group's
// sockets in bytes, in the unit of Config.RecvBuffer.
func (g *Group) RecvBuffer() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.recvBuffer
}

// SendBuffer returns the smallest effective send buffer in bytes, in the unit
// of Config.SendBuffer.
func (g *Group) SendBuffer() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.sendBuffer
}

// Segments says whether a SendSlot may hold several datagrams.
func (g *Group) Segments() bool { return g.segments }

// Merges says whether a RecvSlot may hold several datagrams.
func (g *Group) Merges() bool { return g.merges }
