package tiny

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/softroce/softroce/conformance/agent"
)

// access is a set of rights.
type access uint

const (
	localWrite access = 1 << iota
	remoteWrite
	remoteRead
	remoteAtomic
	mwBind
	zeroBased
	flushGlobal
	flushPersistent
	onDemand
	hugeTLB
	relaxedOrdering
)

var accessNames = []string{
	"LOCAL_WRITE", "REMOTE_WRITE", "REMOTE_READ", "REMOTE_ATOMIC", "MW_BIND", "ZERO_BASED", "FLUSH_GLOBAL", "FLUSH_PERSISTENT",
	"ON_DEMAND", "HUGETLB", "RELAXED_ORDERING",
}

func parseAccess(names []string) (a access, err error) {
next:
	for _, n := range names {
		for i, known := range accessNames {
			if n == known {
				a |= 1 << i
				continue next
			}
		}
		return 0, fmt.Errorf("access flag %q is not known", n)
	}
	return a, nil
}

func (a access) names() []string {
	out := []string{}
	for i, n := range accessNames {
		if a&(1<<i) != 0 {
			out = append(out, n)
		}
	}
	return out
}

// region is registered memory.
type region struct {
	handle  int
	pd      int
	addr    uint64 // of its first byte, as SGEs and RETHs say it
	mem     []byte
	access  access
	key     uint32 // L_Key and R_Key
	windows int
}

// window is a memory window.
type window struct {
	handle int
	pd     int
	typ    int // 1, 2
	key    uint32
	qp     *qp // a type 2 window's, once it is bound
	mr     *region
	addr   uint64
	length uint64
	access access
}

// free unbinds the window.
func (w *window) free() {
	if w.mr != nil {
		w.mr.windows--
	}
	w.mr, w.qp = nil, nil
}

// errAccess refuses a use of memory.
var errAccess = errors.New("key, bounds or rights")

// newKey makes a key: 24 bits of index and a low byte.
func (t *Target) newKey() uint32 {
	t.keys++
	return t.keys<<8 | (t.keys*0x3B+0x11)&0xFF
}

func within(addr, n, base, length uint64) bool {
	return addr >= base && addr-base <= length && n <= length-(addr-base)
}

// local finds the memory of an SGE.
func (q *qp) local(s agent.SGE, need access) ([]byte, error) {
	t := q.t
	for _, r := range t.mrs {
		if r.key != s.LKey {
			continue
		}
		if r.pd != q.pd && !t.broken("lkey-pd-ignored") || r.access&need != need && !t.broken("local-write-ignored") {
			return nil, errAccess
		}
		if !within(s.Addr, uint64(s.Length), r.addr, uint64(len(r.mem))) {
			return nil, errAccess
		}
		return r.mem[s.Addr-r.addr:][:s.Length], nil
	}
	return nil, errAccess
}

// remoteMem finds the memory that a request names by its R_Key (IBTA Vol 1 §10.6).
func (q *qp) remoteMem(key uint32, addr, n uint64, need access) ([]byte, error) {
	t := q.t
	if addr+n < addr && !t.broken("address-wrap-ignored") {
		return nil, errAccess
	}
	for _, r := range t.mrs {
		if t.sameKey(r.key, key) {
			return q.inRegion(r, addr, n, need)
		}
	}
	for _, w := range t.mws {
		if w.mr != nil && t.sameKey(w.key, key) {
			return q.inWindow(w, addr, n, need)
		}
	}
	if t.broken("old-keys-work") || t.broken("unknown-key-works") {
		if r := t.anyRegion(addr, n); r != nil {
			return r.mem[addr-r.addr:][:n], nil
		}
	}
	return nil, errAccess
}

func (t *Target) sameKey(have, key uint32) bool {
	if t.broken("key-low-byte-ignored") {
		return have>>8 == key>>8
	}
	return have == key
}

// anyRegion finds a region by address alone.
func (t *Target) anyRegion(addr, n uint64) *region {
	for _, r := range t.mrs {
		if within(addr, n, r.addr, uint64(len(r.mem))) {
			return r
		}
	}
	return nil
}

// inRegion checks a use of a region.
func (q *qp) inRegion(r *region, addr, n uint64, need access) ([]byte, error) {
	t := q.t
	if r.pd != q.pd && !t.broken("rkey-pd-ignored") {
		return nil, errAccess
	}
	if !t.hasRights(r.access, need) {
		return nil, errAccess
	}
	length := uint64(len(r.mem))
	if t.broken("zero-based-ignored") && r.access&zeroBased != 0 {
		addr += 8
	}
	switch {
	case within(addr, n, r.addr, length):
		return r.mem[addr-r.addr:][:n], nil
	case t.broken("bounds-one-before") && addr == r.addr-1, t.broken("bounds-one-after") && addr+n == r.addr+length+1,
		t.broken("bounds-ignored"):
		return make([]byte, n), nil
	case t.broken("bounds-after-partial") && addr+n == r.addr+length+1:
		copy(r.mem, "partial")
	case t.broken("address-wrap-ignored") && addr+n < addr:
		return make([]byte, n), nil
	}
	return nil, errAccess
}

