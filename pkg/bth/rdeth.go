package bth

// RDETHLen is the length of a Reliable Datagram Extended Transport Header in bytes.
const RDETHLen = 4

// RDETH is a Reliable Datagram Extended Transport Header (IBTA Vol 1 §9.3.2), at
// least RDETHLen bytes: in every RD packet. The adapter does not speak RD; the
// header is here so that a capture of it decodes.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+---------------+-----------------------------------------------+
//	|   reserved    |                  EE-Context                   |
//	+---------------+-----------------------------------------------+
type RDETH []byte

// EEContext returns the end-to-end context, 24 bits.
func (h RDETH) EEContext() uint32 { return uint24(h[1:]) }

// Resv returns the reserved byte, ignored on receipt.
func (h RDETH) Resv() uint8 { return h[0] }

// Fields returns every field of h.
func (h RDETH) Fields() RDETHFields { return RDETHFields{EEContext: h.EEContext(), Resv: h.Resv()} }

// RDETHFields are the fields of a Reliable Datagram Extended Transport Header.
type RDETHFields struct {
	EEContext uint32 // 24 bits
	Resv      uint8  // 0
}

// Append appends the header to b.
func (f *RDETHFields) Append(b []byte) []byte { return appendReservedAnd24(b, f.Resv, f.EEContext) }
