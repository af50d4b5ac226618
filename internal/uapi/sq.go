package uapi

import (
	"encoding/binary"
	"fmt"

	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/mrtable"
	"github.com/softroce/softroce/pkg/wq"
)

// A send slot: a fixed part, then either the elements or the inline data.
//
//	 0 wr_id        u64      24 remote_addr  u64      48 swap        u64
//	 8 opcode       u8       32 rkey         u32      56 remote_qpn  u32
//	10 num_sge      u16      36 ah           u32      60 remote_qkey u32
//	12 flags        u32      40 compare_add  u64      64 elements of 16 bytes
//	16 imm | inv    u32                                  (addr u64, length u32, lkey u32)
//	20 inline_len   u32                                  or inline_len bytes
//
// BindMW and RegMR have the new key in rkey, the address in remote_addr, the
// length in compare_add, the access in swap, and the region's key in imm.
const (
	sqWRID       = 0
	sqOpcode     = 8
	sqNumSGE     = 10
	sqFlags      = 12
	sqImm        = 16
	sqInlineLen  = 20
	sqRemoteAddr = 24
	sqRKey       = 32
	sqAH         = 36
	sqCompareAdd = 40
	sqSwap       = 48
	sqRemoteQPN  = 56
	sqRemoteQKey = 60
	sqBody       = 64

	sgeSize = 16
)

// Bounds of what a slot can be asked to hold, so that its size stays sane
// whatever a message says; our own tuning.
const (
	MaxSGE    = 1024
	MaxInline = 16 << 10
)

// SQSlotSize returns the bytes of a send slot: a multiple of 64.
func SQSlotSize(maxSGE, maxInline uint32) int {
	return roundUp(sqBody+max(sgeSize*int(min(maxSGE, MaxSGE)), int(min(maxInline, MaxInline))), 64)
}

// SQRingSize returns the bytes of a send ring.
func SQRingSize(slots, maxSGE, maxInline uint32) int {
	return RingSize(slots, SQSlotSize(maxSGE, maxInline))
}

// sqLimits are what one slot holds.
type sqLimits struct{ maxSGE, maxInline uint32 }

func (l sqLimits) check() error {
	if l.maxSGE > MaxSGE || l.maxInline > MaxInline {
		return fmt.Errorf("%w: slot of %d elements, %d inline bytes (limits %d, %d)", ErrGeometry, l.maxSGE, l.maxInline, MaxSGE, MaxInline)
	}
	return nil
}

// SQProducer is the program's side of a send ring. One goroutine at a time.
type SQProducer struct {
	ring
	sqLimits
	next  uint32 // the slot to write; ahead of the published index by what is staged
	taken uint32 // the adapter's index as last seen
}

// NewSQProducer returns the program's side of the ring at ref in its segment.
// Error: ErrGeometry.
func NewSQProducer(mem Memory, ref RingRef) (*SQProducer, error) {
	p := &SQProducer{sqLimits: sqLimits{ref.MaxSGE, ref.MaxInline}}
	if err := p.check(); err != nil {
		return nil, err
	}
	if err := p.init(mem, ref, SQSlotSize(ref.MaxSGE, ref.MaxInline)); err != nil {
		return nil, err
	}
	p.next, p.taken = p.producer.Load(), p.consumer.Load()
	return p, nil
}

// Free returns how many slots can be written. It looks at the adapter's index
// only when those known to be free are used up.
func (p *SQProducer) Free() int { return int(p.free()) }

func (p *SQProducer) free() uint32 {
	if p.next-p.taken >= p.count() {
		p.taken = p.consumer.Load()
	}
	return p.count() - min(p.next-p.taken, p.count())
}

// Put writes wr into the next slot; the adapter sees it after Publish. With
// SendInline the payload is wr.Inline, and SGList is ignored. Errors:
// ErrRingFull, ErrTooManySGE, ErrInlineTooLong; the ring is then unchanged.
func (p *SQProducer) Put(wr *wq.SendWR) error {
	inline := wr.Flags&wq.SendInline != 0
	switch {
	case inline && uint64(len(wr.Inline)) > uint64(p.maxInline):
		return ErrInlineTooLong
	case !inline && uint64(len(wr.SGList)) > uint64(p.maxSGE):
		return ErrTooManySGE
	case p.free() == 0:
		return ErrRingFull
	}
	encodeSend(p.slot(p.next), wr, inline)
	p.next++
	return nil
}

