package cm

// queue is a first-in first-out queue. Its memory is used again, and given up
// when it is empty and was large.
type queue[T any] struct {
	items []T
	head  int
}

// keepItems is the most items whose memory an empty queue keeps (our own tuning).
const keepItems = 64

func (q *queue[T]) len() int { return len(q.items) - q.head }

// next makes room for one more and returns it; its old content is garbage.
func (q *queue[T]) next() *T {
	switch {
	case q.head == len(q.items):
		q.items, q.head = q.items[:0], 0
	case len(q.items) == cap(q.items) && q.head >= cap(q.items)/2:
		q.items = q.items[:copy(q.items, q.items[q.head:])]
		q.head = 0
	}
	if len(q.items) < cap(q.items) {
		q.items = q.items[:len(q.items)+1]
	} else {
		var zero T
		q.items = append(q.items, zero)
	}
	return &q.items[len(q.items)-1]
}

func (q *queue[T]) push(v T) { *q.next() = v }

// take gives the oldest, nil when there is none. It is valid until the next call
// of next or push.
func (q *queue[T]) take() *T {
	if q.len() == 0 {
		if cap(q.items) > keepItems {
			q.items, q.head = nil, 0
		}
		return nil
	}
	q.head++
	return &q.items[q.head-1]
}

// pop gives the oldest and keeps nothing of it.
func (q *queue[T]) pop() (v T, ok bool) {
	p := q.take()
	if p == nil {
		return v, false
	}
	v = *p
	var zero T
	*p = zero
	return v, true
}

// outgoing is a MAD that waits to be sent.
type outgoing struct {
	to  Path
	mad [MADLen]byte
}

// sends are the MADs that wait to be sent. A full queue loses what comes, as the
// network does.
type sends struct {
	q     queue[outgoing]
	limit int
	lost  uint64
}

func (s *sends) push(to *Path, mad *[MADLen]byte) bool {
	if s.q.len() >= s.limit {
		s.lost++
		return false
	}
	o := s.q.next()
	o.to, o.mad = *to, *mad
	return true
}

func (s *sends) poll() (Path, []byte, bool) {
	o := s.q.take()
	if o == nil {
		return Path{}, nil, false
	}
	return o.to, o.mad[:], true
}
