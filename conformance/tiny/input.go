package tiny

import (
	"encoding/binary"
	"net/netip"

	"github.com/softroce/softroce/conformance/wire"
	"github.com/softroce/softroce/pkg/bth"
)

// packet is a RoCE packet that passed the checks that depend on no queue pair.
type packet struct {
	bth.Packet
	h        bth.Headers
	src, dst netip.Addr
	sport    uint16
	ip       []byte // the whole IP packet
}

func (p *packet) psn() bth.PSN { return p.h.BTH.PSN }

// frame takes what came from the link.
func (t *Target) frame(f *wire.Frame) {
	if t.broken("dead-wire") {
		return
	}
	if t.broken("ethernet-pad-refused") && len(f.Pad) > 0 || t.broken("tag-refused") && f.Tagged {
		return
	}
	p, ok := t.parse(f.IP)
	if !ok || t.flood(p) {
		return
	}
	num := p.h.BTH.DestQP
	if num == bth.MulticastQPN {
		for _, q := range t.groups[p.dst] {
			t.deliver(q, p)
			if t.broken("multicast-one-copy") {
				return
			}
		}
		for _, q := range t.qps {
			if t.broken("multicast-unattached") {
				t.deliver(q, p)
			}
		}
		return
	}
	if p.dst.IsMulticast() {
		return
	}
	q := t.byNum[num]
	if t.broken("qpn-low-byte") {
		for _, o := range t.qps {
			if o.num&0xFF == num&0xFF && o.handle > q.handle {
				q = o
			}
		}
	}
	if q == nil && num == bth.GSIQPN {
		t.generalService(p)
		return
	}
	if q == nil && (t.broken("unknown-qp-to-newest") || num == 0 && t.broken("qp0-to-newest")) {
		q = t.newest()
	}
	if q == nil {
		if t.broken("unknown-qp-nak") {
			t.stray(p)
		}
		return
	}
	t.deliver(q, p)
}

// newest returns the queue pair that was made last.
func (t *Target) newest() (q *qp) {
	for h, o := range t.qps {
		if q == nil || h > q.handle {
			q = o
		}
	}
	return q
}

// parse reads IP, UDP and RoCE headers, and checks what the specification says of them (transport packet acceptance).
func (t *Target) parse(ip []byte) (*packet, bool) {
	p := &packet{ip: ip}
	roce, ok := t.network(ip, p)
	if !ok {
		return nil, false
	}
	if len(roce) > bth.BTHLen {
		roce = t.mangleInput(roce)
	}
	if err := p.Parse(roce); err != nil {
		if t.broken("dies-of-bad-packets") {
			t.killAll()
		}
		if b := p.BTH(); b != nil && t.broken("uc-reserved-nak") && b.Opcode().Class() == bth.ClassUC {
			if q := t.byNum[b.DestQP()]; q != nil && q.remote.IsValid() {
				q.nak(bth.NAKInvalidRequest, b.PSN())
			}
		}
		return nil, false
	}
	p.h = p.Headers()
	if !t.icrcRight(p) {
		t.counts["icrc_errors"]++
		if t.broken("icrc-error-nak") {
			if q := t.byNum[p.h.BTH.DestQP]; q != nil && q.typ == "RC" {
				q.nak(bth.NAKSequence, q.epsn)
			}
		}
		if t.broken("icrc-error-advances") {
			if q := t.byNum[p.h.BTH.DestQP]; q != nil {
				q.epsn = q.epsn.Add(1)
			}
		}
		return nil, false
	}
	return p, true
}

