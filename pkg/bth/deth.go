package bth

import "encoding/binary"

// DETHLen is the length of a Datagram Extended Transport Header in bytes.
const DETHLen = 8

// DETH is a Datagram Extended Transport Header (IBTA Vol 1 §9.3.1), at least
// DETHLen bytes: in every UD packet and every RD request.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+---------------------------------------------------------------+
//	|                             Q_Key                             |
//	+---------------+-----------------------------------------------+
//	|   reserved    |                     SrcQP                     |
//	+---------------+-----------------------------------------------+
type DETH []byte

const (
	dethQKey  = 0
	dethResv  = 4
	dethSrcQP = 5
)

// QKey returns the queue key.
func (h DETH) QKey() QKey { return QKey(binary.BigEndian.Uint32(h[dethQKey:])) }

// SrcQP returns the sender's queue pair.
func (h DETH) SrcQP() QPN { return QPN(uint24(h[dethSrcQP:])) }

// Resv returns the reserved byte, ignored on receipt.
func (h DETH) Resv() uint8 { return h[dethResv] }

// Fields returns every field of h.
func (h DETH) Fields() DETHFields {
	return DETHFields{QKey: h.QKey(), SrcQP: h.SrcQP(), Resv: h.Resv()}
}

// DETHFields are the fields of a Datagram Extended Transport Header.
type DETHFields struct {
	QKey  QKey
	SrcQP QPN
	Resv  uint8 // 0
}

// Append appends the header to b.
func (f *DETHFields) Append(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(f.QKey))
	return appendReservedAnd24(b, f.Resv, uint32(f.SrcQP))
}
