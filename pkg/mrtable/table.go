package mrtable

import (
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"
)

// Our own tuning.
const (
	defaultRegions = 1 << 16
	maxRegions     = 1 << 22
)

// Config configures a [Table]. The zero value is usable.
type Config struct {
	// MaxRegions is the number of slots, at most 2^22; 0 means 65,536.
	MaxRegions int
	// Secret makes keys unpredictable. The caller draws it at random, once
	// per table; any value works, 0 too, but one that is known gives keys
	// that can be guessed.
	Secret uint64
}

// state is where in its life a slot's holder is.
type state uint8

const (
	stateFree   state = iota // in the free queue
	stateHeld                // a region or a window has it
	stateMarked              // look-ups fail; segments may still be in use
)

// slot is one place of the table. What its key grants now is one pointer, which
// is all that a look-up reads: workers and the control plane change it by
// compare-and-swap, and nothing that it points to is used again, so that an old
// pointer never passes for a new one.
type slot struct {
	grant atomic.Pointer[grant]
}

// holder is what a handle knows of its place.
type holder struct {
	s    *slot
	slot uint32
	gen  uint64
	made *grant // the first grant
}

// now is the present grant, or the first one when the life has ended.
func (h *holder) now() *grant {
	if g := h.s.grant.Load(); g != nil && g.gen == h.gen {
		return g
	}
	return h.made
}

// Region is the handle of a region. It is safe for use by any goroutine. Only
// of one for fast registration ([Table.AllocRegion]) anything changes.
type Region struct{ h holder }

// LKey is the region's local key.
func (r *Region) LKey() LKey { return LKey(r.h.now().key) }

// RKey is the region's remote key. Without a remote right every look-up by it
// fails with [ErrAccess].
func (r *Region) RKey() RKey { return RKey(r.h.now().key) }

// PD is the region's protection domain.
func (r *Region) PD() PD { return r.h.made.pd }

// Addr is the first address of the region in its own address space: its iova,
// or 0 when it is zero-based.
func (r *Region) Addr() uint64 { return r.h.now().base }

// Length is the region's length in bytes.
func (r *Region) Length() uint64 { return r.h.now().length }

// Access is the region's rights.
func (r *Region) Access() Access { return r.h.now().access }

// Memory is the memory the region was registered with, nil for one that was
// allocated for fast registration.
func (r *Region) Memory() Memory { return r.h.made.mem }

// Table holds the regions and windows of one adapter.
type Table struct {
	slots    []slot
	slotBits uint
	scr      scrambler
	secret   uint64

	mu     sync.Mutex // guards what is below; look-ups never take it
	gens   []uint64   // newest generation of each slot
	states []state
	free   fifo
}

// New makes an empty table. MaxRegions out of range is brought into it.
func New(cfg Config) *Table {
	n := cfg.MaxRegions
	if n <= 0 {
		n = defaultRegions
	}
	n = min(n, maxRegions)
	t := &Table{
		slots:    make([]slot, n),
		slotBits: uint(bits.Len(uint(n - 1))),
		scr:      newScrambler(cfg.Secret),
		secret:   mix64(cfg.Secret + 1),
		gens:     make([]uint64, n),
		states:   make([]state, n),
	}
	t.free.init(n)
	return t
}

// Cap is the number of slots.
func (t *Table) Cap() int { return len(t.slots) }

// Len is the number of regions and windows that exist or are not yet freed.
func (t *Table) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.slots) - t.free.n
}

