package cm

import (
	"encoding/binary"

	"github.com/softroce/softroce/pkg/bth"
)

// REP grants a connection (IBTA Vol 1 §12.6.8). Numbers are the sender's view.
type REP struct {
	LocalID, RemoteID  CommID // RemoteID is the REQ's
	QKey               bth.QKey
	QPN                bth.QPN
	EECN               uint32  // 24 bits; of XRC the queue pair
	PSN                bth.PSN // the first that the receiver is to send
	VendorID           uint32  // 24 bits, in three bytes apart
	ResponderResources uint8
	InitiatorDepth     uint8
	AckDelay           uint8 // target ACK delay, 5 bits, 4.096 µs × 2^n
	Failover           uint8 // 2 bits, 0
	FlowControl        bool
	RNRRetry           uint8 // 3 bits
	SRQ                bool
	CAGUID             uint64
	Private            [PrivateREP]byte
}

// Where the fields of a REP lie.
const (
	repRemote    = 4
	repQKey      = 8
	repQPN       = 12
	repVendor1   = 15
	repEECN      = 16
	repVendor2   = 19
	repPSN       = 20
	repVendor3   = 23
	repResponder = 24
	repInitiator = 25
	repDelay     = 26
	repRNR       = 27
	repGUID      = 28
	repPrivate   = 36
)

// Attr is AttrREP.
func (*REP) Attr() AttrID { return AttrREP }

// Put writes the message over b.
func (m *REP) Put(b *Data) {
	clear(b[:])
	putIDs(b, m.LocalID, m.RemoteID)
	binary.BigEndian.PutUint32(b[repQKey:], uint32(m.QKey))
	put24(b[repQPN:], uint32(m.QPN))
	put24(b[repEECN:], m.EECN)
	put24(b[repPSN:], uint32(m.PSN))
	b[repVendor1], b[repVendor2], b[repVendor3] = byte(m.VendorID>>16), byte(m.VendorID>>8), byte(m.VendorID)
	b[repResponder] = m.ResponderResources
	b[repInitiator] = m.InitiatorDepth
	b[repDelay] = m.AckDelay<<3 | m.Failover&3<<1 | bit(m.FlowControl, 0)
	b[repRNR] = m.RNRRetry<<5 | bit(m.SRQ, 4)
	binary.BigEndian.PutUint64(b[repGUID:], m.CAGUID)
	copy(b[repPrivate:], m.Private[:])
}

// Read takes every field from b.
func (m *REP) Read(b *Data) {
	*m = REP{
		QKey:               bth.QKey(binary.BigEndian.Uint32(b[repQKey:])),
		QPN:                bth.QPN(get24(b[repQPN:])),
		EECN:               get24(b[repEECN:]),
		PSN:                bth.PSN(get24(b[repPSN:])),
		VendorID:           uint32(b[repVendor1])<<16 | uint32(b[repVendor2])<<8 | uint32(b[repVendor3]),
		ResponderResources: b[repResponder],
		InitiatorDepth:     b[repInitiator],
		AckDelay:           b[repDelay] >> 3,
		Failover:           b[repDelay] >> 1 & 3,
		FlowControl:        b[repDelay]&1 != 0,
		RNRRetry:           b[repRNR] >> 5,
		SRQ:                b[repRNR]&0x10 != 0,
		CAGUID:             binary.BigEndian.Uint64(b[repGUID:]),
		Private:            [PrivateREP]byte(b[repPrivate:]),
	}
	m.LocalID, m.RemoteID = readIDs(b)
}

// putIDs writes the two communication ids that most messages begin with.
func putIDs(b *Data, local, remote CommID) {
	binary.BigEndian.PutUint32(b[:], uint32(local))
	binary.BigEndian.PutUint32(b[repRemote:], uint32(remote))
}

// readIDs reads the two communication ids that most messages begin with.
func readIDs(b *Data) (local, remote CommID) {
	return CommID(binary.BigEndian.Uint32(b[:])), CommID(binary.BigEndian.Uint32(b[repRemote:]))
}
