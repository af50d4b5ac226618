package transport

import (
	"time"

	"github.com/softroce/softroce/pkg/bth"
)

// Our own tuning.
const (
	// defaultPeerWindow is the most that is in flight to one peer.
	defaultPeerWindow = 2 << 20
	// patience is how long a flow may be full without any acknowledgement while
	// queue pairs wait for it. Those who fill it may have no ACK timer.
	patience = 100 * time.Millisecond
)

// Peers are the windows of the peers that the queue pairs of one worker are
// connected to, shared by those with the same peer. Like the queue pairs it is
// used by one goroutine at a time.
//
// A queue pair that finds its peer's window full waits in line. TakeReady gives
// those whose turn has come; its caller then polls them.
type Peers struct {
	limit uint32
	byDst map[bth.GID]*peer
	ready readyList
}

// NewPeers makes an empty set. limit is the most in flight to one peer, and the
// most that READs may make it send, each, as Config.Window counts; 0: 2 MiB.
func NewPeers(limit int) *Peers {
	if limit <= 0 {
		limit = defaultPeerWindow
	}
	return &Peers{limit: uint32(min(limit, maxWindow)), byDst: make(map[bth.GID]*peer)}
}

// Len is the number of peers that queue pairs are connected to.
func (p *Peers) Len() int { return len(p.byDst) }

// TakeReady is a queue pair that waited for its peer's window and may now send,
// nil when there is none. Call it, until it gives nil, after packets or
// timeouts were handled and after PollTransmit gave no more packets.
func (p *Peers) TakeReady() *QP {
	for f := p.ready.first; f != nil; f = p.ready.first {
		if q := f.serve(); q != nil {
			return q
		}
		p.ready.pop()
	}
	return nil
}

// Windows says how wide the windows to the peer are, in bytes: of what is sent,
// and of what READs make it send. 0 without a peer.
type Windows struct{ Out, In int }

// Window is how wide the windows to the peer are now.
func (q *QP) Window() (w Windows) {
	if q.peer != nil {
		w.Out, w.In = int(q.peer.flows[outbound].window), int(q.peer.flows[inbound].window)
	}
	return w
}

// peer is one peer's windows.
type peer struct {
	flows [directions]flow
	set   *Peers // nil: of one queue pair alone
	dst   bth.GID
	users int
}

// joinPeer attaches the queue pair to the windows of its path's peer.
func (q *QP) joinPeer() {
	q.leavePeer()
	set := q.path.Peers
	least := q.leastWindow()
	var p *peer
	if set != nil {
		p = set.byDst[q.path.Dst]
	}
	if p == nil {
		p = &peer{set: set, dst: q.path.Dst}
		limit, initial := q.maxWindow(), q.maxWindow()
		if set != nil {
			limit, initial = set.limit, initialWindow
			set.byDst[p.dst] = p
		}
		for d := range p.flows {
			f := &p.flows[d]
			f.open(initial, limit, least)
			if set != nil {
				f.ready = &set.ready
			}
		}
	}
	p.users++
	q.peer = p
	for d := range p.flows {
		f := &p.flows[d]
		f.least = max(f.least, least)
		f.join(&q.req.shares[d])
	}
}

// leavePeer gives back what the queue pair holds of its peer's windows.
func (q *QP) leavePeer() {
	p := q.peer
	if p == nil {
		return
	}
	q.leaveLine()
	for d := range p.flows {
		f := &p.flows[d]
		f.drop(&q.req.shares[d])
		f.offer()
	}
	if p.users--; p.users == 0 && p.set != nil {
		delete(p.set.byDst, p.dst)
		for d := range p.flows {
			p.set.ready.remove(&p.flows[d])
		}
	}
	q.peer = nil
}

// place is a queue pair's place in a flow's line.
type place struct {
	on         *flow
	prev, next *QP
	need       uint32 // bytes that it waits for
	whole      uint32 // and those to the end of its message
	dir        direction
	total      uint64    // of the flow, when it was looked at last
	until      time.Time // when to look whether the flow moves at all; zero: never
}

// waiters are the queue pairs that wait for a flow, in order.
type waiters struct {
	first, last *QP
	ready       *readyList // nil: nobody is told
	nextReady   *flow
	onReady     bool
}

