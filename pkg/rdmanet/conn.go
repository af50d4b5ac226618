package rdmanet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/pkg/verbs"
)

// Conn is a byte stream over a reliable connection, a net.Conn. Whoever waits in
// Read or Write takes in what the adapter has completed for all who wait; nothing
// runs while nobody does, but for a timer after a burst of writes.
type Conn struct {
	e             *Endpoint
	local, remote net.Addr
	closeQP       func() error // ends the connection; nil: the endpoint's queue pair is destroyed
	peer          hello

	reading, writing sync.Mutex   // one Read, one Write at a time; before mu
	sge              [1]verbs.SGE // guarded by writing
	wrs              [2]verbs.SendWR

	mu sync.Mutex
	// What came: recvd bytes in all, of which read ones went to the program, and
	// the peer was told that told ones are free. owed receives were posted again
	// and not granted yet. answered is how much had come when data was sent last.
	recvd, read, told uint64
	owed              uint32
	eof               bool
	answered          uint64
	// What goes: sent bytes in all, of which the first done ones are in the peer's
	// adapter. own is where Write keeps them until then, direct where ReadFrom has
	// them read to. window is what the peer's ring has room for, credits how many
	// messages it takes.
	sent, done  uint64
	own, direct staging
	window      uint64
	credits     uint32
	// Sends by number: posts were posted, of which the first completed ones are
	// completed. The last that was asked to say so is before asked, with data up to
	// askedUpTo.
	posts, completed uint64
	onWay            [sends]onWay // by number, modulo its length
	asked, askedUpTo uint64
	// How it ends: of the last words, which were sent and which are in the peer's
	// adapter; whether the peer has closed, and how much it had taken in by then.
	endSent, endDone     bool
	closeSent, closeDone bool
	peerClosed           bool
	took                 uint64
	closed               bool  // by the program
	err                  error // why the connection failed
	loans                loans

	driving   bool // somebody takes in completions
	solicited bool // that waits for the peer's messages only, not for own sends
	drive     context.Context
	kick      context.CancelFunc // ends drive's wait
	changed   chan struct{}      // closed at a change; nil when nobody waits for one
	inWrite   bool               // Write has something left
	inSpace   bool               // ReadFrom waits for room to read to
	inRead    bool               // Read waits
	paceOut   pace               // how long to nap when much is sent
	paceIn    pace               // and received
	finishing bool               // somebody waits for last words to arrive

	held            held
	alive           keepAlive
	readBy, writeBy deadline
	closing         sync.Once
}

// onWay is what the completion of a send stands for.
type onWay struct {
	upTo                uint64 // bytes that were sent by then
	ownUpTo, directUpTo uint64 // of these, out of either staging
	kind                uint32
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
	// farewell bounds how long Close waits to be heard by a peer that has closed
	// already: it may still wait for that, or be gone.
	farewell = time.Second
	// reserve is how many credits data leaves: for the end of stream, for the last
	// message, and for an update. The end leaves one: it goes to an update that
	// grants receives, so that ends that are out of credits both do not wait for
	// each other, or to the last message.
	reserve = 3
	// A completion is asked for after so many sends, and after this part of the send
	// buffer: whoever is out of either waits for one that was asked for.
	askSends, askBuffer = sends / 8, 4
	// together is how much data is sent with its message in one request. More is a
	// request of its own: its packets go together with the message's, which has no
	// data, where the immediate data would make its last one longer than the others.
	together = 4 << 10
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
		own: staging{mr: e.sendMR}, loans: loans{e: e}, paceOut: pace{usualNap}, paceIn: pace{usualNap},
		held: held{patient: holdTime},
	}
	c.drive, c.kick = context.WithCancel(context.Background())
	c.watch(e.conf.KeepAlive)
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
	err := c.waitRead(func() bool { return c.readable() || len(b) == 0 })
	if err != nil {
		return 0, c.opError("read", err)
	}
	if n := c.take(b); n > 0 || len(b) == 0 {
		return n, nil
	}
	if c.eof {
		return 0, io.EOF
	}
	return 0, c.opError("read", c.err)
}

func (c *Conn) waitRead(ready func() bool) error {
	c.inRead = true
	defer func() { c.inRead = false }()
	return c.wait(ready, &c.readBy)
}

// readable says that Read need not wait. While a writer of WriteTo has what has
// come, it is not known what is next.
func (c *Conn) readable() bool { return !c.loans.recv && (c.recvd > c.read || c.eof || c.err != nil) }

// take copies what has come, in pieces whose room the peer gets back while the
// next is copied. The caller holds reading and mu, which is given up meanwhile.
func (c *Conn) take(b []byte) (total int) {
	ring, size := c.e.recvMR.Bytes(), uint64(c.e.conf.RecvBuffer)
	for {
		at := c.read % size
		n := int(min(c.recvd-c.read, uint64(len(b)-total), size-at, chunk))
		if n == 0 {
			return total
		}
		c.mu.Unlock() // nobody else changes what has come and is not read
		copy(b[total:total+n], ring[at:])
		c.mu.Lock()
		total += n
		c.read += uint64(n)
		c.update()
	}
}

