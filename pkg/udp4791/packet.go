package udp4791

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Our own tuning.
const (
	// frameRoom is the room for one received frame: the largest merged one with
	// its headers.
	frameRoom = vnetLen + 64 + 64<<10
	// frameBatch is how many frames a system call fills at most.
	frameBatch = 8
)

// packetNet is the backend on packet sockets. The group's UDP sockets hold the
// port, so that nobody else takes the address and the kernel answers nothing with
// ICMP, and send; their filters drop what comes. Each worker receives by packet
// sockets, which show it the IP headers.
type packetNet struct {
	*Group
	queues []*packetQueue
	vnet   bool // the kernel says how merged frames are to be cut
	room   int  // smallest effective receive buffer, bytes
}

// packetQueue is one worker's part.
type packetQueue struct {
	*Endpoint
	net    *packetNet
	fds    []int // IPv4, IPv6
	counts [2]int
	rx     rxBatch
	first  int  // of fds, that ReadBatch looks at first
	looked bool // the last ReadBatch was of the multicast groups
	full   bool
}

var packetFamilies = [2]int{unix.AF_INET, unix.AF_INET6}

func openPacket(cfg Config) (n *packetNet, err error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, explainPacket(cfg.Addrs[0], err)
	}
	unix.Close(fd)
	n = &packetNet{vnet: tellsSegments()}
	if n.Group, err = openGroup(cfg, true); err != nil {
		return nil, err
	}
	for w := range n.Workers() {
		q := &packetQueue{Endpoint: n.Endpoint(w), net: n, fds: []int{-1, -1}}
		n.queues = append(n.queues, q)
		if err := q.open(); err != nil {
			_ = n.Close()
			return nil, err
		}
	}
	return n, nil
}

func explainPacket(a netip.Addr, err error) error {
	e := &SocketError{Op: "packet socket", Addr: a, Err: err}
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		e.Reason = "the packet backend needs CAP_NET_RAW (\"setcap cap_net_raw+ep\" on the program, or AmbientCapabilities=" +
			"CAP_NET_RAW in its unit); the udp backend needs no privilege"
	}
	return e
}

// open opens the queue's sockets, with filters before they see a frame.
func (q *packetQueue) open() error {
	q.rx.init(min(q.g.cfg.Batch, frameBatch), frameRoom)
	for i, family := range packetFamilies {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return explainPacket(q.g.cfg.Addrs[0], err)
		}
		q.fds[i] = fd
		room := setBuffer(fd, unix.SO_RCVBUFFORCE, unix.SO_RCVBUF, q.g.cfg.RecvBuffer)
		if q.net.room == 0 || room < q.net.room {
			q.net.room = room
		}
		if err := q.filter(i); err != nil {
			return err
		}
		err = unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_AUXDATA, 1)
		if err == nil && q.net.vnet {
			err = unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1)
		}
		if err == nil {
			err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: etherType(family)})
		}
		if err != nil {
			return explainPacket(q.g.cfg.Addrs[0], err)
		}
	}
	return nil
}

// etherType is the protocol of a family in network order.
func etherType(family int) uint16 {
	var b [2]byte
	if family == unix.AF_INET {
		binary.BigEndian.PutUint16(b[:], unix.ETH_P_IP)
	} else {
		binary.BigEndian.PutUint16(b[:], unix.ETH_P_IPV6)
	}
	return binary.NativeEndian.Uint16(b[:])
}

// filter sets the filter of a socket by the addresses of now.
func (q *packetQueue) filter(i int) error {
	q.counts[i] = 0
	for _, l := range q.locals {
		if l.addr.IsValid() && l.family() == packetFamilies[i] {
			q.counts[i]++
		}
	}
	prog := packetProgram(packetFamilies[i], q.worker, q.g.cfg.Workers, q.locals)
	if err := attachFilter(q.fds[i], unix.SO_ATTACH_FILTER, prog); err != nil {
		return &SocketError{
			Op: "attach a filter", Addr: q.g.cfg.Addrs[0], Err: err,
			Reason: fmt.Sprintf("of %d instructions; see sysctl net.core.optmem_max", len(prog)),
		}
	}
	return nil
}

