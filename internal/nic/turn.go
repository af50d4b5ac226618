package nic

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/softroce/softroce/internal/shm"
	"github.com/softroce/softroce/internal/uapi"
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/qpstate"
	"github.com/softroce/softroce/pkg/transport"
	"github.com/softroce/softroce/pkg/wq"
)

// A qp is a queue pair as its worker sees it: the engine and the rings that
// feed it. It lives on one worker all its life.
type qp struct {
	qpn    bth.QPN
	handle uint32 // the program's
	index  uint32 // the program's doorbell index
	engine *transport.QP
	sq     *uapi.SQConsumer
	rq     *uapi.RQConsumer // nil with a shared receive queue
	srq    *srqueue         // nil without
	sendCQ *cqueue
	recvCQ *cqueue
	prog   *program
	link   *programLink
	worker *worker
	gsi    *gsi // of queue pair 1, which has no program and no rings

	connection
	hasFlow   bool
	datagrams bool        // UD: each packet goes where its address handle says
	trials    [ways]trial // of segmentation

	// Worker's bookkeeping.
	dead     bool // a memory fault or a hostile ring: no more work
	removed  bool
	sqWaits  bool // the engine was full: the ring holds more
	onList   bool
	bulk     bool // it sent much in its last turn
	later    bool // on its worker's list of those to go on with
	held     bool // its acknowledgement waited for a turn
	awaited  bool // its first packet says that the connection is up
	next     *qp
	timerPos int // place in the heap, -1 when absent
	timerAt  time.Time
	warned   uint32 // diagnostics already written, by kind
	troubles uint32 // that were looked at
}

// A programLink is one program on one worker: its doorbells there and the
// queue pairs by doorbell index.
type programLink struct {
	doorbell *uapi.AdapterDoorbell
	slab     *wq.Slab // the program's requests in flight here
	eventfd  *shm.Doorbell
	qps      []*qp // by doorbell index; nil where none
	owner    *program

	datagrams []*qp // of type UD
	ahs       ahPaths
}

// An active is the queue pairs that may have packets to send. Those that sent
// little in their last turn, or are new, go before those that sent much: a lone
// message does not wait for the turns of all bulk senders.
type active struct{ few, bulk qpList }

// push puts a queue pair at the end of its list, unless it is on one.
func (l *active) push(q *qp) {
	switch {
	case q.onList || q.removed:
	case q.bulk:
		l.bulk.push(q)
	default:
		l.few.push(q)
	}
}

// empty says that no queue pair waits for its turn.
func (l *active) empty() bool { return l.few.head == nil && l.bulk.head == nil }

// qpList is a queue of queue pairs.
type qpList struct{ head, tail *qp }

func (l *qpList) push(q *qp) {
	q.onList, q.next = true, nil
	if l.tail == nil {
		l.head = q
	} else {
		l.tail.next = q
	}
	l.tail = q
}

func (l *qpList) pop() *qp {
	q := l.head
	if q == nil {
		return nil
	}
	if l.head = q.next; l.head == nil {
		l.tail = nil
	}
	q.onList, q.next = false, nil
	return q
}

// guardedTurn makes one turn. A fault on memory that a program took away
// under the adapter's hands ends that program's queue pairs, not the adapter.
func (w *worker) guardedTurn() (work int) {
	defer func() {
		if r := recover(); r != nil {
			w.fault(r)
			work = 1
		}
	}()
	return w.turn()
}

// fault handles a recovered panic: a memory fault with an address while a
// queue pair was served is the program's doing; anything else is ours. In memory
// that was lent it is the doing of the lender's, whose queue pair is whole and is
// ended in good order.
func (w *worker) fault(r any) {
	err, ok := r.(runtime.Error)
	addr, hasAddr := r.(interface{ Addr() uintptr })
	q := w.current
	if !ok || !hasAddr || q == nil && w.loan == nil {
		panic(r)
	}
	if q != nil && q.prog == nil && w.loan == nil {
		panic(r) // queue pair 1 is the adapter's own
	}
	if lender := w.lenderOf(uint64(addr.Addr())); lender != nil {
		q = lender
	} else {
		q.dead = true
	}
	w.current, w.loan = nil, nil
	w.stats.Faults++
	w.showLanes()
	w.pending.Store(1) // commands and lanes were left where they were
	if n, ok := w.faultLog.allow(w.now); ok {
		w.a.log.Warn("memory fault: the program's mapping is gone, its queue pairs are ended",
			keyWorker, w.index, keyQPN, q.qpn.String(), keyAddr, fmt.Sprintf("%#x", uint64(addr.Addr())), keyErr, err.Error(), keySuppressed, n)
	}
	q.prog.fault("memory fault")
}

// turn does one round of everything and returns how much there was to do.
func (w *worker) turn() int {
	w.now = time.Now()
	w.stats.Turns++
	w.stage.Forget()
	c := w.commands()
	n := w.lookAtRules()
	n += w.receive()
	n += w.doorbells()
	if len(w.rest) == 0 && !w.ep.More() { // what came is known: whoever waits for it waits in vain
		n += w.timeouts()
	}
	w.flush() // before the acknowledgements leave: what they promise can be polled
	n += w.transmit()
	w.flush()
	n += len(w.over) + len(w.held)
	w.onlyCommands = n == 0 && c > 0
	return c + n
}

// doorbells serves the rings that programs rang for, after those that an
// earlier turn did not come to the end of. It begins with another program each
// turn, so that none can use up all of the others' turns.
func (w *worker) doorbells() int {
	w.slots = turnSlots
	n := w.goOn()
	w.firstLink++
	for i := range w.links {
		l := w.links[(w.firstLink+i)%len(w.links)]
		for range turnBells {
			if w.slots <= 0 {
				return n + 1 // the bells stay set
			}
			i, ok := l.doorbell.Next()
			if !ok {
				break
			}
			n++
			if int(i) < len(l.qps) && l.qps[i] != nil {
				w.serveRings(l.qps[i])
			}
		}
	}
	return n
}

