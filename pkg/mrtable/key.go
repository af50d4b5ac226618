package mrtable

// A key is 24 bits that name a slot and the low bits of its generation, and a
// variant byte. The 24 bits are scrambled by a permutation drawn from the
// table's secret, so that a key tells nothing of the next one. The variant
// byte continues the generation: a key comes back only after the slot's
// generation has advanced by 2^(32-slot bits).

// Our own tuning.
const (
	fieldBits  = 24
	fieldMask  = 1<<fieldBits - 1
	halfBits   = fieldBits / 2
	halfMask   = 1<<halfBits - 1
	rounds     = 4
	saltSpread = 64 // a generation advances by 1..saltSpread, as the salt says
)

// scrambler is a keyed permutation of 24-bit numbers: a Feistel network of
// four rounds.
type scrambler struct {
	key [rounds]uint32
}

func newScrambler(secret uint64) scrambler {
	var s scrambler
	for i := range s.key {
		s.key[i] = uint32(mix64(secret + uint64(i+1)*0x9E3779B97F4A7C15))
	}
	return s
}

func (s *scrambler) round(i int, half uint32) uint32 {
	x := (half ^ s.key[i]) * 0x9E3779B1
	x ^= x >> 15
	x *= 0x85EBCA77
	return x >> (32 - halfBits)
}

func (s *scrambler) scramble(v uint32) uint32 {
	l, r := v>>halfBits&halfMask, v&halfMask
	for i := 0; i < rounds; i++ {
		l, r = r, l^s.round(i, r)
	}
	return l<<halfBits | r
}

func (s *scrambler) unscramble(v uint32) uint32 {
	l, r := v>>halfBits&halfMask, v&halfMask
	for i := rounds - 1; i >= 0; i-- {
		l, r = r^s.round(i, l), l
	}
	return l<<halfBits | r
}

// mix64 spreads every bit of x over the result (a bijection).
func mix64(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xBF58476D1CE4E5B9
	x ^= x >> 27
	x *= 0x94D049BB133111EB
	return x ^ x>>31
}

// key makes the key of a slot's generation.
func (t *Table) key(slot uint32, gen uint64) uint32 {
	low := uint32(gen) << t.slotBits & fieldMask
	field := t.scr.scramble(low | slot)
	variant := byte(mix64(t.secret^uint64(field))) + byte(gen>>(fieldBits-t.slotBits))
	return field<<8 | uint32(variant)
}

// slotOf is the number of the slot that a key names; it may be outside the
// table when the key was never given out.
func (t *Table) slotOf(key uint32) uint32 {
	return t.scr.unscramble(key>>8) & (1<<t.slotBits - 1)
}
