package wire

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/pkg/bth"
)

// vnetLen is the length of the header that a socket with PACKET_VNET_HDR puts before each frame (struct virtio_net_hdr):
// flags, kind of segmentation, header length, bytes per segment, where the checksum begins and where in it it stands. It is in
// the machine's byte order.
const vnetLen = 10

const (
	vnetNeedsSum = 1 // flag: the checksum is that of the pseudo-header alone, a device would make it whole
	vnetGSO      = 1
	vnetGSOSize  = 4

	gsoECN   = 0x80 // a flag beside the kind
	gsoUDPL4 = 5
)

// offload is what the kernel left to a device that is not there.
type offload struct {
	partial bool // the UDP checksum
	size    int  // cutting the packet into segments of this many bytes of UDP payload; 0: nothing
}

// offloadOf reads a frame's virtio header.
func offloadOf(v []byte) (o offload) {
	o.partial = v[0]&vnetNeedsSum != 0
	if v[vnetGSO]&^gsoECN == gsoUDPL4 {
		o.size = int(binary.NativeEndian.Uint16(v[vnetGSOSize:]))
	}
	return o
}

// tellsSegments says whether the kernel's virtio header knows segmented sends of UDP: Linux's does from 6.2. Before, a socket
// that asks for the header loses the frames that it cannot describe.
func tellsSegments() bool {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return true
	}
	return atLeast(unix.ByteSliceToString(u.Release[:]), 6, 2)
}

// atLeast compares a kernel's release.
func atLeast(release string, major, minor int) bool {
	var n [2]int
	i := 0
	for _, c := range release {
		switch {
		case c >= '0' && c <= '9':
			n[i] = n[i]*10 + int(c-'0')
			continue
		case c == '.' && i == 0:
			i++
			continue
		}
		break
	}
	return n[0] > major || n[0] == major && n[1] >= minor
}

// headerLen is the length of a packet's IP header, 0 when it is none that a UDP header could follow.
func headerLen(ip []byte) int {
	hdr := ipv6Len
	if len(ip) > 0 && ip[0]>>4 == 4 {
		hdr = int(ip[0]&0x0F) * 4
	}
	if hdr < ipv4Len || len(ip) < hdr+udpLen {
		return 0
	}
	return hdr
}

// whole returns the packets on the link that a packet of the kernel stands for: a send of several segments goes through virtual
// devices in one piece, and the last device, or this function, cuts it. Each segment has the headers of the whole, the next
// identification of IPv4, and lengths and checksums of its own.
func whole(o offload, ip []byte) [][]byte {
	hdr := headerLen(ip)
	if hdr == 0 {
		return [][]byte{ip}
	}
	if o.size == 0 {
		if o.partial {
			be.PutUint16(ip[hdr+6:], udpSum(ip, hdr))
		}
		return [][]byte{ip}
	}
	head, rest := ip[:hdr+udpLen], ip[hdr+udpLen:]
	var out [][]byte
	for len(rest) > 0 {
		n := min(o.size, len(rest))
		seg := append(append(make([]byte, 0, len(head)+n), head...), rest[:n]...)
		rest = rest[n:]
		setSegment(seg, hdr, len(out), o.partial)
		out = append(out, seg)
	}
	return out
}

// maxUDPPayload bounds what a RoCEv2 packet has behind its UDP header: headers, the largest path MTU, pad and ICRC.
const maxUDPPayload = bth.MaxHeaderLen + 4096 + 3 + bth.ICRCLen

// guessSize finds how a packet would be cut, where the kernel does not tell: so that the first segment's ICRC is right. 0: in
// no way, or its ICRC is right as it is.
func guessSize(ip []byte) int {
	hdr := headerLen(ip)
	if hdr == 0 || ParseIP(ip).ICRCOK {
		return 0
	}
	head := hdr + udpLen
	seg := append([]byte(nil), ip[:min(len(ip)-1, head+maxUDPPayload)]...)
	for n := (len(seg) - head) &^ 3; n >= bth.BTHLen+bth.ICRCLen; n -= 4 {
		seg = seg[:head+n]
		setSegment(seg, hdr, 0, false)
		if ParseIP(seg).ICRCOK {
			return n
		}
	}
	return 0
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
