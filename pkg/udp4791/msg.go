package udp4791

import (
	"encoding/binary"
	"net/netip"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mmsghdr is struct mmsghdr of recvmmsg(2) and sendmmsg(2); the compiler pads
// it to the alignment of msghdr's pointers, as C does.
type mmsghdr struct {
	hdr unix.Msghdr
	n   uint32 // bytes received or sent
}

const (
	// sockaddrSize holds a sockaddr_in or a sockaddr_in6.
	sockaddrSize = unix.SizeofSockaddrInet6
	// controlSize holds the three control messages (TOS, TTL, segment size) of
	// a datagram.
	controlSize = 96
)

// Raw socket addresses: family in host order, port and address in network
// order (ip(7), ipv6(7)).
type rawSockaddr [sockaddrSize]byte

const (
	sa4Addr     = 4
	sa6FlowInfo = 4
	sa6Addr     = 8
	sa6Scope    = 24
)

// setPeer4 writes a sockaddr_in for port 4791 of an IPv4 address.
func (sa *rawSockaddr) setPeer4(a netip.Addr) {
	binary.NativeEndian.PutUint16(sa[0:], unix.AF_INET)
	binary.BigEndian.PutUint16(sa[2:], Port)
	b := a.As4()
	copy(sa[sa4Addr:], b[:])
	clear(sa[8:16])
}

// setPeer6 writes a sockaddr_in6 for port 4791 of an IPv6 address; scope is
// used for link-local addresses only.
func (sa *rawSockaddr) setPeer6(a netip.Addr, label, scope uint32) {
	binary.NativeEndian.PutUint16(sa[0:], unix.AF_INET6)
	binary.BigEndian.PutUint16(sa[2:], Port)
	binary.BigEndian.PutUint32(sa[sa6FlowInfo:], label&0xFFFFF)
	b := a.As16()
	copy(sa[sa6Addr:], b[:])
	if !a.IsLinkLocalUnicast() && !a.IsLinkLocalMulticast() {
		scope = 0
	}
	binary.NativeEndian.PutUint32(sa[sa6Scope:], scope)
}

// addrPort reads the address of a received datagram, without zone (a zone
// would allocate, and a GID has none).
func (sa *rawSockaddr) addrPort() netip.AddrPort {
	port := binary.BigEndian.Uint16(sa[2:])
	switch binary.NativeEndian.Uint16(sa[0:]) {
	case unix.AF_INET:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(sa[sa4Addr:sa4Addr+4])), port)
	case unix.AF_INET6:
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte(sa[sa6Addr:sa6Addr+16])), port)
	}
	return netip.AddrPort{}
}

// rawControl is the control buffer of one datagram, aligned for cmsghdr.
type rawControl struct {
	_ [0]uint64
	b [controlSize]byte
}

// put appends a control message with an int at offset off and returns the
// offset behind it.
func (c *rawControl) put(off int, level, typ int32, v int32) int {
	h := (*unix.Cmsghdr)(unsafe.Pointer(&c.b[off]))
	h.Level, h.Type = level, typ
	h.SetLen(unix.CmsgLen(4))
	binary.NativeEndian.PutUint32(c.b[off+unix.CmsgLen(0):], uint32(v))
	return off + unix.CmsgSpace(4)
}

// putSegment appends the size of the segments to cut.
func (c *rawControl) putSegment(off, size int) int {
	h := (*unix.Cmsghdr)(unsafe.Pointer(&c.b[off]))
	h.Level, h.Type = unix.IPPROTO_UDP, unix.UDP_SEGMENT
	h.SetLen(unix.CmsgLen(2))
	binary.NativeEndian.PutUint16(c.b[off+unix.CmsgLen(0):], uint16(size))
	return off + unix.CmsgSpace(2)
}

// facts reads the traffic class and the hop limit out of a received control
// buffer of n bytes, and returns the size of the segments that were merged, 0
// for a datagram of its own. IP_TOS comes as one byte, the others as int.
func (c *rawControl) facts(n int, m *RecvMeta) (segment int) {
	hdr := unix.CmsgLen(0)
	for off := 0; off+hdr < n; {
		h := (*unix.Cmsghdr)(unsafe.Pointer(&c.b[off]))
		l := int(h.Len)
		if l <= hdr || off+l > n {
			break
		}
		v := uint32(c.b[off+hdr])
		if l >= unix.CmsgLen(4) {
			v = binary.NativeEndian.Uint32(c.b[off+hdr:])
		}
		switch {
		case h.Level == unix.IPPROTO_IP && h.Type == unix.IP_TOS,
			h.Level == unix.IPPROTO_IPV6 && h.Type == unix.IPV6_TCLASS:
			m.TOS = uint8(v)
		case h.Level == unix.IPPROTO_IP && h.Type == unix.IP_TTL,
			h.Level == unix.IPPROTO_IPV6 && h.Type == unix.IPV6_HOPLIMIT:
			m.TTL = uint8(v)
		case h.Level == unix.IPPROTO_UDP && h.Type == unix.UDP_GRO:
			segment = int(v)
		}
		off += unix.CmsgSpace(l - hdr)
	}
	return segment
}

// recvmmsg is recvmmsg(2) with MSG_DONTWAIT. Raw: the call cannot block, so
// the scheduler need not know.
func recvmmsg(fd int, m []mmsghdr) (int, syscall.Errno) {
	n, _, e := unix.RawSyscall6(unix.SYS_RECVMMSG, uintptr(fd), uintptr(unsafe.Pointer(&m[0])),
		uintptr(len(m)), unix.MSG_DONTWAIT, 0, 0)
	return int(n), e
}

// sendmmsg is sendmmsg(2) with MSG_DONTWAIT, raw as recvmmsg.
func sendmmsg(fd int, m []mmsghdr) (int, syscall.Errno) {
	n, _, e := unix.RawSyscall6(unix.SYS_SENDMMSG, uintptr(fd), uintptr(unsafe.Pointer(&m[0])),
		uintptr(len(m)), unix.MSG_DONTWAIT, 0, 0)
	return int(n), e
}
