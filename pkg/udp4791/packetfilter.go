package udp4791

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// Ancillary loads of a filter (linux/filter.h).
const (
	skfNetOff     = 0xFFF00000         // the network header, as an offset
	skfPacketType = 0xFFFFF000 + 4     // who the frame is for
	skfPayload    = 0xFFFFF000 + 52    // where the payload of the transport begins
	udpDstPort    = 0xFFFFFFFF - 6 + 1 // of the payload: the destination port before it
	acceptAll     = 1<<18 - 1          // bytes
	bpfLoadHalf   = unix.BPF_LD | unix.BPF_H | unix.BPF_ABS
	bpfLoadWord   = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
	bpfLoadHalfX  = unix.BPF_LD | unix.BPF_H | unix.BPF_IND
	bpfLoadByteX  = unix.BPF_LD | unix.BPF_B | unix.BPF_IND
	bpfToX        = unix.BPF_MISC | unix.BPF_TAX
	bpfLoadLen    = unix.BPF_LD | unix.BPF_W | unix.BPF_LEN
	bpfSub        = unix.BPF_ALU | unix.BPF_SUB | unix.BPF_K
	bpfAtLeastX   = unix.BPF_JMP | unix.BPF_JGE | unix.BPF_X
	bpfEqual      = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
	bpfAnyBit     = unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K
	bpfJump       = unix.BPF_JMP | unix.BPF_JA
	ip4Fragment   = 6 // offsets of fields
	ip4Proto      = 9
	ip4Dst        = 16
	ip6NextHeader = 6
	ip6Dst        = 24
)

// packetProgram lets through what a worker's packet socket is to see of one
// family: UDP to port 4791 of the addresses, whose destination QPN steers to the
// worker; the first worker sees fragments and extension headers, too, to count
// them. Offsets from the payload may be outside of the first piece of a packet's
// memory, where the kernel reaches only positive ones: hence the payload's.
func packetProgram(family, worker, workers int, locals []local) []unix.SockFilter {
	p := []unix.SockFilter{
		{Code: bpfLoadByte, K: skfPacketType},
		{Code: bpfEqual, K: unix.PACKET_HOST, Jt: 1},
		{Code: bpfRetK},
	}
	p = append(p, addrProgram(family, locals)...)
	odd := []unix.SockFilter{{Code: bpfRetK}} // what is not plain UDP
	if worker == 0 {
		odd[0].K = acceptAll
	}
	if family == unix.AF_INET {
		p = append(
			p,
			unix.SockFilter{Code: bpfLoadByte, K: skfNetOff + ip4Proto},
			unix.SockFilter{Code: bpfEqual, K: protoUDP, Jt: 1},
			unix.SockFilter{Code: bpfRetK},
			unix.SockFilter{Code: bpfLoadHalf, K: skfNetOff + ip4Fragment},
			unix.SockFilter{Code: bpfAnyBit, K: ip4FragmentBits &^ ip4MoreFragments, Jf: 1},
			unix.SockFilter{Code: bpfRetK},
			unix.SockFilter{Code: bpfAnyBit, K: ip4MoreFragments, Jf: 1},
			odd[0],
		)
	} else {
		p = append(
			p,
			unix.SockFilter{Code: bpfLoadByte, K: skfNetOff + ip6NextHeader},
			unix.SockFilter{Code: bpfEqual, K: protoUDP, Jt: 6},
			unix.SockFilter{Code: bpfEqual, K: ext6HopByHop, Jt: 4},
			unix.SockFilter{Code: bpfEqual, K: ext6Routing, Jt: 3},
			unix.SockFilter{Code: bpfEqual, K: ext6Fragment, Jt: 2},
			unix.SockFilter{Code: bpfEqual, K: ext6Options, Jt: 1},
			unix.SockFilter{Code: bpfRetK},
			odd[0],
		)
	}
	return append(
		p,
		unix.SockFilter{Code: bpfLoadWord, K: skfPayload},
		unix.SockFilter{Code: bpfToX},
		unix.SockFilter{Code: bpfLoadHalfX, K: udpDstPort},
		unix.SockFilter{Code: bpfEqual, K: Port, Jt: 1},
		unix.SockFilter{Code: bpfRetK},
		// What is too short for a BTH goes to the first worker.
		unix.SockFilter{Code: bpfLoadLen},
		unix.SockFilter{Code: bpfSub, K: qpnLowByte + 1},
		unix.SockFilter{Code: bpfAtLeastX, Jt: 1},
		odd[0],
		unix.SockFilter{Code: bpfLoadByteX, K: qpnLowByte},
		unix.SockFilter{Code: bpfAnd, K: Keys - 1},
		unix.SockFilter{Code: bpfMod, K: uint32(workers)},
		unix.SockFilter{Code: bpfEqual, K: uint32(worker), Jt: 1},
		unix.SockFilter{Code: bpfRetK},
		unix.SockFilter{Code: bpfRetK, K: acceptAll},
	)
}

// addrProgram ends with 0 unless the packet is to one of the family's addresses.
func addrProgram(family int, locals []local) (p []unix.SockFilter) {
	var tests []unix.SockFilter
	const words4, words6 = 1, 4
	var addrs [][]byte
	for _, l := range locals {
		if l.addr.IsValid() && l.family() == family {
			addrs = append(addrs, l.addr.AsSlice())
		}
	}
	words, at := words4, uint32(skfNetOff+ip4Dst)
	if family == unix.AF_INET6 {
		words, at = words6, skfNetOff+ip6Dst
	}
	size := len(addrs) * (2*words + 1) // of all tests
	for i, a := range addrs {
		for w := range words {
			rest := uint8(2*(words-w) - 1) // of this test, behind the jump
			tests = append(
				tests,
				unix.SockFilter{Code: bpfLoadWord, K: at + uint32(4*w)},
				unix.SockFilter{Code: bpfEqual, K: binary.BigEndian.Uint32(a[4*w:]), Jf: rest},
			)
		}
		// Over the other tests and the end.
		tests = append(tests, unix.SockFilter{Code: bpfJump, K: uint32(size - (i+1)*(2*words+1) + 1)})
	}
	return append(append(p, tests...), unix.SockFilter{Code: bpfRetK})
}
