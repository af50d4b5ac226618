package rdmanet

import "time"

// Our own tuning: holdTime is how long data is held back at first, longHold at
// most while the peer has no room.
const holdTime, longHold = 200 * time.Microsecond, 50 * time.Millisecond

// held is data that Write has copied behind what was sent, and not sent yet: while
// much is on its way it waits for more, as each message has its price, and a few
// large ones cost less than many small ones. It is guarded by the connection's mu.
type held struct {
	n       uint64
	timer   *time.Timer   // sends it when nothing else does; nil: it was never needed
	patient time.Duration // how long the first time, and now
	again   time.Duration
}

// busy says that so much is on its way that what is held back is not late.
func (c *Conn) busy() bool {
	return c.sent-c.done >= uint64(c.e.conf.SendBuffer)/2 || c.posted() >= sends/2
}

// vacant is how many bytes Write may copy. What is held back goes first when there
// is no room behind it. The caller holds mu.
func (c *Conn) vacant() uint64 {
	n := min(c.room(), c.own.free())
	if n > c.held.n {
		return n - c.held.n
	}
	if c.held.n > 0 && c.release() {
		return min(c.room(), c.own.free())
	}
	return 0
}

// release sends what is held back, if the peer has room; false: it has not. The
// caller holds mu.
func (c *Conn) release() bool {
	n := c.held.n
	if n == 0 || c.over() {
		return true
	}
	if c.room() < n {
		return false
	}
	c.held.n = 0
	c.post(&c.own, int(n))
	return true
}

// settle leaves what Write has copied to the timer, or sends it. The caller holds
// mu.
func (c *Conn) settle() {
	if c.held.n > 0 && c.busy() {
		c.look() // it may be less
	}
	if c.held.n > 0 && (c.busy() || !c.release()) {
		c.held.again = c.held.patient
		c.holdOn()
	}
}

// holdOn starts the timer. The caller holds mu.
func (c *Conn) holdOn() {
	if c.held.timer == nil {
		c.held.timer = time.AfterFunc(c.held.again, c.overdue)
		return
	}
	c.held.timer.Reset(c.held.again)
}

// overdue sends what was held back long enough.
func (c *Conn) overdue() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.release() {
		return
	}
	if c.look(); !c.release() { // perhaps nobody else takes in what the peer grants
		c.held.again = min(2*c.held.again, longHold)
		c.holdOn()
	}
}

// letGo sends what is held back, before something that goes behind it, and waits
// for room. The caller holds writing and mu.
func (c *Conn) letGo(by *deadline) error {
	if c.held.n == 0 {
		return nil
	}
	return c.wait(c.release, by)
}
