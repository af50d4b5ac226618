package cm

import (
	"encoding/binary"

	"github.com/softroce/softroce/pkg/bth"
)

// CommID is a communication id: what one side calls a connection in messages.
// Those that a Machine gives out are unique in it while they live, and are
// also the handle of its calls; 0 is none.
type CommID uint32

// Service is the transport service type of a REQ (IBTA Vol 1 §12.7.9, the two
// bits; 3 is the extended type, XRC).
type Service uint8

// Transport service types.
const (
	ServiceRC       Service = 0
	ServiceUC       Service = 1
	ServiceExtended Service = 3
)

// Bytes of private data in each message.
const (
	PrivateREQ     = 92
	PrivateMRA     = 222
	PrivateREJ     = 148
	PrivateREP     = 196
	PrivateRTU     = 224
	PrivateDREQ    = 220
	PrivateDREP    = 224
	PrivateSIDRREQ = 216
	PrivateSIDRREP = 136
	PrivateLAP     = 168
	PrivateAPR     = 148

	// MaxPrivate is the most of any message.
	MaxPrivate = 224
	// MaxInfo is the additional information of a REJ, a SIDR_REP and an APR.
	MaxInfo = 72
)

// PathRecord is a path in a REQ (IBTA Vol 1 §12.7.11 to §12.7.21), primary or
// alternate, as its sender sees it: Local is the sender's.
type PathRecord struct {
	LocalLID, RemoteLID uint16 // 0xFFFF on RoCE; 0 of the alternate path: there is none
	LocalGID, RemoteGID bth.GID
	FlowLabel           uint32 // 20 bits
	Rate                uint8  // 6 bits
	TrafficClass        uint8
	HopLimit            uint8
	SL                  uint8 // 4 bits
	SubnetLocal         bool
	AckTimeout          uint8 // 5 bits, 4.096 µs × 2^n
}

// Where a path's fields lie behind its LIDs.
const (
	pathGIDs  = 4
	pathFlow  = 36
	pathTC    = 40
	pathHop   = 41
	pathSL    = 42
	pathAck   = 43
	pathBytes = 44
)

func (p *PathRecord) put(b []byte) {
	binary.BigEndian.PutUint16(b, p.LocalLID)
	binary.BigEndian.PutUint16(b[2:], p.RemoteLID)
	copy(b[pathGIDs:], p.LocalGID[:])
	copy(b[pathGIDs+16:], p.RemoteGID[:])
	binary.BigEndian.PutUint32(b[pathFlow:], p.FlowLabel<<12|uint32(p.Rate&0x3F))
	b[pathTC] = p.TrafficClass
	b[pathHop] = p.HopLimit
	b[pathSL] = p.SL<<4 | bit(p.SubnetLocal, 3)
	b[pathAck] = p.AckTimeout << 3
}

func (p *PathRecord) read(b []byte) {
	flow := binary.BigEndian.Uint32(b[pathFlow:])
	*p = PathRecord{
		LocalLID: binary.BigEndian.Uint16(b), RemoteLID: binary.BigEndian.Uint16(b[2:]),
		LocalGID: bth.GID(b[pathGIDs : pathGIDs+16]), RemoteGID: bth.GID(b[pathGIDs+16 : pathGIDs+32]),
		FlowLabel: flow >> 12, Rate: uint8(flow & 0x3F),
		TrafficClass: b[pathTC], HopLimit: b[pathHop], SL: b[pathSL] >> 4, SubnetLocal: b[pathSL]&8 != 0,
		AckTimeout: b[pathAck] >> 3,
	}
}

// REQ asks for a connection (IBTA Vol 1 §12.6.5). Numbers are the sender's view.
type REQ struct {
	LocalID            CommID
	VendorID           uint32 // 24 bits, 0
	ServiceID          ServiceID
	CAGUID             uint64
	QKey               bth.QKey
	QPN                bth.QPN
	ResponderResources uint8
	LocalEECN          uint32 // 24 bits, 0
	InitiatorDepth     uint8
	RemoteEECN         uint32 // 24 bits, 0
	RemoteTimeout      uint8  // how fast the receiver is to answer; 5 bits, 4.096 µs × 2^n
	Service            Service
	FlowControl        bool    // end-to-end
	PSN                bth.PSN // the first that the receiver is to send
	LocalTimeout       uint8   // how fast the sender answers; 5 bits
	RetryCount         uint8   // 3 bits
	PKey               bth.PKey
	MTU                bth.MTU // 4 bits
	RDC                bool
	RNRRetry           uint8 // 3 bits
	MaxCMRetries       uint8 // 4 bits
	SRQ                bool
	Extended           uint8 // extended transport type, 3 bits; 1 is XRC
	Primary, Alternate PathRecord
	AltSAP             bool // a bit of the alternate path's last byte
	Private            [PrivateREQ]byte
}

