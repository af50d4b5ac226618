package soak

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/softroce/softroce/internal/simnet"
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/cq"
	"github.com/softroce/softroce/pkg/mrtable"
	"github.com/softroce/softroce/pkg/transport"
	"github.com/softroce/softroce/pkg/wq"
)

const (
	memBase  = 1 << 20 // the address of an adapter's first byte of memory
	cells    = 4       // of an adapter that everybody may add to
	cellsOff = guardLen

	allAccess = mrtable.AccessLocalWrite | mrtable.AccessRemoteWrite | mrtable.AccessRemoteRead |
		mrtable.AccessRemoteAtomic | mrtable.AccessMWBind
)

// adapter is one host: memory with its model, keys, queue pairs.
type adapter struct {
	w      *world
	index  int
	gid    bth.GID
	life   int // counts restarts
	up     bool
	size   int // of the memory
	keys   *mrtable.Table
	mem    mrtable.HeapMemory
	model  []byte // what the memory must be
	slab   *wq.Slab
	poor   bool // it is small
	stage  *transport.Stage
	peers  *transport.Peers
	ctr    *transport.Counters
	queues map[bth.QPN]*queue
	cqs    []*completions
	srqs   []*srq
	active []*queue // that may have something to send
	busy   bool     // the socket takes nothing

	shared *mrtable.Region // the cells
	cells  [cells]cell
}

// cell is a number that many queue pairs add 1 to.
type cell struct {
	found     []uint64 // what the additions found there
	uncertain int      // additions that may or may not have been made
}

func newAdapter(w *world, index int) *adapter {
	a := &adapter{w: w, index: index, gid: bth.GID{10: 0xFF, 11: 0xFF, 12: 10, 14: 1, 15: byte(index + 1)}}
	a.size = cellsOff + 8*cells + guardLen
	return a
}

func (a *adapter) String() string { return fmt.Sprintf("adapter %d", a.index) }

// reserve gives away a piece of the memory, with a guard behind it.
func (a *adapter) reserve(n int) (off int) {
	off = a.size
	a.size += (n+7)&^7 + guardLen
	return off
}

// boot begins a life: memory with new contents, no keys, no queue pairs.
func (a *adapter) boot() {
	r := &a.w.rand
	a.life++
	a.up = true
	a.mem = make(mrtable.HeapMemory, a.size)
	fill(a.mem, r.Uint64())
	clear(a.mem[cellsOff : cellsOff+8*cells])
	a.model = append([]byte(nil), a.mem...)
	a.keys = mrtable.New(mrtable.Config{MaxRegions: 1 << 10, Secret: r.Uint64()})
	a.shared = a.register(cellsOff, 8*cells)
	limit := 0
	if a.poor = a.w.plan.poor && r.IntN(2) == 0; a.poor {
		limit = 4<<10 + r.IntN(12<<10)
	}
	a.slab, a.stage, a.ctr = wq.NewSlab(limit), new(transport.Stage), new(transport.Counters)
	a.peers = transport.NewPeers(0)
	a.queues, a.active = make(map[bth.QPN]*queue), nil
	a.cells = [cells]cell{}
	a.cqs = nil
	for range 1 + r.IntN(4) {
		a.cqs = append(a.cqs, &completions{a: a})
	}
	for _, q := range a.srqs {
		q.boot()
	}
}

// fill makes bytes from a seed.
func fill(b []byte, seed uint64) {
	r := simnet.NewRand(seed)
	for i := 0; i < len(b); i += 8 {
		v := r.Uint64()
		for k := i; k < min(i+8, len(b)); k++ {
			b[k] = byte(v)
			v >>= 8
		}
	}
}

// foreign is memory that is not mapped: each access is a call.
type foreign struct{ mrtable.HeapMemory }

// Bytes implements mrtable.Memory.
func (foreign) Bytes(uint64, uint64) []byte { return nil }

func (a *adapter) register(off, n int) *mrtable.Region {
	var mem mrtable.Memory = a.mem[off : off+n]
	if a.w.rand.IntN(3) == 0 {
		mem = foreign{a.mem[off : off+n]}
	}
	r, err := a.keys.Register(1, mem, memBase+uint64(off), uint64(n), allAccess, uint32(a.w.rand.Uint64()))
	if err != nil {
		a.w.fail("%v: register: %v", a, err)
	}
	return r
}

func (a *adapter) deregister(r *mrtable.Region) {
	if err := a.keys.Mark(r); err != nil {
		a.w.fail("%v: deregister: %v", a, err)
	}
	a.keys.Free(r)
}

