package mrtable

import (
	"math"
	"sync/atomic"
)

// WholeLength is the length of a region over the whole address space, whose
// first address is 0: what such a region grants is decided by its memory (the
// implicit region of on-demand paging).
const WholeLength = math.MaxUint64

// kind says what a slot holds.
type kind uint8

const (
	kindRegion kind = iota // registered memory
	kindFast               // a region that work requests register and invalidate
	kindWindow
)

// grant is what a key grants. But for users it is never changed after it was
// published.
type grant struct {
	mem    Memory
	base   uint64 // first address of the range in the key's address space
	length uint64
	memOff uint64   // offset of base in mem
	deps   []*grant // that must be alive too: a window's region, the memory of pages
	key    uint32
	qpn    uint32 // of a window of type 2: the queue pair; else 0
	pd     PD
	access Access
	kind   kind
	typ    WindowType // of a window
	open   bool       // false: the key grants nothing now
	home   *slot
	gen    uint64       // of the slot
	pages  uint32       // kindFast: the most
	users  atomic.Int32 // windows bound to it; over: it has ended
}

// over is the users of a grant that no window can be bound to any more.
const over = -1

// use counts one more window, unless the grant has ended.
func (g *grant) use() bool {
	for {
		n := g.users.Load()
		if n < 0 {
			return false
		}
		if g.users.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// end makes sure that no window is bound to the grant, now or later. It reports
// false when one is.
func (g *grant) end() bool {
	for {
		n := g.users.Load()
		switch {
		case n > 0:
			return false
		case n < 0 || g.users.CompareAndSwap(0, over):
			return true
		}
	}
}

// alive says whether all that the grant stands on is what its slot grants now.
func (g *grant) alive() bool {
	for _, d := range g.deps {
		if d.home.grant.Load() != d || !d.alive() {
			return false
		}
	}
	return true
}

// closed is a grant for the same place and key that grants nothing.
func (g *grant) closed() *grant {
	return &grant{key: g.key, pd: g.pd, kind: g.kind, typ: g.typ, home: g.home, gen: g.gen, pages: g.pages}
}
