package wq

import (
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/mrtable"
)

// Opcode is a send request's operation, with the values of ibv_wr_opcode.
type Opcode uint8

// Operations (specification values: ibv_wr_opcode).
const (
	RDMAWrite         Opcode = 0
	RDMAWriteWithImm  Opcode = 1
	Send              Opcode = 2
	SendWithImm       Opcode = 3
	RDMARead          Opcode = 4
	AtomicCmpAndSwp   Opcode = 5
	AtomicFetchAndAdd Opcode = 6
	LocalInv          Opcode = 7
	BindMW            Opcode = 8
	SendWithInv       Opcode = 9
	// RegMR is fast registration; the kernel's IB_WR_REG_MR, which has no name
	// in the verbs manual.
	RegMR Opcode = 32
)

// SendFlags modify a send request, with the values of ibv_send_flags.
type SendFlags uint32

// Flags (specification values: ibv_send_flags).
const (
	// SendFence: do not start until all earlier READs and atomics completed.
	SendFence SendFlags = 1 << 0
	// SendSignaled: a completion on success too.
	SendSignaled SendFlags = 1 << 1
	// SendSolicited: set SE in the last packet.
	SendSolicited SendFlags = 1 << 2
	// SendInline: the payload is in the request itself.
	SendInline SendFlags = 1 << 3

	sendFlagsKnown = SendFence | SendSignaled | SendSolicited | SendInline
)

// SGE is a scatter/gather element: a piece of registered memory. Length is in
// bytes; 0 is no memory at all.
type SGE struct {
	Addr   uint64
	Length uint32
	LKey   mrtable.LKey
}

// SendWR is a send request. Which fields mean something is the opcode's
// matter, as on the verbs API.
type SendWR struct {
	WRID           uint64 // the program's own mark
	Opcode         Opcode
	Flags          SendFlags
	ImmData        uint32 // host value, big endian on the wire
	InvalidateRKey mrtable.RKey
	RemoteAddr     uint64
	RKey           mrtable.RKey
	CompareAdd     uint64 // compare operand, or what is added
	Swap           uint64
	AH             uint32  // UD: address handle
	RemoteQPN      bth.QPN // UD
	RemoteQKey     bth.QKey
	SGList         []SGE  // with RegMR the pages: each inside one region, all of one length
	Inline         []byte // the payload with SendInline; SGList is then empty
	Bind           Bind   // BindMW and RegMR
}

// Bind says what a window is bound to (ibv_bind_mw_info), or what a fast
// registration makes of its pages.
type Bind struct {
	// RKey is the new key: the window's (the region's, with RegMR) with another
	// low byte.
	RKey mrtable.RKey
	// MR is the region that the window opens. Not with RegMR.
	MR     mrtable.LKey
	Addr   uint64 // first address; with RegMR the new iova
	Length uint64 // bytes; 0 unbinds a window of type 1
	Access mrtable.Access
}

// Length is the request's payload length in bytes: the sum of its SGEs, or
// the inline data's.
func (w *SendWR) Length() uint64 {
	if w.Flags&SendInline != 0 {
		return uint64(len(w.Inline))
	}
	return sgLength(w.SGList)
}

// RecvWR is a receive request.
type RecvWR struct {
	WRID   uint64
	SGList []SGE
}

// Length is the room of the request in bytes.
func (w *RecvWR) Length() uint64 { return sgLength(w.SGList) }

func sgLength(l []SGE) uint64 {
	var n uint64
	for i := range l {
		n += uint64(l[i].Length)
	}
	return n
}

// RecvSource gives receive requests in the order they were posted.
type RecvSource interface {
	// TakeRecv copies the next request into dst, reusing dst.SGList's memory;
	// false when there is none (dst is then left alone).
	TakeRecv(dst *RecvWR) bool
}
