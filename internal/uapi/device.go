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
	FWVersion             string `json:"fw_version"`
	NodeGUID              uint64 `json:"node_guid"` // host value of the EUI-64
	SysImageGUID          uint64 `json:"sys_image_guid"`
	MaxMRSize             uint64 `json:"max_mr_size"`   // bytes
	PageSizeCap           uint64 `json:"page_size_cap"` // bit mask
	VendorID              uint32 `json:"vendor_id"`
	VendorPartID          uint32 `json:"vendor_part_id"`
	HWVersion             uint32 `json:"hw_version"`
	MaxQP                 uint32 `json:"max_qp"`
	MaxQPWR               uint32 `json:"max_qp_wr"`
	DeviceCapFlags        uint32 `json:"device_cap_flags"` // ibv_device_cap_flags
	MaxSGE                uint32 `json:"max_sge"`
	MaxSGERead            uint32 `json:"max_sge_read"`
	MaxCQ                 uint32 `json:"max_cq"`
	MaxCQE                uint32 `json:"max_cqe"`
	MaxMR                 uint32 `json:"max_mr"`
	MaxPD                 uint32 `json:"max_pd"`
	MaxQPRDAtomic         uint32 `json:"max_qp_rd_atomic"`
	MaxResRDAtomic        uint32 `json:"max_res_rd_atomic"`
	MaxQPInitRDAtomic     uint32 `json:"max_qp_init_rd_atomic"`
	AtomicCap             uint32 `json:"atomic_cap"` // ibv_atomic_cap: 0 none, 1 HCA, 2 global
	MaxMW                 uint32 `json:"max_mw"`
	MaxMcastGroup         uint32 `json:"max_mcast_group"`
	MaxMcastQPAttach      uint32 `json:"max_mcast_qp_attach"`
	MaxTotalMcastQPAttach uint32 `json:"max_total_mcast_qp_attach"`
	MaxAH                 uint32 `json:"max_ah"`
	MaxSRQ                uint32 `json:"max_srq"`
	MaxSRQWR              uint32 `json:"max_srq_wr"`
	MaxSRQSGE             uint32 `json:"max_srq_sge"`
	MaxInline             uint32 `json:"max_inline"` // bytes; softroce's own
	NumCompVectors        uint32 `json:"num_comp_vectors"`
	MaxPKeys              uint16 `json:"max_pkeys"`
	LocalCAAckDelay       uint8  `json:"local_ca_ack_delay"`
	PhysPortCount         uint8  `json:"phys_port_count"`

	// What ibv_query_device_ex adds.
	CompletionTimestampMask uint64 `json:"completion_timestamp_mask"` // 0: no timestamps
	HCACoreClock            uint64 `json:"hca_core_clock"`            // kHz of the timestamps
	ODPGeneral              uint32 `json:"odp_general_caps"`          // 1 supported, 2 implicit
	ODPRC                   uint32 `json:"odp_rc_caps"`               // ibv_odp_transport_cap_bits
	ODPUC                   uint32 `json:"odp_uc_caps"`
	ODPUD                   uint32 `json:"odp_ud_caps"`
}

// longs lists the 64-bit fields in their order on the wire.
func (a *DeviceAttr) longs() []*uint64 {
	return []*uint64{
		&a.NodeGUID, &a.SysImageGUID, &a.MaxMRSize, &a.PageSizeCap, &a.CompletionTimestampMask, &a.HCACoreClock,
	}
}

// words lists the 32-bit fields in their order on the wire.
func (a *DeviceAttr) words() []*uint32 {
	return []*uint32{
		&a.VendorID, &a.VendorPartID, &a.HWVersion, &a.MaxQP, &a.MaxQPWR, &a.DeviceCapFlags, &a.MaxSGE, &a.MaxSGERead,
		&a.MaxCQ, &a.MaxCQE, &a.MaxMR, &a.MaxPD, &a.MaxQPRDAtomic, &a.MaxResRDAtomic, &a.MaxQPInitRDAtomic, &a.AtomicCap,
		&a.MaxMW, &a.MaxMcastGroup, &a.MaxMcastQPAttach, &a.MaxTotalMcastQPAttach, &a.MaxAH, &a.MaxSRQ, &a.MaxSRQWR,
		&a.MaxSRQSGE, &a.MaxInline, &a.NumCompVectors, &a.ODPGeneral, &a.ODPRC, &a.ODPUC, &a.ODPUD,
	}
}

// Append encodes the reply: u64 fields, u32 fields, then the rest, each group in
// the order of the struct; the text last.
func (m *QueryDeviceReply) Append(b []byte) []byte {
	a, le := &m.Attr, binary.LittleEndian
	for _, v := range a.longs() {
		b = le.AppendUint64(b, *v)
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
	for _, v := range a.longs() {
		*v = r.u64()
	}
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
	GIDTableLen    uint32  `json:"gid_table_len"`
	CapFlags       uint32  `json:"cap_flags"`        // ibv_port_cap_flags
	MaxMessageSize uint32  `json:"max_message_size"` // bytes
	BadPKeyCounter uint32  `json:"bad_pkey_counter"`
	QKeyViolations uint32  `json:"qkey_violations"`
	LinkMTU        uint32  `json:"link_mtu"` // bytes of the IP link; softroce's own
	PKeyTableLen   uint16  `json:"pkey_table_len"`
	LID            uint16  `json:"lid"`
	SMLID          uint16  `json:"sm_lid"`
	CapFlags2      uint16  `json:"cap_flags2"`
	State          uint8   `json:"state"` // ibv_port_state: 1 down, 4 active
	MaxMTU         bth.MTU `json:"max_mtu"`
	ActiveMTU      bth.MTU `json:"active_mtu"`
	LMC            uint8   `json:"lmc"`
	MaxVLNum       uint8   `json:"max_vl_num"`
	SMSL           uint8   `json:"sm_sl"`
	SubnetTimeout  uint8   `json:"subnet_timeout"`
	InitType       uint8   `json:"init_type"`
	ActiveWidth    uint8   `json:"active_width"`
	ActiveSpeed    uint8   `json:"active_speed"`
	PhysState      uint8   `json:"phys_state"`
	LinkLayer      uint8   `json:"link_layer"` // 2: Ethernet
	Flags          uint8   `json:"flags"`
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
