package rdmanet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/pkg/verbs"
)

// Conn is a byte stream over a reliable connection, a net.Conn. Whoever waits in
// Read or Write takes in what the adapter has completed for all who wait; nothing
// runs while nobody does.
type Conn struct {
	e             *Endpoint
	local, remote net.Addr
	closeQP       func() error // ends the connection; nil: the endpoint's queue pair is destroyed
	peer          hello

	reading, writing sync.Mutex   // one Read, one Write at a time; before mu
	sge              [1]verbs.SGE // guarded by writing

	mu sync.Mutex
	// What came: recvd bytes in all, of which read ones went to the program, and
	// the peer was told that told ones are free. owed receives were posted again
	// and not granted yet.
	recvd, read, told uint64
	owed              uint32
	eof               bool
	// What goes: sent bytes in all, of which the send buffer's first done ones are
	// free. window is what the peer's ring has room for, credits how many messages
	// it takes, posted how many sends are not completed.
	sent, done uint64
	window     uint64
	credits    uint32
	posted     uint32
	ended      bool // kindEnd was sent
	closed     bool
	err        error // why the connection failed

	driving   bool // somebody takes in completions
	solicited bool // that waits for the peer's messages only, not for own sends
	drive     context.Context
	kick      context.CancelFunc // ends drive's wait
	changed   chan struct{}      // closed at a change; nil when nobody waits for one
	inWrite   bool               // Write has something left
	finishing bool               // somebody waits for all sends

	readBy, writeBy deadline
	closing         sync.Once
}

var errProtocol = errors.New("rdmanet: the peer breaks the protocol")

// Our own tuning.
const (
	// spin is how long completions are polled for before the wait for an event.
	spin = 30 * time.Microsecond
	// lookAfter is how many sends Write leaves to themselves: it learns of a peer
	// that is gone also when it need not wait for room.
	lookAfter = sends / 4
	// linger bounds how long Close waits for the peer's adapter to have all data.
	linger = 5 * time.Second
	// reserve is how many credits data leaves: one for the end of stream, one for an
	// update. The last one goes to an update that grants receives, so that ends
	// that are out of credits both do not wait for each other.
	reserve = 2
)

func (e *Endpoint) start(peerHello []byte, local, remote net.Addr, closeQP func() error) (*Conn, error) {
	h, err := readHello(peerHello)
	if err != nil {
		return nil, err
	}
	if local == nil {
		local = Addr{}
	}
	if remote == nil {
		remote = Addr{}
	}
	c := &Conn{
		e: e, local: local, remote: remote, closeQP: closeQP, peer: h, window: uint64(h.size), credits: uint32(h.receives),
	}
	c.drive, c.kick = context.WithCancel(context.Background())
	return c, nil
}

