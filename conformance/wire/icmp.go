package wire

import (
	"errors"

	"github.com/softroce/softroce/pkg/bth"
)

// icmpLen is the length of an ICMP error before the packet that it is about.
const icmpLen = 8

// isFragment says whether the frame is a later fragment, or one of IPv6.
func (f *Frame) isFragment() bool { return errors.Is(f.Err, bth.ErrIPFragment) }

// isError says whether the frame is an error message of ICMP about a packet from or to RoCEv2's port, or about one of which too
// little is there to tell.
func (f *Frame) isError() bool {
	hdr, proto := ipv6Len, uint8(protoICMPv6)
	if f.Src.Is4() {
		hdr, proto = int(f.IP[0]&0x0F)*4, protoICMP
	}
	if !f.Src.IsValid() || len(f.IP) < hdr+icmpLen || protoOf(f.IP) != proto || !icmpError(proto, f.IP[hdr]) {
		return false
	}
	about := f.IP[hdr+icmpLen:]
	inner := ipv6Len
	if proto == protoICMP && len(about) > 0 {
		inner = int(about[0]&0x0F) * 4
	}
	if inner = max(inner, ipv4Len); len(about) < inner+4 {
		return true
	}
	ports := about[inner:]
	return protoOf(about) == protoUDP && (be.Uint16(ports) == Port || be.Uint16(ports[2:]) == Port)
}

// protoOf is the protocol that an IP header names.
func protoOf(ip []byte) uint8 {
	if ip[0]>>4 == 4 {
		return ip[9]
	}
	return ip[6]
}

// icmpError says whether a type of message is an error: unreachable, source quench, redirect, time exceeded or parameter
// problem of ICMP; any below 128 of ICMPv6.
func icmpError(proto, kind uint8) bool {
	if proto == protoICMPv6 {
		return kind < 128
	}
	return kind == 3 || kind == 4 || kind == 5 || kind == 11 || kind == 12
}
