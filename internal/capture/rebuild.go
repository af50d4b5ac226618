package capture

import (
	"encoding/binary"
	"math"

	"github.com/softroce/softroce/pkg/bth"
)

const (
	rocePort    = 4791
	protocolUDP = 17
	ipv4Len     = 20
	ipv6Len     = 40
	udpLen      = 8
	maxPayload  = math.MaxUint16 - udpLen - ipv4Len

	// guessedTTL stands for a time to live that is not known (our own choice).
	guessedTTL = 64
)

// normalise checks p and brings it into the form that the rest expects.
func (p *Packet) normalise() error {
	p.Src, p.Dst = p.Src.Unmap().WithZone(""), p.Dst.Unmap().WithZone("")
	if !p.Src.IsValid() || p.Src.Is4() != p.Dst.Is4() || !p.Dst.IsValid() {
		return ErrAddress
	}
	if len(p.Payload) > maxPayload {
		return ErrPayloadSize
	}
	if p.DstPort == 0 {
		p.DstPort = rocePort
	}
	return nil
}

// complete fills in what is not known of p's headers and appends to note what
// that was.
func (p *Packet) complete(note []byte) []byte {
	first := true
	say := func(s string) {
		if first && len(note) > 0 {
			note = append(note, "; "...)
		} else if !first {
			note = append(note, ", "...)
		}
		if first {
			note = append(note, "not known: "...)
		}
		first = false
		note = append(note, s...)
	}
	if p.Src.Is4() && !p.IDKnown {
		if id, ok := p.solveID(); ok {
			p.ID = id
			say("IP identification (the one that explains the ICRC is written)")
		} else {
			p.ID = 0
			say("IP identification (0 is written, none explains the ICRC)")
		}
	}
	if p.TTL == 0 {
		p.TTL = guessedTTL
		say("TTL (64 is written)")
	}
	if !p.Outbound {
		say("UDP checksum (the right one is written)")
		if p.Src.Is6() {
			p.FlowLabel = 0
			say("IPv6 flow label (0 is written)")
		}
	}
	return note
}

// solveID returns the identification that explains the ICRC of p's payload.
func (p *Packet) solveID() (uint16, bool) {
	var roce bth.Packet
	if roce.Parse(p.Payload) != nil {
		return 0, false
	}
	net := bth.NetHeader{
		Src: bth.GIDFromAddr(p.Src), Dst: bth.GIDFromAddr(p.Dst), SrcPort: p.SrcPort, DstPort: p.DstPort,
	}
	want := bth.ICRC(net.Seed(len(p.Payload)), roce.Covered())
	return bth.SolveID(roce.ICRC(), want, len(p.Payload))
}

// appendIP appends the whole IP packet to b. p is normalised and complete.
func (p *Packet) appendIP(b []byte) []byte {
	be := binary.BigEndian
	n := udpLen + len(p.Payload)
	var pseudo uint32 // sum of the pseudo-header
	start := len(b)
	if p.Src.Is4() {
		src, dst := p.Src.As4(), p.Dst.As4()
		b = append(b, 0x45, p.TOS)
		b = be.AppendUint16(b, uint16(ipv4Len+n))
		b = be.AppendUint16(b, p.ID)
		b = append(b, 0x40, 0, p.TTL, protocolUDP, 0, 0) // don't fragment
		b = append(append(b, src[:]...), dst[:]...)
		be.PutUint16(b[start+10:], ^fold(sum16(0, b[start:])))
		pseudo = sum16(0, b[start+12:])
	} else {
		src, dst := p.Src.As16(), p.Dst.As16()
		b = be.AppendUint32(b, 6<<28|uint32(p.TOS)<<20|p.FlowLabel&0xFFFFF)
		b = be.AppendUint16(b, uint16(n))
		b = append(b, protocolUDP, p.TTL)
		b = append(append(b, src[:]...), dst[:]...)
		pseudo = sum16(0, b[start+8:])
	}
	udp := len(b)
	b = be.AppendUint16(b, p.SrcPort)
	b = be.AppendUint16(b, p.DstPort)
	b = be.AppendUint16(b, uint16(n))
	b = append(b, 0, 0)
	b = append(b, p.Payload...)
	sum := ^fold(sum16(pseudo+protocolUDP+uint32(n), b[udp:]))
	if sum == 0 {
		sum = 0xFFFF // 0 says that there is none
	}
	be.PutUint16(b[udp+6:], sum)
	return b
}

// sum16 adds b's 16-bit words, big endian, to the sum of an Internet checksum. b
// is no longer than an IP packet, so that the sum does not overflow.
func sum16(sum uint32, b []byte) uint32 {
	for ; len(b) >= 2; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		sum += uint32(b[0]) << 8
	}
	return sum
}

// fold reduces the sum of an Internet checksum to 16 bits.
func fold(sum uint32) uint16 {
	sum = sum>>16 + sum&0xFFFF
	return uint16(sum>>16 + sum)
}
