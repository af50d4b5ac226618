package bth

import "encoding/binary"

// updateWords takes two words a step, as long as five more are there.
const (
	wordsStep = 16
	wordsTail = 40
)

// updateWords continues the register over b by shifts and additions of words
// alone. The CRC's polynomial divides
//
//	x^300 + x^155 + x^117 + x^89 + 1
//
// so a word may be taken away where it stands and added 145, 183, 211 and 300
// bits later instead, without a change of the remainder. n1 to n5 are what the
// words taken away have left for the next five.
func updateWords(state uint32, b []byte) uint32 {
	if len(b) < wordsStep+wordsTail {
		return updateShort(state, b)
	}
	n1 := uint64(state)
	var n2, n3, n4, n5 uint64
	for len(b) >= wordsStep+wordsTail {
		x := binary.LittleEndian.Uint64(b) ^ n1
		y := binary.LittleEndian.Uint64(b[8:]) ^ n2
		n1 = n3 ^ x<<17 ^ x<<55
		n2 = n4 ^ x>>47 ^ x>>9 ^ x<<19 ^ y<<17 ^ y<<55
		n3 = n5 ^ x>>45 ^ x<<44 ^ y>>47 ^ y>>9 ^ y<<19
		n4 = x>>20 ^ y>>45 ^ y<<44
		n5 = y >> 20
		b = b[wordsStep:]
	}
	state = step8(0, binary.LittleEndian.Uint64(b)^n1)
	state = step8(state, binary.LittleEndian.Uint64(b[8:])^n2)
	state = step8(state, binary.LittleEndian.Uint64(b[16:])^n3)
	state = step8(state, binary.LittleEndian.Uint64(b[24:])^n4)
	state = step8(state, binary.LittleEndian.Uint64(b[32:])^n5)
	return updateShort(state, b[wordsTail:])
}