// network reads the IP and UDP headers and returns the UDP payload.
func (t *Target) network(ip []byte, p *packet) ([]byte, bool) {
	if len(ip) < 28 {
		return nil, false
	}
	var udp []byte
	switch ip[0] >> 4 {
	case 4:
		if t.broken("options-kill") && ip[0] != 0x45 {
			t.killAll()
		}
		if ip[0] != 0x45 || ip[9] != 17 || !t.fragmentOK(ip) {
			return nil, false
		}
		total := int(binary.BigEndian.Uint16(ip[2:]))
		if total < 28 || total > len(ip) {
			return nil, false
		}
		p.src, p.dst = netip.AddrFrom4([4]byte(ip[12:16])), netip.AddrFrom4([4]byte(ip[16:20]))
		udp = ip[20:total]
	case 6:
		if len(ip) < 48 || ip[6] != 17 {
			return nil, false
		}
		total := 40 + int(binary.BigEndian.Uint16(ip[4:]))
		if total < 48 || total > len(ip) {
			return nil, false
		}
		p.src, p.dst = netip.AddrFrom16([16]byte(ip[8:24])), netip.AddrFrom16([16]byte(ip[24:40]))
		udp = ip[40:total]
		if t.broken("v6-flow-label-checked") && (ip[1]&0x0F != 0 || ip[2] != 0 || ip[3] != 0) {
			return nil, false
		}
	default:
		return nil, false
	}
	if !t.networkOK(ip, udp, p) {
		return nil, false
	}
	n := int(binary.BigEndian.Uint16(udp[4:]))
	if n > len(udp) && t.broken("udp-length-ignored") {
		n = len(udp)
	}
	if binary.BigEndian.Uint16(udp[2:]) != wire.Port || n < 8 || n > len(udp) {
		return nil, false
	}
	p.sport = binary.BigEndian.Uint16(udp)
	return udp[8:n], true
}

// fragmentOK refuses fragments.
func (t *Target) fragmentOK(ip []byte) bool {
	return binary.BigEndian.Uint16(ip[6:])&0x3FFF == 0 || t.broken("fragment-accepted")
}

// networkOK checks the destination, and holds what is broken about the network's headers.
func (t *Target) networkOK(ip, udp []byte, p *packet) bool {
	sport, sum := binary.BigEndian.Uint16(udp), binary.BigEndian.Uint16(udp[6:])
	v4 := ip[0]>>4 == 4
	switch {
	case t.broken("source-port-checked") && sport < 0xC000:
		return false
	case t.broken("udp-sum-needed") && sum == 0 && v4, t.broken("v6-udp-sum-needed") && sum == 0 && !v4:
		return false
	case t.broken("udp-sum-refused") && sum != 0:
		return false
	case t.broken("ttl-checked") && v4 && ip[8] != 64, t.broken("ttl-checked") && !v4 && ip[7] != 64:
		return false
	case t.broken("tos-checked") && v4 && ip[1] != 0, t.broken("tos-checked") && !v4 && (ip[0] != 0x60 || ip[1] != 0):
		return false
	case t.broken("any-destination"):
		return true
	}
	return p.dst == t.link.Local() || p.dst.IsMulticast()
}

// mangleInput is for breaks that misread a packet: it returns roce, or a changed copy of it.
func (t *Target) mangleInput(roce []byte) []byte {
	c := func() []byte { return append([]byte(nil), roce...) }
	switch {
	case t.broken("tver-ignored") && roce[1]&0x0F != 0:
		b := c()
		b[1] &^= 0x0F
		return marked(b)
	case t.broken("pad-too-long-accepted"):
		b := c()
		info := bth.Opcode(b[0]).Info()
		if info.Defined && len(b) >= info.HeaderLen+bth.ICRCLen && len(b)-info.HeaderLen-bth.ICRCLen < int(b[1]>>4&3) {
			b[1] &^= 0x30
			return marked(b)
		}
	case t.broken("short-packet-zeroes"):
		info := bth.Opcode(roce[0]).Info()
		if need := info.HeaderLen + bth.ICRCLen; info.Defined && len(roce) < need && len(roce) > bth.ICRCLen {
			b := make([]byte, need)
			copy(b, roce[:len(roce)-bth.ICRCLen])
			return marked(b)
		}
	case t.broken("reserved-opcode-send") && !bth.Opcode(roce[0]).Info().Defined:
		b := c()
		b[0] = byte(bth.RCSendOnly)
		return marked(b)
	case t.broken("ud-first-accepted") && roce[0] == 0x60:
		b := c()
		b[0] = byte(bth.UDSendOnly)
		return marked(b)
	case t.broken("cnp-takes-psn") && bth.Opcode(roce[0]) == bth.CNP:
		if q := t.byNum[bth.BTH(roce).DestQP()]; q != nil {
			q.epsn = q.epsn.Add(1)
		}
	}
	return roce
}
