package verbs

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/shm"
	"github.com/softroce/softroce/internal/uapi"
)

// message is a control message's body.
type message interface{ Append(b []byte) []byte }

// reply is a control message's answer.
type reply interface{ Decode(b []byte) error }

// control sends requests to the adapter, one at a time, and matches the
// answers. Its reader waits on the socket all the time, so that the adapter's
// death is seen at once, in a call or not.
type control struct {
	conn *shm.Conn
	die  func()

	mu  sync.Mutex // one request at a time
	seq uint32
	out []byte

	answers chan answer
	ended   chan struct{}
}

type answer struct {
	head uapi.Header
	body []byte
	fds  []int
}

func (c *control) init(conn *shm.Conn, die func()) {
	c.conn, c.die = conn, die
	c.answers, c.ended = make(chan answer), make(chan struct{})
	go c.read()
}

// read hands answers to the caller that waits, until the socket ends.
func (c *control) read() {
	defer c.die()
	defer close(c.ended)
	buf := make([]byte, uapi.MaxMessage)
	for {
		n, fds, err := c.conn.Recv(buf)
		if err != nil || n == 0 {
			closeAll(fds)
			return
		}
		var a answer
		if a.head, a.body, err = uapi.DecodeHeader(buf[:n]); err != nil {
			closeAll(fds)
			return // the adapter speaks another language: as good as gone
		}
		a.body = append([]byte(nil), a.body...)
		a.fds = fds
		c.answers <- a
	}
}

// call makes one request. It returns the descriptors of the answer, which the
// caller owns.
func (c *control) call(op string, code uapi.Op, req message, rep reply, fds []int) ([]int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seq++
	c.out = uapi.AppendMessage(c.out[:0], uapi.Header{Op: code, Version: uapi.Version, Seq: c.seq}, req)
	if len(c.out) > uapi.MaxRequest { // the adapter would hang up
		return nil, &Error{Op: op, Errno: unix.EMSGSIZE, Text: fmt.Sprintf("a request of %d bytes, at most %d", len(c.out), uapi.MaxRequest)}
	}
	if err := c.conn.Send(c.out, fds); err != nil {
		return nil, dead(op)
	}
	for {
		select {
		case a := <-c.answers:
			if a.head.Seq != c.seq {
				closeAll(a.fds)
				continue
			}
			return c.finish(op, a, rep)
		case <-c.ended:
			return nil, dead(op)
		}
	}
}

// finish decodes an answer.
func (c *control) finish(op string, a answer, rep reply) ([]int, error) {
	if a.head.Errno != 0 {
		closeAll(a.fds)
		return nil, &Error{Op: op, Errno: unix.Errno(a.head.Errno), Text: string(a.body)}
	}
	if rep != nil {
		if err := rep.Decode(a.body); err != nil {
			closeAll(a.fds)
			return nil, &Error{Op: op, Errno: unix.EPROTO, Text: err.Error()}
		}
	}
	return a.fds, nil
}

// do makes a request whose answer carries no descriptor.
func (c *control) do(op string, code uapi.Op, req message, rep reply) error {
	fds, err := c.call(op, code, req, rep, nil)
	closeAll(fds)
	return err
}

// close ends the connection and waits for the reader.
func (c *control) close() {
	_ = c.conn.Close() // the reader's end says it
	for {
		select {
		case a := <-c.answers:
			closeAll(a.fds)
		case <-c.ended:
			return
		}
	}
}
