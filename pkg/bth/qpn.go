package bth

import "strconv"

// QPN is a queue pair number, 24 bits.
type QPN uint32

// Queue pair numbers with a meaning of their own.
const (
	// QPNMask covers the 24 bits of a queue pair number.
	QPNMask QPN = 0xFFFFFF
	// GSIQPN is the general services interface, where the connection manager
	// listens.
	GSIQPN QPN = 1
	// MulticastQPN addresses every queue pair attached to the packet's group
	// (IBTA Vol 1 §10.5).
	MulticastQPN QPN = 0xFFFFFF
)

// String gives the number as kernel tools print it: 0x and six hexadecimal digits.
func (q QPN) String() string { return hex24(uint32(q)) }

// hex24 formats the low 24 bits as 0x and six digits.
func hex24(v uint32) string {
	s := strconv.FormatUint(uint64(v&0xFFFFFF)|1<<24, 16)
	return "0x" + s[1:]
}
