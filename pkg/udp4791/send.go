package udp4791

import (
	"golang.org/x/sys/unix"
)

// txBatch is the preallocated side of sendmmsg.
type txBatch struct {
	hdrs  []mmsghdr
	iovs  []unix.Iovec
	names []rawSockaddr
	ctrls []rawControl
	fail  SendError // the one error value, so that a refusal does not allocate
}

func (b *txBatch) init(n int) {
	b.hdrs = make([]mmsghdr, n)
	b.iovs = make([]unix.Iovec, n)
	b.names = make([]rawSockaddr, n)
	b.ctrls = make([]rawControl, n)
	for i := range n {
		h := &b.hdrs[i].hdr
		h.Name = &b.names[i][0]
		h.Iov = &b.iovs[i]
		h.SetIovlen(1)
	}
}

// WriteBatch sends slots in order, as far as the sockets take them, and
// returns how many it sent. It does not block and does not allocate.
//
// Without error n is len(slots). ErrWouldBlock means that the kernel takes no
// more for now (EAGAIN or ENOBUFS): nothing is lost, send slots[n:] again when
// WriteFD of slots[n].Flow is writable. A *SendError is the refusal of
// slots[n] alone: slots[:n] are sent, the caller drops slots[n], counts a loss
// and goes on with slots[n+1:]. The *SendError is the endpoint's and valid
// until the next WriteBatch. Where slots[n] has segments, EIO, EINVAL and
// EMSGSIZE may be about the segmentation: its datagrams may pass one by one.
//
// Neighbours with the same flow share system calls.
func (e *Endpoint) WriteBatch(slots []SendSlot) (int, error) {
	if len(e.recv) == 0 {
		return 0, ErrClosed
	}
	for n := 0; n < len(slots); {
		s := e.lookup(slots[n].Flow)
		if s == nil {
			return n, e.refuse(unix.EBADF)
		}
		run, errno := e.prepare(s, slots[n:])
		if run == 0 {
			return n, e.refuse(errno)
		}
		k, errno := sendmmsg(s.fd, e.tx.hdrs[:run])
		e.tx.release(run)
		switch errno {
		case 0:
			n += k
		case unix.EINTR:
		case unix.EAGAIN, unix.ENOBUFS:
			return n, ErrWouldBlock
		case unix.EINVAL:
			if slots[n].FlowLabel != 0 && !s.noLabel && e.locals[s.local].addr.Is6() {
				// Somebody on this host holds flow labels exclusively
				// (ipv6_flowlabel): labels need a lease then. Send without.
				s.noLabel = true
				continue
			}
			return n, e.refuse(errno)
		default:
			return n, e.refuse(errno)
		}
	}
	return len(slots), nil
}

func (e *Endpoint) refuse(errno unix.Errno) error {
	e.tx.fail.Errno = errno
	return &e.tx.fail
}

// prepare fills headers for the longest run of slots that leave from s and
// fit the batch. It returns 0 and the errno when the first one cannot be sent
// from s at all.
func (e *Endpoint) prepare(s *sendSocket, slots []SendSlot) (int, unix.Errno) {
	b := &e.tx
	l := &e.locals[s.local]
	flow := slots[0].Flow
	n := 0
	for n < len(slots) && n < len(b.hdrs) && slots[n].Flow == flow {
		if !b.set(n, s, l, &slots[n]) {
			if n == 0 {
				return 0, unix.EAFNOSUPPORT
			}
			break
		}
		n++
	}
	return n, 0
}

// set fills header i; it reports false when the slot's destination is of the
// wrong family.
func (b *txBatch) set(i int, s *sendSocket, l *local, slot *SendSlot) bool {
	dst := slot.Dst.Unmap()
	if !dst.IsValid() || dst.Is4() != l.addr.Is4() {
		return false
	}
	h := &b.hdrs[i].hdr
	if dst.Is4() {
		b.names[i].setPeer4(dst)
		h.Namelen = unix.SizeofSockaddrInet4
	} else {
		label := slot.FlowLabel
		if s.noLabel {
			label = 0
		}
		b.names[i].setPeer6(dst, label, l.zone)
		h.Namelen = unix.SizeofSockaddrInet6
	}
	h.Control = nil
	h.SetControllen(0)
	c := b.ctrls[i].setTOSTTL(dst.Is4(), slot.TOS, slot.TTL)
	if slot.Segment > 0 {
		c = b.ctrls[i].putSegment(c, slot.Segment)
	}
	if c > 0 {
		h.Control = &b.ctrls[i].b[0]
		h.SetControllen(c)
	}
	b.iovs[i].Base = nil
	if len(slot.Buf) > 0 {
		b.iovs[i].Base = &slot.Buf[0]
	}
	b.iovs[i].SetLen(len(slot.Buf))
	return true
}

// setTOSTTL writes the control messages for what differs from the socket's
// defaults and returns their length.
func (c *rawControl) setTOSTTL(v4 bool, tos, ttl uint8) int {
	n := 0
	if tos != 0 {
		if v4 {
			n = c.put(n, unix.IPPROTO_IP, unix.IP_TOS, int32(tos))
		} else {
			n = c.put(n, unix.IPPROTO_IPV6, unix.IPV6_TCLASS, int32(tos))
		}
	}
	if ttl != 0 && ttl != DefaultTTL {
		if v4 {
			n = c.put(n, unix.IPPROTO_IP, unix.IP_TTL, int32(ttl))
		} else {
			n = c.put(n, unix.IPPROTO_IPV6, unix.IPV6_HOPLIMIT, int32(ttl))
		}
	}
	return n
}

// release forgets the callers' buffers: they may be unmapped after the call.
func (b *txBatch) release(n int) {
	for i := range b.iovs[:n] {
		b.iovs[i].Base = nil
	}
}
