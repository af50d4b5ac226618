package wq

import "math/bits"

// Slab is a worker's memory for copies of requests in flight: blocks from
// bounded free lists. A block is kept for reuse when it is given back, so
// that nothing is allocated once the peak was reached. Not safe for
// concurrent use.
type Slab struct {
	limit  int
	held   int // bytes of all blocks, handed out or free
	inUse  int // bytes of blocks handed out
	sges   [sizeClasses]blocks[SGE]
	bytes  [sizeClasses]blocks[byte]
	pools  map[any]dropper // by a nil *T
	chunks *Pool[chunk]
}

// dropper is a free list that can let go of its blocks.
type dropper interface {
	drop()
}

// Our own tuning.
const (
	sizeClasses  = 20      // blocks of 1<<0 .. 1<<19 elements
	minSGEClass  = 2       // 4 elements
	minByteClass = 6       // 64 bytes
	defaultLimit = 1 << 26 // 64 MiB
	chunkWQEs    = 8       // entries per block of a send queue
	sgeBytes     = 16      // what an SGE counts against the limit
	wqeBytes     = 192     // and an entry
)

// NewSlab makes a slab of at most limitBytes; 0 means 64 MiB.
func NewSlab(limitBytes int) *Slab {
	if limitBytes <= 0 {
		limitBytes = defaultLimit
	}
	s := &Slab{limit: limitBytes, pools: make(map[any]dropper)}
	s.chunks = PoolOf[chunk](s, chunkWQEs*wqeBytes)
	return s
}

// InUse is the number of bytes in blocks that are handed out.
func (s *Slab) InUse() int { return s.inUse }

// Held is the number of bytes in all blocks, handed out or free.
func (s *Slab) Held() int { return s.held }

// reserve accounts for a new block; false when the limit forbids it. Before
// that it lets go of every free block: they may be of sizes that nobody asks
// for any more, and must not keep others out.
func (s *Slab) reserve(n int) bool {
	if n > s.limit-s.held {
		if n > s.limit-s.inUse {
			return false
		}
		s.shed()
	}
	s.held += n
	return true
}

// shed lets go of all free blocks.
func (s *Slab) shed() {
	for c := range sizeClasses {
		s.sges[c].free, s.bytes[c].free = nil, nil
	}
	for _, p := range s.pools {
		p.drop()
	}
	s.held = s.inUse
}

// blocks is the free list of one size class.
type blocks[T any] struct {
	free [][]T
}

func classOf(n, least int) int { return max(least, bits.Len(uint(n-1))) }

// SGEs is a block of n elements, their contents undefined. n == 0 gives nil
// and holds nothing. Error: [ErrSlab].
func (s *Slab) SGEs(n int) ([]SGE, error) {
	return take(s, s.sges[:], n, minSGEClass, sgeBytes)
}

// FreeSGEs gives back what SGEs returned, whole.
func (s *Slab) FreeSGEs(b []SGE) { give(s, s.sges[:], b, sgeBytes) }

// Bytes is a block of n bytes, their contents undefined. n == 0 gives nil and
// holds nothing. Error: [ErrSlab].
func (s *Slab) Bytes(n int) ([]byte, error) {
	return take(s, s.bytes[:], n, minByteClass, 1)
}

// FreeBytes gives back what Bytes returned, whole.
func (s *Slab) FreeBytes(b []byte) { give(s, s.bytes[:], b, 1) }

func take[T any](s *Slab, classes []blocks[T], n, least, size int) ([]T, error) {
	if n == 0 {
		return nil, nil
	}
	c := classOf(n, least)
	if c >= len(classes) {
		return nil, ErrSlab
	}
	f := &classes[c].free
	var b []T
	if k := len(*f); k > 0 {
		b = (*f)[k-1]
		(*f)[k-1] = nil
		*f = (*f)[:k-1]
	} else {
		if !s.reserve(size << c) {
			return nil, ErrSlab
		}
		b = make([]T, 1<<c)
	}
	s.inUse += size << c
	return b[:n], nil
}

func give[T any](s *Slab, classes []blocks[T], b []T, size int) {
	if cap(b) == 0 {
		return
	}
	c := classOf(cap(b), 0)
	s.inUse -= size << c
	classes[c].free = append(classes[c].free, b[:cap(b)])
}

// Pool is a slab's free list of records of one type, for what a worker's QPs
// need only while something is in flight (replay records).
type Pool[T any] struct {
	slab *Slab
	size int
	free []*T
}

// PoolOf is the slab's pool of T; the same one at each call. size is what one
// T counts against the slab's limit, in bytes; the first call's size holds.
func PoolOf[T any](s *Slab, size int) *Pool[T] {
	key := any((*T)(nil))
	if p, ok := s.pools[key].(*Pool[T]); ok {
		return p
	}
	p := &Pool[T]{slab: s, size: size}
	s.pools[key] = p
	return p
}

// Take is a zeroed record. Error: [ErrSlab].
func (p *Pool[T]) Take() (*T, error) {
	var r *T
	if n := len(p.free); n > 0 {
		r = p.free[n-1]
		p.free[n-1] = nil
		p.free = p.free[:n-1]
	} else {
		if !p.slab.reserve(p.size) {
			return nil, ErrSlab
		}
		r = new(T)
	}
	p.slab.inUse += p.size
	return r, nil
}

// drop implements dropper.
func (p *Pool[T]) drop() { p.free = nil }

// Give gives back a record; it is zeroed.
func (p *Pool[T]) Give(r *T) {
	var zero T
	*r = zero
	p.slab.inUse -= p.size
	p.free = append(p.free, r)
}
