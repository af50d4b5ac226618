package cm

import (
	"encoding/binary"

	"github.com/softroce/softroce/pkg/bth"
)

// SIDRREQ asks for the queue pair behind a service id (IBTA Vol 1 §12.11.1).
type SIDRREQ struct {
	RequestID CommID
	PKey      bth.PKey
	ServiceID ServiceID
	Private   [PrivateSIDRREQ]byte
}

// Where the fields of a SIDR_REQ lie.
const (
	sidrPKey    = 4
	sidrService = 8
	sidrPrivate = 16
)

// Attr is AttrSIDRREQ.
func (*SIDRREQ) Attr() AttrID { return AttrSIDRREQ }

// Put writes the message over b.
func (m *SIDRREQ) Put(b *Data) {
	clear(b[:])
	binary.BigEndian.PutUint32(b[:], uint32(m.RequestID))
	binary.BigEndian.PutUint16(b[sidrPKey:], uint16(m.PKey))
	binary.BigEndian.PutUint64(b[sidrService:], uint64(m.ServiceID))
	copy(b[sidrPrivate:], m.Private[:])
}

// Read takes every field from b.
func (m *SIDRREQ) Read(b *Data) {
	*m = SIDRREQ{
		RequestID: CommID(binary.BigEndian.Uint32(b[:])),
		PKey:      bth.PKey(binary.BigEndian.Uint16(b[sidrPKey:])),
		ServiceID: ServiceID(binary.BigEndian.Uint64(b[sidrService:])),
		Private:   [PrivateSIDRREQ]byte(b[sidrPrivate:]),
	}
}

// SIDRREP answers a SIDR_REQ (IBTA Vol 1 §12.11.2).
type SIDRREP struct {
	RequestID CommID // the SIDR_REQ's
	Status    SIDRStatus
	InfoLen   uint8
	VendorID  uint32 // 24 bits, the lowest byte apart
	QPN       bth.QPN
	ServiceID ServiceID
	QKey      bth.QKey
	Info      [MaxInfo]byte
	Private   [PrivateSIDRREP]byte
}

// Where the fields of a SIDR_REP lie.
const (
	sidrRepStatus  = 4
	sidrRepInfoLen = 5
	sidrRepVendor  = 6
	sidrRepQPN     = 8
	sidrRepVendor3 = 11
	sidrRepService = 12
	sidrRepQKey    = 20
	sidrRepInfo    = 24
	sidrRepPrivate = 96
)

// Attr is AttrSIDRREP.
func (*SIDRREP) Attr() AttrID { return AttrSIDRREP }

// Put writes the message over b.
func (m *SIDRREP) Put(b *Data) {
	clear(b[:])
	binary.BigEndian.PutUint32(b[:], uint32(m.RequestID))
	b[sidrRepStatus] = uint8(m.Status)
	b[sidrRepInfoLen] = m.InfoLen
	binary.BigEndian.PutUint16(b[sidrRepVendor:], uint16(m.VendorID>>8))
	put24(b[sidrRepQPN:], uint32(m.QPN))
	b[sidrRepVendor3] = byte(m.VendorID)
	binary.BigEndian.PutUint64(b[sidrRepService:], uint64(m.ServiceID))
	binary.BigEndian.PutUint32(b[sidrRepQKey:], uint32(m.QKey))
	copy(b[sidrRepInfo:], m.Info[:])
	copy(b[sidrRepPrivate:], m.Private[:])
}

// Read takes every field from b.
func (m *SIDRREP) Read(b *Data) {
	*m = SIDRREP{
		RequestID: CommID(binary.BigEndian.Uint32(b[:])),
		Status:    SIDRStatus(b[sidrRepStatus]),
		InfoLen:   b[sidrRepInfoLen],
		VendorID:  uint32(binary.BigEndian.Uint16(b[sidrRepVendor:]))<<8 | uint32(b[sidrRepVendor3]),
		QPN:       bth.QPN(get24(b[sidrRepQPN:])),
		ServiceID: ServiceID(binary.BigEndian.Uint64(b[sidrRepService:])),
		QKey:      bth.QKey(binary.BigEndian.Uint32(b[sidrRepQKey:])),
		Info:      [MaxInfo]byte(b[sidrRepInfo:]),
		Private:   [PrivateSIDRREP]byte(b[sidrRepPrivate:]),
	}
}
