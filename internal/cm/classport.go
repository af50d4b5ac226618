package cm

import "encoding/binary"

// What the connection manager can do, in a ClassPortInfo (bits of the
// communication management class).
const (
	CapReliable   uint16 = 1 << 9
	CapUnreliable uint16 = 1 << 12
	CapSIDR       uint16 = 1 << 13
)

// ClassPortInfo says what a management class can do and where it is found
// (IBTA Vol 1 §13.4.8.1). Redirection and traps are not among it: their fields
// are sent as 0 and not read.
type ClassPortInfo struct {
	BaseVersion, ClassVersion uint8
	Capability                uint16
	ResponseTime              uint8 // 5 bits, 4.096 µs × 2^n
}

// Attr is AttrClassPortInfo.
func (*ClassPortInfo) Attr() AttrID { return AttrClassPortInfo }

// Put writes the attribute over b.
func (m *ClassPortInfo) Put(b *Data) {
	clear(b[:])
	b[0], b[1] = m.BaseVersion, m.ClassVersion
	binary.BigEndian.PutUint16(b[2:], m.Capability)
	b[7] = m.ResponseTime & 31
}

// Read takes the fields from b.
func (m *ClassPortInfo) Read(b *Data) {
	m.BaseVersion, m.ClassVersion = b[0], b[1]
	m.Capability = binary.BigEndian.Uint16(b[2:])
	m.ResponseTime = b[7] & 31
}