// hasRights reports whether a set of rights is enough.
func (t *Target) hasRights(have, need access) bool {
	switch {
	case t.broken("remote-write-ignored"):
		need &^= remoteWrite
	case t.broken("remote-read-ignored"):
		need &^= remoteRead
	case t.broken("remote-atomic-ignored"):
		need &^= remoteAtomic
	case t.broken("flush-rights-ignored"):
		need &^= flushGlobal | flushPersistent
	}
	return have&need == need
}

// inWindow checks a use of a window.
func (q *qp) inWindow(w *window, addr, n uint64, need access) ([]byte, error) {
	t := q.t
	if w.pd != q.pd || w.typ == 2 && w.qp != q && !t.broken("window-any-qp") {
		return nil, errAccess
	}
	if w.access&need != need && !t.broken("window-rights-ignored") {
		return nil, errAccess
	}
	if !within(addr, n, w.addr, w.length) && !t.broken("window-bounds-ignored") {
		return nil, errAccess
	}
	r := w.mr
	if !within(addr, n, r.addr, uint64(len(r.mem))) {
		return nil, errAccess
	}
	return r.mem[addr-r.addr:][:n], nil
}

// bind binds a window (IBTA Vol 1 §10.6.7); the error is a MW_BIND_ERR.
func (q *qp) bind(w *window, b *agent.Bind, key uint32) error {
	t := q.t
	r := t.mrs[b.MR]
	acc, err := parseAccess(b.Access)
	switch {
	case err != nil:
		return err
	case w.typ == 2 && w.mr != nil && !t.broken("bind-twice"):
		return errors.New("the window is bound")
	case w.typ == 1 && b.Length == 0:
		w.free()
		w.key = key
		return nil
	case r == nil || r.pd != q.pd || w.pd != q.pd:
		return errors.New("no such region in the protection domain")
	case b.Length == 0 || r.access&zeroBased != 0:
		return errors.New("an empty window, or a zero-based region")
	case r.access&mwBind == 0 && !t.broken("bind-right-ignored"):
		return errors.New("the region lacks MW_BIND")
	case acc&(remoteWrite|remoteAtomic) != 0 && r.access&localWrite == 0 && !t.broken("bind-local-write-ignored"):
		return errors.New("the region lacks LOCAL_WRITE")
	case !within(b.Addr, b.Length, r.addr, uint64(len(r.mem))) && !t.broken("bind-bounds-ignored"):
		return errors.New("not within the region")
	}
	if t.broken("bind-keeps-old-key") {
		key = w.key
	}
	w.free()
	w.mr, w.addr, w.length, w.access, w.key = r, b.Addr, b.Length, acc, key
	if w.typ == 2 {
		w.qp = q
	}
	r.windows++
	return nil
}

// invalidate makes a key unusable (IBTA Vol 1 §10.6).
func (q *qp) invalidate(key uint32) error {
	for _, w := range q.t.mws {
		if w.key == key && w.typ == 2 && w.mr != nil && w.qp == q {
			if !q.t.broken("invalidate-does-nothing") {
				w.free()
			}
			return nil
		}
	}
	if q.t.broken("invalidate-anything") {
		return nil
	}
	return errAccess
}

// atomic executes an atomic operation on a cell of memory; the cell is in the host's byte order, which is little endian here.
func (t *Target) atomic(cell []byte, swap bool, compare, operand uint64) (old uint64) {
	old = binary.LittleEndian.Uint64(cell)
	val := old + operand
	switch {
	case swap && (old == compare) != t.broken("cmpswap-inverted"):
		val = operand
	case swap:
		val = old
	case t.broken("fetchadd-saturates") && val < old:
		val = ^uint64(0)
	case t.broken("fetchadd-carry-lost"):
		val = old&^0xFFFFFFFF | (old+operand)&0xFFFFFFFF
	case t.broken("fetchadd-compares") && compare != 0:
		val = old
	}
	if t.broken("atomic-cell-big-endian") {
		binary.BigEndian.PutUint64(cell, val)
	} else {
		binary.LittleEndian.PutUint64(cell, val)
	}
	if t.broken("atomic-returns-new") {
		return val
	}
	return old
}
