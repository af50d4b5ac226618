package cq

import "errors"

// Errors of [CQ.Push].
var (
	// ErrOverflow: the ring had no free entry. It is returned once; from then
	// on the queue is dead. The caller raises CQ_ERR and moves the attached
	// QPs to ERR.
	ErrOverflow = errors.New("cq: completion queue overflow")
	// ErrDead: the queue overflowed before; the completion is lost.
	ErrDead = errors.New("cq: completion queue is dead after an overflow")
)

// Ring is where completions go: shared memory for programs, a slice for
// tests.
type Ring interface {
	// Free is the number of entries that Put can still take.
	Free() int
	// Put stages wc (it keeps no reference); the consumer does not see it
	// before Publish.
	Put(wc *WC)
	// Publish shows all staged entries to the consumer.
	Publish()
	// TakeArm consumes the arm word and returns true when it matches: armed
	// for any completion, or armed for solicited ones and solicited is true.
	TakeArm(solicited bool) bool
}

// CQ is the producer's side of one completion queue. It is not safe for
// concurrent use.
type CQ struct {
	ring      Ring
	staged    bool // something was put since the last flush
	solicited bool // something solicited or in error was put since then
	dead      bool
}

// New makes the producer's side of a queue over r.
func New(r Ring) *CQ { return &CQ{ring: r} }

// Push stages a completion; [CQ.Flush] makes it visible. solicited says that
// it is a receive whose message had the SE bit; a completion in error counts
// as solicited by itself. Errors: [ErrOverflow], [ErrDead]; earlier
// completions stay.
func (c *CQ) Push(wc *WC, solicited bool) error {
	if c.dead {
		return ErrDead
	}
	if c.ring.Free() == 0 {
		c.dead = true
		return ErrOverflow
	}
	c.ring.Put(wc)
	c.staged = true
	c.solicited = c.solicited || solicited || wc.Status != Success
	return nil
}

// Flush publishes what was pushed. event says that the program is to be
// woken: the queue was armed and something matching was published
// (IBTA Vol 1 §11.4.2.2). It fires once per arming.
func (c *CQ) Flush() (event bool) {
	if !c.staged {
		return false
	}
	c.ring.Publish()
	event = c.ring.TakeArm(c.solicited)
	c.staged, c.solicited = false, false
	return event
}

// Move has the queue go on in r, into which its user moved what the old ring
// held, staged entries included.
func (c *CQ) Move(r Ring) { c.ring = r }

// Dead says that the queue overflowed.
func (c *CQ) Dead() bool { return c.dead }
