package mrtable

import "sync/atomic"

// tailBytes is the most that is stored after the barrier of WriteTailLast
// (our tuning: what one aligned store of every supported CPU can hold).
const tailBytes = 8

// atomicBytes is the size of an atomic operation's cell (specification value).
const atomicBytes = 8

// Segment is a checked range of one region: the only way to its memory. It is
// a value, valid in the call whose look-up gave it (until the worker's turn
// ends); no method reaches outside its range. The zero Segment is empty.
type Segment struct {
	mem Memory
	off uint64 // of the range's start in mem
	n   uint64
	va  uint64 // of the range's start in the region's address space
}

// Len is the length of the range in bytes.
func (s Segment) Len() uint64 { return s.n }

// ReadAt fills dst from off bytes into the segment. It fails with [ErrBounds]
// or with the memory's own error.
func (s Segment) ReadAt(dst []byte, off uint64) error {
	if !inside(off, uint64(len(dst)), s.n) {
		return ErrBounds
	}
	if len(dst) == 0 {
		return nil
	}
	return s.mem.ReadAt(dst, s.off+off)
}

// WriteAt stores src at off bytes into the segment. It fails with [ErrBounds]
// or with the memory's own error; nothing is stored on ErrBounds.
func (s Segment) WriteAt(src []byte, off uint64) error {
	if !inside(off, uint64(len(src)), s.n) {
		return ErrBounds
	}
	if len(src) == 0 {
		return nil
	}
	return s.mem.WriteAt(src, s.off+off)
}

// WriteTailLast stores src at off so that its last bytes become visible last:
// all but the tail, a barrier, then the tail. Programs poll the last byte, or
// a flag at the end, of an RDMA WRITE; a plain copy promises no order.
//
// The tail is what one store can place: the last 8 bytes of src, or fewer
// where src is shorter or does not end on a multiple of 8 (an unaligned
// 8-byte copy is no single store, and its halves may appear in either order).
func (s Segment) WriteTailLast(src []byte, off uint64) error {
	n := uint64(len(src))
	if !inside(off, n, s.n) {
		return ErrBounds
	}
	if n == 0 {
		return nil
	}
	head := n - tailLen(s.va+off+n, n)
	if head > 0 {
		if err := s.mem.WriteAt(src[:head], s.off+off); err != nil {
			return err
		}
		storeBarrier()
	}
	return s.mem.WriteAt(src[head:], s.off+off+head)
}

// tailLen is the size of the largest naturally aligned unit, of at most
// tailBytes and at most n bytes, that ends at the address end. n is not 0.
func tailLen(end, n uint64) uint64 {
	unit := uint64(tailBytes)
	for end%unit != 0 || unit > n {
		unit /= 2
	}
	return unit
}

// storeBarrier orders the stores before it before the stores after it: an
// atomic read-modify-write is a full barrier, and the compiler moves no
// memory access over it.
func storeBarrier() {
	var fence atomic.Uint32
	fence.Add(1)
}

// CompareSwap acts on the 8 bytes at off; see [Memory]. It fails with
// [ErrBounds], [ErrAlign] (the address in the region's address space is not a
// multiple of 8) or the memory's own error.
func (s Segment) CompareSwap(off, compare, swap uint64) (old uint64, err error) {
	if err := s.checkAtomic(off); err != nil {
		return 0, err
	}
	return s.mem.CompareSwap(s.off+off, compare, swap)
}

// FetchAdd acts on the 8 bytes at off; see [Memory]. Errors as CompareSwap's.
func (s Segment) FetchAdd(off, add uint64) (old uint64, err error) {
	if err := s.checkAtomic(off); err != nil {
		return 0, err
	}
	return s.mem.FetchAdd(s.off+off, add)
}

func (s Segment) checkAtomic(off uint64) error {
	if !inside(off, atomicBytes, s.n) {
		return ErrBounds
	}
	if (s.va+off)%atomicBytes != 0 {
		return ErrAlign
	}
	return nil
}

// Bytes is the memory of [off, off+n) itself when it is directly mapped. It
// is nil when it is not, or when the range reaches outside the segment. What
// it returns must not be kept beyond the segment's own validity, unless the
// keeper has whoever unmaps the memory wait.
func (s Segment) Bytes(off, n uint64) []byte {
	if s.mem == nil || !inside(off, n, s.n) {
		return nil
	}
	return s.mem.Bytes(s.off+off, n)
}

// Slice is the part [off, off+n) of the segment. When that reaches outside,
// the result is the empty segment, which refuses every access.
func (s Segment) Slice(off, n uint64) Segment {
	if !inside(off, n, s.n) {
		return Segment{}
	}
	return Segment{mem: s.mem, off: s.off + off, n: n, va: s.va + off}
}
