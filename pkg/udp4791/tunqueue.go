package udp4791

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// tunQueue is one worker's part of a TUN link.
type tunQueue struct {
	net    *tunNet
	worker int
	poll   int          // an epoll descriptor that stays, around that of the link
	fds    []int        // poll alone
	fd     int          // -1: the link is gone
	reads  bool         // fd is to be read by this worker
	next   atomic.Int64 // a descriptor to take over, see give; 0: none
	more   bool
	closed bool

	bufs  [][]byte
	slots []RecvSlot
	head  [vnetLen + ip6Len + udpLen]byte
	iov   [2]unix.Iovec
	fail  SendError
}

func newTUNQueue(n *tunNet, worker int) (*tunQueue, error) {
	q := &tunQueue{net: n, worker: worker, fd: -1}
	var err error
	if q.poll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, err
	}
	q.fds = []int{q.poll}
	all := make([]byte, frameBatch*frameRoom)
	for i := range frameBatch {
		q.bufs = append(q.bufs, all[i*frameRoom:(i+1)*frameRoom:(i+1)*frameRoom])
	}
	q.slots = make([]RecvSlot, frameBatch)
	return q, nil
}

// give hands a new descriptor to the queue, which its worker takes over at its
// next batch. Input on it wakes the worker from now on. Any goroutine may call it.
func (q *tunQueue) give(fd int, reads bool) {
	v := int64(fd)<<1 + 2
	if reads {
		v++
		ev := unix.EpollEvent{Events: unix.EPOLLIN}
		_ = unix.EpollCtl(q.poll, unix.EPOLL_CTL_ADD, fd, &ev) // a worker that never sleeps reads it all the same
	}
	if old := q.next.Swap(v); old != 0 {
		unix.Close(int(old>>1) - 1)
	}
}

// take takes over what give brought.
func (q *tunQueue) take() {
	if q.next.Load() == 0 {
		return
	}
	if v := q.next.Swap(0); v != 0 {
		q.lose()
		q.fd, q.reads = int(v>>1)-1, v&1 != 0
	}
}

// lose closes a descriptor whose link is gone.
func (q *tunQueue) lose() {
	if q.fd >= 0 {
		// Others hold the same open file: closing does not take it out.
		_ = unix.EpollCtl(q.poll, unix.EPOLL_CTL_DEL, q.fd, nil)
		unix.Close(q.fd)
		q.fd = -1
	}
}

func (q *tunQueue) close() {
	q.take()
	q.lose()
	if !q.closed {
		unix.Close(q.poll)
	}
	q.closed = true
}

// ReadBatch returns the datagrams that wait, as Endpoint.ReadBatch does. Echo
// requests are answered on the way; everything else that is no UDP to port 4791 of
// the adapter's addresses is passed over in silence.
func (q *tunQueue) ReadBatch() ([]RecvSlot, error) {
	if q.closed {
		return nil, ErrClosed
	}
	q.take()
	q.more = false
	if q.fd < 0 || !q.reads {
		return nil, nil
	}
	got := 0
	for _, buf := range q.bufs {
		n, errno := readPacket(q.fd, buf)
		switch {
		case errno == unix.EAGAIN || errno == unix.EINTR:
			return q.slots[:got], nil
		case errno != 0:
			if linkGone(errno) {
				q.lose()
			}
			return q.slots[:got], &SocketError{
				Op: "receive", Addr: q.net.cfg.Addrs[0], Err: errno, Reason: "TUN link " + q.net.cfg.TUN,
			}
		}
		if n >= vnetLen && q.packet(buf[:n], &q.slots[got]) {
			got++
		}
	}
	q.more = true
	return q.slots[:got], nil
}

// packet makes a slot of a packet; false: it is none of RoCE.
func (q *tunQueue) packet(p []byte, s *RecvSlot) bool {
	trusted, segment := vnetFacts(p)
	var ip ipPacket
	if !ip.parse(p[vnetLen:]) {
		return false
	}
	i := -1
	for k, a := range q.net.cfg.Addrs {
		if a == ip.dst {
			i = k
		}
	}
	if i < 0 {
		return false
	}
	src, ok := ip.roce(trusted)
	switch {
	case ok:
		ip.slot(s, src, segment)
		return true
	case ip.fault == FaultNone:
		q.echo(p, &ip)
	}
	return false
}

// ICMP (RFC 792, RFC 4443).
const (
	echoRequest  = 8
	echoReply    = 0
	echo6Request = 128
	echo6Reply   = 129
	icmpLen      = 8
	icmpSumAt    = 2
)

