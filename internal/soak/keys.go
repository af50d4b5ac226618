package soak

import (
	"github.com/softroce/softroce/pkg/mrtable"
	"github.com/softroce/softroce/pkg/qpstate"
	"github.com/softroce/softroce/pkg/wq"
)

// lockKind is what opens an end's memory to its peer beside the region's own key.
type lockKind uint8

const (
	window1 lockKind = iota
	window2
	fastRegion
	lockKinds
)

// lock is a window or a fast region that opens, for a while, the slots that the
// peer WRITEs.
type lock struct {
	kind   lockKind
	window *mrtable.Window
	region *mrtable.Region
	phase  lockPhase
	key    mrtable.RKey // the present one, or the one that is being made
	base   uint64       // address of the first slot in the order of the key
	order  [slots]int   // place of each slot
	uses   int          // of the peer's requests that are not done
}

// lockPhase is how far it is.
type lockPhase uint8

const (
	shut lockPhase = iota
	opening
	open
	shutting
)

// makeLocks gives the end its windows and its fast region, not open.
func (e *end) makeLocks() {
	salt := func() uint32 { return uint32(e.c.w.rand.Uint64()) }
	e.locks = e.locks[:0]
	for k := range lockKinds {
		l := &lock{kind: k}
		var err error
		switch {
		case k == fastRegion:
			if e.c.typ != qpstate.RC {
				continue
			}
			l.region, err = e.a.keys.AllocRegion(1, slots, salt())
		default:
			l.window, err = e.a.keys.AllocWindow(1, mrtable.WindowType1+mrtable.WindowType(k), salt())
		}
		if err != nil {
			e.c.w.fail("%v: %v", e.a, err)
			return
		}
		e.locks = append(e.locks, l)
	}
}

// dropLocks takes them away. The region cannot go before.
func (e *end) dropLocks() {
	w := e.c.w
	bound := false
	for _, l := range e.locks {
		bound = bound || l.kind != fastRegion && l.phase == open
	}
	if bound && !e.marked && e.a.keys.Mark(e.mr) == nil {
		w.fail("%v: a region with a bound window was deregistered", e)
		return
	}
	for _, l := range e.locks {
		if l.kind == fastRegion {
			e.a.deregister(l.region)
			continue
		}
		if err := e.a.keys.MarkWindow(l.window); err != nil {
			w.fail("%v: a window: %v", e, err)
		}
		e.a.keys.FreeWindow(l.window)
	}
	e.locks = nil
}

func (l *lock) now() mrtable.RKey {
	if l.region != nil {
		return l.region.RKey()
	}
	return l.window.RKey()
}

// nextKey is another one: only the low byte is the program's.
func (l *lock) nextKey(step uint32) mrtable.RKey {
	k := uint32(l.now())
	return mrtable.RKey(k&^0xFF | (k+step)&0xFF)
}

// turnKey draws a lock, and opens it when it is shut, or shuts it when it is
// open; false: it cannot be done now.
func (e *end) turnKey(o *op, wr *wq.SendWR) bool {
	w := e.c.w
	l := e.locks[w.rand.IntN(len(e.locks))]
	o.lock, o.n = l, -1
	switch {
	case l.phase == shut:
		e.open(l, o, wr)
	case l.phase == open && l.uses == 0:
		e.shut(l, o, wr)
	default:
		return false
	}
	return true
}

// open builds the request that opens a lock.
func (e *end) open(l *lock, o *op, wr *wq.SendWR) {
	w, s := e.c.w, e.c.w.plan.slot
	l.phase, l.key = opening, l.nextKey(uint32(1+w.rand.IntN(200)))
	wr.Bind = wq.Bind{RKey: l.key, Access: allAccess &^ mrtable.AccessMWBind}
	at := memBase + uint64(e.writes)
	for i := range l.order {
		l.order[i] = i
	}
	if l.kind != fastRegion {
		o.code = wq.BindMW
		wr.Bind.MR, wr.Bind.Addr, wr.Bind.Length = e.mr.LKey(), at, uint64(slots*s)
		l.base = at
		if l.kind == window2 && w.rand.IntN(2) == 0 {
			wr.Bind.Access |= mrtable.AccessZeroBased
			l.base = 0
		}
		return
	}
	o.code = wq.RegMR
	l.base = w.rand.Uint64() >> 1
	wr.Bind.Addr = l.base
	page := s
	if s < minPage {
		page = minPage // one page holds all slots
	} else { // pages in another order
		for i := slots - 1; i > 0; i-- {
			k := w.rand.IntN(i + 1)
			l.order[i], l.order[k] = l.order[k], l.order[i]
		}
	}
	wr.SGList = make([]wq.SGE, slots*s/page)
	for i := range wr.SGList {
		wr.SGList[l.order[i]] = wq.SGE{Addr: at + uint64(i*page), Length: uint32(page), LKey: e.mr.LKey()}
	}
}

// minPage is the smallest page of a fast registration, and slots of the smallest
// slots.
const minPage = 4096

// shut builds the request that shuts a lock.
func (e *end) shut(l *lock, o *op, wr *wq.SendWR) {
	l.phase = shutting
	if l.kind != window1 {
		o.code = wq.LocalInv
		wr.InvalidateRKey = l.key
		return
	}
	o.code = wq.BindMW
	wr.Bind = wq.Bind{RKey: l.nextKey(1), MR: e.mr.LKey()}
}

// turned is the completion of a request that opened or shut a lock.
func (e *end) turned(o *op) {
	l := o.lock
	switch l.phase {
	case opening:
		l.phase = open
		if l.now() != l.key {
			e.c.w.fail("%v: %v succeeds, and the key is %#x, want %#x", e, o.code, l.now(), l.key)
		}
	case shutting:
		l.phase = shut
	case shut, open:
	}
}

// enter has a request use one of the peer's locks, if there is one to use.
func (e *end) enter(o *op, wr *wq.SendWR) {
	p := e.peer()
	if len(p.locks) == 0 || e.c.w.rand.IntN(2) == 0 {
		return
	}
	l := p.locks[e.c.w.rand.IntN(len(p.locks))]
	if l.phase != open {
		return
	}
	o.through = l
	wr.RKey = l.key
	wr.RemoteAddr = l.base + uint64(l.order[o.slot]*e.c.w.plan.slot)
}

// sendAndShut makes a SEND invalidate one of the peer's locks, if there is one. It
// waits for READs that need the key.
func (e *end) sendAndShut(o *op, wr *wq.SendWR) {
	for _, l := range e.peer().locks {
		if l.phase == open && l.kind != window1 {
			l.phase = shutting
			o.code, o.lock, o.inv = wq.SendWithInv, l, l.key
			wr.Opcode, wr.InvalidateRKey = wq.SendWithInv, l.key
			return
		}
	}
}

// undo takes back what a request that was flushed would have done.
func (l *lock) undo() {
	switch l.phase {
	case opening:
		l.phase = shut
	case shutting:
		l.phase = open
	case shut, open:
	}
}
