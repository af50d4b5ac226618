//go:build race

package shm

import (
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// heaps is the registry of segments that lie on this process's heap, by the
// inode of their memfd. The memfd itself stays empty: it only carries the
// identity from one end to the other. An entry lives as long as a segment of
// its inode is open.
var heaps = struct {
	sync.Mutex
	byInode map[inode]*heapMemory
}{byInode: map[inode]*heapMemory{}}

type heapMemory struct {
	mem  []byte
	refs int
}

var acrossProcesses atomic.Bool

// ShareAcrossProcesses makes a race build use real mappings from now on, so
// that it can talk to another process; the detector then no longer sees what
// happens in segments. Builds without -race always do, and this does nothing.
func ShareAcrossProcesses() { acrossProcesses.Store(true) }

// back gives a new segment its memory: from the heap, unless
// ShareAcrossProcesses was called.
func (s *Segment) back(size int) error {
	if acrossProcesses.Load() {
		return s.backMapped(size)
	}
	// Nobody else can map what is not there: say so instead of giving zeros.
	if err := s.addSeals(unix.F_SEAL_WRITE); err != nil {
		return err
	}
	s.mem, s.release = alignedBytes(size), s.forget
	heaps.Lock()
	defer heaps.Unlock()
	heaps.byInode[s.inode] = &heapMemory{mem: s.mem, refs: 1}
	return nil
}

// attach gives a segment the memory behind a received descriptor: the same
// slice when this process created it.
func (s *Segment) attach(fd, size, seals int) error {
	heaps.Lock()
	defer heaps.Unlock()
	if h := heaps.byInode[s.inode]; h != nil {
		if seals&unix.F_SEAL_FUTURE_WRITE != 0 && !s.readOnly {
			return unix.EPERM // as the kernel answers
		}
		h.refs++
		s.mem, s.release = h.mem, s.forget
		return nil
	}
	if seals&unix.F_SEAL_WRITE != 0 {
		return ErrOtherHeap
	}
	return s.mmap(fd, size)
}

// forget leaves the registry, the last one with the entry.
func (s *Segment) forget() error {
	heaps.Lock()
	defer heaps.Unlock()
	h := heaps.byInode[s.inode]
	if h.refs--; h.refs == 0 {
		delete(heaps.byInode, s.inode)
	}
	return nil
}
