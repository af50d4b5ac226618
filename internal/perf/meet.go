package perf

import "github.com/softroce/softroce/pkg/verbs"

// qpCap is how large the queue pairs are.
func (s *session) qpCap() verbs.QPCap {
	qcap := verbs.QPCap{MaxSendWR: uint32(s.p.TxDepth), MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInlineData: uint32(s.p.Inline)}
	if s.p.receives() {
		qcap.MaxRecvWR = uint32(s.p.RxDepth)
	}
	return qcap
}

// meet connects the queue pairs to the peer's and posts the receives.
func (s *session) meet(peer *endpoint) error {
	if err := peer.check(len(s.qps)); err != nil {
		return err
	}
	s.peer = *peer
	connect := s.meetByExchange
	if s.cfg.CM {
		connect = s.meetCM
	}
	if err := connect(); err != nil {
		return err
	}
	role := "client"
	if s.server() {
		role = "server"
	}
	s.report = Report{
		Test: s.p.Name(), Role: role, Device: s.dev.Name(), Local: s.us.GID.String(), Remote: s.peer.GID.String(), Params: s.p, Rows: []Row{},
	}
	if s.cfg.Started != nil {
		s.cfg.Started(&s.report)
	}
	return nil
}

// meetByExchange connects the queue pairs by what the exchange told of them.
func (s *session) meetByExchange() error {
	for i, qp := range s.qps {
		err := qp.ConnectRC(s.peer.peer(i), verbs.RCConfig{
			SGIDIndex: s.cfg.GIDIndex, PSN: verbs.PSN(s.us.QPs[i].PSN), MTU: s.p.MTU, MaxRDAtomic: uint8(s.p.RDAtomic),
			TrafficClass: s.cfg.TrafficClass,
		})
		if err != nil {
			return err
		}
		if err := s.postReceives(i); err != nil {
			return err
		}
	}
	return nil
}

// postReceives posts the receives of a queue pair, if this side takes any.
func (s *session) postReceives(qp int) error {
	if !s.p.receives() || !s.p.Latency && !s.server() {
		return nil
	}
	for n := range s.p.RxDepth {
		if s.p.Check && n >= int(s.lay.slots) {
			break
		}
		if err := s.postRecv(qp, n%int(s.lay.slots)); err != nil {
			return err
		}
	}
	return nil
}
