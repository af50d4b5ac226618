package cmtime

import (
	"context"
	"fmt"

	"github.com/softroce/softroce/pkg/rdmacm"
	"github.com/softroce/softroce/pkg/verbs"
)

// server is one run.
type server struct {
	cfg    *Config
	pd     *verbs.PD
	cq     *verbs.CQ
	ids    map[*rdmacm.ID]bool
	served int
}

// Server grants every request until as many connections as it is told have ended,
// whose number it returns, or ctx ends. It leaves nothing of its own on dev.
func Server(ctx context.Context, dev *verbs.Device, cfg Config) (int, error) {
	if err := cfg.Validate(); err != nil {
		return 0, err
	}
	cfg = cfg.withDefaults()
	ch, err := rdmacm.NewEventChannel(dev)
	if err != nil {
		return 0, err
	}
	defer ch.Destroy() //nolint:errcheck // the adapter does what this cannot
	s := &server{cfg: &cfg, ids: map[*rdmacm.ID]bool{}}
	defer s.close()
	if s.pd, err = dev.AllocPD(); err != nil {
		return 0, err
	}
	if s.cq, err = dev.CreateCQ(1, nil, 0); err != nil {
		return 0, err
	}
	if err := s.listen(ch); err != nil {
		return 0, fmt.Errorf("cmtime: cannot listen on %v: %w", cfg.Addr, err)
	}
	for cfg.Conns == 0 || s.served < cfg.Conns {
		e, err := ch.Get(ctx)
		if err != nil {
			return s.served, fmt.Errorf("cmtime: waiting for clients: %w", err)
		}
		if err := s.handle(e); err != nil {
			return s.served, fmt.Errorf("cmtime: %w", err)
		}
	}
	return s.served, nil
}

func (s *server) listen(ch *rdmacm.EventChannel) error {
	id, err := ch.CreateID(rdmacm.PSTCP)
	if err != nil {
		return err
	}
	s.ids[id] = true
	if err := id.Bind(s.cfg.Addr); err != nil {
		return err
	}
	if err := id.Listen(0); err != nil {
		return err
	}
	if s.cfg.Ready != nil {
		s.cfg.Ready(id.LocalAddr())
	}
	return nil
}

func (s *server) close() {
	for id := range s.ids {
		_ = id.Destroy()
	}
	if s.cq != nil {
		_ = s.cq.Destroy()
	}
	if s.pd != nil {
		_ = s.pd.Dealloc()
	}
}

// handle answers an event. An identifier whose peer is gone is destroyed; an error
// ends the server.
func (s *server) handle(e *rdmacm.Event) error {
	id, kind := e.ID, e.Type
	failed := e.Err()
	e.Ack()
	switch {
	case kind == rdmacm.EventConnectRequest:
		s.ids[id] = true
		if err := id.CreateQP(s.pd, qpAttr(s.cq)); err != nil {
			return fmt.Errorf("a queue pair for %v: %w", id.PeerAddr(), err)
		}
		if err := id.Accept(nil); err != nil {
			return fmt.Errorf("accept %v: %w", id.PeerAddr(), err)
		}
	case kind == rdmacm.EventDisconnected:
		s.served++
		_ = id.Disconnect() // agrees; the peer may be gone
		return s.destroy(id)
	case kind == rdmacm.EventDeviceRemoval:
		return failed
	case failed != nil: // the client gave up
		return s.destroy(id)
	}
	return nil
}

func (s *server) destroy(id *rdmacm.ID) error {
	delete(s.ids, id)
	return id.Destroy()
}
