package rdmanet

import (
	"net"
	"os"
	"time"
)

// A deadline ends waits; guarded by the connection's mu.
type deadline struct {
	timer  *time.Timer
	gen    int
	past   bool
	linger bool // it is Close's: the connection may be closed
}

// set sets the deadline, the zero time for none.
func (d *deadline) set(c *Conn, t time.Time) {
	d.gen++
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	d.past = false
	if t.IsZero() {
		return
	}
	left := time.Until(t)
	if left <= 0 {
		d.past = true
		c.wake()
		return
	}
	gen := d.gen
	d.timer = time.AfterFunc(left, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if d.gen == gen {
			d.past = true
			c.wake()
		}
	})
}

// SetDeadline is SetReadDeadline and SetWriteDeadline.
func (c *Conn) SetDeadline(t time.Time) error { return c.setDeadline(t, &c.readBy, &c.writeBy) }

// SetReadDeadline ends calls of Read, also those that wait, with
// os.ErrDeadlineExceeded at t; the zero time: never.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.setDeadline(t, &c.readBy) }

// SetWriteDeadline is the same for Write and CloseWrite.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.setDeadline(t, &c.writeBy) }

func (c *Conn) setDeadline(t time.Time, ds ...*deadline) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return c.opError("set", net.ErrClosed)
	}
	for _, d := range ds {
		d.set(c, t)
	}
	return nil
}

var errTimeout = os.ErrDeadlineExceeded
