package nic

import (
	"fmt"
	"slices"
	"syscall"

	"github.com/softroce/softroce/internal/shm"
	"github.com/softroce/softroce/internal/uapi"
)

// Our own tuning of ring segments.
const (
	// ringAlign is the alignment of a ring: its header, two cache lines that
	// must not be shared with a neighbour.
	ringAlign = uapi.RingHeaderSize
	// A program's segments double in size from the first to the largest, so
	// that a small program is cheap and 131,072 QPs need some dozens of
	// mappings and descriptors. Memory that no ring touches is not backed.
	firstRingSegment = 1 << 20
	largeRingSegment = 256 << 20
	segmentPage      = 4096
)

// A carver cuts the rings of one program out of few large segments and takes
// them back for reuse. Segments stay until the program ends. Not safe for
// concurrent use: the program's lock guards it.
type carver struct {
	account *account
	label   string
	segs    []*ringSegment
	next    int // size of the next segment
}

// A ringSegment is one sealed memory file and what of it is free.
type ringSegment struct {
	seg  *shm.Segment
	free []span // sorted by offset, no two touching
	sent bool   // the program has the descriptor
}

type span struct{ off, n int }

// A ringArea is one ring's place. The program that it belongs to can write
// to it at any time.
type ringArea struct {
	segment int
	off, n  int
	mem     *shm.Segment
}

func newCarver(a *account, label string) *carver {
	return &carver{account: a, label: label, next: firstRingSegment}
}

// alloc returns n bytes, n > 0, aligned to ringAlign, the first header bytes
// of them zero. It opens a new segment when no hole is large enough, within
// the limits on ring bytes.
func (c *carver) alloc(n int) (ringArea, error) {
	if n <= 0 {
		return ringArea{}, refuse(syscall.EINVAL, "ring of %d bytes", n)
	}
	n = (n + ringAlign - 1) &^ (ringAlign - 1)
	for i, s := range c.segs {
		if off, ok := s.take(n); ok {
			return c.area(i, off, n), nil
		}
	}
	if err := c.grow(n); err != nil {
		return ringArea{}, err
	}
	i := len(c.segs) - 1
	off, ok := c.segs[i].take(n)
	if !ok {
		return ringArea{}, refuse(syscall.ENOMEM, "ring of %d bytes does not fit a new segment of %d", n, c.segs[i].seg.Size())
	}
	return c.area(i, off, n), nil
}

func (c *carver) area(i, off, n int) ringArea {
	seg := c.segs[i].seg
	clear(seg.Bytes()[off:][:min(ringAlign, n)])
	return ringArea{segment: i, off: off, n: n, mem: seg}
}

// grow adds a segment with room for a ring of n bytes.
func (c *carver) grow(n int) error {
	size := max(c.next, (n+segmentPage-1)&^(segmentPage-1))
	if left := c.account.left(ResourceRingBytes); uint64(size) > left && uint64(n) <= left {
		size = (n + segmentPage - 1) &^ (segmentPage - 1)
	}
	if err := c.account.charge(ResourceRingBytes, uint64(size)); err != nil {
		return err
	}
	seg, err := shm.Create(fmt.Sprintf("%s-rings-%d", c.label, len(c.segs)), size)
	if err != nil {
		c.account.release(ResourceRingBytes, uint64(size))
		return refuse(errnoOf(err, syscall.ENOMEM), "ring segment of %d bytes: %v", size, err)
	}
	c.segs = append(c.segs, &ringSegment{seg: seg, free: []span{{0, size}}})
	c.next = min(2*c.next, largeRingSegment)
	return nil
}

// release gives a back. No worker may touch it any more.
func (c *carver) release(a ringArea) {
	if a.n > 0 {
		c.segs[a.segment].give(span{a.off, a.n})
	}
}

// ref says in a reply where the ring lies and what its slots hold.
func (a *ringArea) ref(slots, maxSGE, maxInline uint32) uapi.RingRef {
	return uapi.RingRef{Segment: uint32(a.segment), Offset: uint64(a.off), Slots: slots, MaxSGE: maxSGE, MaxInline: maxInline}
}

// appendUnsent appends the descriptor of a's segment to fds when the program
// does not have it yet, and takes it for sent.
func (c *carver) appendUnsent(fds []int, a ringArea) []int {
	s := c.segs[a.segment]
	if s.sent {
		return fds
	}
	s.sent = true
	return append(fds, s.seg.FD())
}

// close unmaps every segment. No worker may touch a ring any more.
func (c *carver) close() {
	for _, s := range c.segs {
		_ = s.seg.Close()
	}
	c.segs = nil
}

// take cuts n bytes from the first hole that has them.
func (s *ringSegment) take(n int) (off int, ok bool) {
	for i := range s.free {
		h := &s.free[i]
		if h.n < n {
			continue
		}
		off = h.off
		h.off += n
		h.n -= n
		if h.n == 0 {
			s.free = slices.Delete(s.free, i, i+1)
		}
		return off, true
	}
	return 0, false
}

// give returns a span and joins it with its neighbours.
func (s *ringSegment) give(x span) {
	i, _ := slices.BinarySearchFunc(s.free, x, func(a, b span) int { return a.off - b.off })
	if i < len(s.free) && x.off+x.n == s.free[i].off {
		s.free[i].off = x.off
		s.free[i].n += x.n
	} else {
		s.free = slices.Insert(s.free, i, x)
	}
	if i > 0 && s.free[i-1].off+s.free[i-1].n == s.free[i].off {
		s.free[i-1].n += s.free[i].n
		s.free = slices.Delete(s.free, i, i+1)
	}
}
