package uapi

import (
	"encoding/binary"

	"github.com/softroce/softroce/pkg/mrtable"
)

// MRKind says where a region's memory lies.
type MRKind uint32

// Kinds of regions.
const (
	// MRShared: in the memfd that comes as the message's only descriptor, from
	// Offset on; Addr is where the program mapped that.
	MRShared MRKind = 1
	// MRForeign: at Addr in the program, wherever that is.
	MRForeign MRKind = 2
)

// RegMRRequest registers memory.
//
//	0 pd u32    4 kind u32    8 offset u64    16 addr u64    24 length u64    32 iova u64    40 access u32    44 zero
type RegMRRequest struct {
	PD     uint32
	Kind   MRKind
	Offset uint64
	Addr   uint64
	Length uint64 // bytes
	IOVA   uint64 // the address that requests name it by
	Access mrtable.Access
}

// Append encodes the request.
func (m *RegMRRequest) Append(b []byte) []byte {
	b = appendU32s(b, m.PD, uint32(m.Kind))
	for _, v := range []uint64{m.Offset, m.Addr, m.Length, m.IOVA} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	return appendU32s(b, uint32(m.Access), 0)
}

// Decode reads the request. Error: ErrMalformed, also for an unknown kind.
func (m *RegMRRequest) Decode(b []byte) error {
	r := reader{b: b}
	*m = RegMRRequest{
		PD: r.u32(), Kind: MRKind(r.u32()), Offset: r.u64(), Addr: r.u64(), Length: r.u64(), IOVA: r.u64(),
		Access: mrtable.Access(r.u32()),
	}
	_ = r.u32()
	if m.Kind != MRShared && m.Kind != MRForeign {
		r.fail("region of kind %d", m.Kind)
	}
	return r.end()
}

// RegMRReply gives the region's handle and keys.
//
//	0 handle u32    4 lkey u32    8 rkey u32
type RegMRReply struct {
	Handle uint32
	LKey   mrtable.LKey
	RKey   mrtable.RKey
}

// Append encodes the reply.
func (m *RegMRReply) Append(b []byte) []byte {
	return appendU32s(b, m.Handle, uint32(m.LKey), uint32(m.RKey))
}

// Decode reads the reply. Error: ErrMalformed.
func (m *RegMRReply) Decode(b []byte) error {
	r := reader{b: b}
	*m = RegMRReply{Handle: r.u32(), LKey: mrtable.LKey(r.u32()), RKey: mrtable.RKey(r.u32())}
	return r.end()
}
