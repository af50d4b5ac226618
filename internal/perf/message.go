package perf

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"

	"github.com/softroce/softroce/pkg/verbs"
)

// ErrPeer is wrapped by every error about what the peer said, or that it is
// gone.
var ErrPeer = errors.New("the peer")

// version is the exchange's: both sides must have the same.
const version = 2

// maxMessage bounds a message in bytes.
const maxMessage = 256 << 10

// The kinds of message; see the package comment.
const (
	kindHello   = "hello"
	kindWelcome = "welcome"
	kindStart   = "start"
	kindReady   = "ready"
	kindDone    = "done"
	kindChecked = "checked"
	kindBye     = "bye"
	kindError   = "error"
)

// message is any message. Which fields it has depends on its kind.
type message struct {
	Kind    string    `json:"softroce_perf"`
	Version int       `json:"version,omitempty"` // hello
	Params  *Params   `json:"params,omitempty"`  // hello
	End     *endpoint `json:"end,omitempty"`     // hello, welcome
	Index   int       `json:"index,omitempty"`   // start: number of the size
	Row     *Row      `json:"row,omitempty"`     // done
	Counts  []int64   `json:"counts,omitempty"`  // done: operations of each queue pair
	Text    string    `json:"text,omitempty"`    // error
}

// endpoint is what a side must know of its peer.
type endpoint struct {
	GID  netip.Addr `json:"gid"`
	Addr uint64     `json:"addr"` // of the memory
	RKey uint32     `json:"rkey"`
	QPs  []qpEnd    `json:"qps"`
	// Port is the server's of the connection manager, which connects the queue pairs
	// then; 0: the exchange does.
	Port uint16 `json:"port,omitempty"`
}

type qpEnd struct {
	QPN uint32 `json:"qpn"`
	PSN uint32 `json:"psn"`
}

// check says whether a peer's endpoint can be one.
func (e *endpoint) check(qps int) error {
	switch {
	case e == nil:
		return fmt.Errorf("%w sent no endpoint", ErrPeer)
	case !e.GID.IsValid() || e.GID.Zone() != "":
		return fmt.Errorf("%w sent no GID", ErrPeer)
	case len(e.QPs) != qps:
		return fmt.Errorf("%w has %d queue pairs, not %d", ErrPeer, len(e.QPs), qps)
	}
	for _, q := range e.QPs {
		if q.QPN > 0xFFFFFF || q.PSN > 0xFFFFFF {
			return fmt.Errorf("%w sent queue pair number %#x and PSN %#x, which have 24 bits", ErrPeer, q.QPN, q.PSN)
		}
	}
	return nil
}

func (e *endpoint) peer(i int) verbs.RCPeer {
	return verbs.RCPeer{QPN: verbs.QPN(e.QPs[i].QPN), PSN: verbs.PSN(e.QPs[i].PSN), GID: verbs.GID(e.GID.As16())}
}

// link is the connection of the exchange, read all the time so that a hang-up is seen at
// once: that, or an error that the peer reports, cancels the session's context.
type link struct {
	conn  net.Conn
	inbox chan message
	wg    sync.WaitGroup
}

func newLink(ctx context.Context, conn net.Conn, cancel context.CancelCauseFunc) *link {
	l := &link{conn: conn, inbox: make(chan message)}
	l.wg.Go(func() {
		r := bufio.NewReaderSize(conn, maxMessage)
		for {
			m, err := readMessage(r)
			if err != nil {
				cancel(err)
				return
			}
			if m.Kind == kindError { // whatever this side is at
				cancel(fmt.Errorf("%w says: %.500q", ErrPeer, m.Text))
				return
			}
			select {
			case l.inbox <- m:
			case <-ctx.Done():
				return
			}
			if m.Kind == kindBye {
				return
			}
		}
	})
	return l
}

// readMessage reads a message; r's buffer bounds it.
func readMessage(r *bufio.Reader) (m message, err error) {
	line, err := r.ReadSlice('\n')
	switch {
	case errors.Is(err, bufio.ErrBufferFull):
		return m, fmt.Errorf("%w sent a message of more than %d bytes", ErrPeer, r.Size())
	case errors.Is(err, io.EOF):
		return m, fmt.Errorf("%w hung up", ErrPeer)
	case err != nil:
		return m, fmt.Errorf("%w is gone: %w", ErrPeer, err)
	}
	if err := json.Unmarshal(line, &m); err != nil || m.Kind == "" {
		return m, fmt.Errorf("%w is not softroce perf: it sent %.60q", ErrPeer, line)
	}
	return m, nil
}

// send sends a message.
func (l *link) send(m message) error {
	b, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("encode %s: %w", m.Kind, err)
	}
	if len(b) >= maxMessage {
		return fmt.Errorf("encode %s: %d bytes are over the limit of %d", m.Kind, len(b), maxMessage)
	}
	if _, err := l.conn.Write(append(b, '\n')); err != nil {
		return fmt.Errorf("%w is gone: %w", ErrPeer, err)
	}
	return nil
}

// recv waits for a message of a kind.
func (l *link) recv(ctx context.Context, kinds ...string) (message, error) {
	select {
	case m := <-l.inbox:
		if slices.Contains(kinds, m.Kind) {
			return m, nil
		}
		return m, fmt.Errorf("%w sent %.20q instead of %q", ErrPeer, m.Kind, kinds)
	case <-ctx.Done():
		return message{}, context.Cause(ctx)
	}
}

func (l *link) close() {
	l.conn.Close()
	l.wg.Wait()
}
