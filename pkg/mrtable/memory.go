package mrtable

import (
	"encoding/binary"
	"sync"
)

// Memory is the memory of one region. Offsets count from its start and are
// bounds-checked by [Segment] before a call. A call may fail (a foreign
// process is gone, a page is not mapped).
//
// The offset of an atomic is 8-byte aligned in the region's address space; an
// implementation whose CPU atomics need an aligned cell checks its own, or has
// the registration refused where the two differ.
type Memory interface {
	// ReadAt fills dst from off.
	ReadAt(dst []byte, off uint64) error
	// WriteAt stores src at off.
	WriteAt(src []byte, off uint64) error
	// CompareSwap stores swap in the 8 bytes at off, in host byte order, if
	// they equal compare, and returns what was there.
	CompareSwap(off, compare, swap uint64) (old uint64, err error)
	// FetchAdd adds to the 8 bytes at off, in host byte order, modulo 2^64,
	// and returns what was there.
	FetchAdd(off, add uint64) (old uint64, err error)
	// Bytes is the memory itself when it is directly mapped, else nil: then
	// use ReadAt and WriteAt.
	Bytes(off, n uint64) []byte
}

// HeapMemory is memory on the Go heap, for tests and simulations. Its atomics
// are atomic among themselves only.
type HeapMemory []byte

// heapAtomics orders the atomics of every HeapMemory.
var heapAtomics sync.Mutex

// ReadAt implements [Memory].
func (h HeapMemory) ReadAt(dst []byte, off uint64) error {
	if !inside(off, uint64(len(dst)), uint64(len(h))) {
		return ErrBounds
	}
	copy(dst, h[off:])
	return nil
}

// WriteAt implements [Memory].
func (h HeapMemory) WriteAt(src []byte, off uint64) error {
	if !inside(off, uint64(len(src)), uint64(len(h))) {
		return ErrBounds
	}
	copy(h[off:], src)
	return nil
}

// CompareSwap implements [Memory].
func (h HeapMemory) CompareSwap(off, compare, swap uint64) (uint64, error) {
	if !inside(off, atomicBytes, uint64(len(h))) {
		return 0, ErrBounds
	}
	heapAtomics.Lock()
	defer heapAtomics.Unlock()
	old := binary.NativeEndian.Uint64(h[off:])
	if old == compare {
		binary.NativeEndian.PutUint64(h[off:], swap)
	}
	return old, nil
}

// FetchAdd implements [Memory].
func (h HeapMemory) FetchAdd(off, add uint64) (uint64, error) {
	if !inside(off, atomicBytes, uint64(len(h))) {
		return 0, ErrBounds
	}
	heapAtomics.Lock()
	defer heapAtomics.Unlock()
	old := binary.NativeEndian.Uint64(h[off:])
	binary.NativeEndian.PutUint64(h[off:], old+add)
	return old, nil
}

// Bytes implements [Memory]: the heap is directly mapped.
func (h HeapMemory) Bytes(off, n uint64) []byte {
	if !inside(off, n, uint64(len(h))) {
		return nil
	}
	return h[off : off+n : off+n]
}

// inside says whether [off, off+n) lies in [0, length), for any values.
func inside(off, n, length uint64) bool {
	return off <= length && n <= length-off
}
