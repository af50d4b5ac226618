package cm

import "github.com/softroce/softroce/pkg/bth"

// DREQ asks to end a connection (IBTA Vol 1 §12.6.10).
type DREQ struct {
	LocalID, RemoteID CommID
	RemoteQPN         bth.QPN // the receiver's
	Private           [PrivateDREQ]byte
}

// Where the fields of a DREQ lie.
const (
	dreqQPN     = 8
	dreqPrivate = 12
)

// Attr is AttrDREQ.
func (*DREQ) Attr() AttrID { return AttrDREQ }

// Put writes the message over b.
func (m *DREQ) Put(b *Data) {
	clear(b[:])
	putIDs(b, m.LocalID, m.RemoteID)
	put24(b[dreqQPN:], uint32(m.RemoteQPN))
	copy(b[dreqPrivate:], m.Private[:])
}

// Read takes every field from b.
func (m *DREQ) Read(b *Data) {
	m.LocalID, m.RemoteID = readIDs(b)
	m.RemoteQPN = bth.QPN(get24(b[dreqQPN:]))
	m.Private = [PrivateDREQ]byte(b[dreqPrivate:])
}

// DREP answers a DREQ (IBTA Vol 1 §12.6.11).
type DREP struct {
	LocalID, RemoteID CommID
	Private           [PrivateDREP]byte
}

// Attr is AttrDREP.
func (*DREP) Attr() AttrID { return AttrDREP }

// Put writes the message over b.
func (m *DREP) Put(b *Data) {
	putIDs(b, m.LocalID, m.RemoteID)
	copy(b[idsPrivate:], m.Private[:])
}

// Read takes every field from b.
func (m *DREP) Read(b *Data) {
	m.LocalID, m.RemoteID = readIDs(b)
	m.Private = [PrivateDREP]byte(b[idsPrivate:])
}