// postpone has a queue pair's rings served again in the next turn: they hold,
// or may hold, more than one visit takes.
func (w *worker) postpone(q *qp) {
	if !q.later {
		q.later = true
		w.later = append(w.later, q)
	}
}

// goOn serves postponed queue pairs, the oldest first, with half of the turn's
// slots at most.
func (w *worker) goOn() int {
	n := 0
	for had := len(w.later); n < had && w.slots > turnSlots/2; n++ {
		q := w.later[n]
		q.later = false
		w.serveRings(q)
	}
	if n > 0 {
		w.later = slices.Delete(w.later, 0, n)
	}
	return n
}

// anyDoorbell says whether a program rang since the last turn.
func (w *worker) anyDoorbell() bool {
	for _, l := range w.links {
		if l.doorbell.Any() {
			return true
		}
	}
	return false
}

func (w *worker) drainProgram(token uint64) {
	for _, l := range w.links {
		if tokenProgram+uint64(l.eventfd.FD()) == token {
			l.eventfd.Drain()
			return
		}
	}
}

// serveRings takes what the program posted.
func (w *worker) serveRings(q *qp) {
	if q.dead || q.removed {
		return
	}
	w.current = q
	w.drainSQ(q)
	if q.engine.State() == qpstate.Err {
		w.slots -= visitSlots / 4 // about what it flushes
		q.engine.PostRecv(w.now)
	}
	w.current = nil
	w.active.push(q)
}

// drainSQ hands posted requests to the engine until the ring is empty or the
// engine is full; the rest then waits in the ring. One visit takes visitSlots:
// in ERR the engine is never full, and a hostile program posts for ever.
func (w *worker) drainSQ(q *qp) {
	q.sqWaits = false
	for n := 0; ; n++ {
		if n == visitSlots {
			w.postpone(q)
			return
		}
		w.slots--
		got, err := q.sq.Peek(&w.scratch)
		if err != nil {
			w.badRing(q, err)
			return
		}
		if !got {
			break
		}
		err = q.engine.PostSend(w.now, &w.scratch)
		if errors.Is(err, transport.ErrFull) {
			q.sqWaits = true
			break
		}
		if err != nil {
			// The library checks before it posts: this program does not use it.
			w.badRing(q, err)
			return
		}
		q.sq.Consume()
	}
}

// badRing ends a queue pair whose ring holds what no library writes.
func (w *worker) badRing(q *qp, err error) {
	w.stats.BadSlots++
	q.sq.Skip()
	q.engine.Fatal(w.now)
	if n, ok := w.ringLog.allow(w.now); ok {
		w.a.log.Warn("bad slot in a send queue, queue pair to ERR", keyQPN, q.qpn.String(), keyPID, q.prog.pid, keyErr, err, keySuppressed, n)
	}
}

// timeouts runs the deadlines that have passed.
func (w *worker) timeouts() int {
	n := 0
	for {
		q := w.timers.due(w.now)
		if q == nil {
			return n
		}
		n++
		if w.batch.holds(q) {
			// Packets of its own wait for the socket: that is no silence of
			// the peer's (a local refusal is a wait, not a loss).
			w.timers.set(q, w.now.Add(blockedWait))
			continue
		}
		d := q.nextTimeout()
		if !d.IsZero() && !d.After(w.now) && !q.dead {
			w.current = q
			q.handleTimeout(w.now)
			w.current = nil
			w.active.push(q)
		}
		w.rearm(q)
	}
}

// nextTimeout is when handleTimeout is to be called, zero for never.
func (q *qp) nextTimeout() time.Time {
	if q.gsi != nil {
		return q.gsi.nextTimeout()
	}
	return q.engine.NextTimeout()
}

func (q *qp) handleTimeout(now time.Time) {
	if q.gsi != nil {
		q.gsi.handleTimeout(now)
		return
	}
	q.engine.HandleTimeout(now)
}

// rearm keeps the queue pair's entry in the heap at or before its engine's
// deadline. Moving a deadline later costs nothing: the entry is looked at
// when it comes up.
func (w *worker) rearm(q *qp) {
	d := q.nextTimeout()
	if d.IsZero() || q.dead || q.removed {
		return
	}
	if q.timerPos < 0 || d.Before(q.timerAt) {
		w.timers.set(q, d)
	}
}

// settle passes on what a queue pair's engine has to say after work on it.
func (w *worker) settle(q *qp) {
	for {
		ev, ok := q.engine.PollEvent()
		if !ok {
			break
		}
		w.event(q, ev)
	}
	w.remember(q)
	if q.rq != nil {
		if err := q.rq.Err(); err != nil && q.engine.State() != qpstate.Err {
			w.badRing(q, err)
			w.active.push(q)
		}
	}
	if q.engine.Flushing() {
		w.postpone(q)
	}
	w.rearm(q)
}

// flush hands the completions of the turn to the programs, each queue once,
// and ends the queue pairs of queues that overflowed. Where that overflows
// further queues, their turn is the next.
func (w *worker) flush() {
	w.flushDirty()
	if len(w.over) > 0 {
		w.endUsers()
		w.flushDirty()
	}
}

func (w *worker) flushDirty() {
	for i := 0; i < len(w.dirty); i++ {
		w.dirty[i].flush(w)
		w.dirty[i] = nil
	}
	w.dirty = w.dirty[:0]
}
