package bth

// XRCETHLen is the length of an XRC Extended Transport Header in bytes.
const XRCETHLen = 4

// XRCETH is an XRC Extended Transport Header (Annex A14), at least XRCETHLen
// bytes: in XRC requests, naming the shared receive queue.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+---------------+-----------------------------------------------+
//	|   reserved    |                    XRC SRQ                    |
//	+---------------+-----------------------------------------------+
type XRCETH []byte

// SRQ returns the number of the shared receive queue, 24 bits.
func (h XRCETH) SRQ() uint32 { return uint24(h[1:]) }

// Resv returns the reserved byte, ignored on receipt.
func (h XRCETH) Resv() uint8 { return h[0] }

// Fields returns every field of h.
func (h XRCETH) Fields() XRCETHFields { return XRCETHFields{SRQ: h.SRQ(), Resv: h.Resv()} }

// XRCETHFields are the fields of an XRC Extended Transport Header.
type XRCETHFields struct {
	SRQ  uint32 // 24 bits
	Resv uint8  // 0
}

// Append appends the header to b.
func (f *XRCETHFields) Append(b []byte) []byte { return appendReservedAnd24(b, f.Resv, f.SRQ) }
