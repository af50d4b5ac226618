package udp4791

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// vnetLen is the length of struct virtio_net_hdr, which packet sockets and TUN
// devices put before a packet on request: flags, kind of segmentation, header
// length, bytes per segment, where the checksum begins and where in it it stands.
// It is in the machine's byte order.
const vnetLen = 10

const (
	vnetNeedsSum  = 1 // flag: the checksum is the pseudo-header's; a device would make it whole
	vnetSumValid  = 2 // flag: somebody looked at the checksum
	vnetGSO       = 1 // offset of the kind
	vnetHdrLen    = 2
	vnetGSOSize   = 4
	vnetSumStart  = 6
	vnetSumOffset = 8

	gsoUDPL4 = 5
	udpSumAt = 6 // of the checksum in the UDP header
)

// vnetFacts reads a header: whether the UDP checksum need not be looked at, and
// how the packet would be cut, 0 for not at all.
func vnetFacts(v []byte) (trusted bool, segment int) {
	if v[vnetGSO]&0x7F == gsoUDPL4 {
		segment = int(binary.NativeEndian.Uint16(v[vnetGSOSize:]))
	}
	return v[0]&(vnetNeedsSum|vnetSumValid) != 0, segment
}

// tellsSegments says whether the kernel tells how a merged UDP packet is to be
// cut: Linux does from 6.2 on. Before, a packet socket that asks for the header
// loses the frames that it cannot describe.
func tellsSegments() bool { return kernelAtLeast(6, 2) }

// kernelAtLeast compares the running kernel's release; one that cannot be read is
// new enough.
func kernelAtLeast(major, minor int) bool {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return true
	}
	return releaseAtLeast(unix.ByteSliceToString(u.Release[:]), major, minor)
}

func releaseAtLeast(release string, major, minor int) bool {
	var n [2]int
	i := 0
	for _, c := range release {
		if c >= '0' && c <= '9' {
			n[i] = n[i]*10 + int(c-'0')
			continue
		}
		if c != '.' || i == 1 {
			break
		}
		i++
	}
	return n[0] > major || n[0] == major && n[1] >= minor
}
