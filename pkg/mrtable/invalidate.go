package mrtable

// What a key opened is closed by a request of its owner's queue pair, or by a
// SEND with Invalidate of the peer (IBTA Vol 1 §10.6). Both do so
// to windows of type 2 and to regions of fast registration only.

// InvalidateLocal closes the key of a window of type 2 or of a fast region for a
// request of the domain pd. It may be of another queue pair than the window is
// bound to: that one may be gone.
//
// Errors: [ErrKey] (the key grants nothing), [ErrPD], [ErrInvalidate] (a plain
// region, a window of type 1), [ErrBound] (windows are bound to the region).
func (t *Table) InvalidateLocal(key RKey, pd PD) error {
	return t.invalidate(t.find(uint32(key)), pd)
}

// InvalidateRemote is InvalidateLocal for a peer of the queue pair qpn: a window
// must be bound to that queue pair, else [ErrQP].
func (t *Table) InvalidateRemote(key RKey, pd PD, qpn uint32) error {
	g := t.find(uint32(key))
	if g != nil && g.pd == pd && g.qpn != 0 && g.qpn != qpn {
		return ErrQP
	}
	return t.invalidate(g, pd)
}

// invalidate closes a grant. Of several at once one succeeds.
func (t *Table) invalidate(g *grant, pd PD) error {
	switch {
	case g == nil:
		return ErrKey
	case g.pd != pd:
		return ErrPD
	case g.kind == kindRegion || g.kind == kindWindow && g.typ != WindowType2:
		return ErrInvalidate
	case !g.end():
		return ErrBound
	case !g.home.grant.CompareAndSwap(g, g.closed()):
		return ErrKey
	}
	if g.kind == kindWindow {
		g.unbind()
	}
	return nil
}
