// Package nc joins an input and an output of this host with those of another by
// a byte stream over RDMA. It is what `softroce nc` runs.
//
// The stream has a half close: the end of one side's input is the end of the other
// side's output, and the run ends when both directions have ended. A side that
// fails or is stopped aborts the connection instead, so that its peer does not
// take what it has for the whole.
//
// The package refuses to know a flag, a file, or how a connection is made.
package nc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/softroce/softroce/pkg/rdmanet"
	"github.com/softroce/softroce/pkg/verbs"
)

// Config is one side's.
type Config struct {
	In  io.Reader
	Out io.Writer
	// Person says that In is typed by somebody, who need not end it when the peer
	// has ended.
	Person bool
	// Wait bounds how long Client connects; 0: as long as the connection manager
	// asks for an answer.
	Wait time.Duration
	// Local is the own address of Client; not valid: the host's routing table
	// chooses.
	Local netip.Addr

	// Listening is called when Server waits for its client, Connected when there is
	// a connection; nil: not.
	Listening func(net.Addr)
	Connected func(local, peer net.Addr)
	// Progress is called a few times a second while data goes; nil: not.
	Progress func(Report)
}

// Report says how much went, to the connection and to Out.
type Report struct {
	Sent, Received int64
	Elapsed        time.Duration // since the connection is up
}

// tick is how often progress is told; our own tuning.
const tick = 200 * time.Millisecond

// Client connects to a server at address, host and port, and passes data until
// both directions have ended. When it returns early a read of In may still wait,
// into memory of the connection's: dev is not to be closed before that, unless In is
// a file, whose read then fails.
func Client(ctx context.Context, dev *verbs.Device, address string, cfg Config) (Report, error) {
	d := &rdmanet.Dialer{Device: dev}
	if cfg.Local.IsValid() {
		d.Local = netip.AddrPortFrom(cfg.Local, 0)
	}
	dctx := ctx
	if cfg.Wait > 0 {
		var cancel context.CancelFunc
		dctx, cancel = context.WithTimeout(ctx, cfg.Wait)
		defer cancel()
	}
	c, err := d.DialContext(dctx, rdmanet.Network, address)
	if err != nil {
		return Report{}, because(ctx, err)
	}
	return pass(ctx, c.(*rdmanet.Conn), &cfg)
}

// Server waits at addr for one client and passes data as Client does. An address
// that is not valid is any of the adapter's, port 0 one that is free.
func Server(ctx context.Context, dev *verbs.Device, addr netip.AddrPort, cfg Config) (Report, error) {
	l, err := (&rdmanet.ListenConfig{}).ListenAddr(dev, addr)
	if err != nil {
		return Report{}, err
	}
	stop := context.AfterFunc(ctx, func() { _ = l.Close() }) // wakes Accept
	defer stop()
	if cfg.Listening != nil {
		cfg.Listening(l.Addr())
	}
	c, err := l.Accept()
	_ = l.Close() // there is one client
	if err != nil {
		return Report{}, because(ctx, err)
	}
	return pass(ctx, c.(*rdmanet.Conn), &cfg)
}

// because prefers a run's own end to what came of it.
func because(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// transfer is a connection that is up.
type transfer struct {
	cfg      *Config
	c        *rdmanet.Conn
	start    time.Time
	sent     atomic.Int64
	received atomic.Int64
}

func pass(ctx context.Context, c *rdmanet.Conn, cfg *Config) (Report, error) {
	t := &transfer{cfg: cfg, c: c, start: time.Now()}
	if cfg.Connected != nil {
		cfg.Connected(c.LocalAddr(), c.RemoteAddr())
	}
	err := t.both(ctx)
	if err != nil {
		_ = c.Abort() // the first error is told
		return t.report(), err
	}
	rep := t.report()
	return rep, c.Close()
}

// both passes data until both directions have ended, one has failed, or ctx ends.
func (t *transfer) both(ctx context.Context) error {
	sent, received := make(chan error, 1), make(chan error, 1)
	go func() { sent <- t.send() }()
	go func() { received <- t.receive() }()
	show := time.NewTicker(tick)
	defer show.Stop()
	for sent != nil || received != nil {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-sent:
			if err != nil {
				return err
			}
			sent = nil
		case err := <-received:
			if err != nil {
				return err
			}
			received = nil
			if t.cfg.Person && sent != nil {
				return t.c.CloseWrite()
			}
		case <-show.C:
			if t.cfg.Progress != nil {
				t.cfg.Progress(t.report())
			}
		}
	}
	return nil
}

func (t *transfer) report() Report {
	return Report{Sent: t.sent.Load(), Received: t.received.Load(), Elapsed: time.Since(t.start)}
}

// send passes the input on, and its end.
func (t *transfer) send() error {
	in := inlet{r: t.cfg.In, count: &t.sent}
	n, err := t.c.ReadFrom(&in)
	t.sent.Store(n)
	if err != nil {
		return err
	}
	return t.c.CloseWrite()
}

// receive passes on what comes.
func (t *transfer) receive() error {
	_, err := t.c.WriteTo(outlet{t.cfg.Out, &t.received})
	return err
}

// inlet counts what was read when more is asked for, which is when it is sent, and
// says whose errors its errors are.
type inlet struct {
	r     io.Reader
	count *atomic.Int64
	last  int
}

func (i *inlet) Read(b []byte) (int, error) {
	i.count.Add(int64(i.last))
	n, err := i.r.Read(b)
	i.last = n
	if err != nil && !errors.Is(err, io.EOF) {
		err = fmt.Errorf("input: %w", err)
	}
	return n, err
}

// outlet counts what it takes, and says whose errors its errors are.
type outlet struct {
	w     io.Writer
	count *atomic.Int64
}

func (o outlet) Write(b []byte) (int, error) {
	n, err := o.w.Write(b)
	o.count.Add(int64(n))
	if n < len(b) && err == nil {
		err = io.ErrShortWrite
	}
	if err != nil {
		err = fmt.Errorf("output: %w", err)
	}
	return n, err
}