// ReadBatch is Endpoint.ReadBatch; what comes to groups is read in turn with the
// rest.
func (q *packetQueue) ReadBatch() ([]RecvSlot, error) {
	if len(q.recv) == 0 {
		return nil, ErrClosed
	}
	if q.looked = !q.looked && len(q.groups) > 0; q.looked {
		slots, err := q.Endpoint.ReadBatch()
		q.full = len(slots) > 0 // the packet sockets were not looked at
		return slots, err
	}
	b := &q.rx
	got, n := 0, 0 // slots and frames
	q.first ^= 1
	for k := range q.fds {
		i := q.first ^ k
		if q.counts[i] == 0 || n == len(b.hdrs) {
			continue
		}
		m, errno := recvmmsg(q.fds[i], b.hdrs[n:])
		switch errno {
		case 0:
			got = q.fill(n, m, got)
			n += m
		case unix.EAGAIN, unix.EINTR, unix.ENETDOWN: // an interface went down
		default:
			return b.slots[:got], recvError(q.g.cfg.Addrs[0], errno)
		}
	}
	q.full = n == len(b.hdrs)
	return b.slots[:got], nil
}

// More is Endpoint.More.
func (q *packetQueue) More() bool { return q.full }

// fill makes slots of the frames [from, from+n), from slot got on.
func (q *packetQueue) fill(from, n, got int) int {
	b := &q.rx
	for i := from; i < from+n; i++ {
		h := &b.hdrs[i]
		if q.frame(b.bufs[i][:h.n], b.ctrls[i].netOffset(int(h.hdr.Controllen)), h.hdr.Flags, &b.slots[got]) {
			got++
		}
		b.reset(i)
	}
	return got
}

// frame makes a slot of a frame whose network header is at offset at; false: it
// is nothing of ours.
func (q *packetQueue) frame(f []byte, at int, flags int32, s *RecvSlot) bool {
	trusted, segment := false, 0
	if q.net.vnet {
		if len(f) < vnetLen {
			return false
		}
		trusted, segment = vnetFacts(f)
		f = f[vnetLen:]
	}
	var ip ipPacket
	if at > len(f) || !ip.parse(f[at:]) {
		return false
	}
	src, ok := ip.roce(trusted)
	if !ok {
		return false
	}
	for i := range q.locals {
		if l := &q.locals[i]; l.addr.IsValid() && l.addr.WithZone("") == ip.dst {
			ip.dst = l.addr
			ip.slot(s, src, segment)
			s.Meta.Truncated = s.Meta.Truncated || flags&unix.MSG_TRUNC != 0
			return true
		}
	}
	return false
}

// FDs are the packet sockets.
func (q *packetQueue) FDs() []int { return q.fds }

// Adopt is Endpoint.Adopt; the descriptor is that of a socket to which nothing
// comes.
func (q *packetQueue) Adopt(n *LateAddr) int {
	fd := q.Endpoint.Adopt(n)
	q.refilter()
	return fd
}

// Drop is Endpoint.Drop.
func (q *packetQueue) Drop(a netip.Addr) {
	q.Endpoint.Drop(a)
	q.refilter()
}

// refilter sets the filters anew. One that cannot be set stays: what it lets
// through is looked at anyway.
func (q *packetQueue) refilter() {
	for i := range q.fds {
		_ = q.filter(i)
	}
}

// Queue is a worker's endpoint.
func (n *packetNet) Queue(worker int) Queue { return n.queues[worker] }

// Merges says that a slot may hold several datagrams.
func (n *packetNet) Merges() bool { return n.vnet }

// RecvBuffer is the packet sockets'.
func (n *packetNet) RecvBuffer() int { return n.room }

// Notes adds what is the packet backend's.
func (n *packetNet) Notes() []string {
	notes := append(n.Group.Notes(), "backend packet: whole IP headers are seen before this host's firewall, which filters nothing of what is received")
	if !n.vnet {
		notes = append(notes, "this kernel does not say how merged packets are to be cut (Linux 6.2 does): those that come in one piece are dropped as truncated")
	}
	return notes
}

// Close closes the packet sockets and the group.
func (n *packetNet) Close() error {
	for _, q := range n.queues {
		for i, fd := range q.fds {
			if fd >= 0 {
				unix.Close(fd)
				q.fds[i] = -1
			}
		}
	}
	if n.Group == nil {
		return nil
	}
	return n.Group.Close()
}

// netOffset reads where the network header of a frame begins out of a control
// buffer of n bytes (struct tpacket_auxdata).
func (c *rawControl) netOffset(n int) int {
	const at = 14 // tp_status, tp_len, tp_snaplen, tp_mac, tp_net
	hdr := unix.CmsgLen(0)
	for off := 0; off+hdr < n; {
		h := (*unix.Cmsghdr)(unsafe.Pointer(&c.b[off]))
		l := int(h.Len)
		if l <= hdr || off+l > n {
			break
		}
		if h.Level == unix.SOL_PACKET && h.Type == unix.PACKET_AUXDATA && l >= hdr+at+2 {
			return int(binary.NativeEndian.Uint16(c.b[off+hdr+at:]))
		}
		off += unix.CmsgSpace(l - hdr)
	}
	return 0
}
