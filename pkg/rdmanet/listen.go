package rdmanet

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/softroce/softroce/pkg/rdmacm"
	"github.com/softroce/softroce/pkg/verbs"
)

// Our own tuning.
const (
	// handshakes is how many connections come up at once. Further requests wait in
	// the adapter.
	handshakes = 64
	// handshakeTime bounds how long a peer may take to finish one.
	handshakeTime = 30 * time.Second
)

// ListenConfig says how to listen. The zero value is usable.
type ListenConfig struct {
	// Config says how large connections are.
	Config Config
	// Listen is the connection manager's part.
	Listen rdmacm.ListenConfig
}

// Listener takes connections, a net.Listener.
type Listener struct {
	dev  *verbs.Device
	conf Config
	l    *rdmacm.Listener

	ctx   context.Context // ends with Close
	stop  context.CancelFunc
	ready chan *Conn
	ended chan struct{} // closed when no further request comes
	err   error         // why, valid then
	run   sync.WaitGroup
}

// Listen takes connections at address, host and port, with the usual sizes. An
// empty host is all addresses of the adapter, port 0 one that is free.
func Listen(dev *verbs.Device, address string) (*Listener, error) {
	return (&ListenConfig{}).ListenTo(dev, address)
}

// ListenTo is Listen with a configuration.
func (lc *ListenConfig) ListenTo(dev *verbs.Device, address string) (*Listener, error) {
	addrs, err := resolve(context.Background(), Network, address)
	if err != nil {
		return nil, err
	}
	return lc.ListenAddr(dev, addrs[0])
}

// ListenAddr is Listen at an address that is known.
func (lc *ListenConfig) ListenAddr(dev *verbs.Device, addr netip.AddrPort) (*Listener, error) {
	conf, err := lc.Config.withDefaults()
	if err != nil {
		return nil, err
	}
	cm := lc.Listen
	l := &Listener{dev: dev, conf: conf, ready: make(chan *Conn), ended: make(chan struct{})}
	if l.l, err = rdmacm.Listen(dev, addr, &cm); err != nil {
		return nil, &net.OpError{Op: "listen", Net: Network, Addr: Addr{addr}, Err: err}
	}
	l.ctx, l.stop = context.WithCancel(context.Background())
	l.run.Go(l.requests)
	return l, nil
}

// Addr is where the listener listens, an Addr.
func (l *Listener) Addr() net.Addr { return Addr{l.l.Addr()} }

// Accept waits for the next connection. net.ErrClosed: the listener is closed.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.ready:
		return c, nil
	case <-l.ended:
		return nil, &net.OpError{Op: "accept", Net: Network, Addr: l.Addr(), Err: l.err}
	}
}

// Close ends the listener. Connections that Accept returned stay.
func (l *Listener) Close() error {
	l.stop()
	err := l.l.Close()
	l.run.Wait()
	return err
}

// requests takes requests until the listener ends.
func (l *Listener) requests() {
	defer close(l.ended)
	places := make(chan struct{}, handshakes)
	for {
		select {
		case places <- struct{}{}:
		case <-l.ctx.Done():
			l.err = net.ErrClosed
			return
		}
		r, err := l.l.Request(l.ctx)
		if err != nil {
			l.err = err
			if errors.Is(err, context.Canceled) {
				l.err = net.ErrClosed
			}
			return
		}
		l.run.Go(func() {
			defer func() { <-places }()
			l.offer(r)
		})
	}
}

// offer brings a connection up and hands it to Accept. A peer that fails meanwhile
// is nobody's error.
func (l *Listener) offer(r *rdmacm.Request) {
	if _, err := readHello(r.Private()); err != nil {
		_ = r.Reject([]byte(err.Error())) // the peer is told, or gone
		return
	}
	e, err := newEndpoint(l.dev, &l.conf)
	if err != nil {
		_ = r.Reject([]byte("rdmanet: no resources")) // the same
		return
	}
	ctx, cancel := context.WithTimeout(l.ctx, handshakeTime)
	defer cancel()
	conn, err := r.Accept(ctx, e.cmConfig())
	if err != nil {
		_ = e.Close() // the adapter is gone
		return
	}
	c, err := e.connected(conn)
	if err != nil {
		return
	}
	select {
	case l.ready <- c:
	case <-l.ctx.Done():
		_ = c.Close()
	}
}
