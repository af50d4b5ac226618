package perf

import (
	"context"
	"fmt"
	"net"
	"net/netip"

	"github.com/softroce/softroce/pkg/rdmacm"
	"github.com/softroce/softroce/pkg/rdmanet"
	"github.com/softroce/softroce/pkg/verbs"
)

// cmWishes says what the connection manager leaves no choice of. It looks at what
// was asked for, before defaults.
func (s *session) cmWishes() error {
	switch {
	case !s.cfg.CM:
		return nil
	case s.cfg.MTU != 0:
		return wrong("the connection manager chooses the path MTU")
	case s.cfg.GIDIndex != 0:
		return wrong("the connection manager chooses the GID, by the routing table")
	case s.server() && s.cfg.TrafficClass != 0:
		return wrong("the traffic class is the client's to say when the connection manager connects")
	}
	return nil
}

// dial makes the connection of the exchange.
func (s *session) dial(ctx context.Context, address string) (net.Conn, error) {
	if s.cfg.CM {
		return (&rdmanet.Dialer{Device: s.dev}).DialContext(ctx, rdmanet.Network, address)
	}
	return new(net.Dialer).DialContext(ctx, "tcp", address)
}

// listen waits for that of a client.
func (s *session) listen(ctx context.Context, port int) (net.Listener, error) {
	if s.cfg.CM {
		return (&rdmanet.ListenConfig{}).ListenAddr(s.dev, netip.AddrPortFrom(netip.Addr{}, uint16(port)))
	}
	return new(net.ListenConfig).Listen(ctx, "tcp", fmt.Sprintf(":%d", port))
}

// openCM makes what a side tells of itself when the connection manager connects
// the queue pairs: the server's port for them.
func (s *session) openCM() error {
	local := s.link.conn.LocalAddr().(rdmanet.Addr).Addr()
	s.us.GID = local
	if !s.server() {
		return nil
	}
	var err error
	if s.requests, err = rdmacm.Listen(s.dev, netip.AddrPortFrom(local, 0), nil); err != nil {
		return err
	}
	s.us.Port = s.requests.Addr().Port()
	return nil
}

// meetCM connects the queue pairs one after the other, so that both sides have
// them in the same order.
func (s *session) meetCM() error {
	ctx, cancel := context.WithTimeoutCause(s.ctx, patience, fmt.Errorf("%w does not connect within %v", ErrPeer, patience))
	defer cancel()
	for range s.p.QPs {
		conn, err := s.connectQP(ctx)
		if err != nil {
			if cause := context.Cause(ctx); cause != nil {
				err = cause
			}
			return s.lastWords(err)
		}
		s.conns = append(s.conns, conn)
	}
	attr, err := s.qps[0].Query()
	s.p.MTU = attr.PathMTU
	return err
}

func (s *session) connectQP(ctx context.Context) (*rdmacm.Conn, error) {
	param := rdmacm.DefaultConnParam()
	param.ResponderResources, param.InitiatorDepth = uint8(s.p.RDAtomic), uint8(s.p.RDAtomic)
	conf := &rdmacm.Config{
		PD: s.pd, Param: &param,
		QP: verbs.QPInitAttr{Type: verbs.RC, SendCQ: s.cq, RecvCQ: s.cq, Cap: s.qpCap()},
		Prepare: func(id *rdmacm.ID) error {
			s.qps = append(s.qps, id.QP())
			return s.postReceives(len(s.qps) - 1)
		},
	}
	peer := s.link.conn.RemoteAddr().(rdmanet.Addr).Addr()
	if !s.server() {
		conf.Options = func(id *rdmacm.ID) error { return id.SetTOS(s.cfg.TrafficClass) }
		conf.Local = netip.AddrPortFrom(s.us.GID, 0)
		return rdmacm.Dial(ctx, s.dev, netip.AddrPortFrom(peer, s.peer.Port), conf)
	}
	for {
		r, err := s.requests.Request(ctx)
		if err != nil {
			return nil, err
		}
		if r.PeerAddr().Addr() == peer {
			return r.Accept(ctx, conf)
		}
		_ = r.Reject(nil) // it is not our client
	}
}

// closeCM ends the connections, and their queue pairs with them.
func (s *session) closeCM() {
	if s.requests != nil {
		_ = s.requests.Close() // the adapter does what it cannot
	}
	for _, c := range s.conns {
		_ = c.Close()
	}
}