// Write copies b into the send buffer and has it written into the peer's memory,
// waiting for room. When it returns the peer need not have it; Close and
// CloseWrite wait for that. While much is on its way a small piece waits for more, or
// for a fraction of a millisecond.
func (c *Conn) Write(b []byte) (int, error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	total := 0
	c.inWrite = true
	defer func() { c.inWrite = false }()
	defer c.settle()
	for {
		if err := c.roomFor(len(b)); err != nil || len(b) == 0 {
			return total, err
		}
		n := int(min(c.vacant(), uint64(len(b))))
		n = c.writeChunk(b[:n])
		b = b[n:]
		total += n
	}
}

// roomFor waits until something of n bytes can be copied and sent. The caller holds
// writing and mu.
func (c *Conn) roomFor(n int) error {
	if c.posted() >= lookAfter {
		c.look()
	}
	err := c.wait(func() bool {
		return c.err != nil || c.endSent || c.peerClosed || n == 0 || c.vacant() > 0
	}, &c.writeBy)
	return c.writeError(err)
}

// writeError is why nothing can be written, with the error of a wait; nil: it can.
func (c *Conn) writeError(err error) error {
	switch {
	case err != nil:
	case c.peerClosed || c.endSent:
		err = unix.EPIPE
	case c.err != nil:
		err = c.err
	default:
		return nil
	}
	return c.opError("write", err)
}

// room is how many bytes the next message may have.
func (c *Conn) room() uint64 {
	if c.credits <= reserve || c.posted()+reserve+1 >= sends {
		return 0
	}
	return min(c.window, uint64(c.peer.size)-c.sent%uint64(c.peer.size), chunk)
}

// writeChunk copies b, for which there is room, and sends it when it is enough. The
// caller holds mu, which is given up meanwhile.
func (c *Conn) writeChunk(b []byte) (n int) {
	to := c.own.next()[c.held.n:]
	c.mu.Unlock() // nobody else copies to there
	copy(to, b)
	c.mu.Lock()
	if c.over() {
		return 0
	}
	if c.held.n += uint64(len(b)); c.held.n >= chunk {
		c.release()
	}
	return len(b)
}

// post sends the next n bytes of a staging, for which there is room.
func (c *Conn) post(from *staging, n int) {
	c.sge[0] = from.put(n)
	to := c.sent % uint64(c.peer.size)
	wrs := c.wrs[:0]
	if n > together {
		c.posts++
		wrs = append(wrs, verbs.SendWR{Opcode: verbs.WRRDMAWrite, SGList: c.sge[:]})
	}
	c.sent += uint64(n)
	c.answered = c.recvd
	c.window -= uint64(n)
	wrs = append(wrs, c.message(kindData, uint32(n)))
	if n <= together {
		wrs[0].SGList = c.sge[:]
	}
	wrs[0].RemoteAddr, wrs[0].RKey = c.peer.addr+to, c.peer.rkey
	_, err := c.e.qp.PostSend(wrs...)
	c.postFailed(err)
}

// message makes a request and takes what it needs. Data asks for a completion when
// enough is on its way that there must be one, all others do.
func (c *Conn) message(kind, bytes uint32) verbs.SendWR {
	m := closeMessage(c.recvd)
	if kind != kindClose {
		grant := min(c.owed, maxGrant)
		c.owed -= grant
		m = newMessage(kind, grant, bytes)
	}
	c.credits--
	wr := verbs.SendWR{WRID: c.posts, Opcode: verbs.WRRDMAWriteWithImm, Flags: verbs.SendSolicited, ImmData: uint32(m)}
	c.number(kind)
	if kind != kindData || c.posts-c.asked >= askSends || c.sent-c.askedUpTo >= uint64(c.e.conf.SendBuffer)/askBuffer {
		wr.Flags |= verbs.SendSignaled
		c.asked, c.askedUpTo = c.posts, c.sent
	}
	return wr
}

// number gives the next send its number, and notes what its completion stands for.
func (c *Conn) number(kind uint32) {
	c.onWay[c.posts%sends] = onWay{upTo: c.sent, ownUpTo: c.own.filled, directUpTo: c.direct.filled, kind: kind}
	c.posts++
}

// posted is how many sends are not known to be completed.
func (c *Conn) posted() uint64 { return c.posts - c.completed }

// send sends a message without data. The caller holds mu.
func (c *Conn) send(kind, bytes uint32) {
	switch kind {
	case kindEnd:
		c.endSent = true
	case kindClose:
		c.endSent, c.closeSent = true, true
	}
	_, err := c.e.qp.PostSend(c.message(kind, bytes))
	c.postFailed(err)
}

// postFailed notes that the queue pair takes nothing any more.
func (c *Conn) postFailed(err error) {
	if err == nil {
		return
	}
	if errors.Is(err, unix.EINVAL) { // it is not in RTS any more
		err = unix.EPIPE
	}
	c.fail(err)
}

// update tells the peer what is free again, when that is enough to be worth it.
// The caller holds mu.
func (c *Conn) update() {
	for c.err == nil && !c.closeSent && !c.peerClosed {
		freed := c.read - c.told
		if freed < uint64(c.e.conf.RecvBuffer)/4 && c.owed < uint32(c.e.conf.Receives)/2 {
			return
		}
		if c.posted() >= sends || c.credits == 0 || c.credits <= reserve && c.owed == 0 {
			return // until something of these changes
		}
		n := min(freed, maxBytes)
		c.told += n
		c.send(kindUpdate, uint32(n))
	}
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
