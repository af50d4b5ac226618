package rping

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/softroce/softroce/pkg/rdmacm"
	"github.com/softroce/softroce/pkg/verbs"
)

// Report is the outcome of one connection.
type Report struct {
	Local, Peer netip.AddrPort
	Pings, Size int
	Checked     bool
	Elapsed     time.Duration // of all pings
}

// patience is how long a server that is through waits for its client to hang up.
const patience = 2 * time.Second

// ErrData is wrapped by the error of a ping that came back with other data.
var ErrData = errors.New("the data that came back is not what was sent")

func (s *session) report(pings int, start time.Time) *Report {
	return &Report{
		Local: s.conn.LocalAddr(), Peer: s.conn.PeerAddr(), Pings: pings, Size: s.cfg.Size, Checked: s.cfg.Check,
		Elapsed: time.Since(start),
	}
}

// Client connects to a server and pings it until all is done, or ctx ends. It
// leaves nothing of its own on dev.
func Client(ctx context.Context, dev *verbs.Device, cfg Config) (*Report, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	s, err := newSession(dev, &cfg)
	defer s.close()
	if err != nil {
		return nil, err
	}
	conf := s.config()
	if cfg.Local.IsValid() {
		conf.Local = netip.AddrPortFrom(cfg.Local, 0)
	}
	conn, err := rdmacm.Dial(ctx, dev, cfg.Addr, conf)
	if err != nil {
		return nil, fmt.Errorf("rping: no connection to %v: %w", cfg.Addr, err)
	}
	s.start(ctx, conn)
	start, n := time.Now(), 0
	for ; cfg.Count == 0 || n < cfg.Count; n++ {
		if err := s.clientPing(n); err != nil {
			return s.report(n, start), fmt.Errorf("rping: ping %d: %w", n, err)
		}
	}
	return s.report(n, start), nil
}

// clientPing is one ping.
func (s *session) clientPing(n int) error {
	fill(s.source(), n)
	key, size := uint32(s.data.RKey()), uint32(s.cfg.Size)
	err := s.send(info{s.data.Addr(), key, size}, "where the source is")
	if err == nil {
		err = s.await(recvID)
	}
	if n == 0 && errors.Is(err, errHungUp) {
		err = fmt.Errorf("%w before it read the source of %d bytes: a server with a smaller -S does", err, size)
	}
	if err != nil {
		return err
	}
	s.debug("the peer has read the source")
	if err := s.send(info{s.data.Addr() + uint64(size), key, size}, "where the sink is"); err != nil {
		return err
	}
	if err := s.await(recvID); err != nil {
		return err
	}
	s.debug("the peer has written the sink")
	if s.cfg.Check && !bytes.Equal(s.source(), s.sink()) {
		return ErrData
	}
	s.ping(s.sink())
	return nil
}

// Server serves one client until it hangs up, all is done, or ctx ends; with
// Persistent every client until ctx ends. It leaves nothing of its own on dev.
func Server(ctx context.Context, dev *verbs.Device, cfg Config) (*Report, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	l, err := rdmacm.Listen(dev, cfg.Addr, nil)
	if err != nil {
		return nil, fmt.Errorf("rping: cannot listen on %v: %w", cfg.Addr, err)
	}
	defer l.Close()
	if cfg.Ready != nil {
		cfg.Ready(l.Addr())
	}
	if cfg.Persistent {
		return nil, serveAll(ctx, dev, &cfg, l)
	}
	r, err := l.Request(ctx)
	if err != nil {
		return nil, fmt.Errorf("rping: waiting for a client: %w", err)
	}
	return serve(ctx, dev, &cfg, r)
}

// serveAll serves each client in a goroutine of its own.
func serveAll(ctx context.Context, dev *verbs.Device, cfg *Config, l *rdmacm.Listener) error {
	var clients sync.WaitGroup
	defer clients.Wait()
	for {
		r, err := l.Request(ctx)
		if err != nil {
			return fmt.Errorf("rping: waiting for clients: %w", err)
		}
		clients.Go(func() {
			rep, err := serve(ctx, dev, cfg, r)
			if cfg.Served != nil {
				cfg.Served(rep, err)
			}
		})
	}
}

func serve(ctx context.Context, dev *verbs.Device, cfg *Config, r *rdmacm.Request) (*Report, error) {
	s, err := newSession(dev, cfg)
	defer s.close()
	if err != nil {
		_ = r.Reject(nil) // that error is the one to tell
		return nil, err
	}
	conn, err := r.Accept(ctx, s.config())
	if err != nil {
		return nil, fmt.Errorf("rping: the connection of %v did not come up: %w", r.PeerAddr(), err)
	}
	s.start(ctx, conn)
	start, n := time.Now(), 0
	for ; cfg.Count == 0 || n < cfg.Count; n++ {
		more, err := s.serverPing()
		if err != nil {
			return s.report(n, start), fmt.Errorf("rping: ping %d: %w", n, err)
		}
		if !more {
			break
		}
	}
	rep := s.report(n, start)
	s.farewell()
	return rep, nil
}

// farewell leaves the hang-up to the client, for a while: rdma-core's server always does, and its client, when it is hung
// up on before it has seen that the last ping is done, may wait for ever.
func (s *session) farewell() {
	t := time.NewTimer(patience)
	defer t.Stop()
	select {
	case <-s.ctx.Done():
	case <-t.C:
	}
}

// serverPing is one ping; false: the client hung up instead.
func (s *session) serverPing() (more bool, err error) {
	switch err := s.await(recvID); {
	case errors.Is(err, errHungUp):
		return false, nil
	case err != nil:
		return false, err
	}
	size, err := s.fits()
	if err != nil {
		return false, err
	}
	s.debug(fmt.Sprintf("read %d bytes of the client's source", size))
	if err := s.remote(verbs.WRRDMARead, readID, size); err != nil {
		return false, err
	}
	s.ping(s.sink()[:size])
	if err := s.send(info{}, "go on"); err != nil {
		return false, err
	}
	if err := s.await(recvID); err != nil {
		return false, err
	}
	if size, err = s.fits(); err != nil {
		return false, err
	}
	// As much as there is of the text, with the zero behind it.
	size = min(size, len(text(s.sink()))+1)
	s.debug(fmt.Sprintf("write %d bytes to the client's sink", size))
	if err := s.remote(verbs.WRRDMAWrite, writeID, size); err != nil {
		return false, err
	}
	// A client that is done hangs up as soon as it hears so.
	if err := s.send(info{}, "done"); err != nil && !errors.Is(err, errHungUp) {
		return false, err
	}
	return true, nil
}

// fits says how large the buffer is that the client told of.
func (s *session) fits() (int, error) {
	if int64(s.peer.size) > int64(s.cfg.Size) {
		return 0, fmt.Errorf("the client's buffer has %d bytes, and this side's %d: both need the same -S", s.peer.size, s.cfg.Size)
	}
	return int(s.peer.size), nil
}

// remote moves so many bytes between the sink and the client's buffer.
func (s *session) remote(op verbs.WROpcode, id uint64, size int) error {
	return s.request(verbs.SendWR{
		WRID: id, Opcode: op, RemoteAddr: s.peer.addr, RKey: verbs.RKey(s.peer.rkey),
		SGList: []verbs.SGE{s.data.SGE(s.cfg.Size, size)},
	})
}