// Publish shows all staged slots to the adapter.
func (p *SQProducer) Publish() { p.producer.Store(p.next) }

// Rollback forgets what was staged since the last Publish.
func (p *SQProducer) Rollback() { p.next = p.producer.Load() }

// Reset empties the ring on this side, after the adapter did (a QP modified to
// RESET): both indices are the adapter's again.
func (p *SQProducer) Reset() {
	p.taken = p.consumer.Load()
	p.next = p.taken
	p.producer.Store(p.next)
}

func encodeSend(s []byte, wr *wq.SendWR, inline bool) {
	le := binary.LittleEndian
	_ = s[sqBody-1]
	le.PutUint64(s[sqWRID:], wr.WRID)
	s[sqOpcode], s[sqOpcode+1] = byte(wr.Opcode), 0
	le.PutUint32(s[sqFlags:], uint32(wr.Flags))
	le.PutUint32(s[sqImm:], immOrKey(wr))
	le.PutUint64(s[sqRemoteAddr:], wr.RemoteAddr)
	le.PutUint32(s[sqRKey:], uint32(wr.RKey))
	le.PutUint32(s[sqAH:], wr.AH)
	le.PutUint64(s[sqCompareAdd:], wr.CompareAdd)
	le.PutUint64(s[sqSwap:], wr.Swap)
	le.PutUint32(s[sqRemoteQPN:], uint32(wr.RemoteQPN))
	le.PutUint32(s[sqRemoteQKey:], uint32(wr.RemoteQKey))
	if binds(wr.Opcode) {
		encodeBind(s, &wr.Bind)
	}
	if inline {
		le.PutUint16(s[sqNumSGE:], 0)
		le.PutUint32(s[sqInlineLen:], uint32(len(wr.Inline)))
		copy(s[sqBody:], wr.Inline)
		return
	}
	le.PutUint16(s[sqNumSGE:], uint16(len(wr.SGList)))
	le.PutUint32(s[sqInlineLen:], 0)
	encodeSGEs(s[sqBody:], wr.SGList)
}

// immOrKey is the field that immediate data and the key to invalidate share.
func immOrKey(wr *wq.SendWR) uint32 {
	if carriesKey(wr.Opcode) {
		return uint32(wr.InvalidateRKey)
	}
	return wr.ImmData
}

func binds(o wq.Opcode) bool { return o == wq.BindMW || o == wq.RegMR }

func encodeBind(s []byte, b *wq.Bind) {
	le := binary.LittleEndian
	le.PutUint32(s[sqImm:], uint32(b.MR))
	le.PutUint64(s[sqRemoteAddr:], b.Addr)
	le.PutUint32(s[sqRKey:], uint32(b.RKey))
	le.PutUint64(s[sqCompareAdd:], b.Length)
	le.PutUint64(s[sqSwap:], uint64(b.Access))
}

// takeBind moves what encodeBind put into the slot to where it belongs.
func takeBind(wr *wq.SendWR, imm uint32) {
	wr.Bind = wq.Bind{
		RKey: wr.RKey, MR: mrtable.LKey(imm), Addr: wr.RemoteAddr, Length: wr.CompareAdd, Access: mrtable.Access(wr.Swap),
	}
	wr.RKey, wr.RemoteAddr, wr.CompareAdd, wr.Swap = 0, 0, 0, 0
}

func carriesKey(o wq.Opcode) bool { return o == wq.SendWithInv || o == wq.LocalInv }

func encodeSGEs(b []byte, sges []wq.SGE) {
	for i := range sges {
		s := b[i*sgeSize : i*sgeSize+sgeSize]
		binary.LittleEndian.PutUint64(s, sges[i].Addr)
		binary.LittleEndian.PutUint32(s[8:], sges[i].Length)
		binary.LittleEndian.PutUint32(s[12:], uint32(sges[i].LKey))
	}
}

// decodeSGEs appends the elements of b, whole ones, to list.
func decodeSGEs(list []wq.SGE, b []byte) []wq.SGE {
	for ; len(b) >= sgeSize; b = b[sgeSize:] {
		list = append(list, wq.SGE{
			Addr: binary.LittleEndian.Uint64(b), Length: binary.LittleEndian.Uint32(b[8:]),
			LKey: mrtable.LKey(binary.LittleEndian.Uint32(b[12:])),
		})
	}
	return list
}

// SQConsumer is the adapter's side of a send ring. It belongs to the QP's
// worker.
type SQConsumer struct {
	ring
	sqLimits
	next uint32 // private: the slot to read
	copy []byte // of one slot; what is decoded is in here
	err  error
}

