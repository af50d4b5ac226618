package wq

import (
	"errors"
	"fmt"

	"github.com/softroce/softroce/pkg/mrtable"
)

// Errors that callers branch on. Check's come wrapped, with the values.
var (
	// ErrFull: the queue has no free entry; try again when one completed.
	ErrFull = errors.New("wq: queue is full")
	// ErrSlab: the worker's slab reached its limit. It is an [ErrFull].
	ErrSlab = fmt.Errorf("wq: slab limit reached: %w", ErrFull)
	// ErrOpcode: the QP type does not have this operation.
	ErrOpcode = errors.New("wq: operation not allowed on this QP type")
	// ErrFlags: unknown flags, or flags that do not go with the operation.
	ErrFlags = errors.New("wq: invalid send flags")
	// ErrSGECount: more scatter/gather elements than the queue takes.
	ErrSGECount = errors.New("wq: too many scatter/gather elements")
	// ErrInline: inline data too long or not allowed with the operation.
	ErrInline = errors.New("wq: invalid inline data")
	// ErrAtomic: an atomic needs exactly one element of 8 bytes.
	ErrAtomic = errors.New("wq: atomic needs one 8-byte element")
	// ErrAlign: an atomic's remote address is not a multiple of 8.
	ErrAlign = errors.New("wq: atomic remote address is not 8-byte aligned")
	// ErrPages: fast registration needs pages of one length, a power of two.
	ErrPages = errors.New("wq: invalid page list")
	// ErrLength: the message is longer than the limit.
	ErrLength = errors.New("wq: message too long")
)

// MaxMessage is the longest message in bytes (specification value: IBTA Vol 1
// C9-94).
const MaxMessage = 1 << 31

// QP types (specification values: ibv_qp_type, as in qpstate.Type).
const (
	typeGSI uint8 = 1
	typeRC  uint8 = 2
	typeUC  uint8 = 3
	typeUD  uint8 = 4
)

// typeSet is a set of QP types.
type typeSet uint8

func types(ts ...uint8) typeSet {
	var s typeSet
	for _, t := range ts {
		s |= 1 << t
	}
	return s
}

func (s typeSet) has(t uint8) bool { return t < 8 && s>>t&1 != 0 }

// opcodeRule is what a send operation is allowed.
type opcodeRule struct {
	name   string
	types  typeSet
	inline bool
	bare   bool                // no elements
	extra  func(*SendWR) error // instead of the check of the message's length
}

// opcodeRules is the one table of send operations, by [Opcode].
var opcodeRules = [...]opcodeRule{
	RDMAWrite:         {name: "RDMA_WRITE", types: types(typeRC, typeUC), inline: true},
	RDMAWriteWithImm:  {name: "RDMA_WRITE_WITH_IMM", types: types(typeRC, typeUC), inline: true},
	Send:              {name: "SEND", types: types(typeRC, typeUC, typeUD, typeGSI), inline: true},
	SendWithImm:       {name: "SEND_WITH_IMM", types: types(typeRC, typeUC, typeUD, typeGSI), inline: true},
	RDMARead:          {name: "RDMA_READ", types: types(typeRC)},
	AtomicCmpAndSwp:   {name: "ATOMIC_CMP_AND_SWP", types: types(typeRC), extra: checkAtomic},
	AtomicFetchAndAdd: {name: "ATOMIC_FETCH_AND_ADD", types: types(typeRC), extra: checkAtomic},
	LocalInv:          {name: "LOCAL_INV", types: types(typeRC, typeUC), bare: true},
	BindMW:            {name: "BIND_MW", types: types(typeRC, typeUC), bare: true},
	SendWithInv:       {name: "SEND_WITH_INV", types: types(typeRC), inline: true},
	RegMR:             {name: "REG_MR", types: types(typeRC), extra: checkPages},
}

// String is the verbs name of the operation, without its prefix.
func (o Opcode) String() string {
	if int(o) < len(opcodeRules) && opcodeRules[o].name != "" {
		return opcodeRules[o].name
	}
	return fmt.Sprintf("opcode %d", uint8(o))
}

// Limits are a queue pair's own limits for one request.
type Limits struct {
	MaxSGE     uint32 // elements per request; 0: none allowed
	MaxInline  uint32 // bytes of inline data; 0: none allowed
	MaxMessage uint64 // bytes per message; 0: 2^31
}

// Check says whether a send request is legal as it stands, on a QP of type
// qpType (ibv_qp_type; qpstate.Type's value) and with these limits.
//
// Errors wrap [ErrOpcode], [ErrFlags], [ErrSGECount], [ErrInline],
// [ErrAtomic], [ErrAlign], [ErrPages] or [ErrLength].
func Check(qpType uint8, w *SendWR, lim Limits) error {
	if int(w.Opcode) >= len(opcodeRules) || !opcodeRules[w.Opcode].types.has(qpType) {
		return fmt.Errorf("%w: %v on type %d", ErrOpcode, w.Opcode, qpType)
	}
	r := &opcodeRules[w.Opcode]
	if u := w.Flags &^ sendFlagsKnown; u != 0 {
		return fmt.Errorf("%w: unknown bits %#x", ErrFlags, uint32(u))
	}
	if r.bare && len(w.SGList) > 0 {
		return fmt.Errorf("%w: %v takes none", ErrSGECount, w.Opcode)
	}
	if len(w.SGList) > int(lim.MaxSGE) {
		return fmt.Errorf("%w: %d, limit %d", ErrSGECount, len(w.SGList), lim.MaxSGE)
	}
	if err := checkInline(r, w, lim); err != nil {
		return err
	}
	if r.extra != nil {
		return r.extra(w)
	}
	return checkLength(w, lim)
}

func checkInline(r *opcodeRule, w *SendWR, lim Limits) error {
	if w.Flags&SendInline == 0 {
		return nil
	}
	if !r.inline {
		return fmt.Errorf("%w: not with %v", ErrInline, w.Opcode)
	}
	if len(w.SGList) != 0 {
		return fmt.Errorf("%w: %d elements beside it", ErrInline, len(w.SGList))
	}
	if uint64(len(w.Inline)) > uint64(lim.MaxInline) {
		return fmt.Errorf("%w: %d bytes, limit %d", ErrInline, len(w.Inline), lim.MaxInline)
	}
	return nil
}

func checkAtomic(w *SendWR) error {
	if len(w.SGList) != 1 || w.SGList[0].Length != 8 {
		return fmt.Errorf("%w: %d elements, %d bytes", ErrAtomic, len(w.SGList), w.Length())
	}
	if w.RemoteAddr%8 != 0 {
		return fmt.Errorf("%w: %#x", ErrAlign, w.RemoteAddr)
	}
	return nil
}

// checkPages looks at the shape of a list; whose memory it is shows when the
// request is carried out.
func checkPages(w *SendWR) error {
	if len(w.SGList) == 0 {
		return fmt.Errorf("%w: it is empty", ErrPages)
	}
	for i := range w.SGList {
		if n := w.SGList[i].Length; !mrtable.IsPageSize(uint64(n)) || n != w.SGList[0].Length {
			return fmt.Errorf("%w: page %d has %d bytes, the first %d", ErrPages, i, n, w.SGList[0].Length)
		}
	}
	return nil
}

func checkLength(w *SendWR, lim Limits) error {
	limit := lim.MaxMessage
	if limit == 0 {
		limit = MaxMessage
	}
	if n := w.Length(); n > limit {
		return fmt.Errorf("%w: %d bytes, limit %d", ErrLength, n, limit)
	}
	return nil
}
