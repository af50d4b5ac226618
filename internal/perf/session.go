package perf

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"time"

	"github.com/softroce/softroce/pkg/rdmacm"
	"github.com/softroce/softroce/pkg/verbs"
)

// patience bounds the wait for an answer that takes no measurement (our own
// tuning).
const patience = 30 * time.Second

// Report is the outcome of a run, the same on both sides.
type Report struct {
	Test   string `json:"test"` // as write_bw
	Role   string `json:"role"` // client or server
	Device string `json:"device"`
	Local  string `json:"local_gid"`
	Remote string `json:"remote_gid"`
	Params Params `json:"parameters"`
	Rows   []Row  `json:"rows"`
}

// session is one side of a run.
type session struct {
	cfg    *Config
	p      Params
	dev    *verbs.Device
	attr   verbs.DeviceAttr
	port   verbs.PortAttr
	link   *link
	ctx    context.Context // ends also when the peer hangs up
	report Report

	pd  *verbs.PD
	ch  *verbs.CompChannel // nil when polling
	cq  *verbs.CQ
	mr  *verbs.MR
	qps []*verbs.QP
	// With the connection manager: the server's, and each queue pair's.
	requests *rdmacm.Listener
	conns    []*rdmacm.Conn

	us   endpoint
	peer endpoint
	lay  layout

	index byte // of the size that is measured
}

// Run plays one side: the server for one client, or the client. It ends when
// all sizes are measured, ctx ends, or the peer is gone. It leaves nothing of
// its own on dev.
func Run(ctx context.Context, dev *verbs.Device, cfg Config) (*Report, error) {
	s := &session{cfg: &cfg, dev: dev}
	rep, err := s.run(ctx)
	if err != nil {
		return rep, fmt.Errorf("perf: %w", err)
	}
	return rep, nil
}

func (s *session) run(ctx context.Context) (*Report, error) {
	var err error
	if s.attr, err = s.dev.Query(); err != nil {
		return nil, err
	}
	if s.port, err = s.dev.QueryPort(1); err != nil {
		return nil, err
	}
	if s.cfg.Port == 0 {
		s.cfg.Port = DefaultPort
	}
	if err := s.cmWishes(); err != nil {
		return nil, err
	}
	s.p = s.cfg.withDefaults(&s.port, &s.attr)
	if err := s.check(); err != nil {
		return nil, err
	}
	conn, err := s.connect(ctx)
	if err != nil {
		return nil, err
	}
	sctx, cancel := context.WithCancelCause(ctx)
	s.ctx, s.link = sctx, newLink(sctx, conn, cancel)
	stop := context.AfterFunc(ctx, func() { conn.Close() }) // ends a write, too
	defer func() {
		stop()
		cancel(nil)
		s.link.close()
		s.close()
	}()
	play := s.client
	if s.server() {
		play = s.serve
	}
	if err := play(); err != nil {
		err = s.explain(ctx, err)
		_ = s.link.send(message{Kind: kindError, Text: err.Error()}) // as far as it can still hear
		return &s.report, err
	}
	return &s.report, nil
}

func (s *session) server() bool { return s.cfg.Host == "" }