// NewSQConsumer returns the adapter's side of the ring at ref in its segment,
// whose header it clears. Error: ErrGeometry.
func NewSQConsumer(mem Memory, ref RingRef) (*SQConsumer, error) {
	c := &SQConsumer{sqLimits: sqLimits{ref.MaxSGE, ref.MaxInline}}
	if err := c.check(); err != nil {
		return nil, err
	}
	if err := c.init(mem, ref, SQSlotSize(ref.MaxSGE, ref.MaxInline)); err != nil {
		return nil, err
	}
	c.clear()
	c.copy = make([]byte, c.slotSize)
	return c, nil
}

// Pending returns how many slots wait, 0 for a corrupt ring.
func (c *SQConsumer) Pending() int {
	n := c.producer.Load() - c.next
	if n > c.count() {
		return 0
	}
	return int(n)
}

// Peek decodes the next request into wr, whose SGList is reused and whose
// Inline aliases the consumer's own copy until the next Peek. false: none
// waits. The request stays until Consume. Error: ErrCorrupt, which repeats;
// the QP is then to fail.
func (c *SQConsumer) Peek(wr *wq.SendWR) (bool, error) {
	if c.err != nil {
		return false, c.err
	}
	waiting := c.producer.Load() - c.next
	if waiting == 0 {
		return false, nil
	}
	if waiting > c.count() {
		c.err = fmt.Errorf("%w: send ring of %d slots has %d waiting", ErrCorrupt, c.count(), waiting)
		return false, c.err
	}
	if err := c.decode(c.slot(c.next), wr); err != nil {
		c.err = err
		return false, err
	}
	return true, nil
}

// Consume leaves the request that Peek gave and gives its slot back to the
// program.
func (c *SQConsumer) Consume() {
	c.next++
	c.consumer.Store(c.next)
}

// Skip drops all waiting requests (a QP modified to RESET). The program then
// calls Reset on its side.
func (c *SQConsumer) Skip() {
	c.next, c.err = c.producer.Load(), nil
	c.consumer.Store(c.next)
}

// Err returns what made the ring corrupt, or nil.
func (c *SQConsumer) Err() error { return c.err }

// decode copies what the slot's own header says, once, and decodes the copy.
func (c *SQConsumer) decode(slot []byte, wr *wq.SendWR) error {
	le := binary.LittleEndian
	h := c.copy[:sqBody]
	copy(h, slot)
	flags := wq.SendFlags(le.Uint32(h[sqFlags:]))
	inline := flags&wq.SendInline != 0
	sges, inlineLen := uint32(le.Uint16(h[sqNumSGE:])), le.Uint32(h[sqInlineLen:])
	switch {
	case inline && inlineLen > c.maxInline:
		return fmt.Errorf("%w: send slot with %d inline bytes (limit %d)", ErrCorrupt, inlineLen, c.maxInline)
	case !inline && sges > c.maxSGE:
		return fmt.Errorf("%w: send slot with %d elements (limit %d)", ErrCorrupt, sges, c.maxSGE)
	}
	list := wr.SGList[:0]
	imm := le.Uint32(h[sqImm:])
	*wr = wq.SendWR{
		WRID: le.Uint64(h[sqWRID:]), Opcode: wq.Opcode(h[sqOpcode]), Flags: flags,
		RemoteAddr: le.Uint64(h[sqRemoteAddr:]), RKey: mrtable.RKey(le.Uint32(h[sqRKey:])),
		CompareAdd: le.Uint64(h[sqCompareAdd:]), Swap: le.Uint64(h[sqSwap:]), AH: le.Uint32(h[sqAH:]),
		RemoteQPN: bth.QPN(le.Uint32(h[sqRemoteQPN:])), RemoteQKey: bth.QKey(le.Uint32(h[sqRemoteQKey:])),
	}
	switch {
	case carriesKey(wr.Opcode):
		wr.InvalidateRKey = mrtable.RKey(imm)
	case binds(wr.Opcode):
		takeBind(wr, imm)
	default:
		wr.ImmData = imm
	}
	n := int(inlineLen)
	if !inline {
		n = int(sges) * sgeSize
	}
	body := c.copy[sqBody : sqBody+n : sqBody+n]
	copy(body, slot[sqBody:])
	if inline {
		wr.SGList, wr.Inline = list, body
	} else {
		wr.SGList = decodeSGEs(list, body)
	}
	return nil
}
