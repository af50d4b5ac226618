package verbsagent

import (
	"cmp"
	"context"
	"math"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/conformance/agent"
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/verbs"
)

// Sizes where the tester says none.
const (
	defaultWRs  = 64
	defaultSGEs = 4
	defaultCQE  = 256
)

func (s *Session) pd(context.Context, *agent.Request) (*agent.Answer, error) {
	pd, err := s.dev.AllocPD()
	if err != nil {
		return nil, err
	}
	return &agent.Answer{PD: add(s, s.pds, pd)}, nil
}

// mr makes a region of memory that the adapter shares, or with an iova of the agent's own.
func (s *Session) mr(_ context.Context, r *agent.Request) (*agent.Answer, error) {
	pd, err := find(s.pds, "pd", r.PD)
	if err != nil {
		return nil, err
	}
	access, err := accessOf(r.Access)
	if err != nil {
		return nil, err
	}
	switch {
	case r.Length <= 0:
		return nil, invalid("length %d", r.Length)
	case r.Length > maxMR || r.Length > maxMemory-s.memory:
		return nil, &verbs.Error{Op: "memory", Errno: unix.ENOMEM, Text: "more than the agent allows"}
	}
	var mr *verbs.MR
	if r.Iova != nil {
		mr, err = pd.RegMRIova(make([]byte, r.Length), *r.Iova, access)
	} else {
		mr, err = pd.AllocMR(r.Length, access)
	}
	if err != nil {
		return nil, err
	}
	s.memory += r.Length
	return &agent.Answer{MR: add(s, s.mrs, mr), Addr: mr.IOVA(), LKey: uint32(mr.LKey()), RKey: uint32(mr.RKey())}, nil
}

func (s *Session) rereg(_ context.Context, r *agent.Request) (*agent.Answer, error) {
	mr, err := find(s.mrs, "mr", r.MR)
	if err != nil {
		return nil, err
	}
	access, err := accessOf(r.Access)
	if err != nil {
		return nil, err
	}
	if err := mr.Rereg(verbs.ReregChangeAccess, nil, nil, access); err != nil {
		return nil, err
	}
	return &agent.Answer{LKey: uint32(mr.LKey()), RKey: uint32(mr.RKey())}, nil
}

// piece is n bytes of a region from an offset on.
func (s *Session) piece(handle, off, n int) ([]byte, error) {
	mr, err := find(s.mrs, "mr", handle)
	if err != nil {
		return nil, err
	}
	b := mr.Bytes()
	switch {
	case n > agent.MaxData:
		return nil, invalid("%d bytes at once, at most %d", n, agent.MaxData)
	case off < 0 || n < 0 || off > len(b) || n > len(b)-off:
		return nil, invalid("%d bytes at %d of a region of %d", n, off, len(b))
	}
	return b[off : off+n], nil
}

func (s *Session) write(_ context.Context, r *agent.Request) (*agent.Answer, error) {
	b, err := s.piece(r.MR, r.Off, len(r.Data))
	if err != nil {
		return nil, err
	}
	copy(b, r.Data)
	return nil, nil
}

func (s *Session) read(_ context.Context, r *agent.Request) (*agent.Answer, error) {
	b, err := s.piece(r.MR, r.Off, r.Length)
	if err != nil {
		return nil, err
	}
	return &agent.Answer{Data: polled(b)}, nil
}

// polled copies memory that a peer may be writing just now, as a tester's that waits for a byte to change. The race detector is
// told to overlook it, which it does byte by byte only.
//
//go:norace
func polled(b []byte) []byte {
	out := make([]byte, len(b))
	for i := range out {
		out[i] = b[i]
	}
	return out
}

func (s *Session) cq(_ context.Context, r *agent.Request) (*agent.Answer, error) {
	q := &queue{}
	var err error
	if r.Channel {
		if q.events, err = s.dev.CreateCompChannel(); err != nil {
			return nil, err
		}
	}
	if q.CQ, err = s.dev.CreateCQ(cmp.Or(r.CQE, defaultCQE), q.events, 0); err != nil {
		if q.events != nil {
			_ = q.events.Destroy() // nothing uses it
		}
		return nil, err
	}
	return &agent.Answer{CQ: add(s, s.cqs, q)}, nil
}

func (s *Session) srq(_ context.Context, r *agent.Request) (*agent.Answer, error) {
	pd, err := find(s.pds, "pd", r.PD)
	if err != nil {
		return nil, err
	}
	var at verbs.SRQAttr
	for _, f := range []struct {
		to   *uint32
		n, d int
	}{{&at.MaxWR, r.RecvWRs, defaultWRs}, {&at.MaxSGE, r.RecvSGEs, defaultSGEs}} {
		if *f.to, err = count(cmp.Or(f.n, f.d)); err != nil {
			return nil, err
		}
	}
	srq, err := pd.CreateSRQ(at)
	if err != nil {
		return nil, err
	}
	return &agent.Answer{SRQ: add(s, s.srqs, srq)}, nil
}