// echo answers an echo request in place.
func (q *tunQueue) echo(p []byte, ip *ipPacket) {
	be := binary.BigEndian
	m := ip.body
	v4 := ip.dst.Is4()
	switch {
	case len(m) < icmpLen:
		return
	case v4 && ip.proto == protoICMP && m[0] == echoRequest && m[1] == 0 && foldSum(addSum(0, m)) == 0xFFFF:
		m[0] = echoReply
	case !v4 && ip.proto == protoICMP6 && m[0] == echo6Request && m[1] == 0 &&
		foldSum(addSum(pseudoSum(ip.src, ip.dst, protoICMP6, len(m)), m)) == 0xFFFF:
		m[0] = echo6Reply
	default:
		return
	}
	sum := uint64(0)
	if !v4 {
		sum = pseudoSum(ip.src, ip.dst, protoICMP6, len(m))
	}
	m[icmpSumAt], m[icmpSumAt+1] = 0, 0
	be.PutUint16(m[icmpSumAt:], ^foldSum(addSum(sum, m)))
	clear(p[:vnetLen])
	h := p[vnetLen:]
	n := q.header(h, ip.dst, ip.src, len(m), 0, DefaultTTL, 0)
	if v4 {
		h[9] = protoICMP
		be.PutUint16(h[10:], 0)
		be.PutUint16(h[10:], ^foldSum(addSum(0, h[:ip4Len])))
	} else {
		h[6] = protoICMP6
	}
	q.iov[0].Base = &p[0]
	q.iov[0].SetLen(vnetLen + n + len(m))
	_ = writePacket(q.fd, q.iov[:1]) // an answer that does not leave is lost
	q.iov[0].Base = nil
}

// header writes an IP header for UDP before a payload of n bytes, and returns its
// length. IPv4 has don't-fragment set and identification 0, from which the kernel
// counts up where it cuts.
func (q *tunQueue) header(b []byte, src, dst netip.Addr, n int, tos, ttl uint8, label uint32) int {
	be := binary.BigEndian
	if dst.Is4() {
		h := b[:ip4Len]
		s, d := src.As4(), dst.As4()
		h[0], h[1] = 0x45, tos
		be.PutUint16(h[2:], uint16(ip4Len+n))
		be.PutUint16(h[4:], 0)
		be.PutUint16(h[6:], ip4DontFragment)
		h[8], h[9] = ttl, protoUDP
		be.PutUint16(h[10:], 0)
		copy(h[12:], s[:])
		copy(h[16:], d[:])
		be.PutUint16(h[10:], ^foldSum(addSum(0, h)))
		return ip4Len
	}
	h := b[:ip6Len]
	s, d := src.As16(), dst.As16()
	be.PutUint32(h, 6<<28|uint32(tos)<<20|label&0xFFFFF)
	be.PutUint16(h[4:], uint16(n))
	h[6], h[7] = protoUDP, ttl
	copy(h[8:], s[:])
	copy(h[24:], d[:])
	return ip6Len
}

// More is Endpoint.More.
func (q *tunQueue) More() bool { return q.more }

// WriteBatch sends slots in order, as Endpoint.WriteBatch does. A link that is gone
// or down refuses each with ENETDOWN.
func (q *tunQueue) WriteBatch(slots []SendSlot) (int, error) {
	if q.closed {
		return 0, ErrClosed
	}
	q.take()
	for n := range slots {
		errno := q.write(&slots[n])
		switch {
		case errno == 0:
		case errno == unix.EAGAIN || errno == unix.ENOBUFS || errno == unix.ENOMEM || errno == unix.EINTR:
			return n, ErrWouldBlock
		case linkGone(errno):
			q.lose()
			return n, q.refuse(unix.ENETDOWN)
		case errno == unix.EIO: // the link is down
			return n, q.refuse(unix.ENETDOWN)
		default:
			return n, q.refuse(errno)
		}
	}
	return len(slots), nil
}

func (q *tunQueue) refuse(errno syscall.Errno) error {
	q.fail.Errno = errno
	return &q.fail
}

