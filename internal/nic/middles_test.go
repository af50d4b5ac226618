package nic

import (
	"testing"

	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/udp4791"
)

// middle builds a Middle packet as it comes from peer4 with an identification.
func middle(op bth.Opcode, psn bth.PSN, id uint16, fill byte) []byte {
	f := bth.BTHFields{Opcode: op, MigReq: true, PKey: bth.DefaultPKey, DestQP: 0x1234, PSN: psn}
	b := f.Append(nil)
	for range 256 {
		b = append(b, fill)
	}
	h := bth.NetHeader{Src: bth.GIDFromAddr(peer4), Dst: bth.GIDFromAddr(host4), SrcPort: 0xC123, DstPort: udp4791.Port, ID: id}
	return bth.AppendICRC(b, bth.ICRC(h.Seed(len(b)+bth.ICRCLen), b))
}

// middleRun is n Middle packets one behind the other, numbered by number.
func middleRun(n int, number func(i int) uint16) (b []byte, size int) {
	for i := range n {
		p := middle(bth.RCWriteMiddle, bth.PSN(0xFFFFFE).Add(uint32(i)), number(i), byte(i))
		size = len(p)
		b = append(b, p...)
	}
	return b, size
}

// A run is proven up to the first packet that is damaged or numbered otherwise
// than by its place, on from the first of the buffer, or like it.
func TestProveRun(t *testing.T) {
	const n = 12
	for _, c := range []struct {
		name   string
		first  uint16 // identification of the buffer's first packet
		solved bool
		strict bool
		number func(i int) uint16
		damage int // packet that is damaged; -1: none
		want   int
	}{
		{"by their place", 0, true, false, func(i int) uint16 { return uint16(i + 1) }, -1, n},
		{"all 0", 0, true, false, func(int) uint16 { return 0 }, -1, n},
		{"on from the first", 700, true, false, func(i int) uint16 { return uint16(701 + i) }, -1, n},
		{"like the first", 700, true, false, func(int) uint16 { return 700 }, -1, n},
		{"on from a first that is not known", 700, false, false, func(i int) uint16 { return uint16(701 + i) }, -1, 0},
		{"on from the first, strictly", 700, true, true, func(i int) uint16 { return uint16(701 + i) }, -1, 0},
		{"by their place, strictly", 0, true, true, func(i int) uint16 { return uint16(i + 1) }, -1, n},
		{"one damaged", 0, true, false, func(i int) uint16 { return uint16(i + 1) }, 5, 5},
		{"the first damaged", 0, true, false, func(i int) uint16 { return uint16(i + 1) }, 0, 0},
		{"a gap", 0, true, false, func(i int) uint16 { return uint16(i + 1 + 3*min(1, i/7)) }, -1, 7},
	} {
		run, size := middleRun(n, c.number)
		if c.damage >= 0 {
			run[c.damage*size+100] ^= 0x40
		}
		var l learner
		l.init(c.strict)
		l.first, l.solved = c.first, c.solved
		_, meta := sentPacket(peer4, host4, 0, 0)
		meta.SegIndex = 1
		if got := l.proveRun(&meta, run, size); got != c.want {
			t.Errorf("%s: %d proven, want %d", c.name, got, c.want)
		}
	}
}

// Only packets that go on with the message, PSN by PSN, ask for nothing and have
// the same header are taken together.
func TestCountMiddles(t *testing.T) {
	const n = 8
	for _, c := range []struct {
		name   string
		change func(p []byte) // of packet 3
		want   int
	}{
		{"none", func([]byte) {}, n},
		{"Last", func(p []byte) { p[0] = byte(bth.RCWriteLast) }, 3},
		{"another opcode", func(p []byte) { p[0] = byte(bth.RCSendMiddle) }, 3},
		{"asks for an acknowledgement", func(p []byte) { p[8] = 0x80 }, 3},
		{"a PSN is missing", func(p []byte) { p[11]++ }, 3},
		{"another queue pair", func(p []byte) { p[7]++ }, 3},
		{"another partition", func(p []byte) { p[3]-- }, 3},
		{"solicited", func(p []byte) { p[1] |= 0x80 }, 3},
		{"congestion was met, which the ICRC does not cover", func(p []byte) { p[4] |= 0x80 }, n},
	} {
		run, size := middleRun(n, func(int) uint16 { return 0 })
		c.change(run[3*size:])
		before := middle(bth.RCWriteFirst, bth.PSN(0xFFFFFD), 0, 0)
		if got := countMiddles(before, run, size, bth.PSN(0xFFFFFE)); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
	run, size := middleRun(2, func(int) uint16 { return 0 })
	run[0] = byte(bth.RCWriteLast)
	if got := countMiddles(middle(bth.RCWriteFirst, 5, 0, 0), run, size, bth.PSN(0xFFFFFE)); got != 0 {
		t.Errorf("behind a Last: %d, want 0", got)
	}
}
