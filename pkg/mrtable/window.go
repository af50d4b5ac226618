package mrtable

import "fmt"

// A memory window is a key that opens a part of a region, with rights of its
// own, and is bound by work requests (IBTA Vol 1 §10.6.7). One of type 1 serves
// every queue pair of its domain and can be bound anew at any time; one of type
// 2 belongs to the queue pair that bound it and must be invalidated before it is
// bound again. Each binding changes the low byte of the key.

// Window is the handle of a memory window, safe for use by any goroutine.
type Window struct{ h holder }

// RKey is the window's present key; it grants something while it is bound.
func (w *Window) RKey() RKey { return RKey(w.h.now().key) }

// Type is the window's type.
func (w *Window) Type() WindowType { return w.h.made.typ }

// PD is the window's protection domain.
func (w *Window) PD() PD { return w.h.made.pd }

// Addr is the first address of what the window opens, as a peer names it; 0 when
// it is not bound.
func (w *Window) Addr() uint64 { return w.h.now().base }

// Length is the number of bytes that the window opens; 0 when it is not bound.
func (w *Window) Length() uint64 { return w.h.now().length }

// Access is the rights that the window grants; 0 when it is not bound.
func (w *Window) Access() Access { return w.h.now().access }

// AllocWindow makes a window that is not bound. salt is as in [Table.Register].
//
// Errors: [ErrFull], [ErrPDZero], [ErrWindowType].
func (t *Table) AllocWindow(pd PD, typ WindowType, salt uint32) (*Window, error) {
	if typ != WindowType1 && typ != WindowType2 {
		return nil, fmt.Errorf("%w: %d", ErrWindowType, typ)
	}
	h, err := t.hold(&grant{kind: kindWindow, typ: typ, pd: pd}, salt)
	if err != nil {
		return nil, err
	}
	return &Window{h}, nil
}

// MarkWindow ends a window's life, bound or not; see [Table.Mark].
func (t *Table) MarkWindow(w *Window) error {
	if w == nil {
		return ErrNotRegistered
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.is(&w.h, stateHeld) {
		return ErrNotRegistered
	}
	w.h.s.grant.Swap(nil).unbind()
	t.states[w.h.slot] = stateMarked
	return nil
}

// FreeWindow makes the slot of a marked window usable again; see [Table.Free].
func (t *Table) FreeWindow(w *Window) {
	if w != nil {
		t.giveBack(&w.h)
	}
}

// unbind lets go of the region that a window's grant was bound to. Only who took
// the grant out of its slot, or never put it there, may call it.
func (g *grant) unbind() {
	for _, d := range g.deps {
		d.users.Add(-1)
	}
}

// BindArgs says what a window is to open.
type BindArgs struct {
	RKey   RKey // the window's, with another low byte
	MR     LKey // the region
	Addr   uint64
	Length uint64 // 0 unbinds a window of type 1
	Access Access
}

// accessWindow are the rights that a window may have. Local write means nothing
// to it.
const accessWindow = accessRemote | AccessLocalWrite | AccessZeroBased | accessOptional

// Bind opens [Addr, Addr+Length) of a region under the window's new key, for a
// queue pair of the domain pd (IBTA Vol 1 §10.6.7). The old key grants nothing
// from then on. On error nothing changed.
//
// Errors: [ErrKey] (no window, the same key again, no such region), [ErrPD],
// [ErrInUse], [ErrAccessFlags], [ErrAccess] (the region's rights), [ErrBounds],
// [ErrBound] (the region is being invalidated).
func (t *Table) Bind(qpn uint32, pd PD, b BindArgs) error {
	s := t.slotFor(uint32(b.RKey))
	if s == nil {
		return ErrKey
	}
	for {
		old := s.grant.Load()
		if old == nil || old.kind != kindWindow || old.key>>8 != uint32(b.RKey)>>8 {
			return ErrKey
		}
		g, err := t.binding(old, qpn, pd, &b)
		if err != nil {
			return err
		}
		if s.grant.CompareAndSwap(old, g) {
			old.unbind()
			return nil
		}
		g.unbind() // another binding or the window's end came first
	}
}

// binding makes the grant that follows a window's present one.
func (t *Table) binding(old *grant, qpn uint32, pd PD, b *BindArgs) (*grant, error) {
	switch {
	case old.pd != pd:
		return nil, ErrPD
	case old.key == uint32(b.RKey):
		return nil, ErrKey
	case old.typ == WindowType2 && old.open:
		return nil, ErrInUse
	}
	g := old.closed()
	g.key = uint32(b.RKey)
	if b.Length == 0 {
		if old.typ == WindowType2 {
			return nil, ErrBounds
		}
		return g, nil
	}
	if u := b.Access &^ accessWindow; u != 0 || old.typ == WindowType1 && b.Access&AccessZeroBased != 0 {
		return nil, ErrAccessFlags
	}
	r := t.find(uint32(b.MR))
	if err := r.mayOpen(pd, b); err != nil {
		return nil, err
	}
	if !r.use() {
		return nil, ErrBound
	}
	g.open, g.deps = true, []*grant{r}
	g.mem, g.memOff = r.mem, r.memOff+(b.Addr-r.base)
	g.base, g.length, g.access = b.Addr, b.Length, b.Access
	if b.Access&AccessZeroBased != 0 {
		g.base = 0
	}
	if old.typ == WindowType2 {
		g.qpn = qpn
	}
	return g, nil
}

// mayOpen says whether a window may be bound to a region so: the region has the
// right to be bound to, local write where the window allows a peer to write, and
// the whole range (IBTA Vol 1 C10-73, C10-74, C10-75). One that is zero-based
// has no addresses to open.
func (g *grant) mayOpen(pd PD, b *BindArgs) error {
	switch {
	case g == nil || g.kind == kindWindow:
		return ErrKey
	case g.pd != pd:
		return ErrPD
	case g.access&AccessMWBind == 0 || g.access&AccessZeroBased != 0:
		return ErrAccess
	case b.Access&(AccessRemoteWrite|AccessRemoteAtomic) != 0 && g.access&AccessLocalWrite == 0:
		return ErrAccess
	case b.Addr < g.base || !inside(b.Addr-g.base, b.Length, g.length):
		return ErrBounds
	}
	return nil
}
