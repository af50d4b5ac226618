package uapi

import (
	"encoding/binary"

	"github.com/softroce/softroce/pkg/bth"
)

// QueryDeviceRequest asks for the device's attributes. It has no body.
type QueryDeviceRequest struct{ Empty }

// QueryDeviceReply answers QueryDeviceRequest.
type QueryDeviceReply struct{ Attr DeviceAttr }

// DeviceAttr is ibv_device_attr without the fields that are 0 on every RoCE
// device, and with what extended attributes say here.
type DeviceAttr struct {
	FWVersion                   string
	NodeGUID, SysImageGUID      uint64 // host value of the EUI-64
	MaxMRSize, PageSizeCap      uint64 // bytes; bit mask
	VendorID, VendorPartID      uint32
	HWVersion                   uint32
	MaxQP, MaxQPWR              uint32
	DeviceCapFlags              uint32 // ibv_device_cap_flags
	MaxSGE, MaxSGERead          uint32
	MaxCQ, MaxCQE               uint32
	MaxMR, MaxPD                uint32
	MaxQPRDAtomic               uint32
	MaxResRDAtomic              uint32
	MaxQPInitRDAtomic           uint32
	AtomicCap                   uint32 // ibv_atomic_cap: 0 none, 1 HCA, 2 global
	MaxMW                       uint32
	MaxMcastGroup               uint32
	MaxMcastQPAttach            uint32
	MaxTotalMcastQPAttach       uint32
	MaxAH                       uint32
	MaxSRQ, MaxSRQWR, MaxSRQSGE uint32
	MaxInline                   uint32 // bytes; softroce's own
	NumCompVectors              uint32
	MaxPKeys                    uint16
	LocalCAAckDelay             uint8
	PhysPortCount               uint8
}

// words lists the 32-bit fields in their order on the wire.
func (a *DeviceAttr) words() []*uint32 {
	return []*uint32{
		&a.VendorID, &a.VendorPartID, &a.HWVersion, &a.MaxQP, &a.MaxQPWR, &a.DeviceCapFlags, &a.MaxSGE, &a.MaxSGERead,
		&a.MaxCQ, &a.MaxCQE, &a.MaxMR, &a.MaxPD, &a.MaxQPRDAtomic, &a.MaxResRDAtomic, &a.MaxQPInitRDAtomic, &a.AtomicCap,
		&a.MaxMW, &a.MaxMcastGroup, &a.MaxMcastQPAttach, &a.MaxTotalMcastQPAttach, &a.MaxAH, &a.MaxSRQ, &a.MaxSRQWR,
		&a.MaxSRQSGE, &a.MaxInline, &a.NumCompVectors,
	}
}

// Append encodes the reply: u64 fields, u32 fields, then the rest, each group in
// the order of the struct; the text last.
func (m *QueryDeviceReply) Append(b []byte) []byte {
	a, le := &m.Attr, binary.LittleEndian
	for _, v := range []uint64{a.NodeGUID, a.SysImageGUID, a.MaxMRSize, a.PageSizeCap} {
		b = le.AppendUint64(b, v)
	}
	for _, v := range a.words() {
		b = le.AppendUint32(b, *v)
	}
	b = le.AppendUint16(b, a.MaxPKeys)
	b = append(b, a.LocalCAAckDelay, a.PhysPortCount)
	return appendText(b, a.FWVersion)
}

// Decode reads the reply. Error: ErrMalformed.
func (m *QueryDeviceReply) Decode(b []byte) error {
	r, a := reader{b: b}, &m.Attr
	a.NodeGUID, a.SysImageGUID, a.MaxMRSize, a.PageSizeCap = r.u64(), r.u64(), r.u64(), r.u64()
	for _, v := range a.words() {
		*v = r.u32()
	}
	a.MaxPKeys, a.LocalCAAckDelay, a.PhysPortCount = r.u16(), r.u8(), r.u8()
	a.FWVersion = r.text()
	return r.end()
}

// QueryPortRequest asks for a port's attributes; port 1 is the only one.
type QueryPortRequest struct{ Port uint8 }

// Append encodes the request.
func (m *QueryPortRequest) Append(b []byte) []byte { return append(b, m.Port) }

// Decode reads the request. Error: ErrMalformed.
func (m *QueryPortRequest) Decode(b []byte) error {
	r := reader{b: b}
	m.Port = r.u8()
	return r.end()
}

// QueryPortReply answers QueryPortRequest.
type QueryPortReply struct{ Attr PortAttr }

