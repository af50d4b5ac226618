package impair

import (
	"encoding/binary"

	"github.com/softroce/softroce/pkg/bth"
)

// change is bits to turn over in one byte of a packet.
type change struct {
	at     int // byte
	mask   byte
	sealed bool
}

// change chooses what to turn over in a packet of n bytes; beyond its end that is
// nothing.
func (a *active) change(n int) change {
	c := a.Change
	if n == 0 {
		return change{}
	}
	switch c.Unit {
	case Byte:
		return change{at: from(c.At, n), mask: 0xFF, sealed: c.Sealed}
	case Bit:
		i := from(c.At, 8*n)
		return change{at: i >> 3, mask: 0x80 >> (i & 7), sealed: c.Sealed}
	case AnyBit:
	}
	i := int(a.roll(saltBit) % uint64(8*n))
	return change{at: i / 8, mask: 0x80 >> (i & 7), sealed: c.Sealed}
}

// from counts negative places from the end.
func from(at, n int) int {
	if at < 0 {
		return at + n
	}
	return at
}

// maskedByte is the one of the BTH that the ICRC does not cover (Annex A17.3.3).
const maskedByte = 4

// apply turns the bits over. A CRC is linear: the ICRC of the changed packet is
// the old one, changed by the register over the difference, whatever else the
// packet and the headers before it hold.
func (c *change) apply(b []byte) {
	if c.at < 0 || c.at >= len(b) {
		return
	}
	b[c.at] ^= c.mask
	end := len(b) - bth.ICRCLen
	if !c.sealed || c.at >= end || c.at == maskedByte {
		return
	}
	state := bth.UpdateCRC(0, []byte{c.mask})
	for left := end - c.at - 1; left > 0; left -= len(zeros) {
		state = bth.UpdateCRC(state, zeros[:min(left, len(zeros))])
	}
	icrc := b[end:]
	bth.PutICRC(icrc, binary.LittleEndian.Uint32(icrc)^state)
}

var zeros [256]byte
