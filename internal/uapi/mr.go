package uapi

import (
	"encoding/binary"

	"github.com/softroce/softroce/pkg/mrtable"
	"github.com/softroce/softroce/pkg/wq"
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
	// MRImplicit: the program's whole address space, on demand; Addr, Length and
	// IOVA are 0. Reached as foreign memory is.
	MRImplicit MRKind = 3
)

func (k MRKind) known() bool { return k >= MRShared && k <= MRImplicit }

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
	m.read(&r)
	if !m.Kind.known() {
		r.fail("region of kind %d", m.Kind)
	}
	return r.end()
}

func (m *RegMRRequest) read(r *reader) {
	*m = RegMRRequest{
		PD: r.u32(), Kind: MRKind(r.u32()), Offset: r.u64(), Addr: r.u64(), Length: r.u64(), IOVA: r.u64(),
		Access: mrtable.Access(r.u32()),
	}
	_ = r.u32()
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

// ReregFlags say what a re-registration changes (ibv_rereg_mr_flags).
type ReregFlags uint32

// What changes (specification values: ibv_rereg_mr_flags).
const (
	ReregTranslation ReregFlags = 1 << 0
	ReregPD          ReregFlags = 1 << 1
	ReregAccess      ReregFlags = 1 << 2

	reregKnown = ReregTranslation | ReregPD | ReregAccess
)

// ReregMRRequest changes a region; fields that Flags do not name are not looked
// at. With a new translation of a shared region its memfd comes along, as for
// RegMRRequest. The answer is a RegMRReply, whose keys may be new.
//
//	0 handle u32    4 flags u32    8 a RegMRRequest
type ReregMRRequest struct {
	Handle uint32
	Flags  ReregFlags
	MR     RegMRRequest
}

// Append encodes the request.
func (m *ReregMRRequest) Append(b []byte) []byte {
	return m.MR.Append(appendU32s(b, m.Handle, uint32(m.Flags)))
}

// Decode reads the request. Error: ErrMalformed, also for unknown flags or, with
// a new translation, an unknown kind.
func (m *ReregMRRequest) Decode(b []byte) error {
	r := reader{b: b}
	m.Handle, m.Flags = r.u32(), ReregFlags(r.u32())
	m.MR.read(&r)
	switch {
	case m.Flags&^reregKnown != 0:
		r.fail("re-registration with flags %#x", uint32(m.Flags))
	case m.Flags&ReregTranslation != 0 && !m.MR.Kind.known():
		r.fail("region of kind %d", m.MR.Kind)
	}
	return r.end()
}

// AllocMRRequest asks for a region without memory, for fast registration
// (ib_alloc_mr). The answer is a RegMRReply.
//
//	0 pd u32    4 max pages u32
type AllocMRRequest struct {
	PD       uint32
	MaxPages uint32
}

// Append encodes the request.
func (m *AllocMRRequest) Append(b []byte) []byte { return appendU32s(b, m.PD, m.MaxPages) }

// Decode reads the request. Error: ErrMalformed.
func (m *AllocMRRequest) Decode(b []byte) error {
	r := reader{b: b}
	*m = AllocMRRequest{PD: r.u32(), MaxPages: r.u32()}
	return r.end()
}

// AllocMWRequest asks for a memory window.
//
//	0 pd u32    4 type u32
type AllocMWRequest struct {
	PD   uint32
	Type mrtable.WindowType
}

// Append encodes the request.
func (m *AllocMWRequest) Append(b []byte) []byte { return appendU32s(b, m.PD, uint32(m.Type)) }

// Decode reads the request. Error: ErrMalformed.
func (m *AllocMWRequest) Decode(b []byte) error {
	r := reader{b: b}
	*m = AllocMWRequest{PD: r.u32(), Type: mrtable.WindowType(r.u32())}
	return r.end()
}

// AllocMWReply gives the window's handle and its first key, under which it
// grants nothing until it is bound.
//
//	0 handle u32    4 rkey u32
type AllocMWReply struct {
	Handle uint32
	RKey   mrtable.RKey
}

// Append encodes the reply.
func (m *AllocMWReply) Append(b []byte) []byte { return appendU32s(b, m.Handle, uint32(m.RKey)) }

// Decode reads the reply. Error: ErrMalformed.
func (m *AllocMWReply) Decode(b []byte) error {
	r := reader{b: b}
	*m = AllocMWReply{Handle: r.u32(), RKey: mrtable.RKey(r.u32())}
	return r.end()
}

// MaxAdviseSGE is how many ranges one AdviseMRRequest may name.
const MaxAdviseSGE = 1024

// AdviseMRRequest gives advice on ranges of regions (ibv_advise_mr).
//
//	0 pd u32    4 advice u32    8 flags u32    12 elements u32    16 elements of 16 bytes, as in a slot
type AdviseMRRequest struct {
	PD     uint32
	Advice uint32 // ibv_advise_mr_advice: 0 prefetch, 1 prefetch for writing, 2 prefetch without fault
	Flags  uint32 // ibv_advise_mr_flags: 1 flush
	SGList []wq.SGE
}

// Append encodes the request.
func (m *AdviseMRRequest) Append(b []byte) []byte {
	b = appendU32s(b, m.PD, m.Advice, m.Flags, uint32(len(m.SGList)))
	n := len(b)
	b = append(b, make([]byte, len(m.SGList)*sgeSize)...)
	encodeSGEs(b[n:], m.SGList)
	return b
}

// Decode reads the request. Error: ErrMalformed, also for too many elements.
func (m *AdviseMRRequest) Decode(b []byte) error {
	r := reader{b: b}
	*m = AdviseMRRequest{PD: r.u32(), Advice: r.u32(), Flags: r.u32()}
	n := r.u32()
	if n > MaxAdviseSGE || uint64(n)*sgeSize != uint64(len(r.b)) {
		r.fail("%d elements in %d bytes", n, len(r.b))
		return r.end()
	}
	m.SGList = decodeSGEs(nil, r.take(int(n)*sgeSize))
	return r.end()
}
