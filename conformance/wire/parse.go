package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/softroce/softroce/pkg/bth"
)

// ParseIP describes an IP packet. What follows the packet's end, as its header says it, is the frame's Pad. The frame keeps ip.
// Err is bth's of the RoCE packet, or one of bth.ErrIPHeader, bth.ErrIPFragment and bth.ErrUDPLength when the headers before it
// do not fit; what could be read all the same holds. The fields of IP and UDP hold even when NotUDP is true, as far as they are
// there.
func ParseIP(ip []byte) *Frame {
	f := &Frame{IP: ip, NotUDP: true}
	switch {
	case len(ip) >= ipv4Len && ip[0]>>4 == 4:
		f.parseIPv4(ip)
	case len(ip) >= ipv6Len && ip[0]>>4 == 6:
		f.parseIPv6(ip)
	default:
		f.Err = bth.ErrIPHeader
	}
	return f
}

func (f *Frame) parseIPv4(ip []byte) {
	f.Src, f.Dst = netip.AddrFrom4([4]byte(ip[12:])), netip.AddrFrom4([4]byte(ip[16:]))
	f.TOS, f.TTL = ip[1], ip[8]
	f.ID, f.Frag = be.Uint16(ip[4:]), be.Uint16(ip[6:])
	hdr := int(ip[0]&0x0F) * 4
	f.cut(ip, int(be.Uint16(ip[2:])))
	if hdr < ipv4Len || hdr > len(f.IP) {
		f.Err = bth.ErrIPHeader
		return
	}
	if ip[9] == protoUDP && f.Frag&0x1FFF == 0 {
		f.parseUDP(hdr)
	}
	if f.Frag&0x3FFF != 0 && !errors.Is(f.Err, bth.ErrIPHeader) { // more fragments, or an offset
		f.Err = bth.ErrIPFragment
	}
}

func (f *Frame) parseIPv6(ip []byte) {
	f.Src, f.Dst = netip.AddrFrom16([16]byte(ip[8:])), netip.AddrFrom16([16]byte(ip[24:]))
	f.TOS, f.TTL = uint8(be.Uint16(ip)>>4), ip[7]
	f.cut(ip, ipv6Len+int(be.Uint16(ip[4:])))
	switch ip[6] {
	case protoUDP:
		f.parseUDP(ipv6Len)
	case protoFrag:
		f.Err = bth.ErrIPFragment
	}
}

// cut ends the packet after n bytes, where its header says so.
func (f *Frame) cut(ip []byte, n int) {
	f.IPLen = n
	if n > len(ip) || n < ipv4Len {
		f.Err = bth.ErrIPHeader
		return
	}
	f.IP = ip[:n:n]
	if n < len(ip) {
		f.Pad = ip[n:]
	}
}

func (f *Frame) parseUDP(hdr int) {
	u := f.IP[hdr:]
	if len(u) < udpLen {
		if f.Err == nil {
			f.Err = bth.ErrUDPLength
		}
		return
	}
	f.SrcPort, f.DstPort = be.Uint16(u), be.Uint16(u[2:])
	f.UDPLen, f.UDPSum = be.Uint16(u[4:]), be.Uint16(u[6:])
	f.NotUDP = f.SrcPort != Port && f.DstPort != Port
	n := int(f.UDPLen)
	if n < udpLen || n > len(u) {
		if f.Err == nil {
			f.Err = bth.ErrUDPLength
		}
		n = len(u)
	}
	f.Roce = u[udpLen:n:n]
	if err := f.RoCE.Parse(f.Roce); err != nil && f.Err == nil {
		f.Err = err
	}
	if end := len(f.Roce) - bth.ICRCLen; end >= 0 {
		f.ICRCOK = icrc(f.IP[:hdr+udpLen], f.Roce[:end]) == binary.LittleEndian.Uint32(f.Roce[end:])
	}
}

// Why a host would not hand a packet to whoever has the port.
var (
	errNotPort = errors.New("not UDP to port 4791")
	errIPSum   = errors.New("wrong IPv4 header checksum")
	errUDPSum  = errors.New("wrong UDP checksum")
)

// Deliverable returns why a host that has the packet's destination address would not deliver its payload to the program that
// has port 4791 there; nil when it would. A zero checksum of UDP is taken with IPv6, too, as RoCEv2 needs it. A fragment is
// not delivered: who wants to take several together has to do it before.
func (f *Frame) Deliverable() error {
	hdr := ipv6Len
	if len(f.IP) > 0 && f.IP[0]>>4 == 4 {
		hdr = int(f.IP[0]&0x0F) * 4
		if errors.Is(f.Err, bth.ErrIPHeader) {
			return f.Err
		}
		if be.Uint16(f.IP[10:]) != ipSum(f.IP[:hdr]) {
			return errIPSum
		}
	}
	switch {
	case errors.Is(f.Err, bth.ErrIPHeader), errors.Is(f.Err, bth.ErrIPFragment), errors.Is(f.Err, bth.ErrUDPLength):
		return f.Err
	case f.NotUDP || f.DstPort != Port:
		return fmt.Errorf("%w: port %d", errNotPort, f.DstPort)
	case f.UDPSum != 0 && f.UDPSum != udpSum(f.IP, hdr):
		return errUDPSum
	}
	return nil
}
