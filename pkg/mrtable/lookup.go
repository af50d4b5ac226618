package mrtable

// Local checks a scatter/gather element: [va, va+n) under key k for a QP of
// the domain pd. Reading is always granted (need 0); need is
// [AccessLocalWrite] for a buffer that will be written. An element of length
// 0 is granted unchecked and gives the empty segment.
//
// A window has no local key.
//
// Errors, in the order of the checks: [ErrKey], [ErrPD], [ErrAccess], [ErrBounds].
func (t *Table) Local(k LKey, pd PD, va, n uint64, need Access) (Segment, error) {
	if n == 0 {
		return Segment{}, nil
	}
	g := t.find(uint32(k))
	if g == nil || g.kind == kindWindow {
		return Segment{}, ErrKey
	}
	return g.check(pd, 0, va, n, need)
}

// Remote checks a range that a peer names: [va, va+n) under key k, of a region
// or a window, for the queue pair qpn of the domain pd, need being one or more of
// the remote rights (0 is refused: there is no remote access without a right). A
// range of length 0 is granted unchecked and gives the empty segment (IBTA Vol 1
// C9-88).
//
// Errors, in the order of the checks: [ErrKey], [ErrPD], [ErrQP], [ErrAccess],
// [ErrBounds].
func (t *Table) Remote(k RKey, pd PD, qpn uint32, va, n uint64, need Access) (Segment, error) {
	if n == 0 {
		return Segment{}, nil
	}
	if need&accessRemote == 0 {
		return Segment{}, ErrAccess
	}
	g := t.find(uint32(k))
	if g == nil {
		return Segment{}, ErrKey
	}
	return g.check(pd, qpn, va, n, need)
}

// slotFor is the slot that a key names, nil when the table has no such slot.
func (t *Table) slotFor(key uint32) *slot {
	i := t.slotOf(key)
	if uint64(i) >= uint64(len(t.slots)) {
		return nil
	}
	return &t.slots[i]
}

// find is the grant of a key that grants something, else nil.
func (t *Table) find(key uint32) *grant {
	s := t.slotFor(key)
	if s == nil {
		return nil
	}
	g := s.grant.Load()
	if g == nil || g.key != key || !g.open {
		return nil
	}
	return g
}

// check checks a range of at least one byte for a queue pair.
func (g *grant) check(pd PD, qpn uint32, va, n uint64, need Access) (Segment, error) {
	if g.pd != pd {
		return Segment{}, ErrPD
	}
	if g.deps != nil {
		if !g.alive() {
			return Segment{}, ErrKey
		}
		if g.qpn != 0 && g.qpn != qpn {
			return Segment{}, ErrQP
		}
	}
	if need&^g.access != 0 {
		return Segment{}, ErrAccess
	}
	if va < g.base || !inside(va-g.base, n, g.length) {
		return Segment{}, ErrBounds
	}
	return Segment{mem: g.mem, off: g.memOff + (va - g.base), n: n, va: va}, nil
}

// Covers says what a key of the domain pd covers and grants, for a person who asks
// why it was refused. All zero: no such key, or one of another domain.
func (t *Table) Covers(key uint32, pd PD) (base, length uint64, access Access) {
	g := t.find(key)
	if g == nil || g.pd != pd {
		return 0, 0, 0
	}
	return g.base, g.length, g.access
}
