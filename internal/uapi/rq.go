package uapi

import (
	"encoding/binary"
	"fmt"

	"github.com/softroce/softroce/pkg/wq"
)

// A receive slot.
//
//	0 wr_id u64    8 num_sge u32    16 elements of 16 bytes (addr u64, length u32, lkey u32)
const (
	rqWRID   = 0
	rqNumSGE = 8
	rqBody   = 16
)

// RQSlotSize returns the bytes of a receive slot: a multiple of 32.
func RQSlotSize(maxSGE uint32) int {
	return roundUp(rqBody+sgeSize*int(min(maxSGE, MaxSGE)), 32)
}

// RQRingSize returns the bytes of a receive ring.
func RQRingSize(slots, maxSGE uint32) int { return RingSize(slots, RQSlotSize(maxSGE)) }

// RQProducer is the program's side of a receive ring. One goroutine at a time.
type RQProducer struct {
	ring
	maxSGE uint32
	next   uint32 // the slot to write; ahead of the published index by what is staged
	taken  uint32 // the adapter's index as last seen
}

// NewRQProducer returns the program's side of the ring at ref in its segment.
// Error: ErrGeometry.
func NewRQProducer(mem Memory, ref RingRef) (*RQProducer, error) {
	p := &RQProducer{maxSGE: ref.MaxSGE}
	if err := initRQ(&p.ring, mem, ref); err != nil {
		return nil, err
	}
	p.next, p.taken = p.producer.Load(), p.consumer.Load()
	return p, nil
}

func initRQ(r *ring, mem Memory, ref RingRef) error {
	if ref.MaxSGE > MaxSGE {
		return fmt.Errorf("%w: slot of %d elements (limit %d)", ErrGeometry, ref.MaxSGE, MaxSGE)
	}
	return r.init(mem, ref, RQSlotSize(ref.MaxSGE))
}

// Free returns how many slots can be written.
func (p *RQProducer) Free() int { return int(p.free()) }

func (p *RQProducer) free() uint32 {
	if p.next-p.taken >= p.count() {
		p.taken = p.consumer.Load()
	}
	return p.count() - min(p.next-p.taken, p.count())
}

// Outstanding returns how many requests the adapter has not taken yet, staged
// ones included.
func (p *RQProducer) Outstanding() int {
	p.taken = p.consumer.Load()
	return int(min(p.next-p.taken, p.count()))
}

// Put writes wr into the next slot; the adapter sees it after Publish. Errors:
// ErrRingFull, ErrTooManySGE; the ring is then unchanged.
func (p *RQProducer) Put(wr *wq.RecvWR) error {
	switch {
	case uint64(len(wr.SGList)) > uint64(p.maxSGE):
		return ErrTooManySGE
	case p.free() == 0:
		return ErrRingFull
	}
	s := p.slot(p.next)
	binary.LittleEndian.PutUint64(s[rqWRID:], wr.WRID)
	binary.LittleEndian.PutUint32(s[rqNumSGE:], uint32(len(wr.SGList)))
	encodeSGEs(s[rqBody:], wr.SGList)
	p.next++
	return nil
}

// Publish shows all staged slots to the adapter.
func (p *RQProducer) Publish() { p.producer.Store(p.next) }

// Rollback forgets what was staged since the last Publish.
func (p *RQProducer) Rollback() { p.next = p.producer.Load() }

// Reset empties the ring on this side, after the adapter did (a QP modified to
// RESET).
func (p *RQProducer) Reset() {
	p.taken = p.consumer.Load()
	p.next = p.taken
	p.producer.Store(p.next)
}

// RQConsumer is the adapter's side of a receive ring, a wq.RecvSource. It
// belongs to the QP's worker.
type RQConsumer struct {
	ring
	maxSGE uint32
	next   uint32 // private: the slot to read
	copy   []byte // of one slot; what is decoded is in here
	err    error
}

// NewRQConsumer returns the adapter's side of the ring at ref in its segment,
// whose header it clears. Error: ErrGeometry.
func NewRQConsumer(mem Memory, ref RingRef) (*RQConsumer, error) {
	c := &RQConsumer{maxSGE: ref.MaxSGE}
	if err := initRQ(&c.ring, mem, ref); err != nil {
		return nil, err
	}
	c.clear()
	c.copy = make([]byte, c.slotSize)
	return c, nil
}

var _ wq.RecvSource = (*RQConsumer)(nil)

// TakeRecv moves the next request into dst, whose SGList is reused, and gives
// its slot back to the program. false: none waits, or the ring is corrupt; Err
// tells which.
func (c *RQConsumer) TakeRecv(dst *wq.RecvWR) bool {
	if c.err != nil {
		return false
	}
	waiting := c.producer.Load() - c.next
	if waiting == 0 {
		return false
	}
	if waiting > c.count() {
		c.err = fmt.Errorf("%w: receive ring of %d slots has %d waiting", ErrCorrupt, c.count(), waiting)
		return false
	}
	slot, h := c.slot(c.next), c.copy[:rqBody]
	copy(h, slot)
	sges := binary.LittleEndian.Uint32(h[rqNumSGE:])
	if sges > c.maxSGE {
		c.err = fmt.Errorf("%w: receive slot with %d elements (limit %d)", ErrCorrupt, sges, c.maxSGE)
		return false
	}
	body := c.copy[rqBody : rqBody+int(sges)*sgeSize]
	copy(body, slot[rqBody:])
	dst.WRID = binary.LittleEndian.Uint64(h[rqWRID:])
	dst.SGList = decodeSGEs(dst.SGList[:0], body)
	c.next++
	c.consumer.Store(c.next)
	return true
}

// MoveTo returns the adapter's side of a ring at ref that goes on where this one
// ends, with the requests that wait. Slots are as long as before: only their
// number may differ. The program posts nothing meanwhile, and this ring is not
// used any more. Errors, which leave this ring as it is: ErrGeometry; ErrRingFull
// when ref has fewer slots than requests wait; ErrCorrupt.
func (c *RQConsumer) MoveTo(mem Memory, ref RingRef) (*RQConsumer, error) {
	end := c.producer.Load()
	waiting := end - c.next
	switch {
	case c.err != nil:
		return nil, c.err
	case waiting > c.count():
		return nil, fmt.Errorf("%w: receive ring of %d slots has %d waiting", ErrCorrupt, c.count(), waiting)
	case waiting > ref.Slots:
		return nil, fmt.Errorf("%w: %d requests wait, %d slots asked for", ErrRingFull, waiting, ref.Slots)
	case ref.MaxSGE != c.maxSGE:
		return nil, fmt.Errorf("%w: slots of %d elements, these have %d", ErrGeometry, ref.MaxSGE, c.maxSGE)
	}
	to, err := NewRQConsumer(mem, ref)
	if err != nil {
		return nil, err
	}
	for i := c.next; i != end; i++ {
		copy(to.slot(i), c.slot(i))
	}
	to.next = c.next
	to.consumer.Store(c.next)
	to.producer.Store(end)
	return to, nil
}

// Pending returns how many requests wait, 0 for a corrupt ring.
func (c *RQConsumer) Pending() int {
	n := c.producer.Load() - c.next
	if n > c.count() {
		return 0
	}
	return int(n)
}

// Skip drops all waiting requests (a QP modified to RESET). The program then
// calls Reset on its side.
func (c *RQConsumer) Skip() {
	c.next, c.err = c.producer.Load(), nil
	c.consumer.Store(c.next)
}

// Err returns what made the ring corrupt, or nil.
func (c *RQConsumer) Err() error { return c.err }
