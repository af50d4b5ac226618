package mrtable

// Local checks a scatter/gather element: [va, va+n) under key k for a QP of
// the domain pd. Reading is always granted (need 0); need is
// [AccessLocalWrite] for a buffer that will be written. An element of length
// 0 is granted unchecked and gives the empty segment.
//
// Errors, in the order of the checks: [ErrKey], [ErrPD], [ErrAccess], [ErrBounds].
func (t *Table) Local(k LKey, pd PD, va, n uint64, need Access) (Segment, error) {
	if n == 0 {
		return Segment{}, nil
	}
	return t.look(uint32(k), pd, va, n, need)
}

// Remote checks a range that a peer names: [va, va+n) under key k for a QP of
// the domain pd, need being one or more of the remote rights (0 is refused:
// there is no remote access without a right). A range of length 0 is granted
// unchecked and gives the empty segment (IBTA Vol 1 C9-88).
//
// Errors, in the order of the checks: [ErrKey], [ErrPD], [ErrAccess], [ErrBounds].
func (t *Table) Remote(k RKey, pd PD, va, n uint64, need Access) (Segment, error) {
	if n == 0 {
		return Segment{}, nil
	}
	if need&accessRemote == 0 {
		return Segment{}, ErrAccess
	}
	return t.look(uint32(k), pd, va, n, need)
}

// look finds the grant of a key and checks a range of at least one byte.
func (t *Table) look(key uint32, pd PD, va, n uint64, need Access) (Segment, error) {
	i := t.slotOf(key)
	if uint64(i) >= uint64(len(t.slots)) {
		return Segment{}, ErrKey
	}
	s := &t.slots[i]
	g := s.grant.Load()
	if g == nil || g.key != key || s.word.Load() != uint64(g.word) {
		return Segment{}, ErrKey
	}
	if g.pd != pd {
		return Segment{}, ErrPD
	}
	if need&^g.access != 0 {
		return Segment{}, ErrAccess
	}
	if va < g.base || !inside(va-g.base, n, g.length) {
		return Segment{}, ErrBounds
	}
	return Segment{mem: g.mem, off: g.memOff + (va - g.base), n: n, va: va}, nil
}
