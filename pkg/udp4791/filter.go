package udp4791

import "golang.org/x/sys/unix"

// qpnLowByte is the offset of the destination QPN's low byte in the UDP
// payload: BTH byte 7 (IBTA Vol 1 §9.2). The filter of a reuseport group sees
// the UDP payload at offset 0.
const qpnLowByte = 7

// Classic BPF opcodes.
const (
	bpfLoadByte = unix.BPF_LD | unix.BPF_B | unix.BPF_ABS
	bpfAnd      = unix.BPF_ALU | unix.BPF_AND | unix.BPF_K
	bpfMod      = unix.BPF_ALU | unix.BPF_MOD | unix.BPF_K
	bpfRetA     = unix.BPF_RET | unix.BPF_A
	bpfRetK     = unix.BPF_RET | unix.BPF_K
)

// steeringProgram returns the index of the receive socket within its group:
// (DestQP & 7) mod workers. A datagram too short for a BTH goes to socket 0.
func steeringProgram(workers int) []unix.SockFilter {
	return []unix.SockFilter{
		{Code: bpfLoadByte, K: qpnLowByte},
		{Code: bpfAnd, K: Keys - 1},
		{Code: bpfMod, K: uint32(workers)},
		{Code: bpfRetA},
	}
}

// dropProgram accepts no byte of any datagram.
func dropProgram() []unix.SockFilter {
	return []unix.SockFilter{{Code: bpfRetK, K: 0}}
}

// attachFilter sets a classic BPF program by SO_ATTACH_FILTER or
// SO_ATTACH_REUSEPORT_CBPF. It needs no privilege.
func attachFilter(fd, opt int, prog []unix.SockFilter) error {
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, opt,
		&unix.SockFprog{Len: uint16(len(prog)), Filter: &prog[0]})
}
