package wq

// WQE is an entry of a send queue: a deep copy of the request and words that
// belong to the queue's user.
type WQE struct {
	SendWR
	// User is the transport's: positions, states. Zero in a new entry; wq
	// never reads it.
	User [4]uint64
}

// chunk is a block of queue entries.
type chunk struct {
	wqes [chunkWQEs]WQE
}

// SendQueue is a bounded FIFO of send requests. Its entries, their elements
// and inline data live in blocks of a slab; an empty queue holds none (what it
// keeps is a byte for each entry of its peak). Not safe for concurrent use.
type SendQueue struct {
	slab  *Slab
	max   int
	n     int      // entries
	first int      // position of the front entry in its chunk
	ring  []*chunk // length a power of two, or none yet
	head  int      // place of the front entry's chunk in ring
	held  int      // chunks in ring, from head on
}

// NewSendQueue makes an empty queue of at most maxWR entries over a slab.
func NewSendQueue(slab *Slab, maxWR int) *SendQueue {
	return &SendQueue{slab: slab, max: maxWR}
}

// Len is the number of entries.
func (q *SendQueue) Len() int { return q.n }

// Cap is the most entries the queue takes.
func (q *SendQueue) Cap() int { return q.max }

// Push appends a deep copy of w. Errors: [ErrFull]; [ErrSlab], which is an
// ErrFull too. The queue is unchanged on error.
func (q *SendQueue) Push(w *SendWR) error {
	if q.n >= q.max {
		return ErrFull
	}
	if (q.first+q.n)/chunkWQEs == q.held {
		if err := q.addChunk(); err != nil {
			return err
		}
	}
	if err := q.copyInto(q.entry(q.n), w); err != nil {
		q.trim()
		return err
	}
	q.n++
	return nil
}

// entry is place i from the front, which may be one behind the last entry.
func (q *SendQueue) entry(i int) *WQE {
	p := q.first + i
	return &q.ring[(q.head+p/chunkWQEs)&(len(q.ring)-1)].wqes[p%chunkWQEs]
}

// addChunk puts an empty chunk behind the last one.
func (q *SendQueue) addChunk() error {
	c, err := q.slab.chunks.Take()
	if err != nil {
		return err
	}
	if q.held == len(q.ring) {
		q.growRing()
	}
	q.ring[(q.head+q.held)&(len(q.ring)-1)] = c
	q.held++
	return nil
}

func (q *SendQueue) growRing() {
	r := make([]*chunk, max(1, 2*len(q.ring)))
	for i := range q.held {
		r[i] = q.ring[(q.head+i)&(len(q.ring)-1)]
	}
	q.ring, q.head = r, 0
}

// copyInto makes e a deep copy of w, or leaves it empty.
func (q *SendQueue) copyInto(e *WQE, w *SendWR) error {
	var (
		l   []SGE
		b   []byte
		err error
	)
	if w.Flags&SendInline != 0 {
		b, err = q.slab.Bytes(len(w.Inline))
		copy(b, w.Inline)
	} else {
		l, err = q.slab.SGEs(len(w.SGList))
		copy(l, w.SGList)
	}
	if err != nil {
		return err
	}
	e.SendWR, e.SGList, e.Inline = *w, l, b
	return nil
}

// At is entry i, 0 being the front; it panics outside [0, Len). The entry is
// the queue's: valid until it is popped, SGList and Inline not to be changed.
func (q *SendQueue) At(i int) *WQE {
	if uint(i) >= uint(q.n) {
		panic("wq: SendQueue.At out of range")
	}
	return q.entry(i)
}

// PopFront drops the front entry and gives back its blocks. On an empty queue
// it does nothing.
func (q *SendQueue) PopFront() {
	if q.n == 0 {
		return
	}
	e := q.entry(0)
	q.slab.FreeSGEs(e.SGList)
	q.slab.FreeBytes(e.Inline)
	q.first++ // the place is not used again before its chunk was given back, and so zeroed
	q.n--
	if q.first == chunkWQEs {
		q.give(q.head)
		q.head = (q.head + 1) & (len(q.ring) - 1)
		q.first = 0
	}
	if q.n == 0 {
		q.trim()
	}
}

// trim gives back the chunks behind the last entry.
func (q *SendQueue) trim() {
	if q.n == 0 {
		q.first = 0
	}
	need := (q.first + q.n + chunkWQEs - 1) / chunkWQEs
	for q.held > need {
		q.give((q.head + q.held - 1) & (len(q.ring) - 1))
	}
}

// give gives back the chunk at a place of the ring.
func (q *SendQueue) give(place int) {
	q.slab.chunks.Give(q.ring[place])
	q.ring[place] = nil
	q.held--
}

// Reset drops every entry and gives back all blocks.
func (q *SendQueue) Reset() {
	for q.n > 0 {
		q.PopFront()
	}
}
