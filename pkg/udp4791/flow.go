package udp4791

import (
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// sendSocket is one source of datagrams: a receive socket used as the
// fallback, or a send socket proper.
type sendSocket struct {
	fd      int // -1: the entry is free
	local   int // index into Endpoint.locals
	port    uint16
	key     uint8
	refs    int32
	gen     int32 // grows with each reuse of the entry, so that a stale FlowID is seen
	noLabel bool  // the kernel refused a flow label here
}

// flowTable holds an endpoint's send sockets. Entries [0, MaxSendSockets) come and
// go; behind them are the receive sockets, by the index of their address.
type flowTable struct {
	socks []sendSocket
}

// A FlowID is the index into socks in the low bits and the generation, from 1
// on, above.
const (
	flowIndexBits = 8
	flowGenMask   = 1<<(31-flowIndexBits) - 1
)

func flowID(i int, gen int32) FlowID { return FlowID(gen<<flowIndexBits | int32(i)) }

// lookup returns the socket of an open flow, nil for a stale or wrong id.
func (t *flowTable) lookup(f FlowID) *sendSocket {
	i := int(f) & (1<<flowIndexBits - 1)
	if f <= 0 || i >= len(t.socks) {
		return nil
	}
	s := &t.socks[i]
	if s.fd < 0 || s.gen != int32(f)>>flowIndexBits {
		return nil
	}
	return s
}

// ready is called once when all receive sockets are open.
func (e *Endpoint) ready() {
	e.socks = make([]sendSocket, MaxSendSockets, MaxSendSockets+len(e.recv))
	for i := range e.socks {
		e.socks[i] = sendSocket{fd: -1}
	}
	for i, fd := range e.recv {
		e.socks = append(e.socks, sendSocket{fd: fd, local: i, port: Port, gen: 1})
	}
}

// perKey is how many send sockets one (local, key) may have, so that the
// first keys do not take all.
func (e *Endpoint) perKey() int {
	n := 0
	for _, fd := range e.recv {
		if fd >= 0 {
			n++
		}
	}
	return max(1, MaxSendSockets/(Keys*max(1, n)))
}

// OpenFlow returns a flow from a local address for peers' QPs with one
// steering key (low 3 bits of the destination QPN), and its source port.
// wanted is taken into the range FirstFlowPort to LastFlowPort by its low 14
// bits; a port that is taken is skipped. 0 means any port and Port means the
// receive socket itself. Sockets are shared: an endpoint has at most
// MaxSendSockets, each carrying one key of one local address. When no port or
// descriptor is to be had, the flow is the receive socket, with source port
// 4791 and keys mixed. It fails only for an address that is not the group's,
// a key above 7, and a closed group.
//
// The flow must be closed with CloseFlow.
func (e *Endpoint) OpenFlow(local netip.Addr, key uint8, wanted uint16) (FlowID, uint16, error) {
	if len(e.recv) == 0 {
		return 0, 0, ErrClosed
	}
	li := -1
	for i := range e.locals {
		if e.locals[i].addr == local.Unmap() && local.IsValid() {
			li = i
		}
	}
	if li < 0 {
		return 0, 0, &AddrError{Addr: local, Reason: "not one of the adapter's"}
	}
	if key >= Keys {
		return 0, 0, fmt.Errorf("udp4791: open flow: steering key %d, limit %d", key, Keys-1)
	}
	i := e.pickSocket(li, key, wanted)
	s := &e.socks[i]
	s.refs++
	return flowID(i, s.gen), s.port, nil
}

// pickSocket returns the index of the socket for a new flow: one that fits
// exactly, else a new one, else one of the same key, else the receive socket.
func (e *Endpoint) pickSocket(li int, key uint8, wanted uint16) int {
	if wanted == Port {
		return MaxSendSockets + li
	}
	port := wanted | FirstFlowPort
	count, free, least := 0, -1, -1
	for i := range MaxSendSockets {
		s := &e.socks[i]
		switch {
		case s.fd < 0:
			if free < 0 {
				free = i
			}
		case s.local == li && s.key == key:
			if s.port == port || wanted == 0 {
				return i
			}
			count++
			if least < 0 || s.refs < e.socks[least].refs {
				least = i
			}
		}
	}
	if free >= 0 && count < e.perKey() {
		if fd, p := e.bindSendSocket(li, port); fd >= 0 {
			e.socks[free] = sendSocket{fd: fd, local: li, port: p, key: key, gen: e.socks[free].nextGen()}
			return free
		}
	}
	if least >= 0 {
		return least
	}
	return MaxSendSockets + li
}

// nextGen is the generation of an entry's next user.
func (s *sendSocket) nextGen() int32 {
	if s.gen >= flowGenMask {
		return 1
	}
	return s.gen + 1
}

// portTries bounds the search for a free source port.
const portTries = 64

// bindSendSocket opens a send socket on port or one of the next ones; fd is
// -1 when that cannot be had.
func (e *Endpoint) bindSendSocket(li int, port uint16) (int, uint16) {
	l := e.locals[li]
	var ignored []string
	fd, err := newSocket(l, nil, &ignored)
	if err != nil {
		return -1, 0
	}
	if !e.g.ownNamespace(fd) {
		// The caller's thread has been moved, or the group was opened on one
		// that had: a packet must not leave into another network.
		unix.Close(fd)
		return -1, 0
	}
	setBuffer(fd, unix.SO_SNDBUFFORCE, unix.SO_SNDBUF, e.g.cfg.SendBuffer)
	if attachFilter(fd, unix.SO_ATTACH_FILTER, dropProgram()) != nil {
		// Without the filter a stranger could fill this socket's receive
		// buffer, which nobody reads.
		unix.Close(fd)
		return -1, 0
	}
	for range portTries {
		if err := unix.Bind(fd, l.sockaddr(int(port))); err == nil {
			return fd, port
		}
		if port++; port < FirstFlowPort {
			port = FirstFlowPort
		}
	}
	unix.Close(fd)
	return -1, 0
}

// soNetnsCookie is SO_NETNS_COOKIE (Linux 5.14), which x/sys does not name.
const soNetnsCookie = 71

// namespaceOf is the cookie of a socket's network namespace, 0 where the kernel
// does not tell.
func namespaceOf(fd int) uint64 {
	c, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, soNetnsCookie)
	if err != nil {
		return 0
	}
	return c
}

