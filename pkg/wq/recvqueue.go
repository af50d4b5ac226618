package wq

// RecvQueue is a [RecvSource] in memory, for tests and simulations: a bounded
// FIFO of deep copies. Not safe for concurrent use.
type RecvQueue struct {
	buf  []RecvWR
	head int
	n    int
}

// NewRecvQueue makes an empty queue of at most maxWR requests.
func NewRecvQueue(maxWR int) *RecvQueue { return &RecvQueue{buf: make([]RecvWR, maxWR)} }

// Len is the number of requests that wait.
func (q *RecvQueue) Len() int { return q.n }

// Push appends a copy of w. Error: [ErrFull].
func (q *RecvQueue) Push(w *RecvWR) error {
	if q.n >= len(q.buf) {
		return ErrFull
	}
	copyRecv(&q.buf[(q.head+q.n)%len(q.buf)], w)
	q.n++
	return nil
}

// TakeRecv implements [RecvSource].
func (q *RecvQueue) TakeRecv(dst *RecvWR) bool {
	if q.n == 0 {
		return false
	}
	copyRecv(dst, &q.buf[q.head])
	q.head = (q.head + 1) % len(q.buf)
	q.n--
	return true
}

// copyRecv makes dst a deep copy of src, reusing dst's memory.
func copyRecv(dst, src *RecvWR) {
	dst.WRID = src.WRID
	dst.SGList = append(dst.SGList[:0], src.SGList...)
}
