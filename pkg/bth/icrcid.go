package bth

import "sync/atomic"

// A CRC is linear: changing the IPv4 identification by d changes the ICRC by
// d(x)·x^k modulo the polynomial, whatever the packet holds, where k is the
// number of bits from the end of the identification to the end of the packet
// plus the 32 of the register. So the ICRC for another identification, and the
// identification that explains an ICRC, follow from the packet's length alone.
// Polynomials are bit-reflected: bit 31 is x^0.

const (
	crcPolynomial uint32 = 0xEDB88320

	// bytesAfterID counts what follows the identification in an IPv4 packet up
	// to the ICRC, without the UDP payload and its ICRC: 14 bytes of IP, 8 of
	// UDP, and less the ICRC itself.
	bytesAfterID = ipv4HeaderLen - 6 + udpHeaderLen - ICRCLen

	// maxCachedLen bounds the lengths whose tables are kept (our own choice):
	// 4096 bytes of payload and the longest headers, in steps of 4 as every
	// valid packet has. All together they take less than 1 MiB.
	maxCachedLen = 4096 + 64
)

// idShift are the multiplication tables of one packet length, by nibble.
type idShift struct {
	forward [4][16]uint32 // identification to ICRC, lowest nibble first
	inverse [8][16]uint32 // ICRC to identification, lowest nibble first
}

// idShifts holds the tables made so far. An entry is made at first use and never
// changes; two that are made at once are equal, and either may win.
var idShifts [maxCachedLen/4 + 1]atomic.Pointer[idShift]

// PatchICRC returns the ICRC of a packet that carries v, once its IPv4
// identification changes from oldID to newID. udpPayloadLen includes the ICRC.
// It is safe for concurrent use.
func PatchICRC(v uint32, oldID, newID uint16, udpPayloadLen int) uint32 {
	d := oldID ^ newID
	if d == 0 {
		return v
	}
	s := cachedShift(udpPayloadLen)
	if s == nil {
		return v ^ multiply(idPolynomial(d), powerOfX(idBits(udpPayloadLen)))
	}
	return v ^ s.forward[0][d&15] ^ s.forward[1][d>>4&15] ^ s.forward[2][d>>8&15] ^ s.forward[3][d>>12]
}

// SolveID returns the IPv4 identification that explains the ICRC got, where
// wantID0 is the right one for identification 0; ok is false when none does, so
// that something else is wrong with the packet. An accidental solution has a
// chance of 2^-16, so what is accepted by it alone is checked with 16 bits.
// udpPayloadLen includes the ICRC. It is safe for concurrent use.
func SolveID(got, wantID0 uint32, udpPayloadLen int) (id uint16, ok bool) {
	d := got ^ wantID0
	var r uint32
	if s := cachedShift(udpPayloadLen); s == nil {
		r = multiply(d, inversePowerOfX(idBits(udpPayloadLen)))
	} else {
		for i := range s.inverse {
			r ^= s.inverse[i][d&15]
			d >>= 4
		}
	}
	if r&0xFFFF != 0 {
		return 0, false
	}
	return uint16(r>>16&0xFF)<<8 | uint16(r>>24), true
}

// cachedShift returns the tables for a length, nil for one that is not kept.
func cachedShift(udpPayloadLen int) *idShift {
	if udpPayloadLen < 0 || udpPayloadLen > maxCachedLen || udpPayloadLen&3 != 0 {
		return nil
	}
	slot := &idShifts[udpPayloadLen/4]
	if s := slot.Load(); s != nil {
		return s
	}
	s := newIDShift(udpPayloadLen)
	slot.Store(s)
	return s
}

// newIDShift computes the tables for a length.
func newIDShift(udpPayloadLen int) *idShift {
	s := new(idShift)
	x := powerOfX(idBits(udpPayloadLen))
	for i := range s.forward {
		for n := range s.forward[i] {
			s.forward[i][n] = multiply(idPolynomial(uint16(n)<<(4*i)), x)
		}
	}
	x = inversePowerOfX(idBits(udpPayloadLen))
	for i := range s.inverse {
		for n := range s.inverse[i] {
			s.inverse[i][n] = multiply(uint32(n)<<(4*i), x)
		}
	}
	return s
}

// idBits returns k: bits from the end of the identification to the ICRC, plus 32.
func idBits(udpPayloadLen int) uint32 { return uint32(8*(bytesAfterID+udpPayloadLen) + 32) }

// idPolynomial returns an identification as a polynomial of degree below 16. Its
// high byte comes first on the wire, and within a byte the lowest bit.
func idPolynomial(id uint16) uint32 { return uint32(id>>8)<<16 | uint32(id&0xFF)<<24 }

// multiply returns a·b modulo the polynomial.
func multiply(a, b uint32) (r uint32) {
	for ; a != 0; a <<= 1 {
		if a>>31 != 0 {
			r ^= b
		}
		b = b>>1 ^ crcPolynomial&-(b&1)
	}
	return r
}

// powerOfX returns x^n modulo the polynomial.
func powerOfX(n uint32) uint32 {
	r, square := uint32(1)<<31, uint32(1)<<30
	for ; n != 0; n >>= 1 {
		if n&1 != 0 {
			r = multiply(r, square)
		}
		square = multiply(square, square)
	}
	return r
}

// inversePowerOfX returns x^-n: the polynomial is primitive, so that
// x^(2^32-1) = 1.
func inversePowerOfX(n uint32) uint32 { return powerOfX(^n) }