// ownNamespace reports whether a socket is of the group's network namespace, as
// far as the kernel can tell.
func (g *Group) ownNamespace(fd int) bool {
	c := namespaceOf(fd)
	return c == 0 || g.namespace == 0 || c == g.namespace
}

// CloseFlow gives a flow back. The socket closes with its last flow; what the
// kernel already took is still sent. A flow that is not open is ignored.
func (e *Endpoint) CloseFlow(f FlowID) {
	s := e.lookup(f)
	if s == nil || s.refs == 0 {
		return
	}
	s.refs--
	if s.refs > 0 || int(f)&(1<<flowIndexBits-1) >= MaxSendSockets {
		return
	}
	unix.Close(s.fd)
	s.fd = -1
}

// WriteFD returns the descriptor of a flow, to poll for output after
// ErrWouldBlock, or -1 when the flow is not open.
func (e *Endpoint) WriteFD(f FlowID) int {
	s := e.lookup(f)
	if s == nil {
		return -1
	}
	return s.fd
}

// close closes the endpoint's sockets.
func (e *Endpoint) close() error {
	var first error
	keep := func(err error) {
		if err != nil && first == nil {
			first = err
		}
	}
	for i := range e.socks[:min(MaxSendSockets, len(e.socks))] {
		if e.socks[i].fd >= 0 {
			keep(unix.Close(e.socks[i].fd))
		}
	}
	for _, fd := range e.recv {
		if fd >= 0 {
			keep(unix.Close(fd))
		}
	}
	e.recv, e.socks = nil, nil
	return first
}
