package simnet

import "time"

// Config says how bad the network is. The zero value is a perfect one with no
// delay. Probabilities are from 0 to 1 and per datagram.
type Config struct {
	Seed      uint64
	Loss      float64
	Duplicate float64 // one copy more, with a delay of its own
	Reorder   float64 // held back by up to ReorderDelay
	Corrupt   float64 // one to three bits flipped

	Delay        time.Duration // of every datagram
	Jitter       time.Duration // 0 to this on top
	ReorderDelay time.Duration // 0: four times Delay plus Jitter

	// Queue is the most datagrams on the way to one host; more are lost, as in
	// a full receive buffer. 0: no limit.
	Queue int

	// Rate is how fast each host's link sends, in bytes a second, and LinkQueue
	// how many bytes may wait for it; more are lost. 0: no limit.
	Rate      int
	LinkQueue int

	// Buffer is the size of each host's receive buffer in bytes, in which a
	// datagram takes what Cost says (nil: its size); those that find it full
	// are lost. The host reads ReadRate bytes a second (their size, not their
	// cost) and, with ReadEvery, nothing for the time ReadPause in each
	// ReadEvery. 0: no limit, at once.
	Buffer    int
	Cost      func(size int) int
	ReadRate  int
	ReadEvery time.Duration
	ReadPause time.Duration

	// Hosts are what is special to each host; one that is not in it has nothing
	// special.
	Hosts []Host

	// OnFault, when set, is told of everything that goes wrong, as it happens.
	OnFault func(Fault)

	// Choose, when set, decides in place of the dice; seq counts datagrams
	// from 0.
	Choose func(seq uint64, size int) Fate
}

// Host is what is special to a host.
type Host struct {
	Rate  int           // of its link in bytes a second, in place of Config.Rate; 0: that
	Delay time.Duration // of every datagram that it sends, beyond Config.Delay
}

// Fate is what happens to one datagram.
type Fate struct {
	Drop    bool
	Copies  int           // beyond the first
	Corrupt int           // bits to flip
	Hold    time.Duration // beyond Delay
}

// Datagram is one delivery. Data is the receiver's until the next call of Take.
type Datagram struct {
	From, To int
	Data     []byte
	Copy     bool // a duplicate
	Damaged  bool // corrupted on the way
}

// Stats count datagrams.
type Stats struct {
	Sent, Lost, Overflowed, Duplicated, Reordered, Corrupted, Delivered uint64

	Blocked   uint64 // sent where a partition is
	Discarded uint64 // lost with the host that held them
}

// Net is the network. Not safe for concurrent use.
type Net struct {
	cfg    Config
	rand   Rand
	now    time.Time
	heap   []flight
	seq    uint64
	order  uint64
	queued map[int]int
	free   [][]byte
	last   []byte
	stats  Stats

	start time.Time
	links map[int]time.Time // when a host's link is free again
	reads map[int]*reader
	cuts  map[[2]int]bool // pairs of hosts that do not hear each other
}

// flight is a datagram on its way.
type flight struct {
	Datagram
	at      time.Time
	leaves  time.Time // the sender's link
	order   uint64
	arrived bool // it lies in the receive buffer
}

// New makes a network whose clock shows start.
func New(cfg Config, start time.Time) *Net {
	if cfg.ReorderDelay == 0 {
		cfg.ReorderDelay = 4 * (cfg.Delay + cfg.Jitter)
	}
	return &Net{
		cfg: cfg, rand: NewRand(cfg.Seed), now: start, start: start,
		queued: make(map[int]int), links: make(map[int]time.Time), reads: make(map[int]*reader),
		cuts: make(map[[2]int]bool),
	}
}

// Now is the virtual time.
func (n *Net) Now() time.Time { return n.now }

// Stats is what the network did so far.
func (n *Net) Stats() Stats { return n.stats }

// Flying is the number of datagrams on their way.
func (n *Net) Flying() int { return len(n.heap) }

// SetConfig changes how bad the network is from now on; what is on its way is
// not touched, nor are the dice.
func (n *Net) SetConfig(cfg Config) {
	if cfg.ReorderDelay == 0 {
		cfg.ReorderDelay = 4 * (cfg.Delay + cfg.Jitter)
	}
	n.cfg = cfg
}

// Advance moves the clock forward to t; an earlier t leaves it.
func (n *Net) Advance(t time.Time) {
	if t.After(n.now) {
		n.now = t
	}
}

