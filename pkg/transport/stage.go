package transport

import "github.com/softroce/softroce/pkg/mrtable"

// stageBytes is how much is read ahead at once; our own tuning.
const stageBytes = 64 << 10

// A Stage holds what was read ahead from memory that is not mapped here. Such a
// read is a system call, which costs little more for a run of packets than for
// one. The queue pairs of one worker share a Stage, and the worker forgets what
// is in it before it looks at the world again: what a program or a peer changes
// after it was told that it may is read anew.
type Stage struct {
	buf  []byte
	key  uint32
	addr uint64 // in the key's address space
	n    int
}

// Forget drops what was read ahead.
func (s *Stage) Forget() { s.n = 0 }

// read fills dst from off bytes into a segment, which key and addr name, and
// reads on to the segment's end as far as there is room.
func (s *Stage) read(key uint32, addr uint64, seg *mrtable.Segment, off uint64, dst []byte) error {
	if d := addr - s.addr; key == s.key && addr >= s.addr && d+uint64(len(dst)) <= uint64(s.n) {
		copy(dst, s.buf[d:])
		return nil
	}
	n := min(seg.Len()-off, stageBytes)
	if n <= uint64(len(dst)) {
		return seg.ReadAt(dst, off)
	}
	if s.buf == nil {
		s.buf = make([]byte, stageBytes)
	}
	s.n = 0
	if seg.ReadAt(s.buf[:n], off) != nil {
		// What lies ahead is gone; what is asked for may be there.
		return seg.ReadAt(dst, off)
	}
	s.key, s.addr, s.n = key, addr, int(n)
	copy(dst, s.buf)
	return nil
}
