package simnet

import "math/bits"

// Rand is a small deterministic generator (splitmix64), the same on every
// release and machine. The zero value is the generator of seed 0.
type Rand struct{ state uint64 }

// NewRand makes the generator of a seed.
func NewRand(seed uint64) Rand { return Rand{seed} }

// Uint64 is the next 64 bits.
func (r *Rand) Uint64() uint64 {
	r.state += 0x9E3779B97F4A7C15
	z := r.state
	z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
	z = (z ^ z>>27) * 0x94D049BB133111EB
	return z ^ z>>31
}

// IntN is a number in [0, n); 0 when n is not positive.
func (r *Rand) IntN(n int) int {
	v := r.Uint64()
	if n <= 0 {
		return 0
	}
	hi, _ := bits.Mul64(v, uint64(n))
	return int(hi)
}

// Chance is true with probability p. It uses up one draw whatever p is.
func (r *Rand) Chance(p float64) bool {
	return float64(r.Uint64()>>11)/(1<<53) < p
}