// Register gives mem, seen at [iova, iova+length) (from 0 when zero-based), a
// key in the domain pd. The salt, random from the caller, makes the key less
// predictable still. Length 0 is allowed; such a region grants empty ranges
// only.
//
// A range whose end, address plus length, does not fit in 64 bits is refused,
// also when it ends at 2^64 exactly: so no address from which a length wraps
// to 0 is ever granted, and the last byte of the address space cannot be
// registered. The region over the whole address space is [0, [WholeLength]).
//
// Errors: [ErrFull], [ErrAccessFlags], [ErrLength], [ErrPDZero], [ErrNoMemory].
func (t *Table) Register(pd PD, mem Memory, iova, length uint64, access Access, salt uint32) (*Region, error) {
	if err := access.Check(); err != nil {
		return nil, err
	}
	if mem == nil {
		return nil, ErrNoMemory
	}
	base := iova
	if access&AccessZeroBased != 0 {
		base = 0
	}
	if base+length < base {
		return nil, fmt.Errorf("%w: address %#x, length %#x", ErrLength, base, length)
	}
	g := &grant{kind: kindRegion, open: true, mem: mem, base: base, length: length, pd: pd, access: access}
	h, err := t.hold(g, salt)
	if err != nil {
		return nil, err
	}
	return &Region{h}, nil
}

// hold gives g a free slot, a generation and a key, and publishes it.
func (t *Table) hold(g *grant, salt uint32) (holder, error) {
	if g.pd == 0 {
		return holder{}, ErrPDZero
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	i, ok := t.free.pop()
	if !ok {
		return holder{}, fmt.Errorf("%w: limit %d", ErrFull, len(t.slots))
	}
	s := &t.slots[i]
	g.home = s
	g.gen, g.key = t.nextKey(i, salt)
	t.states[i] = stateHeld
	s.grant.Store(g)
	return holder{s: s, slot: i, gen: g.gen, made: g}, nil
}

// nextKey advances a slot's generation. Keys whose upper 24 bits are 0 are
// not given out: programs take a key of 0 for none.
func (t *Table) nextKey(slot, salt uint32) (gen uint64, key uint32) {
	gen = t.gens[slot] + 1 + uint64(salt%saltSpread)
	for {
		key = t.key(slot, gen)
		if key>>8 != 0 {
			t.gens[slot] = gen
			return gen, key
		}
		gen++
	}
}

// Mark ends a region's life: every look-up that begins after it returned
// fails. Segments given before may be in use until every worker has passed a
// turn's boundary. It fails with [ErrNotRegistered] when the life had ended, and
// with [ErrBound], changing nothing, while windows are bound to the region.
func (t *Table) Mark(r *Region) error {
	if r == nil {
		return ErrNotRegistered
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.is(&r.h, stateHeld) {
		return ErrNotRegistered
	}
	for {
		g := r.h.s.grant.Load()
		if !g.end() {
			return ErrBound
		}
		if r.h.s.grant.CompareAndSwap(g, nil) {
			t.states[r.h.slot] = stateMarked
			return nil
		}
	}
}

// Free makes the slot of a marked region usable again; it goes to the back of
// the queue of free slots. The caller has made sure that no worker holds a
// segment of it. A region that is not marked, or was freed, is left alone.
func (t *Table) Free(r *Region) {
	if r != nil {
		t.giveBack(&r.h)
	}
}

// giveBack makes the slot of a marked holder free.
func (t *Table) giveBack(h *holder) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.is(h, stateMarked) {
		t.states[h.slot] = stateFree
		t.free.push(h.slot)
	}
}

// is says whether h holds its slot in this table, and in state st.
func (t *Table) is(h *holder, st state) bool {
	i := int(h.slot)
	return i < len(t.slots) && h.s == &t.slots[i] && t.gens[i] == h.gen && t.states[i] == st
}

// fifo is a bounded queue of slot numbers.
type fifo struct {
	buf  []uint32
	head int
	n    int
}

// init fills the queue with 0..n-1.
func (f *fifo) init(n int) {
	f.buf = make([]uint32, n)
	for i := range f.buf {
		f.buf[i] = uint32(i)
	}
	f.n = n
}

func (f *fifo) pop() (uint32, bool) {
	if f.n == 0 {
		return 0, false
	}
	v := f.buf[f.head]
	f.head = (f.head + 1) % len(f.buf)
	f.n--
	return v, true
}

// push appends v. The queue never holds more than every slot once.
func (f *fifo) push(v uint32) {
	f.buf[(f.head+f.n)%len(f.buf)] = v
	f.n++
}