func (s *Session) srqLimit(_ context.Context, r *agent.Request) (*agent.Answer, error) {
	srq, err := find(s.srqs, "srq", r.SRQ)
	if err != nil {
		return nil, err
	}
	n, err := count(r.Limit)
	if err != nil {
		return nil, err
	}
	return nil, srq.Modify(verbs.SRQAttr{Limit: n}, verbs.SRQLimitMask)
}

func (s *Session) qp(_ context.Context, r *agent.Request) (*agent.Answer, error) {
	init := &verbs.QPInitAttr{SQSigAll: r.SigAll}
	var err error
	if init.Type, err = value(qpTypes, "queue pair type", r.Type); err != nil {
		return nil, err
	}
	pd, err := find(s.pds, "pd", r.PD)
	if err != nil {
		return nil, err
	}
	send, err := find(s.cqs, "cq", r.SendCQ)
	if err != nil {
		return nil, err
	}
	recv, err := find(s.cqs, "cq", r.RecvCQ)
	if err != nil {
		return nil, err
	}
	init.SendCQ, init.RecvCQ = send.CQ, recv.CQ
	if r.SRQ != 0 {
		if init.SRQ, err = find(s.srqs, "srq", r.SRQ); err != nil {
			return nil, err
		}
	}
	c := &init.Cap
	for _, f := range []struct {
		to   *uint32
		n, d int
	}{
		{&c.MaxSendWR, r.SendWRs, defaultWRs},
		{&c.MaxRecvWR, r.RecvWRs, defaultWRs},
		{&c.MaxSendSGE, r.SendSGEs, defaultSGEs},
		{&c.MaxRecvSGE, r.RecvSGEs, defaultSGEs},
		{&c.MaxInlineData, r.Inline, 0},
	} {
		if *f.to, err = count(cmp.Or(f.n, f.d)); err != nil {
			return nil, err
		}
	}
	qp, err := pd.CreateQP(init)
	if err != nil {
		return nil, err
	}
	return &agent.Answer{QP: add(s, s.qps, &pair{qp, map[verbs.GID]bool{}}), QPN: uint32(qp.Num())}, nil
}

// count is a number that the verbs have 32 bits for.
func count(n int) (uint32, error) {
	if n < 0 || n > math.MaxUint32 {
		return 0, invalid("%d is no number of 32 bits", n)
	}
	return uint32(n), nil
}

func (s *Session) mw(_ context.Context, r *agent.Request) (*agent.Answer, error) {
	pd, err := find(s.pds, "pd", r.PD)
	if err != nil {
		return nil, err
	}
	typ, err := value(mwTypes, "window type", r.Type)
	if err != nil {
		return nil, err
	}
	mw, err := pd.AllocMW(typ)
	if err != nil {
		return nil, err
	}
	return &agent.Answer{MW: add(s, s.mws, mw), RKey: uint32(mw.RKey())}, nil
}

func (s *Session) ah(_ context.Context, r *agent.Request) (*agent.Answer, error) {
	pd, err := find(s.pds, "pd", r.PD)
	if err != nil {
		return nil, err
	}
	at, err := pathOf(r.Path)
	if err != nil {
		return nil, err
	}
	ah, err := pd.CreateAH(&at)
	if err != nil {
		return nil, err
	}
	return &agent.Answer{AH: add(s, s.ahs, ah)}, nil
}

func (s *Session) attach(_ context.Context, r *agent.Request) (*agent.Answer, error) {
	qp, gid, err := s.member(r)
	if err == nil {
		err = qp.AttachMcast(gid, 0)
	}
	if err != nil {
		return nil, err
	}
	qp.groups[gid] = true
	return nil, nil
}

func (s *Session) detach(_ context.Context, r *agent.Request) (*agent.Answer, error) {
	qp, gid, err := s.member(r)
	if err == nil {
		err = qp.DetachMcast(gid, 0)
	}
	if err != nil {
		return nil, err
	}
	delete(qp.groups, gid)
	return nil, nil
}

// member is the queue pair and the group of a request.
func (s *Session) member(r *agent.Request) (*pair, verbs.GID, error) {
	qp, err := find(s.qps, "qp", r.QP)
	if err != nil {
		return nil, verbs.GID{}, err
	}
	gid, err := gidOf(r.GID)
	return qp, gid, err
}

// gidOf reads an IP address.
func gidOf(text string) (verbs.GID, error) {
	a, err := netip.ParseAddr(text)
	if err != nil || a.Zone() != "" {
		return verbs.GID{}, invalid("%q is no IP address", text)
	}
	return bth.GIDFromAddr(a), nil
}
