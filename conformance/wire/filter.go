package wire

import (
	"net/netip"

	"golang.org/x/sys/unix"
)

// Classic BPF. Offsets below netOff count from the IP header, those below anc name facts of the frame.
const (
	netOff   = 0xFFF00000
	ancProto = 0xFFFFF000
	ancType  = 0xFFFFF000 + 4

	ldb  = unix.BPF_LD | unix.BPF_B | unix.BPF_ABS
	ldh  = unix.BPF_LD | unix.BPF_H | unix.BPF_ABS
	ldw  = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
	ldhx = unix.BPF_LD | unix.BPF_H | unix.BPF_IND
	and  = unix.BPF_ALU | unix.BPF_AND | unix.BPF_K
	lsh  = unix.BPF_ALU | unix.BPF_LSH | unix.BPF_K
	tax  = unix.BPF_MISC | unix.BPF_TAX
	jeq  = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
	jge  = unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K
	jset = unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K
	ret  = unix.BPF_RET | unix.BPF_K
)

const (
	wholeFrame = 1 << 18 // more than any frame has

	// firstOther is the least packet type of frames that are not for this host: for another one, or sent by this.
	firstOther = unix.PACKET_OTHERHOST
)

// program is a filter in the making. A step's targets are names of later steps; empty is the next.
type program struct {
	steps  []unix.SockFilter
	labels map[string]int
	jumps  map[int][2]string
}

func (p *program) add(code uint16, k uint32) {
	p.steps = append(p.steps, unix.SockFilter{Code: code, K: k})
}

func (p *program) jump(code uint16, k uint32, yes, no string) {
	p.jumps[len(p.steps)] = [2]string{yes, no}
	p.add(code, k)
}

func (p *program) label(name string) { p.labels[name] = len(p.steps) }

func (p *program) done() []unix.SockFilter {
	for i, j := range p.jumps {
		away := func(name string) uint8 {
			if name == "" {
				return 0
			}
			return uint8(p.labels[name] - i - 1)
		}
		p.steps[i].Jt, p.steps[i].Jf = away(j[0]), away(j[1])
	}
	return p.steps
}

// receiveFilter lets through what a Link receives: IP packets from remote or to local that are UDP from or to Port, a later
// fragment of UDP, or ICMP (of which Receive takes the errors). Frames that this host sends are not among them: on a loopback
// device each would be seen twice.
func receiveFilter(local, remote netip.Addr) []unix.SockFilter {
	p := &program{labels: map[string]int{}, jumps: map[int][2]string{}}
	p.add(ldw, ancType)
	p.jump(jge, firstOther, "drop", "")
	p.add(ldw, ancProto)
	if local.Is4() {
		p.ipv4(local, remote)
	} else {
		p.ipv6(local, remote)
	}
	p.label("take")
	p.add(ret, wholeFrame)
	p.label("drop")
	p.add(ret, 0)
	return p.done()
}

func (p *program) ipv4(local, remote netip.Addr) {
	l, r := local.As4(), remote.As4()
	p.jump(jeq, unix.ETH_P_IP, "", "drop")
	p.add(ldw, netOff+12)
	p.jump(jeq, be.Uint32(r[:]), "ours", "")
	p.add(ldw, netOff+16)
	p.jump(jeq, be.Uint32(l[:]), "", "drop")
	p.label("ours")
	p.add(ldb, netOff+9)
	p.jump(jeq, protoICMP, "take", "")
	p.jump(jeq, protoUDP, "", "drop")
	p.add(ldh, netOff+6)
	p.jump(jset, 0x1FFF, "take", "")
	p.add(ldb, netOff)
	p.add(and, 0x0F)
	p.add(lsh, 2)
	p.add(tax, 0)
	p.add(ldhx, netOff+2)
	p.jump(jeq, Port, "take", "")
	p.add(ldhx, netOff)
	p.jump(jeq, Port, "take", "drop")
}

func (p *program) ipv6(local, remote netip.Addr) {
	p.jump(jeq, unix.ETH_P_IPV6, "", "drop")
	p.address6(netOff+8, remote, "to local", "ours")
	p.label("to local")
	p.address6(netOff+24, local, "drop", "ours")
	p.label("ours")
	p.add(ldb, netOff+6)
	p.jump(jeq, protoICMPv6, "take", "")
	p.jump(jeq, protoFrag, "take", "")
	p.jump(jeq, protoUDP, "", "drop")
	p.add(ldh, netOff+ipv6Len+2)
	p.jump(jeq, Port, "take", "")
	p.add(ldh, netOff+ipv6Len)
	p.jump(jeq, Port, "take", "drop")
}

// address6 goes to yes when a is at off, else to no.
func (p *program) address6(off uint32, a netip.Addr, no, yes string) {
	b := a.As16()
	for i := 0; i < 16; i += 4 {
		p.add(ldw, off+uint32(i))
		to := ""
		if i == 12 {
			to = yes
		}
		p.jump(jeq, be.Uint32(b[i:]), to, no)
	}
}

// dropFilter accepts nothing.
func dropFilter() []unix.SockFilter { return []unix.SockFilter{{Code: ret}} }

func attach(fd int, prog []unix.SockFilter) error {
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(prog)), Filter: &prog[0]})
}
