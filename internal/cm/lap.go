package cm

import (
	"encoding/binary"

	"github.com/softroce/softroce/pkg/bth"
)

// LAP asks to load an alternate path (IBTA Vol 1 §12.8.1).
type LAP struct {
	LocalID, RemoteID CommID
	RemoteQPN         bth.QPN // the receiver's
	RemoteTimeout     uint8   // 5 bits, 4.096 µs × 2^n
	Path              PathRecord
	Private           [PrivateLAP]byte
}

// Where the fields of a LAP lie.
const (
	lapQPN     = 12
	lapTimeout = 15
	lapPath    = 20
	lapFlow    = 56
	lapTC      = 59
	lapHop     = 60
	lapRate    = 61
	lapSL      = 62
	lapAck     = 63
	lapPrivate = 64
)

// Attr is AttrLAP.
func (*LAP) Attr() AttrID { return AttrLAP }

// Put writes the message over b.
func (m *LAP) Put(b *Data) {
	clear(b[:])
	putIDs(b, m.LocalID, m.RemoteID)
	put24(b[lapQPN:], uint32(m.RemoteQPN))
	b[lapTimeout] = m.RemoteTimeout << 3
	p := &m.Path
	binary.BigEndian.PutUint16(b[lapPath:], p.LocalLID)
	binary.BigEndian.PutUint16(b[lapPath+2:], p.RemoteLID)
	copy(b[lapPath+pathGIDs:], p.LocalGID[:])
	copy(b[lapPath+pathGIDs+16:], p.RemoteGID[:])
	put24(b[lapFlow:], p.FlowLabel<<4)
	b[lapTC], b[lapHop], b[lapRate] = p.TrafficClass, p.HopLimit, p.Rate&0x3F
	b[lapSL] = p.SL<<4 | bit(p.SubnetLocal, 3)
	b[lapAck] = p.AckTimeout << 3
	copy(b[lapPrivate:], m.Private[:])
}

// Read takes every field from b.
func (m *LAP) Read(b *Data) {
	gids := lapPath + pathGIDs
	*m = LAP{
		RemoteQPN:     bth.QPN(get24(b[lapQPN:])),
		RemoteTimeout: b[lapTimeout] >> 3,
		Path: PathRecord{
			LocalLID: binary.BigEndian.Uint16(b[lapPath:]), RemoteLID: binary.BigEndian.Uint16(b[lapPath+2:]),
			LocalGID: bth.GID(b[gids : gids+16]), RemoteGID: bth.GID(b[gids+16 : gids+32]),
			FlowLabel: get24(b[lapFlow:]) >> 4, Rate: b[lapRate] & 0x3F, TrafficClass: b[lapTC], HopLimit: b[lapHop],
			SL: b[lapSL] >> 4, SubnetLocal: b[lapSL]&8 != 0, AckTimeout: b[lapAck] >> 3,
		},
		Private: [PrivateLAP]byte(b[lapPrivate:]),
	}
	m.LocalID, m.RemoteID = readIDs(b)
}

// APR answers a LAP (IBTA Vol 1 §12.8.2).
type APR struct {
	LocalID, RemoteID CommID
	InfoLen           uint8
	Status            APStatus
	Info              [MaxInfo]byte
	Private           [PrivateAPR]byte
}

// Where the fields of an APR lie.
const (
	aprInfoLen = 8
	aprStatus  = 9
	aprInfo    = 12
	aprPrivate = 84
)

// Attr is AttrAPR.
func (*APR) Attr() AttrID { return AttrAPR }

// Put writes the message over b.
func (m *APR) Put(b *Data) {
	clear(b[:])
	putIDs(b, m.LocalID, m.RemoteID)
	b[aprInfoLen] = m.InfoLen
	b[aprStatus] = uint8(m.Status)
	copy(b[aprInfo:], m.Info[:])
	copy(b[aprPrivate:], m.Private[:])
}

// Read takes every field from b.
func (m *APR) Read(b *Data) {
	m.LocalID, m.RemoteID = readIDs(b)
	m.InfoLen = b[aprInfoLen]
	m.Status = APStatus(b[aprStatus])
	m.Info = [MaxInfo]byte(b[aprInfo:])
	m.Private = [PrivateAPR]byte(b[aprPrivate:])
}
