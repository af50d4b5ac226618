package bth

import "encoding/binary"

// FETHLen is the length of a FLUSH Extended Transport Header in bytes.
const FETHLen = 4

// FETH is a FLUSH Extended Transport Header (Annex A19), at least FETHLen bytes.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+---------------------------------------------------+---+-------+
//	|                     reserved                      |SEL|  PLT  |
//	+---------------------------------------------------+---+-------+
type FETH []byte

// Values of FETH's placement type, a bit field, and of its selectivity level.
const (
	FlushGlobal     uint8 = 1 << 0 // PLT: make the data globally visible
	FlushPersistent uint8 = 1 << 1 // PLT: make the data persistent

	FlushRange  uint8 = 0 // SEL: the range that the RETH names
	FlushRegion uint8 = 1 // SEL: the whole memory region
)

const (
	fethPLTMask   = 0x0F
	fethSelShift  = 4
	fethSelMask   = 3
	fethResvShift = 6
)

func (h FETH) word() uint32 { return binary.BigEndian.Uint32(h) }

// PLT returns the placement type bits.
func (h FETH) PLT() uint8 { return uint8(h.word() & fethPLTMask) }

// Sel returns the selectivity level.
func (h FETH) Sel() uint8 { return uint8(h.word() >> fethSelShift & fethSelMask) }

// Resv returns the 26 reserved bits.
func (h FETH) Resv() uint32 { return h.word() >> fethResvShift }

// Fields returns every field of h.
func (h FETH) Fields() FETHFields { return FETHFields{PLT: h.PLT(), Sel: h.Sel(), Resv: h.Resv()} }

// FETHFields are the fields of a FLUSH Extended Transport Header.
type FETHFields struct {
	PLT  uint8  // 4 bits: FlushGlobal, FlushPersistent
	Sel  uint8  // 2 bits: FlushRange or FlushRegion
	Resv uint32 // 26 bits, 0
}

// Append appends the header to b. Bits above a field's width are dropped.
func (f *FETHFields) Append(b []byte) []byte {
	w := uint32(f.PLT&fethPLTMask) | uint32(f.Sel&fethSelMask)<<fethSelShift | f.Resv<<fethResvShift
	return binary.BigEndian.AppendUint32(b, w)
}
