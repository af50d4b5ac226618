package udp4791

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
)

// Fault is what is wrong with the IP or UDP header of a datagram, where the
// backend sees them. A UDP socket does not: the kernel drops such datagrams, or
// takes them (options, fragments).
type Fault uint8

// The faults; the zero value is none.
const (
	FaultNone     Fault = iota
	FaultLength         // a length field that does not go with the packet's
	FaultChecksum       // the IPv4 header checksum is wrong
	FaultOptions        // IPv4 options or IPv6 extension headers: RoCEv2 has none (Annex A17.3.1)
	FaultFragment       // a fragment: RoCEv2 packets are never cut (Annex A17.3.3)
	FaultUDPSum         // the UDP checksum is wrong
	NumFaults
)

var faultNames = [NumFaults]string{"none", "ip_length", "ip_checksum", "ip_options", "ip_fragment", "udp_checksum"}

// String is the fault as metrics name it.
func (f Fault) String() string {
	if f < NumFaults {
		return faultNames[f]
	}
	return "unknown"
}

// Layouts: RFC 791, RFC 8200, RFC 768.
const (
	ip4Len = 20
	ip6Len = 40
	udpLen = 8

	protoICMP  = 1
	protoUDP   = 17
	protoICMP6 = 58

	ip4MoreFragments = 0x2000
	ip4DontFragment  = 0x4000
	ip4FragmentBits  = 0x3FFF // more fragments, and the offset
)

// IPv6 extension headers that may come before UDP.
const (
	ext6HopByHop = 0
	ext6Routing  = 43
	ext6Fragment = 44
	ext6Options  = 60
)

// ipPacket is a received IP packet, taken apart.
type ipPacket struct {
	src, dst netip.Addr
	proto    uint8 // of body
	tos, ttl uint8
	id       uint16
	body     []byte // behind the IP headers, as long as the IP header says
	fault    Fault
}

// parse takes a packet apart; false: it is none of IP, or too short for its
// addresses. Bytes behind its end are a short frame's padding.
func (ip *ipPacket) parse(p []byte) bool {
	switch {
	case len(p) >= ip4Len && p[0]>>4 == 4:
		ip.parse4(p)
		return true
	case len(p) >= ip6Len && p[0]>>4 == 6:
		ip.parse6(p)
		return true
	}
	return false
}

func (ip *ipPacket) parse4(p []byte) {
	be := binary.BigEndian
	hdr, total := int(p[0]&0xF)*4, int(be.Uint16(p[2:]))
	*ip = ipPacket{
		src: netip.AddrFrom4([4]byte(p[12:16])), dst: netip.AddrFrom4([4]byte(p[16:20])),
		proto: p[9], tos: p[1], ttl: p[8], id: be.Uint16(p[4:]),
	}
	if hdr < ip4Len || hdr > len(p) {
		ip.fault = FaultLength
		return
	}
	ip.body = p[hdr:]
	switch {
	case foldSum(addSum(0, p[:hdr])) != 0xFFFF:
		ip.fault = FaultChecksum
	case total < hdr || total > len(p):
		ip.fault = FaultLength
	case be.Uint16(p[6:])&ip4FragmentBits != 0:
		ip.fault = FaultFragment
	case hdr > ip4Len:
		ip.fault = FaultOptions
	}
	if total >= hdr && total <= len(p) {
		ip.body = p[hdr:total:total]
	}
}

func (ip *ipPacket) parse6(p []byte) {
	be := binary.BigEndian
	n := int(be.Uint16(p[4:]))
	*ip = ipPacket{
		src: netip.AddrFrom16([16]byte(p[8:24])), dst: netip.AddrFrom16([16]byte(p[24:40])),
		proto: p[6], tos: uint8(be.Uint16(p) >> 4), ttl: p[7], body: p[ip6Len:],
	}
	if n > len(ip.body) {
		ip.fault = FaultLength
		return
	}
	ip.body = ip.body[:n:n]
	ip.skipExtensions()
}

