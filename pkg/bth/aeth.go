package bth

// AETHLen is the length of an ACK Extended Transport Header in bytes.
const AETHLen = 4

// AETH is an ACK Extended Transport Header (IBTA Vol 1 §9.3.5), at least AETHLen
// bytes: in acknowledgements and in all READ responses but the middle ones.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-+---+---------+-----------------------------------------------+
//	|0|typ|  value  |                      MSN                      |
//	+-+---+---------+-----------------------------------------------+
//
// The first byte is the Syndrome.
type AETH []byte

// Syndrome returns the first byte: what kind of acknowledgement this is.
func (h AETH) Syndrome() Syndrome { return Syndrome(h[0]) }

// MSN returns the message sequence number, 24 bits: how many messages the
// responder has completed, modulo 2^24.
func (h AETH) MSN() uint32 { return uint24(h[1:]) }

// Fields returns every field of h.
func (h AETH) Fields() AETHFields { return AETHFields{Syndrome: h.Syndrome(), MSN: h.MSN()} }

// AETHFields are the fields of an ACK Extended Transport Header.
type AETHFields struct {
	Syndrome Syndrome
	MSN      uint32 // 24 bits
}

// Append appends the header to b.
func (f *AETHFields) Append(b []byte) []byte {
	return appendReservedAnd24(b, uint8(f.Syndrome), f.MSN)
}
