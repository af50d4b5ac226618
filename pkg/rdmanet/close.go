package rdmanet

import (
	"errors"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/pkg/verbs"
)

// CloseWrite ends the sending side: the peer reads what was written, and then
// io.EOF. It waits until the peer's end of the connection has all that: nil means
// so. Whether the peer's program reads it is for that to tell.
func (c *Conn) CloseWrite() error {
	c.writing.Lock()
	defer c.writing.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.finish(&c.writeBy); err != nil {
		return c.opError("close", err)
	}
	return nil
}

// finish sends the end of stream and waits until the peer has it. The caller holds
// writing and mu.
func (c *Conn) finish(by *deadline) error {
	c.finishing = true
	defer func() { c.finishing = false }()
	if err := c.letGo(by); err != nil {
		return err
	}
	if !c.endSent {
		err := c.wait(func() bool { return c.over() || c.credits >= 2 && c.posted() < sends }, by)
		if err != nil {
			return err
		}
		if !c.over() {
			c.send(kindEnd, 0)
		}
	}
	err := c.wait(func() bool { return c.over() || c.endDone }, by)
	switch {
	case err != nil:
		return err
	case c.peerClosed:
		return c.peerTook()
	case c.endDone:
		return nil
	}
	return c.err
}

// over says that nothing that is sent now arrives.
func (c *Conn) over() bool { return c.err != nil || c.peerClosed }

// peerTook is nil when the peer had taken in everything when it closed.
func (c *Conn) peerTook() error {
	if c.took != c.sent || c.held.n > 0 {
		return unix.ECONNRESET
	}
	return nil
}

// Close ends the connection. Data that was written goes to the peer first; for
// that it waits, at most five seconds. Nil means that the peer's end of the
// connection has taken in everything. Pending calls of Read and Write end with
// net.ErrClosed.
func (c *Conn) Close() error {
	err := c.opError("close", net.ErrClosed)
	c.closing.Do(func() { err = c.close(true) })
	return err
}

// Abort is Close at once: the peer does not get what is on its way, and reads
// ECONNRESET instead of io.EOF.
func (c *Conn) Abort() error {
	err := c.opError("close", net.ErrClosed)
	c.closing.Do(func() { err = c.close(false) })
	return err
}

// close ends the connection, in order or at once.
func (c *Conn) close(orderly bool) error {
	c.mu.Lock()
	c.closed = true
	c.wake()
	c.mu.Unlock()
	c.reading.Lock() // until those who wait are out
	defer c.reading.Unlock()
	c.writing.Lock()
	defer c.writing.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unwatch()
	c.readBy.set(c, time.Time{})
	c.writeBy.set(c, time.Time{})
	var lost error
	if orderly {
		by := deadline{linger: true}
		by.set(c, time.Now().Add(linger))
		lost = c.part(&by)
		by.set(c, time.Time{})
	}
	c.fail(net.ErrClosed)
	c.kick()
	c.mu.Unlock()
	var err error
	if c.closeQP != nil {
		err = c.closeQP()
	}
	if e := c.e.closeQueues(); err == nil {
		err = e
	}
	c.mu.Lock()
	if e := c.loans.end(); err == nil {
		err = e
	}
	if errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, verbs.ErrDeviceDead) {
		err = nil // the peer was first, or the adapter
	}
	if lost != nil {
		err = lost
	}
	if err != nil {
		return c.opError("close", err)
	}
	return nil
}

// part sends the last message and waits until the peer has it, or has closed too.
// The last message of an end tells what it has taken in, because its adapter's
// acknowledgements may be lost with it: who has closed does not answer any more.
// Who has the peer's knows how the connection ended, and still waits a while, so
// that the peer gets the own. The caller holds reading, writing and mu, and nobody
// waits.
func (c *Conn) part(by *deadline) error {
	c.finishing = true
	defer func() { c.finishing = false }()
	c.look() // what has come is taken in
	short := false
	heard := func() bool {
		if c.peerClosed && !short {
			short = true
			by.set(c, time.Now().Add(farewell))
		}
		return c.err != nil
	}
	err := c.letGo(by)
	if err == nil {
		err = c.wait(func() bool { return heard() || c.credits > 0 && c.posted() < sends }, by)
	}
	if err == nil && c.err == nil {
		c.send(kindClose, 0)
		err = c.wait(func() bool { return heard() || c.closeDone }, by)
	}
	switch {
	case c.peerClosed:
		return c.peerTook()
	case err != nil:
		return err
	case c.closeDone:
		return nil
	}
	return c.err
}
