package cm

// RTU says that the active side is ready to use the connection (IBTA Vol 1
// §12.6.9).
type RTU struct {
	LocalID, RemoteID CommID
	Private           [PrivateRTU]byte
}

// idsPrivate is where the private data of RTU and DREP begins.
const idsPrivate = 8

// Attr is AttrRTU.
func (*RTU) Attr() AttrID { return AttrRTU }

// Put writes the message over b.
func (m *RTU) Put(b *Data) {
	putIDs(b, m.LocalID, m.RemoteID)
	copy(b[idsPrivate:], m.Private[:])
}

// Read takes every field from b.
func (m *RTU) Read(b *Data) {
	m.LocalID, m.RemoteID = readIDs(b)
	m.Private = [PrivateRTU]byte(b[idsPrivate:])
}