// Send takes a copy of b from one host to another.
func (n *Net) Send(from, to int, b []byte) {
	n.stats.Sent++
	f := n.fate(len(b))
	n.seq++
	switch {
	case len(n.cuts) > 0 && n.cuts[pair(from, to)]:
		n.stats.Blocked++
		n.fault(Blocked, from, to, b)
		return
	case f.Drop:
		n.stats.Lost++
		n.fault(Lost, from, to, b)
		return
	}
	for c := 0; c <= f.Copies; c++ {
		hold := f.Hold
		if c > 0 {
			n.stats.Duplicated++
			n.fault(Duplicated, from, to, b)
			hold = n.upTo(n.cfg.ReorderDelay)
		}
		n.launch(from, to, b, hold, f.Corrupt, c > 0)
	}
}

// fate decides about the next datagram.
func (n *Net) fate(size int) (f Fate) {
	if n.cfg.Choose != nil {
		return n.cfg.Choose(n.seq, size)
	}
	f.Drop = n.rand.Chance(n.cfg.Loss)
	if n.rand.Chance(n.cfg.Duplicate) {
		f.Copies = 1
	}
	if n.rand.Chance(n.cfg.Corrupt) {
		f.Corrupt = 1 + n.rand.IntN(3)
	}
	if n.rand.Chance(n.cfg.Reorder) {
		f.Hold = n.upTo(n.cfg.ReorderDelay)
	}
	return f
}

func (n *Net) upTo(d time.Duration) time.Duration {
	return time.Duration(n.rand.IntN(int(d) + 1))
}

// launch puts one copy on its way. Only the first copy is damaged.
func (n *Net) launch(from, to int, b []byte, hold time.Duration, corrupt int, isCopy bool) {
	if n.cfg.Queue > 0 && n.queued[to] >= n.cfg.Queue {
		n.stats.Overflowed++
		n.fault(Overflowed, from, to, b)
		return
	}
	leaves, ok := n.serialize(from, len(b))
	if !ok {
		n.stats.Overflowed++
		n.fault(Overflowed, from, to, b)
		return
	}
	if hold > 0 {
		n.stats.Reordered++
		n.fault(Reordered, from, to, b)
	}
	f := flight{Datagram: Datagram{From: from, To: to, Copy: isCopy}, order: n.order}
	n.order++
	f.leaves = leaves
	f.at = leaves.Add(n.cfg.Delay + n.host(from).Delay + n.upTo(n.cfg.Jitter) + hold)
	f.Data = append(n.buffer(), b...)
	if corrupt > 0 && !isCopy && len(b) > 0 {
		f.Damaged = true
		n.stats.Corrupted++
		n.fault(Corrupted, from, to, b)
		bit := n.rand.IntN(8 * len(b))
		for i := 0; i < corrupt; i++ {
			at := (bit + i*(1+n.rand.IntN(29))) % (8 * len(b))
			f.Data[at/8] ^= 1 << (at % 8)
		}
	}
	n.queued[to]++
	n.push(f)
}

func (n *Net) buffer() []byte {
	if k := len(n.free); k > 0 {
		b := n.free[k-1]
		n.free = n.free[:k-1]
		return b[:0]
	}
	return make([]byte, 0, 4352)
}

// Next is the time of the next delivery or arrival in a receive buffer, false
// when nothing is on its way.
func (n *Net) Next() (time.Time, bool) {
	if len(n.heap) == 0 {
		return time.Time{}, false
	}
	return n.heap[0].at, true
}

// Take is the next datagram that is due, false when none is.
func (n *Net) Take() (Datagram, bool) {
	if n.last != nil {
		n.free = append(n.free, n.last)
		n.last = nil
	}
	for len(n.heap) > 0 && !n.heap[0].at.After(n.now) {
		f := n.pop()
		if n.buffers() && !f.arrived {
			n.arrive(f)
			continue
		}
		n.queued[f.To]--
		n.read(&f)
		n.stats.Delivered++
		n.last = f.Data
		return f.Datagram, true
	}
	return Datagram{}, false
}

// The heap is ordered by time, then by order of sending.
func (n *Net) less(i, j int) bool {
	a, b := &n.heap[i], &n.heap[j]
	if a.at.Equal(b.at) {
		return a.order < b.order
	}
	return a.at.Before(b.at)
}

func (n *Net) push(f flight) {
	n.heap = append(n.heap, f)
	for i := len(n.heap) - 1; i > 0; {
		up := (i - 1) / 2
		if !n.less(i, up) {
			break
		}
		n.heap[i], n.heap[up] = n.heap[up], n.heap[i]
		i = up
	}
}

func (n *Net) pop() flight {
	top := n.heap[0]
	end := len(n.heap) - 1
	n.heap[0] = n.heap[end]
	n.heap[end] = flight{}
	n.heap = n.heap[:end]
	for i := 0; ; {
		c := 2*i + 1
		if c >= end {
			break
		}
		if c+1 < end && n.less(c+1, c) {
			c++
		}
		if !n.less(c, i) {
			break
		}
		n.heap[i], n.heap[c] = n.heap[c], n.heap[i]
		i = c
	}
	return top
}
