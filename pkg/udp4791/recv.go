package udp4791

import (
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
)

// Endpoint is one worker's part of a group: a receive socket per address, those
// of the multicast groups that it listens to, and its send sockets. One
// goroutine owns it.
type Endpoint struct {
	g      *Group
	worker int
	recv   []int   // receive socket by the index of its address; -1: a free index
	locals []local // the addresses
	groups []*Multicast
	next   int  // the socket that ReadBatch looks at first
	more   bool // the last ReadBatch was full

	nextGroup int // the one of groups that was looked at last

	rx rxBatch
	tx txBatch
	flowTable
}

// rxBatch is the preallocated side of recvmmsg.
type rxBatch struct {
	hdrs  []mmsghdr
	iovs  []unix.Iovec
	names []rawSockaddr
	ctrls []rawControl
	bufs  [][]byte
	slots []RecvSlot
}

func newEndpoint(g *Group, worker int) *Endpoint {
	e := &Endpoint{g: g, worker: worker}
	if g.merges {
		e.rx.init(min(g.cfg.Batch, offloadBatch), offloadBuffer)
	} else {
		e.rx.init(g.cfg.Batch, BufferSize)
	}
	e.tx.init(g.cfg.Batch)
	return e
}

func (b *rxBatch) init(n, size int) {
	b.hdrs = make([]mmsghdr, n)
	b.iovs = make([]unix.Iovec, n)
	b.names = make([]rawSockaddr, n)
	b.ctrls = make([]rawControl, n)
	b.bufs = make([][]byte, n)
	b.slots = make([]RecvSlot, n)
	all := make([]byte, n*size)
	for i := range n {
		b.bufs[i] = all[i*size : (i+1)*size : (i+1)*size]
		b.iovs[i].Base = &b.bufs[i][0]
		b.iovs[i].SetLen(size)
		h := &b.hdrs[i].hdr
		h.Name = &b.names[i][0]
		h.Iov = &b.iovs[i]
		h.SetIovlen(1)
		h.Control = &b.ctrls[i].b[0]
		b.reset(i)
	}
}

// reset makes header i ready for the next datagram: the kernel overwrote the
// lengths of address and control buffer.
func (b *rxBatch) reset(i int) {
	h := &b.hdrs[i].hdr
	h.Namelen = sockaddrSize
	h.SetControllen(controlSize)
	h.Flags = 0
}

// ReadBatch returns the datagrams that wait, at most Config.Batch buffers of
// them, from all addresses and some multicast groups, in turn; an empty slice when
// there are none. It does not block and does
// not allocate. Slots and buffers belong to the endpoint until the next
// ReadBatch. With an error the slots are valid all the same: what came before
// it is not lost.
func (e *Endpoint) ReadBatch() ([]RecvSlot, error) {
	if len(e.recv) == 0 {
		return nil, ErrClosed
	}
	b := &e.rx
	got := 0
	defer func() { e.more = got == len(b.hdrs) }()
	sockets := len(e.recv) + min(len(e.groups), groupsPerRead)
	if e.next >= sockets { // groups were left meanwhile
		e.next = 0
	}
	first := e.next
	e.next++
	if e.g.sink { // only those of groups have something
		first, sockets = len(e.recv), sockets-len(e.recv)
	}
	for k := range sockets {
		i := first + k
		if !e.g.sink && i >= sockets {
			i -= sockets
		}
		fd, addr := e.socket(i)
		if fd < 0 {
			continue
		}
		n, errno := recvmmsg(fd, b.hdrs[got:])
		switch errno {
		case 0:
			b.fill(got, n, addr)
			got += n
		case unix.EAGAIN, unix.EINTR:
		default:
			return b.slots[:got], recvError(addr, errno)
		}
		if got == len(b.hdrs) {
			break
		}
	}
	return b.slots[:got], nil
}

// groupsPerRead is how many multicast groups one ReadBatch looks at, in turn:
// there may be thousands, and each look is a system call. Our own tuning.
const groupsPerRead = 4

// socket is the i-th receive socket to look at and the address that it is bound
// to.
func (e *Endpoint) socket(i int) (int, netip.Addr) {
	if i < len(e.recv) {
		return e.recv[i], e.locals[i].addr
	}
	if e.nextGroup++; e.nextGroup >= len(e.groups) {
		e.nextGroup = 0
	}
	m := e.groups[e.nextGroup]
	return m.fd, m.group
}

// More says that the last ReadBatch took as much as it could: further datagrams
// may wait.
func (e *Endpoint) More() bool { return e.more }

// fill turns headers [from, from+n) into slots.
func (b *rxBatch) fill(from, n int, dst netip.Addr) {
	for i := from; i < from+n; i++ {
		h := &b.hdrs[i]
		s := &b.slots[i]
		s.Buf = b.bufs[i][:h.n]
		s.Meta = RecvMeta{
			Src: b.names[i].addrPort(), Dst: dst,
			Truncated: h.hdr.Flags&unix.MSG_TRUNC != 0,
		}
		s.Segment = b.ctrls[i].facts(int(h.hdr.Controllen), &s.Meta)
		s.limit()
		b.reset(i)
	}
}

// limit makes a slot of one datagram where nothing was merged, and cuts what is
// longer than BufferSize, as a socket without offload would.
func (s *RecvSlot) limit() {
	size := s.Segment
	if size <= 0 || size >= len(s.Buf) {
		s.Segment, size = 0, len(s.Buf)
	}
	if size > BufferSize {
		s.Segment, s.Buf, s.Meta.Truncated = 0, s.Buf[:BufferSize], true
	}
}

func recvError(a netip.Addr, errno syscall.Errno) error {
	return &SocketError{Op: "receive", Addr: a, Err: errno}
}

// FDs returns the receive descriptors to poll for input, one per address; those
// of multicast groups have their own (Multicast.FD). The slice is the endpoint's: do not change it. It is valid until Group.Close.
func (e *Endpoint) FDs() []int { return e.recv }