// restart ends a life: queue pairs are gone without a word, and so is the memory.
func (a *adapter) restart() {
	a.w.net.Restart(a.index)
	for _, q := range a.sorted() {
		q.close()
	}
	a.lookAtSlab()
	a.up = false
}

// sorted are the queue pairs in the order of their numbers.
func (a *adapter) sorted() (l []*queue) {
	for _, q := range a.queues {
		l = append(l, q)
	}
	slices.SortFunc(l, func(p, q *queue) int { return int(p.qpn) - int(q.qpn) })
	return l
}

// lookAtSlab finds what queue pairs did not give back.
func (a *adapter) lookAtSlab() {
	if n := a.slab.InUse(); n != 0 {
		a.w.fail("%v: %d bytes of the slab are in use when all queue pairs are closed", a, n)
	}
	if n := a.peers.Len(); n != 0 {
		a.w.fail("%v: %d peers are there when all queue pairs are closed", a, n)
	}
}

// finish looks at what is left in the end.
func (a *adapter) finish() {
	if len(a.queues) > 0 {
		a.w.fail("%v: %d queue pairs are left", a, len(a.queues))
	}
	a.lookAtSlab()
	if !a.up {
		return // its memory is nobody's
	}
	a.lookAtCells()
	for _, q := range a.srqs {
		q.finish()
	}
	for i := range a.mem {
		if a.mem[i] != a.model[i] {
			n := 0
			for j := i; j < len(a.mem); j++ {
				if a.mem[j] != a.model[j] {
					n++
				}
			}
			a.w.fail("%v: byte at offset %#x is %#02x, want %#02x; %d bytes are wrong", a, i, a.mem[i], a.model[i], n)
			return
		}
	}
}

// lookAtCells: each addition was made once. All add 1, so that those made found
// different values.
func (a *adapter) lookAtCells() {
	for i := range a.cells {
		c := &a.cells[i]
		off := cellsOff + 8*i
		v := word(a.mem[off:])
		copy(a.model[off:off+8], a.mem[off:off+8])
		slices.Sort(c.found)
		for k, found := range c.found {
			if k > 0 && found == c.found[k-1] || found >= v {
				a.w.fail("%v: cell %d: an addition found %d, others %v, it is %d", a, i, found, c.found, v)
				return
			}
		}
		if n := uint64(len(c.found)); v < n || v > n+uint64(c.uncertain) {
			a.w.fail("%v: cell %d is %d after %d additions and %d that may have been made", a, i, v, n, c.uncertain)
		}
	}
}

// arrived compares memory with what must have come there.
func (a *adapter) arrived(off int, data []byte) bool {
	ok := bytes.Equal(a.mem[off:off+len(data)], data)
	copy(a.model[off:], data)
	return ok
}

// begun says whether memory is what data makes of it when only some first part
// of data came, and takes it for what must be there.
func (a *adapter) begun(off int, data []byte) bool {
	mem, old := a.mem[off:off+len(data)], a.model[off:off+len(data)]
	k := 0
	for k < len(mem) && mem[k] == data[k] {
		k++
	}
	ok := bytes.Equal(mem[k:], old[k:])
	copy(old, mem)
	return ok
}

// completions is a completion queue. Its queue pairs share it.
type completions struct {
	a         *adapter
	wcs       []cq.WC
	solicited []bool
	isRecv    []bool
}

func (c *completions) add(wc *cq.WC, solicited, isRecv bool) {
	if len(c.wcs) == 0 {
		c.a.w.dirty = append(c.a.w.dirty, c)
	}
	c.wcs = append(c.wcs, *wc)
	c.solicited = append(c.solicited, solicited)
	c.isRecv = append(c.isRecv, isRecv)
}

func (c *completions) clear() {
	c.wcs, c.solicited, c.isRecv = c.wcs[:0], c.solicited[:0], c.isRecv[:0]
}

// sendSide and recvSide put completions of the two work queues into the
// completion queue. On error a completion's opcode need not say which it is of.
type (
	sendSide struct{ *completions }
	recvSide struct{ *completions }
)

// Complete implements transport.Sink.
func (c sendSide) Complete(wc *cq.WC, solicited bool) { c.add(wc, solicited, false) }

// Complete implements transport.Sink.
func (c recvSide) Complete(wc *cq.WC, solicited bool) { c.add(wc, solicited, true) }
