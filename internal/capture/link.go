package capture

import "encoding/binary"

// Link types that carry IP (the registry of the tcpdump group).
const (
	linkNull     = 0
	linkEthernet = 1
	linkRawBSD   = 12
	linkRawBSD2  = 14
	linkRaw      = 101
	linkLoop     = 108
	linkSLL      = 113
	linkIPv4     = 228
	linkIPv6     = 229
	linkSLL2     = 276
)

const (
	etherIPv4 = 0x0800
	etherIPv6 = 0x86DD
	etherVLAN = 0x8100
	etherQinQ = 0x88A8
	etherQOld = 0x9100

	maxVLANTags = 8 // our own limit
)

// knownLink reports whether ipOf understands a link type.
func knownLink(link uint32) bool {
	switch link {
	case linkNull, linkEthernet, linkRawBSD, linkRawBSD2, linkRaw, linkLoop, linkSLL, linkIPv4, linkIPv6, linkSLL2:
		return true
	}
	return false
}

// ipOf returns the IP packet in a frame, with whatever follows it there, and nil
// when there is none.
func ipOf(link uint32, b []byte) []byte {
	switch link {
	case linkEthernet:
		if len(b) >= 14 {
			return ipOfEther(binary.BigEndian.Uint16(b[12:]), b[14:])
		}
	case linkSLL:
		if len(b) >= 16 {
			return ipOfEther(binary.BigEndian.Uint16(b[14:]), b[16:])
		}
	case linkSLL2:
		if len(b) >= 20 {
			return ipOfEther(binary.BigEndian.Uint16(b), b[20:])
		}
	case linkNull, linkLoop:
		// The word before the packet is an address family in somebody's byte
		// order; the packet's own version says the same.
		if len(b) >= 4 {
			return b[4:]
		}
	case linkRaw, linkRawBSD, linkRawBSD2, linkIPv4, linkIPv6:
		return b
	}
	return nil
}

// ipOfEther looks behind an EtherType and any VLAN tags.
func ipOfEther(etherType uint16, b []byte) []byte {
	for range maxVLANTags {
		switch etherType {
		case etherIPv4, etherIPv6:
			return b
		case etherVLAN, etherQinQ, etherQOld:
			if len(b) < 4 {
				return nil
			}
			etherType, b = binary.BigEndian.Uint16(b[2:]), b[4:]
		default:
			return nil
		}
	}
	return nil
}
