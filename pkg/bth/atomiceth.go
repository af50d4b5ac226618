package bth

import "encoding/binary"

// AtomicETHLen is the length of an Atomic Extended Transport Header in bytes.
const AtomicETHLen = 28

// AtomicETH is an Atomic Extended Transport Header (IBTA Vol 1 §9.3.4), at least
// AtomicETHLen bytes: in CmpSwap and FetchAdd requests. Its 64-bit operands are
// not aligned to 8 bytes.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+---------------------------------------------------------------+
//	|                     Virtual Address (63-32)                   |
//	+---------------------------------------------------------------+
//	|                     Virtual Address (31-0)                    |
//	+---------------------------------------------------------------+
//	|                             R_Key                             |
//	+---------------------------------------------------------------+
//	|                   Swap (or Add) Data (63-32)                  |
//	+---------------------------------------------------------------+
//	|                   Swap (or Add) Data (31-0)                   |
//	+---------------------------------------------------------------+
//	|                      Compare Data (63-32)                     |
//	+---------------------------------------------------------------+
//	|                      Compare Data (31-0)                      |
//	+---------------------------------------------------------------+
type AtomicETH []byte

const (
	atomicVA      = 0
	atomicRKey    = 8
	atomicSwap    = 12
	atomicCompare = 20
)

// VA returns the virtual address at the responder.
func (h AtomicETH) VA() uint64 { return binary.BigEndian.Uint64(h[atomicVA:]) }

// RKey returns the remote key that covers the address.
func (h AtomicETH) RKey() uint32 { return binary.BigEndian.Uint32(h[atomicRKey:]) }

// Swap returns the value to store (CmpSwap) or to add (FetchAdd).
func (h AtomicETH) Swap() uint64 { return binary.BigEndian.Uint64(h[atomicSwap:]) }

// Compare returns the value to compare with (CmpSwap). FetchAdd has no use for
// it, and senders leave anything there.
func (h AtomicETH) Compare() uint64 { return binary.BigEndian.Uint64(h[atomicCompare:]) }

// Fields returns every field of h.
func (h AtomicETH) Fields() AtomicETHFields {
	return AtomicETHFields{VA: h.VA(), RKey: h.RKey(), Swap: h.Swap(), Compare: h.Compare()}
}

// AtomicETHFields are the fields of an Atomic Extended Transport Header.
type AtomicETHFields struct {
	VA      uint64
	RKey    uint32
	Swap    uint64 // the value to add in FetchAdd
	Compare uint64 // leave 0 in FetchAdd
}

// Append appends the header to b.
func (f *AtomicETHFields) Append(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(b, f.VA)
	b = binary.BigEndian.AppendUint32(b, f.RKey)
	b = binary.BigEndian.AppendUint64(b, f.Swap)
	return binary.BigEndian.AppendUint64(b, f.Compare)
}
