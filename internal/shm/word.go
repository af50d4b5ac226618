package shm

import (
	"fmt"
	"sync/atomic"
	"unsafe"
)

// Word32 returns the aligned 32-bit word at b[off], for sync/atomic access from
// both sides. It panics when the word is outside b or not aligned: offsets are
// the caller's own layout, never a value from the other side.
func Word32(b []byte, off int) *atomic.Uint32 {
	return (*atomic.Uint32)(word(b, off, 4))
}

// Word64 is Word32 for 64 bits.
func Word64(b []byte, off int) *atomic.Uint64 {
	return (*atomic.Uint64)(word(b, off, 8))
}

func word(b []byte, off, size int) unsafe.Pointer {
	w := b[off : off+size : off+size]
	p := unsafe.Pointer(unsafe.SliceData(w))
	if uintptr(p)%uintptr(size) != 0 {
		panic(fmt.Sprintf("shm: %d-bit word at offset %d is not aligned", size*8, off))
	}
	return p
}

// Word32 returns the word at byte off of the segment; see the function Word32.
func (s *Segment) Word32(off int) *atomic.Uint32 { return Word32(s.mem, off) }

// Word64 returns the word at byte off of the segment; see the function Word64.
func (s *Segment) Word64(off int) *atomic.Uint64 { return Word64(s.mem, off) }

// AddrOf returns the virtual address of b's first byte in this process, the
// address that a registration names. Zero for a nil slice. The caller keeps b
// reachable, and pinned when it is on the Go heap, while the number is used.
func AddrOf(b []byte) uint64 {
	return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b))))
}

// alignedBytes returns zeroed heap memory aligned for 64-bit words.
func alignedBytes(size int) []byte {
	words := make([]uint64, (size+7)/8)
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), size)
}
