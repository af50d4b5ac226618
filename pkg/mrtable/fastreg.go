package mrtable

import "fmt"

// Fast registration gives a region that was allocated without memory a list of
// pages, by a work request and without the control plane (IBTA Vol 1 §10.6).
// The pages are parts of regions that exist; they lie in the new region one
// behind the other. Once such a region ends, look-ups in the new one fail.

// MaxPages is the most pages of one fast registration (our own limit).
const MaxPages = 512

// minPage is the smallest page.
const minPage = 4096

// AllocRegion makes a region that has no memory before [Table.FastRegister], of
// at most maxPages pages then. salt is as in [Table.Register].
//
// Errors: [ErrFull], [ErrPDZero], [ErrPages].
func (t *Table) AllocRegion(pd PD, maxPages, salt uint32) (*Region, error) {
	if maxPages == 0 || maxPages > MaxPages {
		return nil, fmt.Errorf("%w: at most %d pages asked for, limit %d", ErrPages, maxPages, MaxPages)
	}
	h, err := t.hold(&grant{kind: kindFast, pd: pd, pages: maxPages}, salt)
	if err != nil {
		return nil, err
	}
	return &Region{h}, nil
}

// Page is one page of a list: [Addr, Addr+Length) of the region LKey.
type Page struct {
	LKey   LKey
	Addr   uint64
	Length uint64
}

// CheckPages says whether a list has the shape of one: at least one page, all of
// one length, which is a power of two and at least 4,096. Errors wrap [ErrPages].
func CheckPages(pages []Page) error {
	if len(pages) == 0 {
		return fmt.Errorf("%w: it is empty", ErrPages)
	}
	for i := range pages {
		if n := pages[i].Length; !IsPageSize(n) || n != pages[0].Length {
			return fmt.Errorf("%w: page %d has %d bytes, the first %d", ErrPages, i, n, pages[0].Length)
		}
	}
	return nil
}

// IsPageSize says whether pages may have n bytes.
func IsPageSize(n uint64) bool { return n >= minPage && n&(n-1) == 0 }

// FastRegister makes the pages the memory of a region that [Table.AllocRegion]
// made, seen from iova on (from 0 when it is zero-based), under a key that
// differs from the region's in the low byte at most. The region must have none
// now: it is new or was invalidated. On error nothing changed.
//
// Errors: [ErrKey], [ErrPD], [ErrInUse], [ErrAccessFlags], [ErrLength],
// [ErrPages]; [ErrPageMemory] when a page is not wholly in a plain region of the
// domain that may be used so.
func (t *Table) FastRegister(pd PD, key RKey, iova uint64, access Access, pages []Page) error {
	if err := access.Check(); err != nil {
		return err
	}
	if err := CheckPages(pages); err != nil {
		return err
	}
	s := t.slotFor(uint32(key))
	if s == nil {
		return ErrKey
	}
	old := s.grant.Load()
	switch {
	case old == nil || old.kind != kindFast || old.key>>8 != uint32(key)>>8:
		return ErrKey
	case old.pd != pd:
		return ErrPD
	case old.open:
		return ErrInUse
	case len(pages) > int(old.pages):
		return fmt.Errorf("%w: %d pages, limit %d", ErrPages, len(pages), old.pages)
	}
	g := old.closed()
	g.open, g.key, g.access, g.base = true, uint32(key), access, iova
	if access&AccessZeroBased != 0 {
		g.base = 0
	}
	if g.length = uint64(len(pages)) * pages[0].Length; g.base+g.length < g.base {
		return ErrLength
	}
	if err := t.gather(g, pages); err != nil {
		return err
	}
	if !s.grant.CompareAndSwap(old, g) {
		return ErrInUse // another registration or the region's end came first
	}
	return nil
}

// gather gives a grant the memory of a list of pages.
func (t *Table) gather(g *grant, pages []Page) error {
	l := &pageList{length: g.length}
	var last *grant
	for i := range pages {
		p := &pages[i]
		src := t.find(uint32(p.LKey))
		if src == nil || src.kind != kindRegion {
			return ErrPageMemory
		}
		var need Access
		if g.access&(AccessLocalWrite|AccessRemoteWrite|AccessRemoteAtomic) != 0 {
			need = AccessLocalWrite
		}
		seg, err := src.check(g.pd, 0, p.Addr, p.Length, need)
		if err != nil {
			return ErrPageMemory
		}
		g.dependOn(src)
		l.add(seg.mem, seg.off, p.Length, src == last)
		last = src
	}
	if len(l.pieces) == 1 {
		g.mem, g.memOff = l.pieces[0].mem, l.pieces[0].off
		return nil
	}
	g.mem = l
	return nil
}

// dependOn makes d one of the grants that g stands on.
func (g *grant) dependOn(d *grant) {
	for _, have := range g.deps {
		if have == d {
			return
		}
	}
	g.deps = append(g.deps, d)
}