// skipExtensions comes to what is behind the extension headers, each of which is
// a fault.
func (ip *ipPacket) skipExtensions() {
	for {
		size := 8
		switch ip.proto {
		case ext6HopByHop, ext6Routing, ext6Options:
			if ip.fault == FaultNone {
				ip.fault = FaultOptions
			}
			if len(ip.body) >= 2 {
				size += int(ip.body[1]) * 8
			}
		case ext6Fragment:
			ip.fault = FaultFragment
		default:
			return
		}
		if len(ip.body) < size {
			ip.fault = FaultLength
			return
		}
		ip.proto, ip.body = ip.body[0], ip.body[size:]
	}
}

// roce takes the UDP header of a packet off and says whether it is one to port
// 4791; its payload is left in body. Of a packet with a fault that is a guess, as
// good as may be: it is for the count. trusted says that the kernel answers for
// the UDP checksum.
func (ip *ipPacket) roce(trusted bool) (src uint16, ok bool) {
	be := binary.BigEndian
	u := ip.body
	if ip.proto != protoUDP || len(u) < udpLen || be.Uint16(u[2:]) != Port {
		return 0, false
	}
	ip.body = u[udpLen:]
	switch {
	case ip.fault != FaultNone:
	case int(be.Uint16(u[4:])) != len(u):
		ip.fault = FaultLength
	case !trusted && be.Uint16(u[6:]) != 0 && foldSum(addSum(pseudoSum(ip.src, ip.dst, protoUDP, len(u)), u)) != 0xFFFF:
		ip.fault = FaultUDPSum
	}
	return be.Uint16(u), true
}

// slot makes the packet, of which roce took the UDP header, the slot's; segment
// is what the kernel says of how it is to be cut, 0 for not at all.
func (ip *ipPacket) slot(s *RecvSlot, src uint16, segment int) {
	if ip.fault != FaultNone {
		segment = 0
	}
	s.Buf, s.Segment = ip.body, segment
	s.Meta = RecvMeta{
		Src: netip.AddrPortFrom(ip.src, src), Dst: ip.dst, TOS: ip.tos, TTL: ip.ttl,
		ID: ip.id, IDKnown: ip.dst.Is4(), Fault: ip.fault,
	}
	s.limit()
}

// addSum adds the 16-bit words of b to a sum that foldSum folds (RFC 1071). Only
// the last piece of a sum may have an odd length.
func addSum(sum uint64, b []byte) uint64 {
	var carry uint64
	for ; len(b) >= 32; b = b[32:] {
		sum, carry = bits.Add64(sum, binary.BigEndian.Uint64(b), carry)
		sum, carry = bits.Add64(sum, binary.BigEndian.Uint64(b[8:]), carry)
		sum, carry = bits.Add64(sum, binary.BigEndian.Uint64(b[16:]), carry)
		sum, carry = bits.Add64(sum, binary.BigEndian.Uint64(b[24:]), carry)
	}
	for ; len(b) >= 8; b = b[8:] {
		sum, carry = bits.Add64(sum, binary.BigEndian.Uint64(b), carry)
	}
	if len(b) > 0 {
		var last [8]byte
		copy(last[:], b)
		sum, carry = bits.Add64(sum, binary.BigEndian.Uint64(last[:]), carry)
	}
	sum, carry = bits.Add64(sum, 0, carry)
	return sum + carry
}

// foldSum is the 16-bit sum.
func foldSum(sum uint64) uint16 {
	sum = sum>>32 + sum&0xFFFFFFFF
	sum = sum>>32 + sum&0xFFFFFFFF
	sum = sum>>16 + sum&0xFFFF
	sum = sum>>16 + sum&0xFFFF
	return uint16(sum>>16 + sum&0xFFFF)
}

// pseudoSum is the sum of the pseudo-header of a payload of n bytes.
func pseudoSum(src, dst netip.Addr, proto uint8, n int) uint64 {
	sum := uint64(proto) + uint64(n)
	if dst.Is4() {
		s, d := src.As4(), dst.As4()
		return addSum(addSum(sum, s[:]), d[:])
	}
	s, d := src.As16(), dst.As16()
	return addSum(addSum(sum, s[:]), d[:])
}
