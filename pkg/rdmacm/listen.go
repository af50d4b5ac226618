package rdmacm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/pkg/verbs"
)

// ListenConfig says how to listen. The zero value is usable.
type ListenConfig struct {
	// Space is the port space; 0: PSTCP.
	Space PortSpace
	// Backlog is how many requests wait at once; 0: as many as the adapter allows.
	Backlog int
	// Options, unless nil, is called with the identifier before it is bound, for
	// SetReuseAddr and its like.
	Options func(*ID) error
}

// Listener takes requests for connections.
type Listener struct {
	id   *ID
	hub  *hub
	box  *mailbox
	done chan struct{}

	closed sync.Once
	err    error
}

// Listen takes requests for addr. An unspecified address, or one that is not
// valid, is any of the adapter's; port 0 is one that is free. conf may be nil.
func Listen(dev *verbs.Device, addr netip.AddrPort, conf *ListenConfig) (*Listener, error) {
	if conf == nil {
		conf = &ListenConfig{}
	}
	h, err := newHub(dev)
	if err != nil {
		return nil, err
	}
	l := &Listener{hub: h, box: newMailbox(h), done: make(chan struct{})}
	if err := l.start(addr, conf); err != nil {
		if l.id != nil {
			_ = l.id.Destroy() // the first error is told
		}
		h.unuse()
		return nil, err
	}
	return l, nil
}

func (l *Listener) start(addr netip.AddrPort, conf *ListenConfig) error {
	space := conf.Space
	if space == 0 {
		space = PSTCP
	}
	var err error
	if l.id, err = l.hub.ch.CreateID(space); err != nil {
		return err
	}
	l.id.box.Store(l.box)
	if conf.Options != nil {
		if err := conf.Options(l.id); err != nil {
			return err
		}
	}
	if err := l.id.Bind(addr); err != nil {
		return err
	}
	return l.id.Listen(conf.Backlog)
}

// ID is the listening identifier.
func (l *Listener) ID() *ID { return l.id }

// Addr is where the listener listens.
func (l *Listener) Addr() netip.AddrPort { return l.id.LocalAddr() }

// Request waits for the next request. It ends with ctx's error, with net.ErrClosed
// after Close, or when the adapter is gone.
func (l *Listener) Request(ctx context.Context) (*Request, error) {
	for {
		e, err := l.box.next(ctx, l.done, net.ErrClosed)
		if err != nil {
			return nil, err
		}
		if e.Type == EventConnectRequest {
			l.hub.use()
			return &Request{l: l, id: e.ID, box: e.ID.box.Load(), event: e}, nil
		}
		if err := e.Err(); err != nil { // the adapter goes away
			return nil, err
		}
	}
}

// Accept waits for a request, grants it, and waits until the connection is up.
// Requests come one at a time: a program that must not wait for a slow peer calls
// Request, and Request.Accept in a goroutine of its own. A peer that gives up
// meanwhile is an error of that request only.
func (l *Listener) Accept(ctx context.Context, conf *Config) (*Conn, error) {
	r, err := l.Request(ctx)
	if err != nil {
		return nil, err
	}
	return r.Accept(ctx, conf)
}

// Close ends the listener. Requests that nobody took are refused; connections
// stay.
func (l *Listener) Close() error {
	l.closed.Do(func() {
		close(l.done)
		l.err = l.id.Destroy()
		for _, e := range l.box.close() {
			if e.Listen != nil {
				_ = e.ID.Destroy() // refuses the peer
			}
		}
		l.hub.unuse()
	})
	return l.err
}

// Request is a peer's request for a connection, which waits for Accept or Reject.
type Request struct {
	l     *Listener
	id    *ID
	box   *mailbox
	event *Event
}

// Private is the private data of the request, zero padded.
func (r *Request) Private() []byte { return r.event.Private }

// Param is what the peer asks for, as this side is to use it.
func (r *Request) Param() ConnParam { return r.event.Conn }

// LocalAddr is the address that the peer asks for.
func (r *Request) LocalAddr() netip.AddrPort { return r.id.LocalAddr() }

// PeerAddr is the peer's address.
func (r *Request) PeerAddr() netip.AddrPort { return r.id.PeerAddr() }

// Accept grants the request and waits until the connection is up. Errors are as
// those of Dial; the request has then ended. One that the peer has withdrawn
// meanwhile is a RejectError.
func (r *Request) Accept(ctx context.Context, conf *Config) (*Conn, error) {
	e, err := r.accept(ctx, conf)
	if err != nil {
		r.drop()
		return nil, err
	}
	e.Private = r.event.Private // a peer's last word has none
	e.Conn = r.event.Conn
	return newConn(r.l.hub, r.box, r.id, e), nil
}

func (r *Request) accept(ctx context.Context, conf *Config) (*Event, error) {
	if err := prepare(r.id, conf); err != nil {
		return nil, err
	}
	if err := r.id.Accept(conf.Param); err != nil {
		return nil, r.withdrawn(ctx, err)
	}
	return r.box.await(ctx, EventEstablished)
}

// withdrawal bounds how long after a failed call the event of its cause may come;
// our own tuning.
const withdrawal = time.Second

// withdrawn tells, in place of an error of Accept, that the peer has withdrawn the
// request, if it has: the identifier is then in no state to be granted, and an event
// says why.
func (r *Request) withdrawn(ctx context.Context, err error) error {
	if !errors.Is(err, unix.EINVAL) {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, withdrawal)
	defer cancel()
	e, none := r.box.next(ctx, nil, nil)
	if none != nil || e.Err() == nil {
		return err
	}
	return fmt.Errorf("accept: the peer has withdrawn its request: %w", e.Err())
}

// Reject refuses the request.
func (r *Request) Reject(private []byte) error {
	err := r.id.Reject(private)
	r.drop()
	return err
}

// drop ends a request. Destroying its identifier refuses a peer that waits.
func (r *Request) drop() {
	r.box.close()
	_ = r.id.Destroy() // an adapter that is gone
	r.l.hub.unuse()
}
