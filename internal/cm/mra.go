package cm

// Subject is the message that an MRA or a REJ is about.
type Subject uint8

// Subjects (IBTA Vol 1 §12.6.6, §12.6.7).
const (
	SubjectREQ   Subject = 0
	SubjectREP   Subject = 1
	SubjectOther Subject = 2 // of an MRA: a LAP
)

// MRA asks for more time (IBTA Vol 1 §12.6.6).
type MRA struct {
	LocalID, RemoteID CommID
	Subject           Subject // 2 bits
	ServiceTimeout    uint8   // 5 bits, 4.096 µs × 2^n
	Private           [PrivateMRA]byte
}

// Where the fields of an MRA lie.
const (
	mraSubject = 8
	mraTimeout = 9
	mraPrivate = 10
)

// Attr is AttrMRA.
func (*MRA) Attr() AttrID { return AttrMRA }

// Put writes the message over b.
func (m *MRA) Put(b *Data) {
	clear(b[:])
	putIDs(b, m.LocalID, m.RemoteID)
	b[mraSubject] = uint8(m.Subject) << 6
	b[mraTimeout] = m.ServiceTimeout << 3
	copy(b[mraPrivate:], m.Private[:])
}

// Read takes every field from b.
func (m *MRA) Read(b *Data) {
	m.LocalID, m.RemoteID = readIDs(b)
	m.Subject = Subject(b[mraSubject] >> 6)
	m.ServiceTimeout = b[mraTimeout] >> 3
	m.Private = [PrivateMRA]byte(b[mraPrivate:])
}
