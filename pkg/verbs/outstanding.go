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

func (o *outstanding) pop() (p posted) {
	if o.n() > 0 {
		p = o.recs[o.tail&uint32(len(o.recs)-1)]
		o.tail++
	}
	return p
}

// retire frees the entries up to the oldest of the given mark: a completion
// stands for it and for the unsignaled ones before it.
func (o *outstanding) retire(wrid uint64) {
	for t := o.tail; t != o.head; t++ {
		r := &o.recs[t&uint32(len(o.recs)-1)]
		if r.wrid == wrid {
			o.tail = t + 1
			return
		}
		if r.signaled {
			return // a signaled one completes before any later: not its mark
		}
	}
}
