package wire

import "encoding/binary"

// vnetLen is the length of the header that a socket with PACKET_VNET_HDR puts before each frame (struct virtio_net_hdr):
// flags, kind of segmentation, header length, bytes per segment, where the checksum begins and where in it it stands.
const vnetLen = 10

const (
	vnetNeedsSum = 1 // flag: the checksum is that of the pseudo-header alone, a device would make it whole
	vnetGSO      = 1
	vnetGSOSize  = 4
	vnetSumStart = 6
	vnetSumOff   = 8

	gsoUDPL4 = 5
)

// vnet is that header, in the machine's byte order.
type vnet []byte

func (v vnet) partial() bool { return v[0]&vnetNeedsSum != 0 }
func (v vnet) gso() uint8    { return v[vnetGSO] &^ 0x80 }
func (v vnet) size() int     { return int(binary.NativeEndian.Uint16(v[vnetGSOSize:])) }

// whole returns the packets on the link that a packet of the kernel stands for: a send of several segments goes through virtual
// devices in one piece, and the last device, or this function, cuts it. Each segment has the headers of the whole, the next
// identification of IPv4, and lengths and checksums of its own.
func whole(v vnet, ip []byte) [][]byte {
	hdr := ipv6Len
	if len(ip) > 0 && ip[0]>>4 == 4 {
		hdr = int(ip[0]&0x0F) * 4
	}
	if v.gso() != gsoUDPL4 || v.size() == 0 || len(ip) < hdr+udpLen || hdr < ipv4Len {
		if v.partial() && len(ip) >= hdr+udpLen {
			be.PutUint16(ip[hdr+6:], udpSum(ip, hdr))
		}
		return [][]byte{ip}
	}
	head, rest := ip[:hdr+udpLen], ip[hdr+udpLen:]
	var out [][]byte
	for len(rest) > 0 {
		n := min(v.size(), len(rest))
		seg := append(append(make([]byte, 0, len(head)+n), head...), rest[:n]...)
		rest = rest[n:]
		setSegment(seg, hdr, len(out), v.partial())
		out = append(out, seg)
	}
	return out
}

// setSegment makes the headers those of segment number i. A packet without a UDP checksum stays without, unless the checksum was
// left to the device.
func setSegment(seg []byte, hdr, i int, partial bool) {
	be.PutUint16(seg[hdr+4:], uint16(len(seg)-hdr))
	if seg[0]>>4 == 4 {
		be.PutUint16(seg[2:], uint16(len(seg)))
		be.PutUint16(seg[4:], be.Uint16(seg[4:])+uint16(i))
		be.PutUint16(seg[10:], ipSum(seg[:hdr]))
	} else {
		be.PutUint16(seg[4:], uint16(len(seg)-ipv6Len))
	}
	if partial || be.Uint16(seg[hdr+6:]) != 0 {
		be.PutUint16(seg[hdr+6:], udpSum(seg, hdr))
	}
}
