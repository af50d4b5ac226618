package bth

import "encoding/binary"

// AtomicAckETHLen is the length of an Atomic Acknowledge header in bytes.
const AtomicAckETHLen = 8

// AtomicAckETH is an Atomic ACK Extended Transport Header (IBTA Vol 1 §9.3.5.3),
// at least AtomicAckETHLen bytes.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+---------------------------------------------------------------+
//	|                  Original Remote Data (63-32)                 |
//	+---------------------------------------------------------------+
//	|                  Original Remote Data (31-0)                  |
//	+---------------------------------------------------------------+
type AtomicAckETH []byte

// Original returns what the responder's memory held before the operation.
func (h AtomicAckETH) Original() uint64 { return binary.BigEndian.Uint64(h) }

// Fields returns every field of h.
func (h AtomicAckETH) Fields() AtomicAckETHFields {
	return AtomicAckETHFields{Original: h.Original()}
}

// AtomicAckETHFields are the fields of an Atomic ACK Extended Transport Header.
type AtomicAckETHFields struct {
	Original uint64
}

// Append appends the header to b.
func (f *AtomicAckETHFields) Append(b []byte) []byte {
	return binary.BigEndian.AppendUint64(b, f.Original)
}
