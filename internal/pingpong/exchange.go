package pingpong

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"syscall"
	"time"
)

// Our own tuning: for how long a client tries again where nobody listens, as the two are often started at the same time.
const (
	refusedFor   = 2 * time.Second
	refusedPause = 20 * time.Millisecond
)

// dial connects to a server, which may be about to listen.
func dial(ctx context.Context, c *Config) (net.Conn, error) {
	if c.Patience > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.Patience)
		defer cancel()
	}
	var d net.Dialer
	conn, err := unlessRefused(ctx, func() (net.Conn, error) {
		return d.DialContext(ctx, "tcp", net.JoinHostPort(c.Host, strconv.Itoa(c.Port)))
	})
	if err != nil {
		return nil, fmt.Errorf("pingpong: no server to connect to: %w", err)
	}
	return conn, nil
}

// unlessRefused connects, and tries again for a while when nobody listens.
func unlessRefused(ctx context.Context, connect func() (net.Conn, error)) (net.Conn, error) {
	for until := time.Now().Add(refusedFor); ; {
		conn, err := connect()
		if !errors.Is(err, syscall.ECONNREFUSED) || time.Now().After(until) {
			return conn, err
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(refusedPause):
		}
	}
}

// accept waits for the one client, as long as ctx lets it.
func accept(ctx context.Context, c *Config) (net.Conn, error) {
	l := c.Listener
	if l == nil {
		var lc net.ListenConfig
		var err error
		if l, err = lc.Listen(ctx, "tcp", ":"+strconv.Itoa(c.Port)); err != nil {
			return nil, fmt.Errorf("pingpong: cannot listen (choose another port with -p): %w", err)
		}
	}
	defer l.Close()
	stop := context.AfterFunc(ctx, func() { _ = l.Close() }) // wakes Accept
	defer stop()
	conn, err := l.Accept()
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, fmt.Errorf("pingpong: waiting for a client: %w", err)
	}
	return conn, nil
}

// link is the TCP connection during the exchange: every call ends by the
// patience, or with ctx.
type link struct {
	net.Conn
	service Service
}

// guard bounds what is done on the connection until stop is called.
func (l link) guard(ctx context.Context, patience time.Duration) (stop func(), err error) {
	var end time.Time
	if patience > 0 {
		end = time.Now().Add(patience)
	}
	if err := l.SetDeadline(end); err != nil {
		return nil, err
	}
	after := context.AfterFunc(ctx, func() { _ = l.SetDeadline(time.Unix(1, 0)) })
	return func() {
		if after() {
			_ = l.SetDeadline(time.Time{}) // a closed connection says so at its next use
		}
	}, nil
}

// places is how many endpoints each side sends: ibv_srq_pingpong fills up with
// zeroes, whatever the number of its queue pairs.
func (s Service) places() int {
	if s == SRQ {
		return 256
	}
	return 1
}

// sendEndpoints and recvEndpoints are the two halves of the exchange.
func (l link) sendEndpoints(us []Endpoint) error {
	all := make([]Endpoint, l.service.places())
	copy(all, us)
	b := make([]byte, 0, len(all)*wireSize)
	for _, e := range all {
		b = append(b, e.wire()...)
	}
	if _, err := l.Write(b); err != nil {
		return fmt.Errorf("send the local address: %w", err)
	}
	return nil
}

func (l link) recvEndpoints(want int) ([]Endpoint, error) {
	peers := make([]Endpoint, 0, l.service.places())
	for range cap(peers) {
		e, err := l.recvEndpoint()
		if err != nil {
			return nil, err
		}
		if e != (Endpoint{}) || len(peers) == 0 {
			peers = append(peers, e)
		}
	}
	if len(peers) != want {
		return nil, fmt.Errorf("%w: the peer has %d queue pairs, not %d: both sides need the same -q", ErrExchange, len(peers), want)
	}
	for _, e := range peers {
		if e.GID.IsZero() {
			return nil, fmt.Errorf("%w: the peer's GID is zero (%s needs its option -g)", ErrExchange, l.service.Program())
		}
	}
	return peers, nil
}

func (l link) recvEndpoint() (Endpoint, error) {
	var b [wireSize]byte
	if n, err := io.ReadFull(l, b[:]); err != nil {
		return Endpoint{}, ended("the remote address", n, err)
	}
	return parseEndpoint(b[:])
}

// exchange runs the client's or the server's part. connect is called with the
// peer's endpoints when this side must be ready for its packets.
func (l link) exchange(server bool, us []Endpoint, connect func([]Endpoint) error) ([]Endpoint, error) {
	if !server {
		if err := l.sendEndpoints(us); err != nil {
			return nil, err
		}
	}
	peers, err := l.recvEndpoints(len(us))
	if err != nil {
		return nil, err
	}
	if !server {
		if _, err := l.Write([]byte(doneMessage)); err != nil {
			return nil, fmt.Errorf("confirm: %w", err)
		}
		return peers, connect(peers)
	}
	if err := connect(peers); err != nil {
		return nil, err
	}
	if err := l.sendEndpoints(us); err != nil {
		return nil, err
	}
	return peers, l.recvDone()
}

func (l link) recvDone() error {
	var b [len(doneMessage)]byte
	if n, err := io.ReadFull(l, b[:]); err != nil {
		return ended("the client's confirmation", n, err)
	}
	if string(b[:]) != doneMessage {
		return fmt.Errorf("%w: %q instead of the client's confirmation", ErrExchange, b)
	}
	return nil
}

// ended explains a read that failed.
func ended(what string, n int, err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: the peer hung up after %d bytes of %s; what it printed says why", ErrExchange, n, what)
	}
	return fmt.Errorf("waiting for %s: %w", what, err)
}
