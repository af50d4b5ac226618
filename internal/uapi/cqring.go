package uapi

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"

	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/cq"
)

// A completion slot.
//
//	 0 wr_id      u64     16 byte_len u32     32 inv_rkey   u32
//	 8 status     u8      20 qpn      u32     36 pkey_index u16
//	 9 opcode     u8      24 src_qp   u32     38 reserved, zero
//	10 flags      u8      28 imm      u32
//	12 vendor_err u32      40 timestamp u64
const (
	cqWRID      = 0
	cqStatus    = 8
	cqOpcode    = 9
	cqFlags     = 10
	cqVendorErr = 12
	cqByteLen   = 16
	cqQPN       = 20
	cqSrcQP     = 24
	cqImm       = 28
	cqInvRKey   = 32
	cqPKeyIndex = 36
	cqUsed      = 38
	cqTimestamp = 40

	// CQSlotSize is the length of a completion slot in bytes.
	CQSlotSize = 64
)

// Values of the arm word.
const (
	armNone      = 0
	armAny       = 1
	armSolicited = 2
)

// CQRingSize returns the bytes of a completion ring.
func CQRingSize(slots uint32) int { return RingSize(slots, CQSlotSize) }

// CQRing is the adapter's side of a completion ring, a cq.Ring. One worker at a
// time.
type CQRing struct {
	ring
	arm, read, dead *atomic.Uint32
	next            uint32 // private: the slot to write
	sent            uint32 // private: events announced by TakeArm
}

var _ cq.Ring = (*CQRing)(nil)

// NewCQRing returns the adapter's side of the ring at ref in its segment, whose
// header it clears. Error: ErrGeometry.
func NewCQRing(mem Memory, ref RingRef) (*CQRing, error) {
	r := &CQRing{}
	if err := r.init(mem, ref, CQSlotSize); err != nil {
		return nil, err
	}
	off := int(ref.Offset)
	r.clear()
	r.arm, r.read, r.dead = mem.Word32(off+offArm), mem.Word32(off+offRead), mem.Word32(off+offDead)
	r.arm.Store(armNone)
	r.read.Store(0)
	r.dead.Store(0)
	return r, nil
}

// Free returns how many completions can be put, staged ones counted as put. A
// program's index that cannot be right makes it 0: its queue overflows.
func (r *CQRing) Free() int {
	used := r.next - r.consumer.Load()
	if used > r.count() {
		return 0
	}
	return int(r.count() - used)
}

// Put writes wc into the next slot; the program sees it after Publish. The
// caller has seen Free above zero.
func (r *CQRing) Put(wc *cq.WC) {
	s := r.slot(r.next)
	le := binary.LittleEndian
	_ = s[CQSlotSize-1]
	le.PutUint64(s[cqWRID:], wc.WRID)
	s[cqStatus], s[cqOpcode], s[cqFlags], s[cqFlags+1] = byte(wc.Status), byte(wc.Opcode), byte(wc.Flags), 0
	le.PutUint32(s[cqVendorErr:], wc.VendorErr)
	le.PutUint32(s[cqByteLen:], wc.ByteLen)
	le.PutUint32(s[cqQPN:], uint32(wc.QPN))
	le.PutUint32(s[cqSrcQP:], uint32(wc.SrcQP))
	le.PutUint32(s[cqImm:], wc.ImmData)
	le.PutUint32(s[cqInvRKey:], wc.InvalidatedRKey)
	le.PutUint16(s[cqPKeyIndex:], wc.PKeyIndex)
	le.PutUint16(s[cqUsed:], 0)
	le.PutUint64(s[cqTimestamp:], wc.Timestamp)
	r.next++
}

// Publish shows all staged completions to the program.
func (r *CQRing) Publish() { r.producer.Store(r.next) }

// TakeArm consumes the arm word when it matches: armed for any completion, or
// for solicited ones and solicited is true. While the program has not read the
// last event the word stays armed and the answer is false: at most one event of
// a CQ is under way, and a program polls after it read one. An answer of true
// obliges the caller to send one channel record.
func (r *CQRing) TakeArm(solicited bool) bool {
	if r.sent != r.read.Load() {
		return false
	}
	switch v := r.arm.Load(); {
	case v == armNone, v == armSolicited && !solicited:
		return false
	}
	// The program may only strengthen the word meanwhile.
	r.arm.Store(armNone)
	r.sent++
	return true
}