// LocalAddr is the own address, an Addr.
func (c *Conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr is the peer's address, an Addr.
func (c *Conn) RemoteAddr() net.Addr { return c.remote }

// Read reads what has come, waiting for the first byte. io.EOF: the peer has
// closed its sending side.
func (c *Conn) Read(b []byte) (int, error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	err := c.wait(func() bool { return c.recvd > c.read || c.eof || c.err != nil || len(b) == 0 }, &c.readBy)
	if err != nil {
		return 0, c.opError("read", err)
	}
	n := int(min(c.recvd-c.read, uint64(len(b))))
	if n == 0 {
		switch {
		case len(b) == 0:
			return 0, nil
		case c.eof:
			return 0, io.EOF
		}
		return 0, c.opError("read", c.err)
	}
	ring, at := c.e.recvMR.Bytes(), c.read%uint64(c.e.conf.RecvBuffer)
	c.mu.Unlock() // nobody else changes what has come and is not read
	first := copy(b[:n], ring[at:])
	copy(b[first:n], ring)
	c.mu.Lock()
	c.read += uint64(n)
	c.update()
	return n, nil
}

// Write copies b into the send buffer and has it written into the peer's memory,
// waiting for room. When it returns the peer need not have it; Close and
// CloseWrite wait for that.
func (c *Conn) Write(b []byte) (int, error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	total := 0
	c.inWrite = true
	defer func() { c.inWrite = false }()
	for {
		if c.posted >= lookAfter {
			c.look()
		}
		err := c.wait(func() bool { return c.err != nil || c.ended || len(b) == 0 || c.room() > 0 }, &c.writeBy)
		switch {
		case err != nil:
		case c.err != nil:
			err = c.err
		case c.ended:
			err = unix.EPIPE
		}
		if err != nil {
			return total, c.opError("write", err)
		}
		if len(b) == 0 {
			return total, nil
		}
		n := int(min(c.room(), uint64(len(b))))
		c.writeChunk(b[:n])
		b = b[n:]
		total += n
	}
}

// room is how many bytes the next message may have.
func (c *Conn) room() uint64 {
	if c.credits <= reserve || c.posted+reserve >= sends {
		return 0
	}
	size := uint64(c.e.conf.SendBuffer)
	free := size - (c.sent - c.done)
	untilEnd := min(size-c.sent%size, uint64(c.peer.size)-c.sent%uint64(c.peer.size))
	return min(free, c.window, untilEnd, chunk)
}

// writeChunk sends b, for which there is room. The caller holds mu, which is given
// up meanwhile.
func (c *Conn) writeChunk(b []byte) {
	n := uint64(len(b))
	at, to := c.sent%uint64(c.e.conf.SendBuffer), c.sent%uint64(c.peer.size)
	c.sent += n
	c.window -= n
	wr := c.message(kindData, uint32(n))
	wr.WRID, wr.RemoteAddr, wr.RKey = n, c.peer.addr+to, c.peer.rkey
	c.sge[0] = c.e.sendMR.SGE(int(at), len(b))
	wr.SGList = c.sge[:]
	c.mu.Unlock()
	copy(c.e.sendMR.Bytes()[at:], b)
	_, err := c.e.qp.PostSend(wr)
	c.mu.Lock()
	c.postFailed(err)
}

// message makes a request and takes what it needs.
func (c *Conn) message(kind, bytes uint32) verbs.SendWR {
	grant := min(c.owed, maxGrant)
	c.owed -= grant
	c.credits--
	c.posted++
	return verbs.SendWR{Opcode: verbs.WRRDMAWriteWithImm, Flags: verbs.SendSolicited, ImmData: uint32(newMessage(kind, grant, bytes))}
}

// send sends a message without data. The caller holds mu.
func (c *Conn) send(kind, bytes uint32) {
	_, err := c.e.qp.PostSend(c.message(kind, bytes))
	c.postFailed(err)
}

// postFailed notes that the queue pair takes nothing any more.
func (c *Conn) postFailed(err error) {
	if err == nil {
		return
	}
	if errors.Is(err, unix.EINVAL) { // it is in ERR, and its completions say why
		err = unix.EPIPE
	}
	c.fail(err)
}

// update tells the peer what is free again, when that is enough to be worth it.
// The caller holds mu.
func (c *Conn) update() {
	for c.err == nil {
		freed := c.read - c.told
		if freed < uint64(c.e.conf.RecvBuffer)/4 && c.owed < uint32(c.e.conf.Receives)/2 {
			return
		}
		if c.posted >= sends || c.credits == 0 || c.credits <= reserve && c.owed == 0 {
			return // until something of these changes
		}
		n := min(freed, maxBytes)
		c.told += n
		c.send(kindUpdate, uint32(n))
	}
}

// CloseWrite ends the sending side: the peer reads what was written, and then
// io.EOF. It waits until the peer's adapter has all data; of a connection that
// fails in that moment it may say nothing: who must know has the peer answer.
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

// finish sends the end of stream and waits until all sends are completed. The
// caller holds writing and mu.
func (c *Conn) finish(by *deadline) error {
	c.finishing = true
	defer func() { c.finishing = false }()
	if !c.ended {
		if err := c.wait(func() bool { return c.err != nil || c.credits >= reserve && c.posted < sends }, by); err != nil {
			return err
		}
		if c.err != nil {
			return c.err
		}
		c.ended = true
		c.send(kindEnd, 0)
	}
	if err := c.wait(func() bool { return c.err != nil || c.posted == 0 }, by); err != nil {
		return err
	}
	if c.posted > 0 {
		return c.err
	}
	return nil
}

// Close ends the connection. Data that was written goes to the peer first; for
// that it waits, at most five seconds. Pending calls of Read and Write end with
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
	c.readBy.set(c, time.Time{})
	c.writeBy.set(c, time.Time{})
	var lost error
	if orderly {
		var by deadline
		by.linger = true
		by.set(c, time.Now().Add(linger))
		lost = c.finish(&by)
		by.set(c, time.Time{})
	}
	c.fail(net.ErrClosed)
	c.kick()
	c.mu.Unlock()
	var err error
	if c.closeQP != nil {
		err = c.closeQP()
	}
	if e := c.e.Close(); err == nil {
		err = e
	}
	c.mu.Lock()
	if lost != nil {
		err = lost
	}
	if errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, verbs.ErrDeviceDead) {
		err = nil // the peer was first, or the adapter
	}
	if err != nil {
		return c.opError("close", err)
	}
	return nil
}

// fail ends the connection's use, for the first reason. The caller holds mu.
func (c *Conn) fail(err error) {
	if c.err == nil {
		c.err = err
		c.wake()
	}
}

func (c *Conn) opError(op string, err error) error {
	return &net.OpError{Op: op, Net: Network, Source: c.local, Addr: c.remote, Err: err}
}

// failure is the error that a failed completion stands for.
func failure(wc *verbs.WC) error {
	if wc.Status == verbs.WCWRFlushErr {
		return unix.ECONNRESET
	}
	if wc.Status == verbs.WCRetryExcErr || wc.Status == verbs.WCRNRRetryExcErr {
		return unix.ETIMEDOUT
	}
	return fmt.Errorf("rdmanet: %v: %w", wc.Status, unix.ECONNRESET)
}

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