// write sends one slot.
func (q *tunQueue) write(s *SendSlot) syscall.Errno {
	i, port := tunFlow(s.Flow)
	dst := s.Dst.Unmap().WithZone("")
	switch {
	case i < 0 || i >= len(q.net.cfg.Addrs):
		return unix.EBADF
	case q.fd < 0:
		return unix.ENETDOWN
	case !dst.IsValid() || dst.Is4() != q.net.cfg.Addrs[i].Is4():
		return unix.EAFNOSUPPORT
	}
	src := q.net.cfg.Addrs[i]
	ttl := s.TTL
	if ttl == 0 {
		ttl = DefaultTTL
	}
	ipLen := q.header(q.head[vnetLen:], src, dst, udpLen+len(s.Buf), s.TOS, ttl, s.FlowLabel)
	one := len(s.Buf)
	if s.Segment > 0 {
		one = min(one, s.Segment)
	}
	if ipLen+udpLen+one > int(q.net.mtu.Load()) || ipLen+udpLen+len(s.Buf) > 1<<16-1 {
		return unix.EMSGSIZE
	}
	q.setUDP(src, dst, port, ipLen, s)
	q.iov[0].Base = &q.head[0]
	q.iov[0].SetLen(vnetLen + ipLen + udpLen)
	iov := q.iov[:1]
	if len(s.Buf) > 0 {
		iov = q.iov[:2]
		iov[1].Base = &s.Buf[0]
		iov[1].SetLen(len(s.Buf))
	}
	errno := writePacket(q.fd, iov)
	q.iov[1].Base = nil // the caller's
	return errno
}

// setUDP writes the UDP header and what the kernel is to do: to make the checksum
// whole, where somebody needs it, and to cut.
func (q *tunQueue) setUDP(src, dst netip.Addr, port uint16, ipLen int, s *SendSlot) {
	be, host := binary.BigEndian, binary.NativeEndian
	u := q.head[vnetLen+ipLen:]
	be.PutUint16(u, port)
	be.PutUint16(u[2:], Port)
	be.PutUint16(u[4:], uint16(udpLen+len(s.Buf)))
	be.PutUint16(u[udpSumAt:], foldSum(pseudoSum(src, dst, protoUDP, udpLen+len(s.Buf))))
	v := q.head[:vnetLen]
	clear(v)
	v[0] = vnetNeedsSum
	host.PutUint16(v[vnetSumStart:], uint16(ipLen))
	host.PutUint16(v[vnetSumOffset:], udpSumAt)
	if s.Segment > 0 && s.Segment < len(s.Buf) {
		v[vnetGSO] = gsoUDPL4
		host.PutUint16(v[vnetHdrLen:], uint16(ipLen+udpLen))
		host.PutUint16(v[vnetGSOSize:], uint16(s.Segment))
	}
}

// OpenFlow returns a flow, as Endpoint.OpenFlow does. There is no socket behind it:
// every source port is to be had.
func (q *tunQueue) OpenFlow(local netip.Addr, key uint8, wanted uint16) (FlowID, uint16, error) {
	i := q.net.indexOf(local)
	switch {
	case q.closed:
		return 0, 0, ErrClosed
	case i < 0:
		return 0, 0, &AddrError{Addr: local, Reason: "not one of the adapter's"}
	case key >= Keys:
		return 0, 0, fmt.Errorf("udp4791: open flow: steering key %d, limit %d", key, Keys-1)
	case wanted == 0:
		wanted = uint16(key)
	}
	if wanted != Port {
		wanted |= FirstFlowPort
	}
	return FlowID(i+1)<<16 | FlowID(wanted), wanted, nil
}

// tunFlow is what a flow stands for; a negative index: nothing.
func tunFlow(f FlowID) (index int, port uint16) { return int(f>>16) - 1, uint16(f) }

// CloseFlow does nothing.
func (q *tunQueue) CloseFlow(FlowID) {}

// WriteFD is -1: a link takes or refuses, it does not become writable.
func (q *tunQueue) WriteFD(FlowID) int { return -1 }

// FDs is the one descriptor to poll.
func (q *tunQueue) FDs() []int { return q.fds }

// Adopt is never called: OpenAddr fails.
func (q *tunQueue) Adopt(*LateAddr) int { return -1 }

// Drop does nothing.
func (q *tunQueue) Drop(netip.Addr) {}

// Listen and Unlisten are never called: OpenMulticast fails.
func (q *tunQueue) Listen(*Multicast) {}

// Unlisten is Listen's other half.
func (q *tunQueue) Unlisten(*Multicast) {}

// readPacket reads one packet of a non-blocking descriptor; raw as recvmmsg.
func readPacket(fd int, b []byte) (int, syscall.Errno) {
	n, _, e := unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
	return int(n), e
}

// writePacket writes one packet of several pieces; raw as sendmmsg.
func writePacket(fd int, iov []unix.Iovec) syscall.Errno {
	_, _, e := unix.RawSyscall(unix.SYS_WRITEV, uintptr(fd), uintptr(unsafe.Pointer(&iov[0])), uintptr(len(iov)))
	return e
}
