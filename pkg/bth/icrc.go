package bth

import "encoding/binary"

// The invariant CRC (IBTA Vol 1 §7.8.1, Annex A17) is the CRC-32 of Ethernet over
// eight bytes of ones, the IP and UDP headers and the packet from BTH to pad,
// with every field that may change on the way replaced by ones. A state here is
// the CRC register itself, before the final complement.

const (
	// crcAfterPseudoLRH is the register after the eight bytes of ones that
	// stand for the link header, which RoCEv2 does not have.
	crcAfterPseudoLRH uint32 = 0xDEBB20E3

	ipv4HeaderLen = 20
	ipv6HeaderLen = 40
	udpHeaderLen  = 8
	udpProtocol   = 17
	roceV2Port    = 4791

	maxMaskedLen = ipv6HeaderLen + udpHeaderLen
)

// NetHeader holds the fields of the IP and UDP headers that the ICRC covers and
// that differ between packets. The packets are IPv4 when both GIDs are
// IPv4-mapped, without options and with don't-fragment set, else IPv6 without
// extension headers.
type NetHeader struct {
	Src, Dst GID
	SrcPort  uint16
	DstPort  uint16 // 4791
	ID       uint16 // IPv4 identification; IPv6 has none
}

// Seed returns the register after the masked IP and UDP headers of a datagram
// whose UDP payload, ICRC included, has udpPayloadLen bytes.
func (h *NetHeader) Seed(udpPayloadLen int) uint32 {
	var b [maxMaskedLen]byte
	n := ipv6HeaderLen
	udpLen := udpHeaderLen + udpPayloadLen
	if h.Src.Is4() && h.Dst.Is4() {
		n = ipv4HeaderLen
		b[0] = 0x45
		binary.BigEndian.PutUint16(b[2:], uint16(ipv4HeaderLen+udpLen))
		binary.BigEndian.PutUint16(b[4:], h.ID)
		b[6] = 0x40 // don't fragment
		b[9] = udpProtocol
		copy(b[12:16], h.Src[12:])
		copy(b[16:20], h.Dst[12:])
	} else {
		b[0] = 0x60
		binary.BigEndian.PutUint16(b[4:], uint16(udpLen))
		b[6] = udpProtocol
		copy(b[8:24], h.Src[:])
		copy(b[24:40], h.Dst[:])
	}
	binary.BigEndian.PutUint16(b[n:], h.SrcPort)
	binary.BigEndian.PutUint16(b[n+2:], h.DstPort)
	binary.BigEndian.PutUint16(b[n+4:], uint16(udpLen))
	return maskedState(b[:n+udpHeaderLen])
}

// maskedState replaces by ones, in place, what may change on the way in an IP
// and a UDP header, and returns the register after them.
func maskedState(b []byte) uint32 {
	udp := ipv6HeaderLen
	if b[0]>>4 == 4 {
		udp = ipv4HeaderLen
		b[1] = 0xFF               // type of service
		b[8] = 0xFF               // time to live
		b[10], b[11] = 0xFF, 0xFF // header checksum
	} else {
		b[0] |= 0x0F // traffic class, flow label
		b[1], b[2], b[3] = 0xFF, 0xFF, 0xFF
		b[7] = 0xFF // hop limit
	}
	b[udp+6], b[udp+7] = 0xFF, 0xFF // checksum
	return updateHeader(crcAfterPseudoLRH, b)
}

// HeaderState continues the register over hdr, a BTH and what follows it,
// masking the BTH's byte of FECN, BECN and reserved bits without changing it.
// hdr has at least BTHLen bytes, and is meant to be short: ICRC is for a whole
// packet.
func HeaderState(seed uint32, hdr []byte) uint32 {
	_ = hdr[BTHLen-1]
	return updateHeader(maskedBegin(seed, hdr), hdr[8:])
}

// BeginState continues the register over the masked first eight bytes of hdr, a
// BTH: what is the same in all packets of a run. WordState goes on from there.
func BeginState(seed uint32, hdr []byte) uint32 { return maskedBegin(seed, hdr) }

// WordState continues the register over four bytes, the first in the lowest bits
// of v. It does for a BTH's last four bytes what HeaderState does.
func WordState(state, v uint32) uint32 { return step4(state, v) }

// maskedBegin continues the register over the masked first eight bytes of a BTH.
func maskedBegin(seed uint32, bth []byte) uint32 {
	return step8(seed, binary.LittleEndian.Uint64(bth)|0xFF<<(8*bthVar))
}

// ICRC returns the invariant CRC of a packet: seed is what NetHeader.Seed gives,
// roce the bytes from BTH to pad, at least BTHLen of them. It reads roce once
// and does not change it.
func ICRC(seed uint32, roce []byte) uint32 {
	_ = roce[BTHLen-1]
	return FinishICRC(UpdateCRC(maskedBegin(seed, roce), roce[8:]))
}

// FinishICRC returns the invariant CRC that belongs to a register.
func FinishICRC(state uint32) uint32 { return ^state }

// AppendICRC appends v to b as it stands on the wire, least significant byte
// first.
func AppendICRC(b []byte, v uint32) []byte { return binary.LittleEndian.AppendUint32(b, v) }

// PutICRC stores v in b[:4] as it stands on the wire, least significant byte
// first.
func PutICRC(b []byte, v uint32) { binary.LittleEndian.PutUint32(b, v) }