// Where the fields of a REQ lie.
const (
	reqVendor     = 5
	reqService    = 8
	reqGUID       = 16
	reqQKey       = 28
	reqQPN        = 32
	reqResponder  = 35
	reqLocalEECN  = 36
	reqInitiator  = 39
	reqRemoteEECN = 40
	reqFlags      = 43
	reqPSN        = 44
	reqTimeout    = 47
	reqPKey       = 48
	reqMTU        = 50
	reqRetries    = 51
	reqPrimary    = 52
	reqAlternate  = reqPrimary + pathBytes
	reqPrivate    = reqAlternate + pathBytes
)

// Attr is AttrREQ.
func (*REQ) Attr() AttrID { return AttrREQ }

// Put writes the message over b.
func (m *REQ) Put(b *Data) {
	clear(b[:])
	binary.BigEndian.PutUint32(b[:], uint32(m.LocalID))
	put24(b[reqVendor:], m.VendorID)
	binary.BigEndian.PutUint64(b[reqService:], uint64(m.ServiceID))
	binary.BigEndian.PutUint64(b[reqGUID:], m.CAGUID)
	binary.BigEndian.PutUint32(b[reqQKey:], uint32(m.QKey))
	put24(b[reqQPN:], uint32(m.QPN))
	b[reqResponder] = m.ResponderResources
	put24(b[reqLocalEECN:], m.LocalEECN)
	b[reqInitiator] = m.InitiatorDepth
	put24(b[reqRemoteEECN:], m.RemoteEECN)
	b[reqFlags] = m.RemoteTimeout<<3 | uint8(m.Service&3)<<1 | bit(m.FlowControl, 0)
	put24(b[reqPSN:], uint32(m.PSN))
	b[reqTimeout] = m.LocalTimeout<<3 | m.RetryCount&7
	binary.BigEndian.PutUint16(b[reqPKey:], uint16(m.PKey))
	b[reqMTU] = uint8(m.MTU)<<4 | bit(m.RDC, 3) | m.RNRRetry&7
	b[reqRetries] = m.MaxCMRetries<<4 | bit(m.SRQ, 3) | m.Extended&7
	m.Primary.put(b[reqPrimary:])
	m.Alternate.put(b[reqAlternate:])
	b[reqAlternate+pathAck] |= bit(m.AltSAP, 2)
	copy(b[reqPrivate:], m.Private[:])
}

// Read takes every field from b.
func (m *REQ) Read(b *Data) {
	*m = REQ{
		LocalID:            CommID(binary.BigEndian.Uint32(b[:])),
		VendorID:           get24(b[reqVendor:]),
		ServiceID:          ServiceID(binary.BigEndian.Uint64(b[reqService:])),
		CAGUID:             binary.BigEndian.Uint64(b[reqGUID:]),
		QKey:               bth.QKey(binary.BigEndian.Uint32(b[reqQKey:])),
		QPN:                bth.QPN(get24(b[reqQPN:])),
		ResponderResources: b[reqResponder],
		LocalEECN:          get24(b[reqLocalEECN:]),
		InitiatorDepth:     b[reqInitiator],
		RemoteEECN:         get24(b[reqRemoteEECN:]),
		RemoteTimeout:      b[reqFlags] >> 3,
		Service:            Service(b[reqFlags] >> 1 & 3),
		FlowControl:        b[reqFlags]&1 != 0,
		PSN:                bth.PSN(get24(b[reqPSN:])),
		LocalTimeout:       b[reqTimeout] >> 3,
		RetryCount:         b[reqTimeout] & 7,
		PKey:               bth.PKey(binary.BigEndian.Uint16(b[reqPKey:])),
		MTU:                bth.MTU(b[reqMTU] >> 4),
		RDC:                b[reqMTU]&8 != 0,
		RNRRetry:           b[reqMTU] & 7,
		MaxCMRetries:       b[reqRetries] >> 4,
		SRQ:                b[reqRetries]&8 != 0,
		Extended:           b[reqRetries] & 7,
		AltSAP:             b[reqAlternate+pathAck]&4 != 0,
		Private:            [PrivateREQ]byte(b[reqPrivate:]),
	}
	m.Primary.read(b[reqPrimary:])
	m.Alternate.read(b[reqAlternate:])
}
