package verbs

// outstanding is what was posted to a queue and is not yet known to be free:
// a send entry is free when a completion that covers it was polled, which for
// an unsignaled request is that of a later one.
type outstanding struct {
	recs       []posted // a power of two
	limit      uint32
	head, tail uint32 // free-running; tail is the oldest
}

type posted struct {
	wrid     uint64
	op       WROpcode
	signaled bool
}

func (o *outstanding) init(limit uint32) {
	size := uint32(1)
	if limit == 0 {
		return // the queue takes nothing
	}
	for size < limit {
		size <<= 1
	}
	o.recs, o.limit = make([]posted, size), limit
}

func (o *outstanding) n() uint32  { return o.head - o.tail }
func (o *outstanding) full() bool { return o.n() >= o.limit }
func (o *outstanding) clear()     { o.tail = o.head }

func (o *outstanding) push(wrid uint64, op WROpcode, signaled bool) {
	o.recs[o.head&uint32(len(o.recs)-1)] = posted{wrid, op, signaled}
	o.head++
}

// takeBack forgets what was pushed since there were n in all.
func (o *outstanding) takeBack(n uint32) { o.head = n }

func (o *outstanding) pop() (p posted) {
	if o.n() > 0 {
		p = o.recs[o.tail&uint32(len(o.recs)-1)]
		o.tail++
	}
	return p
}

// retire frees the entries that a completion of the given mark stands for. A
// success is that of the oldest signaled entry and frees the unsignaled ones
// before it, whatever their marks: many programs mark all alike. A failure may
// be an unsignaled entry's own: it frees up to the oldest of its mark.
func (o *outstanding) retire(wrid uint64, failed bool) {
	for t := o.tail; t != o.head; t++ {
		r := &o.recs[t&uint32(len(o.recs)-1)]
		if r.wrid == wrid && (r.signaled || failed) {
			o.tail = t + 1
			return
		}
		if r.signaled {
			return // a signaled one completes before any later: not its mark
		}
	}
}