// PortAttr is ibv_port_attr.
type PortAttr struct {
	GIDTableLen                 uint32
	CapFlags                    uint32 // ibv_port_cap_flags
	MaxMessageSize              uint32 // bytes
	BadPKeyCounter              uint32
	QKeyViolations              uint32
	LinkMTU                     uint32 // bytes of the IP link; softroce's own
	PKeyTableLen, LID, SMLID    uint16
	CapFlags2                   uint16
	State                       uint8 // ibv_port_state: 1 down, 4 active
	MaxMTU, ActiveMTU           bth.MTU
	LMC, MaxVLNum, SMSL         uint8
	SubnetTimeout, InitType     uint8
	ActiveWidth, ActiveSpeed    uint8
	PhysState, LinkLayer, Flags uint8 // LinkLayer 2: Ethernet
}

// Append encodes the reply, fields in the order of the struct.
func (m *QueryPortReply) Append(b []byte) []byte {
	a, le := &m.Attr, binary.LittleEndian
	b = appendU32s(b, a.GIDTableLen, a.CapFlags, a.MaxMessageSize, a.BadPKeyCounter, a.QKeyViolations, a.LinkMTU)
	for _, v := range []uint16{a.PKeyTableLen, a.LID, a.SMLID, a.CapFlags2} {
		b = le.AppendUint16(b, v)
	}
	return append(b, a.State, byte(a.MaxMTU), byte(a.ActiveMTU), a.LMC, a.MaxVLNum, a.SMSL, a.SubnetTimeout, a.InitType,
		a.ActiveWidth, a.ActiveSpeed, a.PhysState, a.LinkLayer, a.Flags)
}

// Decode reads the reply. Error: ErrMalformed.
func (m *QueryPortReply) Decode(b []byte) error {
	r := reader{b: b}
	m.Attr = PortAttr{
		GIDTableLen: r.u32(), CapFlags: r.u32(), MaxMessageSize: r.u32(), BadPKeyCounter: r.u32(), QKeyViolations: r.u32(),
		LinkMTU: r.u32(), PKeyTableLen: r.u16(), LID: r.u16(), SMLID: r.u16(), CapFlags2: r.u16(),
		State: r.u8(), MaxMTU: bth.MTU(r.u8()), ActiveMTU: bth.MTU(r.u8()), LMC: r.u8(), MaxVLNum: r.u8(), SMSL: r.u8(),
		SubnetTimeout: r.u8(), InitType: r.u8(), ActiveWidth: r.u8(), ActiveSpeed: r.u8(), PhysState: r.u8(),
		LinkLayer: r.u8(), Flags: r.u8(),
	}
	return r.end()
}

// QueryGIDTableRequest asks for the GID table. It has no body.
type QueryGIDTableRequest struct{ Empty }

// QueryGIDTableReply lists the entries that hold a GID.
type QueryGIDTableReply struct{ Entries []GIDEntry }

// GIDEntry is ibv_gid_entry; 32 bytes.
//
//	0 gid    16 index u32    20 type u32    24 ifindex u32    28 zero
type GIDEntry struct {
	GID     bth.GID
	Index   uint32
	Type    GIDType
	IfIndex uint32 // of the network device, 0 when not known
}

// GIDType is ibv_gid_type; softroce has RoCEv2 only.
type GIDType uint32

// GIDTypeRoCEv2 is IBV_GID_TYPE_ROCE_V2.
const GIDTypeRoCEv2 GIDType = 2

const (
	gidEntrySize = 32
	maxGIDs      = 1024
)

// Append encodes the reply: count u32, then the entries; at most 1024.
func (m *QueryGIDTableReply) Append(b []byte) []byte {
	entries := m.Entries[:min(len(m.Entries), maxGIDs)]
	b = appendU32s(b, uint32(len(entries)))
	for i := range entries {
		e := &entries[i]
		b = append(b, e.GID[:]...)
		b = appendU32s(b, e.Index, uint32(e.Type), e.IfIndex, 0)
	}
	return b
}

// Decode reads the reply. Error: ErrMalformed.
func (m *QueryGIDTableReply) Decode(b []byte) error {
	r := reader{b: b}
	n := r.u32()
	m.Entries = nil
	if n > maxGIDs || uint64(n)*gidEntrySize != uint64(len(r.b)) {
		r.fail("%d GIDs in %d bytes", n, len(r.b))
		return r.end()
	}
	m.Entries = make([]GIDEntry, n)
	for i := range m.Entries {
		e := &m.Entries[i]
		copy(e.GID[:], r.take(16))
		e.Index, e.Type, e.IfIndex, _ = r.u32(), GIDType(r.u32()), r.u32(), r.u32()
	}
	return r.end()
}

// AllocPDRequest asks for a protection domain. It has no body; the answer is a
// HandleReply.
type AllocPDRequest struct{ Empty }
