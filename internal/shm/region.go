package shm

import (
	"errors"
	"fmt"
)

var (
	// ErrBounds is returned for an access that leaves the region.
	ErrBounds = errors.New("shm: access outside the region")
	// ErrMisaligned is returned for an atomic on an address that is not a
	// multiple of 8.
	ErrMisaligned = errors.New("shm: atomic on an address not aligned to 8 bytes")
)

// RegionMemory is a registered region that lies in a mapped segment. It has the
// methods of mrtable.Memory; its atomics are the CPU's, so they hold against
// the program's own atomics as well. It owns nothing: the segment must stay
// open while the region lives. A page that its owner punched out or that the
// memory charge refuses faults: workers run with debug.SetPanicOnFault.
type RegionMemory struct{ mem []byte }

// NewRegionMemory returns the region [off, off+length) of s.
// Errors: ErrBounds, also for a read-only segment.
func NewRegionMemory(s *Segment, off, length uint64) (*RegionMemory, error) {
	size := uint64(s.Size())
	if s.ReadOnly() || off > size || length > size-off {
		return nil, fmt.Errorf("region at %d of %d bytes in a segment of %d: %w", off, length, size, ErrBounds)
	}
	return &RegionMemory{mem: s.Bytes()[off : off+length : off+length]}, nil
}

// ReadAt copies len(dst) bytes from byte off on. Error: ErrBounds.
func (r *RegionMemory) ReadAt(dst []byte, off uint64) error {
	src := r.Bytes(off, uint64(len(dst)))
	if src == nil {
		return ErrBounds
	}
	copy(dst, src)
	return nil
}

// WriteAt copies src to byte off on. Error: ErrBounds.
func (r *RegionMemory) WriteAt(src []byte, off uint64) error {
	dst := r.Bytes(off, uint64(len(src)))
	if dst == nil {
		return ErrBounds
	}
	copy(dst, src)
	return nil
}

// CompareSwap stores swap at byte off when the 8 bytes there, in host order,
// equal compare, and returns what was there. Errors: ErrBounds, ErrMisaligned.
func (r *RegionMemory) CompareSwap(off, compare, swap uint64) (old uint64, err error) {
	b, err := r.atomicAt(off)
	if err != nil {
		return 0, err
	}
	w := Word64(b, 0)
	for {
		if old = w.Load(); old != compare || w.CompareAndSwap(compare, swap) {
			return old, nil
		}
	}
}

// FetchAdd adds to the 8 bytes at byte off, in host order, and returns what was
// there. Errors: ErrBounds, ErrMisaligned.
func (r *RegionMemory) FetchAdd(off, add uint64) (old uint64, err error) {
	b, err := r.atomicAt(off)
	if err != nil {
		return 0, err
	}
	return Word64(b, 0).Add(add) - add, nil
}

// Bytes returns n bytes of the memory itself from byte off on, or nil when they
// are not all inside the region.
func (r *RegionMemory) Bytes(off, n uint64) []byte {
	size := uint64(len(r.mem))
	if off > size || n > size-off {
		return nil
	}
	return r.mem[off : off+n : off+n]
}

func (r *RegionMemory) atomicAt(off uint64) ([]byte, error) {
	b := r.Bytes(off, 8)
	if b == nil {
		return nil, ErrBounds
	}
	if AddrOf(b)%8 != 0 {
		return nil, ErrMisaligned
	}
	return b, nil
}
