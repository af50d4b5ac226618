package bth

import "encoding/binary"

// RETHLen is the length of an RDMA Extended Transport Header in bytes.
const RETHLen = 16

// RETH is an RDMA Extended Transport Header (IBTA Vol 1 §9.3.3), at least
// RETHLen bytes: in the first packet of a WRITE and in READ requests.
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
//	|                           DMA Length                          |
//	+---------------------------------------------------------------+
type RETH []byte

const (
	rethVA     = 0
	rethRKey   = 8
	rethLength = 12
)

// VA returns the virtual address at the responder.
func (h RETH) VA() uint64 { return binary.BigEndian.Uint64(h[rethVA:]) }

// RKey returns the remote key that covers the address.
func (h RETH) RKey() uint32 { return binary.BigEndian.Uint32(h[rethRKey:]) }

// Length returns the length of the whole message in bytes, not of the packet.
func (h RETH) Length() uint32 { return binary.BigEndian.Uint32(h[rethLength:]) }

// Fields returns every field of h.
func (h RETH) Fields() RETHFields {
	return RETHFields{VA: h.VA(), RKey: h.RKey(), Length: h.Length()}
}

// RETHFields are the fields of an RDMA Extended Transport Header.
type RETHFields struct {
	VA     uint64
	RKey   uint32
	Length uint32 // bytes of the whole message
}

// Append appends the header to b.
func (f *RETHFields) Append(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(b, f.VA)
	b = binary.BigEndian.AppendUint32(b, f.RKey)
	return binary.BigEndian.AppendUint32(b, f.Length)
}
