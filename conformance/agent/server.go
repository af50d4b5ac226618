package agent

import (
	"cmp"
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Keys of the log.
const (
	keyAddr   = "addr"
	keyErr    = "err"
	keyReason = "reason"
)

// Handler does what one session's requests ask for. Its methods are called one at a time.
type Handler interface {
	// Handle does one request; an *[Error] says why not. A request that waits ends with ctx.
	Handle(ctx context.Context, r Request) (*Answer, error)
	// Close destroys every object of the session.
	Close() error
}

// ServerConfig says whom an agent serves, and with what.
type ServerConfig struct {
	// New makes the handler of a session. Required.
	New func(ctx context.Context) (Handler, error)
	// Testers are the addresses that may connect. At least one.
	Testers []netip.Prefix
	// Token is a word that the tester must say in its hello; empty: none.
	Token string
	// Sessions is how many connections are served at a time; default 8.
	Sessions int
	// Idle ends a session that asks nothing for so long; default 10 minutes.
	Idle time.Duration
	// Log gets who came, was refused and went; nil: nobody.
	Log *slog.Logger
}

// Server is an agent's end: connections, their sessions, and who may have one.
type Server struct {
	cfg     ServerConfig
	refused atomic.Uint64

	mu       sync.Mutex
	sessions int
	wg       sync.WaitGroup
}

// NewServer makes a server.
func NewServer(cfg ServerConfig) (*Server, error) {
	if cfg.New == nil || len(cfg.Testers) == 0 {
		return nil, errors.New("agent: say which addresses the tester has")
	}
	testers := make([]netip.Prefix, 0, len(cfg.Testers))
	for _, p := range cfg.Testers {
		if !p.IsValid() {
			return nil, errors.New("agent: a tester without an address")
		}
		testers = append(testers, p.Masked())
	}
	cfg.Testers = testers
	if cfg.Sessions <= 0 {
		cfg.Sessions = 8
	}
	if cfg.Idle <= 0 {
		cfg.Idle = 10 * time.Minute
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Server{cfg: cfg}, nil
}

// ParseTester reads an address or a prefix.
func ParseTester(s string) (netip.Prefix, error) {
	if strings.Contains(s, "/") {
		return netip.ParsePrefix(s)
	}
	a, err := netip.ParseAddr(s)
	if err != nil {
		return netip.Prefix{}, err
	}
	a = a.Unmap().WithZone("")
	return netip.PrefixFrom(a, a.BitLen()), nil
}

// Refused counts the connections that were closed at once: of strangers, and beyond the limit.
func (s *Server) Refused() uint64 { return s.refused.Load() }

// Serve serves what l accepts, until ctx ends; it closes l, and returns when every session's objects are destroyed.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	defer s.wg.Wait()
	defer cancel()
	for {
		conn, err := l.Accept()
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return err
		default: // out of descriptors, or a connection that ended early: the next may do
			s.cfg.Log.Warn("accept", keyErr, err)
			if !pause(ctx, 50*time.Millisecond) {
				return nil
			}
			continue
		}
		if why := s.admit(conn.RemoteAddr()); why != "" {
			s.refused.Add(1)
			s.cfg.Log.Warn("connection refused", keyAddr, conn.RemoteAddr().String(), keyReason, why)
			_ = conn.Close()
			continue
		}
		s.wg.Go(func() {
			defer s.leave()
			s.session(ctx, conn)
		})
	}
}