// MoveTo returns the adapter's side of a ring at ref that goes on where this one
// ends: with the completions that were not polled, the same indices, and the
// events under way. The program does not poll, arm or read events meanwhile, and
// this ring is not used any more. Errors, which leave this ring as it is:
// ErrGeometry; ErrRingFull when ref has fewer slots than completions wait;
// ErrCorrupt for an index of the program's that cannot be right.
func (r *CQRing) MoveTo(mem Memory, ref RingRef) (*CQRing, error) {
	first := r.consumer.Load()
	waiting := r.next - first
	switch {
	case waiting > r.count():
		return nil, fmt.Errorf("%w: %d of %d completions wait", ErrCorrupt, waiting, r.count())
	case waiting > ref.Slots:
		return nil, fmt.Errorf("%w: %d completions wait, %d slots asked for", ErrRingFull, waiting, ref.Slots)
	}
	to, err := NewCQRing(mem, ref)
	if err != nil {
		return nil, err
	}
	for i := first; i != r.next; i++ {
		copy(to.slot(i), r.slot(i))
	}
	to.next, to.sent = r.next, r.sent
	to.arm.Store(r.arm.Load())
	to.read.Store(r.read.Load())
	to.consumer.Store(first)
	to.producer.Store(r.producer.Load())
	return to, nil
}

// EventsSent returns how many events TakeArm has announced; a DestroyCQ reply
// carries it, so that the library knows how many to wait for.
func (r *CQRing) EventsSent() uint32 { return r.sent }

// MarkDead tells the program that the queue overflowed.
func (r *CQRing) MarkDead() { r.dead.Store(1) }

// CQConsumer is the program's side of a completion ring. One goroutine at a
// time; Arm and EventRead may run beside Poll.
type CQConsumer struct {
	ring
	arm, read, dead *atomic.Uint32
	next            uint32
}

// NewCQConsumer returns the program's side of the ring at ref in its segment.
// Error: ErrGeometry.
func NewCQConsumer(mem Memory, ref RingRef) (*CQConsumer, error) {
	c := &CQConsumer{}
	if err := c.init(mem, ref, CQSlotSize); err != nil {
		return nil, err
	}
	off := int(ref.Offset)
	c.next = c.consumer.Load()
	c.arm, c.read, c.dead = mem.Word32(off+offArm), mem.Word32(off+offRead), mem.Word32(off+offDead)
	return c, nil
}

// Poll moves up to len(wcs) completions out of the ring and returns how many.
// An empty ring costs one load.
func (c *CQConsumer) Poll(wcs []cq.WC) int {
	waiting := c.producer.Load() - c.next
	if waiting == 0 || len(wcs) == 0 {
		return 0
	}
	n := int(min(uint64(waiting), uint64(c.count()), uint64(len(wcs))))
	for i := range wcs[:n] {
		decodeWC(c.slot(c.next), &wcs[i])
		c.next++
	}
	c.consumer.Store(c.next)
	return n
}

// Produced returns how many completions were put since the ring was made,
// modulo 2^32. It may be called beside Poll.
func (c *CQConsumer) Produced() uint32 { return c.producer.Load() }

// Pending returns how many completions wait.
func (c *CQConsumer) Pending() int {
	return int(min(c.producer.Load()-c.next, c.count()))
}

// Arm asks for one event at the next completion: any, or a solicited one.
// Asking for any overrides solicited, and not the other way round.
func (c *CQConsumer) Arm(solicitedOnly bool) {
	if solicitedOnly {
		c.arm.CompareAndSwap(armNone, armSolicited)
		return
	}
	c.arm.Store(armAny)
}

// EventRead tells the adapter that one channel record of this CQ was read. The
// program polls the CQ after it.
func (c *CQConsumer) EventRead() { c.read.Add(1) }

// EventsRead returns how many records EventRead has told of.
func (c *CQConsumer) EventsRead() uint32 { return c.read.Load() }

// Dead reports whether the adapter gave the queue up: it overflowed.
func (c *CQConsumer) Dead() bool { return c.dead.Load() != 0 }

func decodeWC(s []byte, wc *cq.WC) {
	le := binary.LittleEndian
	_ = s[CQSlotSize-1]
	*wc = cq.WC{
		WRID: le.Uint64(s[cqWRID:]), Status: cq.Status(s[cqStatus]), Opcode: cq.Opcode(s[cqOpcode]),
		Flags: cq.Flags(s[cqFlags]), VendorErr: le.Uint32(s[cqVendorErr:]), ByteLen: le.Uint32(s[cqByteLen:]),
		QPN: bth.QPN(le.Uint32(s[cqQPN:])), SrcQP: bth.QPN(le.Uint32(s[cqSrcQP:])), ImmData: le.Uint32(s[cqImm:]),
		InvalidatedRKey: le.Uint32(s[cqInvRKey:]), PKeyIndex: le.Uint16(s[cqPKeyIndex:]),
		Timestamp: le.Uint64(s[cqTimestamp:]),
	}
}