// explain prefers the cause to its consequences.
func (s *session) explain(ctx context.Context, err error) error {
	select {
	case <-s.dev.Done():
		return verbs.ErrDeviceDead
	default:
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// check says what is wrong with the configuration.
func (s *session) check() error {
	if s.cfg.Port < 1 || s.cfg.Port > 65535 {
		return wrong("port %d is not in 1..65535", s.cfg.Port)
	}
	if s.cfg.Events && s.p.Latency && s.p.Op == Write && !s.p.Imm {
		return wrong("write latency polls the memory: without immediate data it has no events to sleep on")
	}
	return s.p.validate()
}

// connect makes the connection of the exchange.
func (s *session) connect(ctx context.Context) (net.Conn, error) {
	if !s.server() {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		conn, err := s.dial(ctx, net.JoinHostPort(s.cfg.Host, strconv.Itoa(s.cfg.Port)))
		if err != nil {
			return nil, fmt.Errorf("no server to connect to: %w", err)
		}
		return conn, nil
	}
	l := s.cfg.Listener
	if l == nil {
		var err error
		if l, err = s.listen(ctx, s.cfg.Port); err != nil {
			return nil, fmt.Errorf("cannot listen (choose another port with -p): %w", err)
		}
	}
	defer l.Close()
	stop := context.AfterFunc(ctx, func() { l.Close() }) // wakes Accept
	defer stop()
	conn, err := l.Accept()
	if err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, fmt.Errorf("waiting for a client: %w", err)
	}
	return conn, nil
}

// answer waits for a message that the peer can send at once.
func (s *session) answer(kinds ...string) (message, error) {
	ctx, cancel := context.WithTimeoutCause(s.ctx, patience, fmt.Errorf("%w is silent: no %q within %v", ErrPeer, kinds, patience))
	defer cancel()
	return s.link.recv(ctx, kinds...)
}

// client measures.
func (s *session) client() error {
	if err := s.open(); err != nil {
		return err
	}
	if err := s.link.send(message{Kind: kindHello, Version: version, Params: &s.p, End: &s.us}); err != nil {
		return s.lastWords(err)
	}
	m, err := s.answer(kindWelcome)
	if err != nil {
		return err
	}
	if err := s.meet(m.End); err != nil {
		return err
	}
	for i, size := range s.p.Sizes {
		if err := s.link.send(message{Kind: kindStart, Index: i}); err != nil {
			return s.lastWords(err)
		}
		s.prepare(i)
		if _, err := s.answer(kindReady); err != nil {
			return err
		}
		row, counts, err := s.measure(size)
		if err != nil {
			return s.lastWords(err)
		}
		if err := s.verify(i, counts); err != nil {
			return err
		}
		if err := s.link.send(message{Kind: kindDone, Row: row, Counts: counts}); err != nil {
			return s.lastWords(err)
		}
		if _, err := s.answer(kindChecked); err != nil {
			return err
		}
		s.result(row)
	}
	return s.link.send(message{Kind: kindBye})
}

// lastWords prefers what the peer had to say to how its end was noticed.
func (s *session) lastWords(err error) error {
	if errors.Is(err, ErrPeer) || errors.Is(err, ErrData) {
		return err
	}
	t := time.NewTimer(time.Second)
	defer t.Stop()
	select {
	case <-s.ctx.Done():
		if cause := context.Cause(s.ctx); errors.Is(cause, ErrPeer) {
			return cause
		}
	case <-t.C:
	}
	return err
}

// serve answers a client.
func (s *session) serve() error {
	m, err := s.answer(kindHello)
	if err != nil {
		return err
	}
	if err := s.adopt(m); err != nil {
		return err
	}
	if err := s.open(); err != nil {
		return err
	}
	if err := s.link.send(message{Kind: kindWelcome, End: &s.us}); err != nil {
		return err
	}
	if err := s.meet(m.End); err != nil {
		return err
	}
	for {
		m, err := s.answer(kindStart, kindBye)
		if err != nil || m.Kind == kindBye {
			return err
		}
		if m.Index < 0 || m.Index >= len(s.p.Sizes) {
			return fmt.Errorf("%w starts size number %d of %d", ErrPeer, m.Index, len(s.p.Sizes))
		}
		s.prepare(m.Index)
		if err := s.link.send(message{Kind: kindReady}); err != nil {
			return err
		}
		done, err := s.partner(s.p.Sizes[m.Index])
		if err != nil {
			return s.lastWords(err)
		}
		if err := s.verify(m.Index, done.Counts); err != nil {
			return err
		}
		if err := s.link.send(message{Kind: kindChecked}); err != nil {
			return err
		}
		s.result(done.Row)
	}
}

// adopt takes the client's parameters, after a look at each.
func (s *session) adopt(m message) error {
	ours := s.p.Name()
	switch {
	case m.Version != version:
		return fmt.Errorf("%w speaks version %d of the exchange, this side %d", ErrPeer, m.Version, version)
	case m.Params == nil:
		return fmt.Errorf("%w sent no parameters", ErrPeer)
	}
	s.p = *m.Params
	if err := s.check(); err != nil {
		return fmt.Errorf("%w asks for what cannot be: %v", ErrPeer, err) //nolint:errorlint // the fault is the peer's, not a *ParamError of ours
	}
	if s.p.Name() != ours {
		return fmt.Errorf("%w runs %s, this side %s", ErrPeer, s.p.Name(), ours)
	}
	return nil
}

// open makes the adapter's objects, and the endpoint to tell.
func (s *session) open() (err error) {
	s.lay = s.p.layout()
	if s.pd, err = s.dev.AllocPD(); err != nil {
		return err
	}
	access := verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic
	if s.mr, err = s.pd.AllocMR(int(s.lay.total()), access); err != nil {
		return err
	}
	clear(s.mr.Bytes()) // no page is touched for the first time while measuring
	if s.cfg.Events {
		if s.ch, err = s.dev.CreateCompChannel(); err != nil {
			return err
		}
	}
	qcap := s.qpCap()
	if s.cq, err = s.dev.CreateCQ(s.p.QPs*int(qcap.MaxSendWR+qcap.MaxRecvWR), s.ch, 0); err != nil {
		return err
	}
	s.us = endpoint{Addr: s.mr.Addr(), RKey: uint32(s.mr.RKey())}
	if s.cfg.CM {
		return s.openCM()
	}
	gid, err := s.dev.QueryGID(int(s.cfg.GIDIndex))
	if err != nil {
		return err
	}
	s.us.GID = gid.Addr()
	for range s.p.QPs {
		qp, err := s.pd.CreateQP(&verbs.QPInitAttr{Type: verbs.RC, SendCQ: s.cq, RecvCQ: s.cq, Cap: qcap})
		if err != nil {
			return err
		}
		s.qps = append(s.qps, qp)
		s.us.QPs = append(s.us.QPs, qpEnd{uint32(qp.Num()), rand.Uint32() & 0xFFFFFF})
	}
	return nil
}

// result takes a row into the report. Both sides have checked their data when
// it comes to this.
func (s *session) result(r *Row) {
	if r == nil {
		return
	}
	r.Checked = s.p.Check
	s.report.Rows = append(s.report.Rows, *r)
	if s.cfg.Row != nil {
		s.cfg.Row(r)
	}
}

// close gives everything back; the adapter does what it cannot.
func (s *session) close() {
	s.closeCM()
	if !s.cfg.CM {
		for _, qp := range s.qps {
			_ = qp.Destroy()
		}
	}
	if s.cq != nil {
		_ = s.cq.Destroy()
	}
	if s.ch != nil {
		_ = s.ch.Destroy()
	}
	if s.mr != nil {
		_ = s.mr.Dereg()
	}
	if s.pd != nil {
		_ = s.pd.Dealloc()
	}
}
