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
// and inline data live in blocks of a slab; an empty queue holds none. Not
// safe for concurrent use.
type SendQueue struct {
	slab   *Slab
	max    int
	first  int      // position of the front entry in chunks[0]
	n      int      // entries
	chunks []*chunk // front first
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
	p := q.first + q.n
	if p/chunkWQEs == len(q.chunks) {
		c, err := q.slab.chunks.Take()
		if err != nil {
			return err
		}
		q.chunks = append(q.chunks, c)
	}
	if err := q.copyInto(&q.chunks[p/chunkWQEs].wqes[p%chunkWQEs], w); err != nil {
		q.trim()
		return err
	}
	q.n++
	return nil
}

// copyInto makes e a deep copy of w, or leaves it empty.
func (q *SendQueue) copyInto(e *WQE, w *SendWR) error {
	*e = WQE{SendWR: *w}
	e.SGList, e.Inline = nil, nil
	if w.Flags&SendInline != 0 {
		b, err := q.slab.Bytes(len(w.Inline))
		if err != nil {
			return err
		}
		copy(b, w.Inline)
		e.Inline = b
		return nil
	}
	l, err := q.slab.SGEs(len(w.SGList))
	if err != nil {
		return err
	}
	copy(l, w.SGList)
	e.SGList = l
	return nil
}

// At is entry i, 0 being the front; it panics outside [0, Len). The entry is
// the queue's: valid until it is popped, SGList and Inline not to be changed.
func (q *SendQueue) At(i int) *WQE {
	if uint(i) >= uint(q.n) {
		panic("wq: SendQueue.At out of range")
	}
	p := q.first + i
	return &q.chunks[p/chunkWQEs].wqes[p%chunkWQEs]
}

// PopFront drops the front entry and gives back its blocks. On an empty queue
// it does nothing.
func (q *SendQueue) PopFront() {
	if q.n == 0 {
		return
	}
	e := q.At(0)
	q.slab.FreeSGEs(e.SGList)
	q.slab.FreeBytes(e.Inline)
	*e = WQE{}
	q.first++
	q.n--
	if q.first == chunkWQEs {
		q.dropFront()
	}
	if q.n == 0 {
		q.trim()
	}
}

// dropFront gives back the front chunk, all of whose entries were popped.
func (q *SendQueue) dropFront() {
	q.slab.chunks.Give(q.chunks[0])
	copy(q.chunks, q.chunks[1:])
	q.chunks[len(q.chunks)-1] = nil
	q.chunks = q.chunks[:len(q.chunks)-1]
	q.first = 0
}

// trim gives back the chunks behind the last entry.
func (q *SendQueue) trim() {
	need := (q.first + q.n + chunkWQEs - 1) / chunkWQEs
	if q.n == 0 {
		need, q.first = 0, 0
	}
	for i := need; i < len(q.chunks); i++ {
		q.slab.chunks.Give(q.chunks[i])
		q.chunks[i] = nil
	}
	q.chunks = q.chunks[:need]
	if need == 0 && cap(q.chunks) > keepChunkSlots {
		q.chunks = nil
	}
}

// Reset drops every entry and gives back all blocks.
func (q *SendQueue) Reset() {
	for q.n > 0 {
		q.PopFront()
	}
}
