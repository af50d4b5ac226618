package simnet

import "time"

// reader is the receiving side of a host: its buffer and who reads from it.
type reader struct {
	held int       // bytes in the buffer, as Cost counts
	free time.Time // when the reader is done with what it reads
}

// serialize sends size bytes over the link of a host: when they have left, false
// when too much waits for the link.
func (n *Net) serialize(from, size int) (time.Time, bool) {
	rate := n.cfg.Rate
	if r := n.host(from).Rate; r > 0 {
		rate = r
	}
	if rate <= 0 {
		return n.now, true
	}
	at := n.links[from]
	if at.Before(n.now) {
		at = n.now
	}
	waiting := int(float64(rate) * at.Sub(n.now).Seconds())
	if n.cfg.LinkQueue > 0 && waiting+size > n.cfg.LinkQueue {
		return at, false
	}
	at = at.Add(takes(size, rate))
	n.links[from] = at
	return at, true
}

// takes is how long size bytes take at a rate; none at a rate of 0.
func takes(size, rate int) time.Duration {
	if rate <= 0 {
		return 0
	}
	return time.Duration(size) * time.Second / time.Duration(rate)
}

// buffers says whether datagrams go through receive buffers.
func (n *Net) buffers() bool { return n.cfg.Buffer > 0 || n.cfg.ReadRate > 0 || n.cfg.ReadEvery > 0 }

func (n *Net) cost(size int) int {
	if n.cfg.Cost == nil {
		return size
	}
	return n.cfg.Cost(size)
}

func (n *Net) reader(host int) *reader {
	r := n.reads[host]
	if r == nil {
		r = new(reader)
		n.reads[host] = r
	}
	return r
}

// arrive puts a datagram in its receiver's buffer, to be read in its turn.
func (n *Net) arrive(f flight) {
	r := n.reader(f.To)
	cost := n.cost(len(f.Data))
	if n.cfg.Buffer > 0 && r.held+cost > n.cfg.Buffer {
		n.stats.Overflowed++
		n.fault(Overflowed, f.From, f.To, f.Data)
		n.queued[f.To]--
		n.free = append(n.free, f.Data)
		return
	}
	r.held += cost
	if r.free.Before(f.at) {
		r.free = f.at
	}
	r.free = n.awake(r.free.Add(takes(len(f.Data), n.cfg.ReadRate)))
	f.at, f.arrived = r.free, true
	f.order = n.order
	n.order++
	n.push(f)
}

// awake is the first time from t on at which readers do not pause: they do at
// the end of each ReadEvery.
func (n *Net) awake(t time.Time) time.Time {
	if n.cfg.ReadEvery <= 0 {
		return t
	}
	in := t.Sub(n.start) % n.cfg.ReadEvery
	if in < n.cfg.ReadEvery-n.cfg.ReadPause {
		return t
	}
	return t.Add(n.cfg.ReadEvery - in)
}

// read takes a datagram out of its receiver's buffer.
func (n *Net) read(f *flight) {
	if f.arrived {
		n.reader(f.To).held -= n.cost(len(f.Data))
	}
}
