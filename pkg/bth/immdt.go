package bth

// ImmDtLen is the length of immediate data in bytes.
const ImmDtLen = 4

// ImmDt is the immediate data of a SEND or WRITE (IBTA Vol 1 §9.3.6): four bytes
// that no one on the way interprets. The verbs hand them over in this order,
// which they call big endian.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+---------------------------------------------------------------+
//	|                        Immediate Data                         |
//	+---------------------------------------------------------------+
type ImmDt [ImmDtLen]byte

// Append appends the immediate data to b.
func (d ImmDt) Append(b []byte) []byte { return append(b, d[:]...) }
