package bth

// CNPReservedLen is the length of what follows the BTH of a CNP, in bytes.
const CNPReservedLen = 16

// CNPReserved is what follows the BTH of a congestion notification packet
// (Annex A17): sixteen bytes, 0 on transmit, ignored on receipt.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+---------------------------------------------------------------+
//	|                                                               |
//	+                                                               +
//	|                       reserved (16 bytes)                     |
//	+                                                               +
//	|                                                               |
//	+                                                               +
//	|                                                               |
//	+---------------------------------------------------------------+
type CNPReserved [CNPReservedLen]byte

// Append appends the reserved bytes to b.
func (r CNPReserved) Append(b []byte) []byte { return append(b, r[:]...) }
