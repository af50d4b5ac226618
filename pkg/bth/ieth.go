package bth

import "encoding/binary"

// IETHLen is the length of an Invalidate Extended Transport Header in bytes.
const IETHLen = 4

// IETH is an Invalidate Extended Transport Header (IBTA Vol 1 §9.3.7), at least
// IETHLen bytes.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+---------------------------------------------------------------+
//	|                             R_Key                             |
//	+---------------------------------------------------------------+
type IETH []byte

// RKey returns the key that the receiver is to invalidate.
func (h IETH) RKey() uint32 { return binary.BigEndian.Uint32(h) }

// Fields returns every field of h.
func (h IETH) Fields() IETHFields { return IETHFields{RKey: h.RKey()} }

// IETHFields are the fields of an Invalidate Extended Transport Header.
type IETHFields struct {
	RKey uint32
}

// Append appends the header to b.
func (f *IETHFields) Append(b []byte) []byte { return binary.BigEndian.AppendUint32(b, f.RKey) }