// pause waits; false: ctx ended.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// admit takes a connection in, or says why not.
func (s *Server) admit(from net.Addr) (why string) {
	ap, err := netip.ParseAddrPort(from.String())
	if err != nil {
		return "no IP address"
	}
	if a := ap.Addr().Unmap().WithZone(""); !s.knows(a) {
		return "not the tester"
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sessions >= s.cfg.Sessions {
		return fmt.Sprintf("%d sessions already", s.sessions)
	}
	s.sessions++
	return ""
}

func (s *Server) knows(a netip.Addr) bool {
	for _, p := range s.cfg.Testers {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

func (s *Server) leave() {
	s.mu.Lock()
	s.sessions--
	s.mu.Unlock()
}

// session serves one connection. What it made is destroyed at its end, however that comes.
func (s *Server) session(ctx context.Context, conn net.Conn) {
	log := s.cfg.Log.With(keyAddr, conn.RemoteAddr().String())
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	h, err := s.cfg.New(ctx)
	if err != nil {
		log.Error("no session", keyErr, err)
		_ = s.answer(conn, nil, fmt.Errorf("the target cannot be opened: %w", err))
		_ = conn.Close()
		return
	}
	log.Info("session begins")
	err = s.serve(ctx, cancel, conn, h)
	cancel()
	_ = conn.Close()
	if e := h.Close(); e != nil {
		log.Warn("session's objects", keyErr, e)
	}
	log.Info("session ends", keyReason, err)
}

// serve answers requests until the connection ends, and says why it did.
func (s *Server) serve(ctx context.Context, cancel func(), conn net.Conn, h Handler) error {
	asked := make(chan []byte)
	var ended error
	go func() { // beside the handler, so that a request that waits ends with its connection
		defer close(asked)
		defer cancel()
		in := newLines(conn)
		for {
			_ = conn.SetReadDeadline(time.Now().Add(s.cfg.Idle))
			line, err := in.next()
			if err != nil {
				if errors.Is(err, errLong) {
					_ = s.answer(conn, nil, err)
				}
				ended = err
				return
			}
			select {
			case asked <- append([]byte(nil), line...):
			case <-ctx.Done():
				ended = ctx.Err()
				return
			}
		}
	}()
	greeted := false
	for line := range asked {
		a, err := s.handle(ctx, line, h, &greeted)
		if werr := s.answer(conn, a, err); werr != nil || errors.Is(err, errStranger) {
			_ = conn.Close() // ends the reader, which closes asked
		}
	}
	if errors.Is(ended, io.EOF) {
		return errors.New("closed by the tester")
	}
	return ended
}

// errStranger ends a connection: it did not say hello, or not rightly.
var errStranger = errors.New("say hello first, with this agent's version and token")

// handle does one line.
func (s *Server) handle(ctx context.Context, line []byte, h Handler, greeted *bool) (*Answer, error) {
	var r Request
	if err := decode(line, &r, true); err != nil {
		return nil, err
	}
	if r.Do == DoHello {
		if r.Version != Version {
			return nil, fmt.Errorf("%w: this is version %d, asked for %d", errStranger, Version, r.Version)
		}
		*greeted = *greeted || subtle.ConstantTimeCompare([]byte(r.Token), []byte(s.cfg.Token)) == 1
	}
	if !*greeted {
		return nil, errStranger
	}
	if r.MS < 0 || r.MS > MaxWait {
		return nil, &Error{Do: r.Do, Text: fmt.Sprintf("ms is %d, must be 0 to %d", r.MS, MaxWait), Errno: "EINVAL"}
	}
	a, err := h.Handle(ctx, r)
	if err == nil && r.Do == DoHello && a.Hello != nil {
		a.Hello.Version = Version
	}
	return a, err
}

// answer writes the line that answers.
func (s *Server) answer(conn net.Conn, a *Answer, err error) error {
	if a == nil {
		a = &Answer{}
	}
	if err != nil {
		a = &Answer{Error: err.Error()}
		if e, ok := Refusal(err); ok {
			a.Error, a.Errno = cmp.Or(e.Text, e.Errno, "refused"), e.Errno
		}
	}
	line, err := json.Marshal(a)
	if err != nil {
		return err
	}
	if len(line) >= MaxLine {
		return s.answer(conn, nil, errLong)
	}
	_ = conn.SetWriteDeadline(time.Now().Add(s.cfg.Idle))
	_, err = conn.Write(append(line, '\n'))
	return err
}
