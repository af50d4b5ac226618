package bth

import (
	"encoding/binary"
	"errors"
)

// What ICRCOfIPPacket refuses.
var (
	// ErrIPHeader: no IPv4 or IPv6 header, or one whose lengths do not fit.
	ErrIPHeader = errors.New("read IP packet: bad or truncated IP header")
	// ErrIPOptions: IPv4 options or IPv6 extension headers, which RoCEv2 does
	// not use.
	ErrIPOptions = errors.New("read IP packet: options or extension headers")
	// ErrIPFragment: a fragment.
	ErrIPFragment = errors.New("read IP packet: fragment")
	// ErrNotRoCE: not UDP, or not to port 4791.
	ErrNotRoCE = errors.New("read IP packet: not UDP to port 4791")
	// ErrUDPLength: a UDP length that does not fit the IP packet, or that
	// leaves no room for BTH and ICRC.
	ErrUDPLength = errors.New("read IP packet: bad UDP length")
)

// ICRCOfIPPacket computes the ICRC of a whole IPv4 or IPv6 packet with its
// headers as they were on the wire, and returns it beside the one that the
// packet carries. The packet ends where its UDP length says; what follows, such
// as Ethernet padding, is ignored. It does not change ip.
func ICRCOfIPPacket(ip []byte) (want, got uint32, err error) {
	hdr, roce, err := splitIPPacket(ip)
	if err != nil {
		return 0, 0, err
	}
	var b [maxMaskedLen]byte
	seed := maskedState(b[:copy(b[:], ip[:hdr+udpHeaderLen])])
	end := len(roce) - ICRCLen
	return ICRC(seed, roce[:end]), binary.LittleEndian.Uint32(roce[end:]), nil
}

// splitIPPacket returns the length of the IP header and the UDP payload.
func splitIPPacket(ip []byte) (hdr int, roce []byte, err error) {
	if len(ip) == 0 {
		return 0, nil, ErrIPHeader
	}
	switch ip[0] >> 4 {
	case 4:
		hdr = ipv4HeaderLen
		ip, err = checkIPv4(ip)
	case 6:
		hdr = ipv6HeaderLen
		ip, err = checkIPv6(ip)
	default:
		err = ErrIPHeader
	}
	if err != nil {
		return 0, nil, err
	}
	udp := ip[hdr:]
	if len(udp) < udpHeaderLen {
		return 0, nil, ErrUDPLength
	}
	if binary.BigEndian.Uint16(udp[2:]) != roceV2Port {
		return 0, nil, ErrNotRoCE
	}
	n := int(binary.BigEndian.Uint16(udp[4:]))
	if n > len(udp) || n < udpHeaderLen+BTHLen+ICRCLen {
		return 0, nil, ErrUDPLength
	}
	return hdr, udp[udpHeaderLen:n], nil
}

// checkIPv4 returns ip cut to its total length.
func checkIPv4(ip []byte) ([]byte, error) {
	if len(ip) < ipv4HeaderLen {
		return nil, ErrIPHeader
	}
	n := int(binary.BigEndian.Uint16(ip[2:]))
	switch {
	case ip[0]&0x0F < 5 || n < ipv4HeaderLen || n > len(ip):
		return nil, ErrIPHeader
	case ip[9] != udpProtocol:
		return nil, ErrNotRoCE
	case ip[0] != 0x45:
		return nil, ErrIPOptions
	case binary.BigEndian.Uint16(ip[6:])&0x3FFF != 0: // more fragments, offset
		return nil, ErrIPFragment
	}
	return ip[:n], nil
}

// checkIPv6 returns ip cut to its payload length.
func checkIPv6(ip []byte) ([]byte, error) {
	if len(ip) < ipv6HeaderLen {
		return nil, ErrIPHeader
	}
	n := ipv6HeaderLen + int(binary.BigEndian.Uint16(ip[4:]))
	if n > len(ip) {
		return nil, ErrIPHeader
	}
	switch ip[6] {
	case udpProtocol:
		return ip[:n], nil
	case 44: // fragment header
		return nil, ErrIPFragment
	case 0, 43, 60, 51, 135: // hop-by-hop, routing, destination options, AH, mobility
		return nil, ErrIPOptions
	}
	return nil, ErrNotRoCE
}
