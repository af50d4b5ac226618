package tiny

import (
	"encoding/binary"
	"hash/crc32"

	"github.com/softroce/softroce/pkg/bth"
)

// marker in place of an ICRC is to be taken for right: a break has changed the packet.
const marker = 0x5AD0C0DE

func marked(b []byte) []byte {
	bth.PutICRC(b[len(b)-bth.ICRCLen:], marker)
	return b
}

// icrcOf computes the invariant CRC of an IP packet that ends with its ICRC, with or without the eight bytes that stand for
// the missing local route header (IBTA Vol 1 §7.8.1, Annex A17).
func icrcOf(ip []byte, seed bool) uint32 {
	b := append([]byte(nil), ip[:len(ip)-bth.ICRCLen]...)
	udp := 20
	if b[0]>>4 == 4 {
		b[1], b[8], b[10], b[11] = 0xFF, 0xFF, 0xFF, 0xFF
	} else {
		udp = 40
		b[0], b[1], b[2], b[3], b[7] = 0x6F, 0xFF, 0xFF, 0xFF, 0xFF
	}
	b[udp+6], b[udp+7] = 0xFF, 0xFF
	b[udp+12] = 0xFF // FECN, BECN and the reserved bits
	if !seed {
		return crc32.ChecksumIEEE(b)
	}
	return crc32.Update(crc32.ChecksumIEEE([]byte{255, 255, 255, 255, 255, 255, 255, 255}), crc32.IEEETable, b)
}

// icrcRight checks the invariant CRC. The packet ends where its UDP length says.
func (t *Target) icrcRight(p *packet) bool {
	udp := p.ipHeaderLen()
	ip := p.ip[:min(len(p.ip), udp+int(binary.BigEndian.Uint16(p.ip[udp+4:])))]
	want, got := icrcOf(ip, true), p.ICRC()
	if want == got || got == marker || t.broken("icrc-ignored") {
		return true
	}
	roce := udp + 8
	switch {
	case t.broken("icrc-big-endian-accepted"):
		return got == want<<24|want&0xFF00<<8|want>>8&0xFF00|want>>24
	case t.broken("icrc-without-seed-accepted"):
		return got == icrcOf(ip, false)
	case t.broken("icrc-skips-payload"):
		return oneBitOff(ip, roce+p.Info.HeaderLen, len(ip)-bth.ICRCLen)
	case t.broken("icrc-skips-bth"):
		return oneBitOff(ip, roce, roce+bth.BTHLen)
	case t.broken("icrc-skips-ip-id"):
		return udp == 20 && anyID(ip)
	case t.broken("icrc-skips-source-port"):
		return anyPort(ip, udp)
	}
	return false
}

// oneBitOff reports whether the ICRC is right but for one bit within ip[from:to].
func oneBitOff(ip []byte, from, to int) bool {
	b := append([]byte(nil), ip...)
	got := binary.LittleEndian.Uint32(ip[len(ip)-bth.ICRCLen:])
	for i := from * 8; i < to*8; i++ {
		b[i/8] ^= 1 << (i % 8)
		if icrcOf(b, true) == got {
			return true
		}
		b[i/8] ^= 1 << (i % 8)
	}
	return false
}

// anyID and anyPort report whether another IPv4 identification or UDP source port would make the ICRC right.
func anyID(ip []byte) bool            { return anyWord(ip, 4) }
func anyPort(ip []byte, udp int) bool { return anyWord(ip, udp) }

func anyWord(ip []byte, at int) bool {
	b := append([]byte(nil), ip...)
	got := binary.LittleEndian.Uint32(ip[len(ip)-bth.ICRCLen:])
	for v := range 1 << 16 {
		binary.BigEndian.PutUint16(b[at:], uint16(v))
		if icrcOf(b, true) == got {
			return true
		}
	}
	return false
}

func (p *packet) ipHeaderLen() int {
	if p.ip[0]>>4 == 4 {
		return 20
	}
	return 40
}
