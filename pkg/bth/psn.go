package bth

// PSN is a packet sequence number: 24 bits, circular. Two PSNs are compared
// with Before, After or Sub, never with < (IBTA Vol 1 §9.7.1).
type PSN uint32

// PSNMask covers the 24 bits of a packet sequence number.
const PSNMask PSN = 0xFFFFFF

// Add returns the PSN n places after p.
func (p PSN) Add(n uint32) PSN { return (p + PSN(n)) & PSNMask }

// Sub returns the signed distance from b to p, in -2^23 ... 2^23-1: positive
// when p lies after b. p.Sub(b) is the n with b.Add(n) == p.
func (p PSN) Sub(b PSN) int32 { return int32(p-b) << 8 >> 8 }

// Before reports whether p lies before b: in the half circle behind it.
func (p PSN) Before(b PSN) bool { return p.Sub(b) < 0 }

// After reports whether p lies after b: in the half circle ahead of it. A PSN
// exactly 2^23 away counts as before (the valid and duplicate regions of
// IBTA Vol 1 §9.7.5.1.1 are 2^23 PSNs each; the expected PSN is in neither).
func (p PSN) After(b PSN) bool { return p.Sub(b) > 0 }

// String gives the number as 0x and six hexadecimal digits.
func (p PSN) String() string { return hex24(uint32(p)) }
