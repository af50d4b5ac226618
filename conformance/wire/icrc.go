package wire

import (
	"encoding/binary"

	"github.com/softroce/softroce/pkg/bth"
)

const (
	ipv4Len = 20
	ipv6Len = 40
	udpLen  = 8

	protoICMP   = 1
	protoUDP    = 17
	protoICMPv6 = 58
	protoFrag   = 44
)

var be = binary.BigEndian

// icrc returns the invariant CRC over an IP packet's headers as they are, UDP's included, and a payload from BTH to pad. What
// may change on the way counts as ones (IBTA Vol 1 §7.8.1, Annex A17); what a RoCEv2 packet does not have, such as IPv4
// options, counts as it is. A payload too short for a BTH has as much of it masked as is there.
func icrc(headers, payload []byte) uint32 {
	h := append([]byte{0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF}, headers...)
	ip := h[8:]
	if ip[0]>>4 == 4 {
		ip[1], ip[8], ip[10], ip[11] = 0xFF, 0xFF, 0xFF, 0xFF // type of service, time to live, checksum
	} else {
		ip[0] |= 0x0F // traffic class, flow label
		ip[1], ip[2], ip[3], ip[7] = 0xFF, 0xFF, 0xFF, 0xFF
	}
	ip[len(ip)-2], ip[len(ip)-1] = 0xFF, 0xFF // UDP checksum
	state := bth.UpdateCRC(0xFFFFFFFF, h)
	const variant = 4 // the BTH's byte of FECN, BECN and reserved bits
	if len(payload) > variant {
		state = bth.UpdateCRC(state, payload[:variant])
		state = bth.UpdateCRC(state, []byte{0xFF})
		payload = payload[variant+1:]
	}
	return bth.FinishICRC(bth.UpdateCRC(state, payload))
}

// sum adds b to an Internet checksum's running sum.
func sum(s uint32, b []byte) uint32 {
	for ; len(b) > 1; b = b[2:] {
		s += uint32(be.Uint16(b))
	}
	if len(b) == 1 {
		s += uint32(b[0]) << 8
	}
	for s > 0xFFFF {
		s = s>>16 + s&0xFFFF
	}
	return s
}

// ipSum is the checksum of an IPv4 header, whatever stands in its place.
func ipSum(h []byte) uint16 { return ^uint16(sum(sum(0, h[:10]), h[12:])) }

// udpSum is the checksum of the UDP packet that begins at offset hdr of an IP packet, whatever stands in its place; it covers
// as many bytes as the UDP header's length says, or as are there.
func udpSum(ip []byte, hdr int) uint16 {
	u := ip[hdr:]
	n := min(max(int(be.Uint16(u[4:])), udpLen), len(u))
	addrs := ip[12:20]
	if ip[0]>>4 == 6 {
		addrs = ip[8:40]
	}
	s := sum(uint32(protoUDP)+uint32(be.Uint16(u[4:])), addrs)
	s = sum(sum(s, u[:6]), u[udpLen:n])
	if s == 0xFFFF {
		return 0xFFFF // its complement would mean: no checksum
	}
	return ^uint16(s)
}

// other returns a checksum that is wrong where right is right.
func other(right uint16) uint16 {
	if w := right ^ 0x0F0F; w != 0 {
		return w
	}
	return 0x1111
}
