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

// kind says what a slot holds.
type kind uint8

const (
	kindNone   kind = iota
	kindRegion      // a memory region; windows will be further kinds
)

// state is where in its life a slot's holder is.
type state uint8

const (
	stateFree   state = iota // in the free queue
	stateValid               // look-ups succeed
	stateMarked              // look-ups fail; segments may still be in use
)

// word packs a slot's state (bits 0–7), kind (8–15) and generation (16–63).
type word uint64

func makeWord(s state, k kind, gen uint64) word {
	return word(gen<<16 | uint64(k)<<8 | uint64(s))
}

// grant is what a key grants. It is never changed after it was published.
type grant struct {
	word   word // the slot's word while the grant is alive
	mem    Memory
	base   uint64 // first address of the range in the key's address space
	length uint64
	memOff uint64 // offset of base in mem
	key    uint32
	pd     PD
	access Access
}

// slot is one place of the table. Readers load grant, then word: a word equal
// to the grant's proves that the grant was alive at that moment.
type slot struct {
	word  atomic.Uint64
	grant atomic.Pointer[grant]
}

// Region is the handle of a registered region. It is immutable and safe for
// use by any goroutine.
type Region struct {
	g    grant
	slot uint32
	gen  uint64
}

// LKey is the region's local key.
func (r *Region) LKey() LKey { return LKey(r.g.key) }

// RKey is the region's remote key. Without a remote right every look-up by it
// fails with [ErrAccess].
func (r *Region) RKey() RKey { return RKey(r.g.key) }

// PD is the region's protection domain.
func (r *Region) PD() PD { return r.g.pd }

// Addr is the first address of the region in its own address space: its iova,
// or 0 when it is zero-based.
func (r *Region) Addr() uint64 { return r.g.base }

// Length is the region's length in bytes.
func (r *Region) Length() uint64 { return r.g.length }

// Access is the region's rights.
func (r *Region) Access() Access { return r.g.access }

// Memory is the memory the region was registered with.
func (r *Region) Memory() Memory { return r.g.mem }

// Table holds the regions of one adapter.
type Table struct {
	slots    []slot
	slotBits uint
	scr      scrambler
	secret   uint64

	mu   sync.Mutex // guards what is below; look-ups never take it
	gens []uint64   // newest generation of each slot
	free fifo
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
	}
	t.free.init(n)
	return t
}

// Cap is the number of slots.
func (t *Table) Cap() int { return len(t.slots) }

// Len is the number of regions that are registered or not yet freed.
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
// registered.
//
// Errors: [ErrFull], [ErrAccessFlags], [ErrLength], [ErrPDZero], [ErrNoMemory].
func (t *Table) Register(pd PD, mem Memory, iova, length uint64, access Access, salt uint32) (*Region, error) {
	if err := access.Check(); err != nil {
		return nil, err
	}
	if pd == 0 {
		return nil, ErrPDZero
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
	t.mu.Lock()
	defer t.mu.Unlock()
	i, ok := t.free.pop()
	if !ok {
		return nil, fmt.Errorf("%w: limit %d", ErrFull, len(t.slots))
	}
	r := &Region{slot: i}
	r.gen, r.g.key = t.nextKey(i, salt)
	r.g.word = makeWord(stateValid, kindRegion, r.gen)
	r.g.mem, r.g.base, r.g.length = mem, base, length
	r.g.pd, r.g.access = pd, access
	t.slots[i].grant.Store(&r.g)
	t.slots[i].word.Store(uint64(r.g.word))
	return r, nil
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
// turn's boundary. It fails with [ErrNotRegistered] when the life had ended.
func (t *Table) Mark(r *Region) error {
	s := t.slotOfRegion(r)
	if s == nil || !s.word.CompareAndSwap(uint64(r.g.word), uint64(makeWord(stateMarked, kindRegion, r.gen))) {
		return ErrNotRegistered
	}
	return nil
}

// Free makes the slot of a marked region usable again; it goes to the back of
// the queue of free slots. The caller has made sure that no worker holds a
// segment of it. A region that is not marked, or was freed, is left alone.
func (t *Table) Free(r *Region) {
	s := t.slotOfRegion(r)
	if s == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	marked := uint64(makeWord(stateMarked, kindRegion, r.gen))
	if !s.word.CompareAndSwap(marked, uint64(makeWord(stateFree, kindNone, r.gen))) {
		return
	}
	s.grant.Store(nil)
	t.free.push(r.slot)
}

func (t *Table) slotOfRegion(r *Region) *slot {
	if r == nil || int(r.slot) >= len(t.slots) {
		return nil
	}
	return &t.slots[r.slot]
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
