package wire

import (
	"net/netip"

	"github.com/softroce/softroce/pkg/bth"
)

// firstPort is where the range of RoCEv2 source ports begins.
const firstPort = 0xC000

// Build returns a packet from its IP header on, as it is on the wire between local and remote. What is in the Ethernet frame
// only (VLAN, Tagged, Extra) is not in it. The IP version is IPv4 when source and destination are IPv4 addresses.
func Build(p *Packet, local, remote netip.Addr) []byte {
	src, dst := local, remote
	if p.Src.IsValid() {
		src = p.Src
	}
	if p.Dst.IsValid() {
		dst = p.Dst
	}
	roce := p.roce()
	var ip []byte
	hdr := ipv6Len
	if src.Unmap().Is4() && dst.Unmap().Is4() {
		ip = p.appendIPv4(nil, src.Unmap(), dst.Unmap())
		hdr = len(ip)
	} else {
		ip = p.appendIPv6(nil, src, dst)
	}
	ip = p.appendUDP(ip)
	body := len(ip)
	p.setLengths(ip, hdr, body+len(roce)+bth.ICRCLen)
	check := bth.AppendICRC(nil, icrc(ip, roce))
	if p.ICRC != nil {
		check = p.ICRC(icrc(ip, roce))
	}
	ip = append(append(ip, roce...), check...)
	p.setLengths(ip, hdr, len(ip))
	p.setSums(ip, hdr)
	if p.Late != nil {
		p.Late(ip)
	}
	return ip
}

// roce returns what goes from BTH to pad.
func (p *Packet) roce() []byte {
	if p.Roce != nil {
		return p.Roce
	}
	h, pad := p.Headers, p.Pad
	if pad == nil {
		pad = bth.AppendPad(nil, len(p.Payload))
		h.BTH.Pad = bth.PadLen(len(p.Payload))
	}
	return append(append(h.Append(nil), p.Payload...), pad...)
}

func (p *Packet) appendIPv4(b []byte, src, dst netip.Addr) []byte {
	frag := uint16(0x4000) // don't fragment
	if p.FragSet {
		frag = p.Frag
	}
	b = append(b, 0x40|uint8(ipv4Len+len(p.Options))/4&0x0F, p.TOS, 0, 0)
	b = be.AppendUint16(be.AppendUint16(b, p.ID), frag)
	b = append(b, p.ttl(), protoUDP, 0, 0)
	b = append(append(b, src.AsSlice()...), dst.AsSlice()...)
	return append(b, p.Options...)
}

func (p *Packet) appendIPv6(b []byte, src, dst netip.Addr) []byte {
	b = be.AppendUint32(b, 6<<28|uint32(p.TOS)<<20|p.FlowLabel&0xFFFFF)
	b = append(b, 0, 0, protoUDP, p.ttl())
	s, d := src.As16(), dst.As16()
	return append(append(b, s[:]...), d[:]...)
}

func (p *Packet) ttl() uint8 {
	if p.TTL == 0 {
		return 64
	}
	return p.TTL
}

func (p *Packet) appendUDP(b []byte) []byte {
	src, dst := p.SrcPort, p.DstPort
	if src == 0 && !p.SrcPortZero {
		src = firstPort
	}
	if dst == 0 {
		dst = Port
	}
	b = be.AppendUint16(be.AppendUint16(b, src), dst)
	return append(b, 0, 0, 0, 0)
}

// setLengths writes the lengths of a packet of n bytes, and what p adds to them, into its headers.
func (p *Packet) setLengths(ip []byte, hdr, n int) {
	if ip[0]>>4 == 4 {
		be.PutUint16(ip[2:], uint16(n+p.IPLen))
	} else {
		be.PutUint16(ip[4:], uint16(n-hdr+p.IPLen))
	}
	be.PutUint16(ip[hdr+4:], uint16(n-hdr+p.UDPLen))
}

// setSums writes the checksums.
func (p *Packet) setSums(ip []byte, hdr int) {
	switch p.UDPSum {
	case SumZero:
	case SumRight:
		be.PutUint16(ip[hdr+6:], udpSum(ip, hdr))
	case SumWrong:
		be.PutUint16(ip[hdr+6:], other(udpSum(ip, hdr)))
	}
	if ip[0]>>4 != 4 {
		return
	}
	s := ipSum(ip[:hdr])
	if p.BadIPSum {
		s = other(s)
	}
	be.PutUint16(ip[10:], s)
}
