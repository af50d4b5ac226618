package uapi

import (
	"errors"
	"fmt"
	"sync/atomic"
)

// Memory is shared memory as the rings need it: bytes, and aligned words in it
// for atomic access. *shm.Segment is one.
type Memory interface {
	Bytes() []byte
	Word32(off int) *atomic.Uint32
	Word64(off int) *atomic.Uint64
}

var (
	// ErrGeometry refuses a ring that does not fit its memory: an offset that is
	// not a multiple of 64, a count that is no power of two, an end outside.
	ErrGeometry = errors.New("uapi: ring does not fit its memory")
	// ErrCorrupt says that the other side's index or slot cannot be right. It is
	// final for the ring: the owner is broken or hostile.
	ErrCorrupt = errors.New("uapi: shared ring is corrupt")
	// ErrRingFull is returned when no slot is free.
	ErrRingFull = errors.New("uapi: ring is full")
	// ErrTooManySGE refuses a request with more elements than the slot holds.
	ErrTooManySGE = errors.New("uapi: too many scatter/gather elements")
	// ErrInlineTooLong refuses inline data beyond the slot's room.
	ErrInlineTooLong = errors.New("uapi: inline data too long")
)

// RingHeaderSize is the length of a ring's header; its slots follow.
const RingHeaderSize = 128

// RingAlign is what a ring's offset in its segment is a multiple of.
const RingAlign = 64

// Offsets within every ring's header. The two sides write to different cache
// lines.
const (
	offProducer = 0
	offDead     = 4 // CQ only, the adapter's
	offConsumer = 64
	offArm      = 68 // CQ only, the program's
	offRead     = 72 // CQ only, the program's
)

// maxSlots bounds a ring: free-running 32-bit indices need half their range.
const maxSlots = 1 << 30

// SlotCount returns how many slots a ring needs for n requests: the next power
// of two, at least 1. It is 0 when n is beyond what a ring can hold.
func SlotCount(n uint32) uint32 {
	if n > maxSlots {
		return 0
	}
	c := uint32(1)
	for c < n {
		c <<= 1
	}
	return c
}

// RingSize returns the bytes that a ring takes, a multiple of RingAlign.
func RingSize(slots uint32, slotSize int) int {
	return roundUp(RingHeaderSize+int(slots)*slotSize, RingAlign)
}

// ring is what all rings share: a place in memory and its two index words.
type ring struct {
	slots    []byte
	slotSize int
	mask     uint32
	producer *atomic.Uint32
	consumer *atomic.Uint32
}

func (r *ring) init(mem Memory, ref RingRef, slotSize int) error {
	size, slots := uint64(len(mem.Bytes())), ref.Slots
	ok := ref.Offset%RingAlign == 0 && ref.Offset <= size && slots > 0 && slots <= maxSlots && slots&(slots-1) == 0 &&
		RingHeaderSize+uint64(slots)*uint64(slotSize) <= size-ref.Offset
	if !ok {
		return fmt.Errorf("%w: %d slots of %d bytes at offset %d of %d", ErrGeometry, slots, slotSize, ref.Offset, size)
	}
	off := int(ref.Offset)
	first, end := off+RingHeaderSize, off+RingHeaderSize+int(slots)*slotSize
	*r = ring{
		slots: mem.Bytes()[first:end:end], slotSize: slotSize, mask: slots - 1,
		producer: mem.Word32(off + offProducer), consumer: mem.Word32(off + offConsumer),
	}
	return nil
}

// slot returns the slot of a free-running index. Masking keeps it inside.
func (r *ring) slot(i uint32) []byte {
	at := int(i&r.mask) * r.slotSize
	return r.slots[at : at+r.slotSize : at+r.slotSize]
}

// clear empties a new ring: its memory may have served another one before.
func (r *ring) clear() {
	r.producer.Store(0)
	r.consumer.Store(0)
}

func (r *ring) count() uint32 { return r.mask + 1 }

func roundUp(n, unit int) int { return (n + unit - 1) / unit * unit }
