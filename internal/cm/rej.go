package cm

import "encoding/binary"

// REJ refuses a connection or ends one that is not up (IBTA Vol 1 §12.6.7).
type REJ struct {
	LocalID, RemoteID CommID // LocalID is 0 when the sender has none
	Subject           Subject
	InfoLen           uint8 // 7 bits; bytes of Info that count
	Reason            RejectReason
	Info              [MaxInfo]byte // additional information, by reason
	Private           [PrivateREJ]byte
}

// Where the fields of a REJ lie.
const (
	rejSubject = 8
	rejInfoLen = 9
	rejReason  = 10
	rejInfo    = 12
	rejPrivate = 84
)

// Attr is AttrREJ.
func (*REJ) Attr() AttrID { return AttrREJ }

// Put writes the message over b.
func (m *REJ) Put(b *Data) {
	clear(b[:])
	putIDs(b, m.LocalID, m.RemoteID)
	b[rejSubject] = uint8(m.Subject) << 6
	b[rejInfoLen] = m.InfoLen << 1
	binary.BigEndian.PutUint16(b[rejReason:], uint16(m.Reason))
	copy(b[rejInfo:], m.Info[:])
	copy(b[rejPrivate:], m.Private[:])
}

// Read takes every field from b.
func (m *REJ) Read(b *Data) {
	m.LocalID, m.RemoteID = readIDs(b)
	m.Subject = Subject(b[rejSubject] >> 6)
	m.InfoLen = b[rejInfoLen] >> 1
	m.Reason = RejectReason(binary.BigEndian.Uint16(b[rejReason:]))
	m.Info = [MaxInfo]byte(b[rejInfo:])
	m.Private = [PrivateREJ]byte(b[rejPrivate:])
}
