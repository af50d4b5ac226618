package mrtable

import "sort"

// pageList is the memory of a fast region: pieces of other memories, one behind
// the other.
type pageList struct {
	pieces []piece
	length uint64
}

// piece is [off, off+n) of a memory, seen from start on.
type piece struct {
	mem      Memory
	start    uint64
	off, end uint64 // in mem
}

// add appends n bytes of a memory. same says that it is the memory of the last
// piece, which then goes on where the two meet.
func (l *pageList) add(mem Memory, off, n uint64, same bool) {
	k := len(l.pieces)
	if same && l.pieces[k-1].end == off {
		l.pieces[k-1].end += n
		return
	}
	var start uint64
	if k > 0 {
		p := &l.pieces[k-1]
		start = p.start + (p.end - p.off)
	}
	l.pieces = append(l.pieces, piece{mem, start, off, off + n})
}

// at is the memory at off, where it lies in it, and how many bytes follow there.
// off is inside the list.
func (l *pageList) at(off uint64) (mem Memory, in, room uint64) {
	i := sort.Search(len(l.pieces), func(i int) bool { return l.pieces[i].start > off }) - 1
	p := &l.pieces[i]
	in = p.off + (off - p.start)
	return p.mem, in, p.end - in
}

// ReadAt implements [Memory].
func (l *pageList) ReadAt(dst []byte, off uint64) error {
	if !inside(off, uint64(len(dst)), l.length) {
		return ErrBounds
	}
	for len(dst) > 0 {
		mem, in, room := l.at(off)
		n := min(uint64(len(dst)), room)
		if err := mem.ReadAt(dst[:n], in); err != nil {
			return err
		}
		dst, off = dst[n:], off+n
	}
	return nil
}

// WriteAt implements [Memory].
func (l *pageList) WriteAt(src []byte, off uint64) error {
	if !inside(off, uint64(len(src)), l.length) {
		return ErrBounds
	}
	for len(src) > 0 {
		mem, in, room := l.at(off)
		n := min(uint64(len(src)), room)
		if err := mem.WriteAt(src[:n], in); err != nil {
			return err
		}
		src, off = src[n:], off+n
	}
	return nil
}

// cell is the memory of an atomic's 8 bytes, which must lie in one piece.
func (l *pageList) cell(off uint64) (mem Memory, in uint64, err error) {
	if !inside(off, atomicBytes, l.length) {
		return nil, 0, ErrBounds
	}
	mem, in, room := l.at(off)
	if room < atomicBytes {
		return nil, 0, ErrAlign
	}
	return mem, in, nil
}

// CompareSwap implements [Memory].
func (l *pageList) CompareSwap(off, compare, swap uint64) (uint64, error) {
	mem, in, err := l.cell(off)
	if err != nil {
		return 0, err
	}
	return mem.CompareSwap(in, compare, swap)
}

// FetchAdd implements [Memory].
func (l *pageList) FetchAdd(off, add uint64) (uint64, error) {
	mem, in, err := l.cell(off)
	if err != nil {
		return 0, err
	}
	return mem.FetchAdd(in, add)
}

// Bytes implements [Memory]: nil for a range of more than one piece.
func (l *pageList) Bytes(off, n uint64) []byte {
	if n == 0 || !inside(off, n, l.length) {
		return nil
	}
	mem, in, room := l.at(off)
	if n > room {
		return nil
	}
	return mem.Bytes(in, n)
}
