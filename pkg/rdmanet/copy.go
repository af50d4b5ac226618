package rdmanet

import (
	"errors"
	"fmt"
	"io"
	"net"
)

// first is how much ReadFrom copies before it takes memory for the rest, which costs
// two requests to the adapter. Our own tuning.
const first = 64 << 10

// ReadFrom writes what it reads from r until io.EOF, which is not an error; io.Copy
// calls it. Data beyond the first 64 KiB goes without a copy of the package's: r
// reads straight into registered memory, of which a connection takes Config's
// SendBuffer once more for that until it is closed. Calls of Write, CloseWrite and
// Close do not wait for a Read of r; the write deadline and Close end ReadFrom
// after it. Until ReadFrom has returned the device must not be closed, also when the
// connection is.
func (c *Conn) ReadFrom(r io.Reader) (int64, error) { return c.readFrom(r, first) }

func (c *Conn) readFrom(r io.Reader, first int64) (int64, error) {
	total, err := c.copyFrom(&io.LimitedReader{R: r, N: first}, first)
	if err != nil || total < first {
		return total, err
	}
	if err := c.borrow(); err != nil {
		if errors.Is(err, errNoLoan) {
			var rest int64
			rest, err = c.copyFrom(r, chunk)
			return total + rest, err
		}
		return total, err
	}
	defer c.giveBack()
	for {
		n, rerr, err := c.readChunk(r)
		total += int64(n)
		switch {
		case err != nil:
			return total, err
		case errors.Is(rerr, io.EOF):
			return total, nil
		case rerr != nil:
			return total, rerr
		}
	}
}

// copyFrom is ReadFrom with a buffer and Write.
func (c *Conn) copyFrom(r io.Reader, size int64) (int64, error) {
	if size == 0 {
		return 0, nil
	}
	return io.CopyBuffer(struct{ io.Writer }{c}, struct{ io.Reader }{r}, make([]byte, min(size, chunk)))
}

// errNoLoan says that ReadFrom has to copy.
var errNoLoan = errors.New("rdmanet: no memory to read to")

// borrow takes the memory that a reader reads to.
func (c *Conn) borrow() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return c.opError("write", net.ErrClosed)
	case c.loans.direct:
		return errNoLoan // another ReadFrom has it
	}
	c.loans.direct = true
	if c.direct.mr != nil {
		return nil
	}
	c.mu.Unlock()
	mr, err := c.e.pd.AllocMR(c.e.conf.SendBuffer, 0)
	c.mu.Lock()
	if err != nil {
		c.loans.direct = false
		_ = c.loans.free() // nobody is there to be told
		return errNoLoan
	}
	c.direct.mr, c.e.directMR = mr, mr
	return nil
}

func (c *Conn) giveBack() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.loans.direct = false
	_ = c.loans.free() // nobody is there to be told
}

// readChunk has r read once, and sends that: n bytes of it, unless that fails with
// err. rerr is the reader's.
func (c *Conn) readChunk(r io.Reader) (n int, rerr, err error) {
	b, err := c.space()
	if err != nil {
		return 0, nil, err
	}
	n, rerr = r.Read(b)
	if n < 0 || n > len(b) {
		return 0, nil, fmt.Errorf("rdmanet: a reader that reads %d bytes into %d", n, len(b))
	}
	n, err = c.sendDirect(n)
	return n, rerr, err
}

// space waits for memory to read to, and notices that nothing can be written before
// something is read for it.
func (c *Conn) space() ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.posted() >= lookAfter {
		c.look()
	}
	c.inSpace = true
	defer func() { c.inSpace = false }()
	err := c.wait(func() bool { return c.err != nil || c.endSent || c.peerClosed || c.direct.free() > 0 }, &c.writeBy)
	if err = c.writeError(err); err != nil {
		return nil, err
	}
	return c.direct.next(), nil
}

// sendDirect sends what a reader has read.
func (c *Conn) sendDirect(n int) (sent int, err error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.inWrite = true
	defer func() { c.inWrite = false }()
	for sent < n {
		err := c.wait(func() bool { return c.err != nil || c.endSent || c.peerClosed || c.release() && c.room() > 0 }, &c.writeBy)
		if err = c.writeError(err); err != nil {
			return sent, err
		}
		part := min(int(c.room()), n-sent)
		c.post(&c.direct, part)
		sent += part
	}
	return sent, nil
}

// WriteTo writes what comes to w until the end of stream; io.Copy calls it. The data
// is not copied: w is given the memory that the peer writes to, of which nothing is
// free again before w has returned. What w does not take, with an error of its own
// or io.ErrShortWrite, stays to be read. Other calls of Read wait meanwhile; Close
// does not wait for w. The read deadline and Close end WriteTo between two calls of w.
// Until it has returned the device must not be closed, also when the connection is.
//
// A peer that breaks the protocol can change the data while w looks at it. A program
// that must check what it uses later has to take a copy, as Read makes one.
func (c *Conn) WriteTo(w io.Writer) (total int64, err error) {
	for {
		b, err := c.lend()
		if err != nil || b == nil {
			return total, err
		}
		n, err := c.passOn(w, b)
		total += int64(n)
		if err != nil {
			return total, err
		}
	}
}

// lend waits for data, and gives a piece of it away; nil: the end.
func (c *Conn) lend() ([]byte, error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.waitRead(c.readable); err != nil {
		return nil, c.opError("read", err)
	}
	at, size := c.read%uint64(c.e.conf.RecvBuffer), uint64(c.e.conf.RecvBuffer)
	n := min(c.recvd-c.read, size-at, chunk)
	switch {
	case n > 0:
		c.loans.recv = true
		return c.e.recvMR.Bytes()[at : at+n], nil
	case c.eof:
		return nil, nil
	}
	return nil, c.opError("read", c.err)
}

// passOn has w take what was lent, and frees as much as it took.
func (c *Conn) passOn(w io.Writer, b []byte) (n int, err error) {
	taken := 0
	defer func() { c.takeBack(taken) }() // also when w panics
	n, err = w.Write(b)
	if n < 0 || n > len(b) {
		return 0, fmt.Errorf("rdmanet: a writer that writes %d bytes of %d", n, len(b))
	}
	if taken = n; n < len(b) && err == nil {
		err = io.ErrShortWrite
	}
	return n, err
}

func (c *Conn) takeBack(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.read += uint64(n)
	c.loans.recv = false
	if c.inRead {
		c.wake()
	}
	c.update()
	_ = c.loans.free() // nobody is there to be told
}