// wait puts the queue pair at the end of the line, when it is not in it. It
// waits for cost bytes, and would send whole bytes at once.
func (q *QP) wait(now time.Time, d direction, cost, whole uint32) {
	f := &q.peer.flows[d]
	w := &q.line
	switch s := &q.req.shares[d]; {
	case f.ready == nil:
		return // its own acknowledgement will let it go on
	case s.awaits():
		q.leaveLine()
		// It waits for an answer. Without an ACK timer nobody would ask for one.
		if q.attr.Timeout == 0 && w.until.IsZero() {
			w.dir, w.need, w.until = d, cost, now.Add(patience)
		}
		return
	}
	w.need, w.whole = cost, whole
	if w.on == f {
		return
	}
	q.leaveLine()
	w.on, w.dir, w.prev, w.next = f, d, f.last, nil
	w.total, w.until = f.total, now.Add(patience)
	if f.last == nil {
		f.first = q
	} else {
		f.last.line.next = q
	}
	f.last = q
}

// leaveLine takes the queue pair out of the line that it waits in.
func (q *QP) leaveLine() {
	if q.line.on != nil {
		q.line.on.remove(q)
	}
}

// remove takes a queue pair out of the line.
func (f *flow) remove(q *QP) {
	w := &q.line
	if w.on != f {
		return
	}
	if w.prev == nil {
		f.first = w.next
	} else {
		w.prev.line.next = w.next
	}
	if w.next == nil {
		f.last = w.prev
	} else {
		w.next.line.prev = w.prev
	}
	*w = place{}
	f.offer()
}

// offer has the first in line looked at, when it may go on.
func (f *flow) offer() {
	if f.first == nil || f.onReady {
		return
	}
	q := f.first
	if s := &q.req.shares[q.line.dir]; s.awaits() || f.allows(q, s, f.turn(q, s)) {
		f.ready.push(f)
	}
}

// turn is what a queue pair in line gets when its turn comes: a quantum, not the
// first packet that there is room for, so that runs stay long. Where a little
// more lets a message end, it gets that: a message that stops in its middle
// costs a send and an acknowledgement more.
func (f *flow) turn(q *QP, s *share) uint32 {
	if s.stale > 0 || s.loose {
		return q.line.need
	}
	n := f.quantum()
	if w := q.line.whole; w <= 2*n && w <= f.window/4 {
		n = max(n, w)
	}
	return max(q.line.need, n)
}

// serve gives the first in line its turn: a part of the window, and its place
// is free. So it is when that one has to wait for an acknowledgement anyway. It
// gives nil when there is no room.
func (f *flow) serve() *QP {
	q := f.first
	if q == nil {
		return nil
	}
	s := &q.req.shares[q.line.dir]
	f.touch(s)
	if !s.awaits() && !f.take(q, s, f.turn(q, s)) {
		return nil
	}
	f.remove(q)
	return q
}

// lookAtLine serves a waiting queue pair's deadline: when nothing was
// acknowledged for so long, what is in flight is not counted any more.
func (q *QP) lookAtLine(now time.Time) {
	w := &q.line
	f := w.on
	if w.until.IsZero() || now.Before(w.until) {
		return
	}
	if f == nil {
		q.req.shares[w.dir].probe = true
		*w = place{}
		return
	}
	if w.total == f.total {
		f.nextRound()
		f.nextRound()
		f.offer()
	}
	w.total, w.until = f.total, now.Add(patience)
}

// readyList is a queue of flows whose first in line may go on.
type readyList struct{ first, last *flow }

func (l *readyList) push(f *flow) {
	f.onReady, f.nextReady = true, nil
	if l.last == nil {
		l.first = f
	} else {
		l.last.nextReady = f
	}
	l.last = f
}

func (l *readyList) pop() {
	f := l.first
	if l.first = f.nextReady; l.first == nil {
		l.last = nil
	}
	f.onReady, f.nextReady = false, nil
}

// remove takes out a flow whose peer is gone.
func (l *readyList) remove(f *flow) {
	if !f.onReady {
		return
	}
	var before *flow
	for x := l.first; x != f; x = x.nextReady {
		before = x
	}
	if before == nil {
		l.pop()
		return
	}
	if before.nextReady = f.nextReady; f.nextReady == nil {
		l.last = before
	}
	f.onReady, f.nextReady = false, nil
}
