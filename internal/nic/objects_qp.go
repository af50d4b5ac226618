package nic

import (
	"fmt"
	"syscall"

	"github.com/softroce/softroce/internal/uapi"
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/mrtable"
	"github.com/softroce/softroce/pkg/qpstate"
	"github.com/softroce/softroce/pkg/transport"
	"github.com/softroce/softroce/pkg/wq"
)

// qpParts is what a new queue pair takes before it exists; undo gives back
// what was taken.
type qpParts struct {
	pd         *pdObject
	send, recv *cqObject
	srq        *srqObject  // nil: none
	caps       qpstate.Cap // actual
	index      uint32
	worker     *worker
	qpn        bth.QPN
	sq, rq     ringArea
	undo       []func()
}

func (t *qpParts) sqRef() uapi.RingRef {
	return t.sq.ref(t.caps.MaxSendWR, t.caps.MaxSendSGE, t.caps.MaxInlineData)
}

// rqRef is zero with a shared receive queue.
func (t *qpParts) rqRef() uapi.RingRef {
	if t.srq != nil {
		return uapi.RingRef{}
	}
	return t.rq.ref(t.caps.MaxRecvWR, t.caps.MaxRecvSGE, 0)
}

func (t *qpParts) fail() {
	for i := len(t.undo) - 1; i >= 0; i-- {
		t.undo[i]()
	}
}

func (p *program) createQP(m *uapi.CreateQPRequest) (reply, error) {
	t := &qpParts{}
	if err := p.checkCreateQP(m, t); err != nil {
		return reply{}, err
	}
	o, err := p.newQP(m, t)
	if err != nil {
		t.fail()
		return reply{}, err
	}
	t.pd.users++
	if t.srq != nil {
		t.srq.users++
		t.srq.homes[t.worker.index]++
	}
	for _, c := range []*cqObject{t.send, t.recv} {
		c.users++
		c.homes[t.worker.index]++
	}
	p.qps.put(o.qp.handle, o)
	p.byQPN[t.qpn] = o
	r := reply{body: &uapi.CreateQPReply{
		Handle: o.qp.handle, QPN: t.qpn, DoorbellIndex: t.index, Worker: uint32(t.worker.index), Cap: t.caps,
		SQ: t.sqRef(), RQ: t.rqRef(),
	}}
	r.fds = p.rings.appendUnsent(r.fds, t.sq)
	if t.srq == nil {
		r.fds = p.rings.appendUnsent(r.fds, t.rq)
	}
	return r, nil
}

// checkCreateQP finds the objects that a creation names and holds the
// capabilities against the limits.
func (p *program) checkCreateQP(m *uapi.CreateQPRequest, t *qpParts) error {
	var ok bool
	if t.pd, ok = p.pds.lookup(m.PD); !ok {
		return errHandle("protection domain", m.PD)
	}
	if t.send, ok = p.cqs.lookup(m.SendCQ); !ok {
		return errHandle("completion queue (send_cq)", m.SendCQ)
	}
	if t.recv, ok = p.cqs.lookup(m.RecvCQ); !ok {
		return errHandle("completion queue (recv_cq)", m.RecvCQ)
	}
	if m.Type != qpstate.RC && m.Type != qpstate.UC && m.Type != qpstate.UD {
		return refuse(syscall.EOPNOTSUPP, "qp_type %v: this adapter has RC, UC and UD", m.Type)
	}
	if err := p.checkSRQ(m, t); err != nil {
		return err
	}
	l, c := &p.a.cfg.Limits, &m.Cap
	if t.srq != nil {
		c.MaxRecvWR, c.MaxRecvSGE = 0, 0 // not looked at (ibv_create_qp(3))
	}
	for _, f := range []struct {
		name, limitName string
		v, limit        uint32
	}{
		{"max_send_wr", "max_qp_wr", c.MaxSendWR, l.MaxSendWR},
		{"max_recv_wr", "max_qp_wr", c.MaxRecvWR, l.MaxRecvWR},
		{"max_send_sge", "max_sge", c.MaxSendSGE, l.MaxSGE},
		{"max_recv_sge", "max_sge", c.MaxRecvSGE, l.MaxSGE},
		{"max_inline_data", "max_inline", c.MaxInlineData, l.MaxInline},
	} {
		if f.v > f.limit {
			return refuse(syscall.EINVAL, "%s %d, the device's %s is %d", f.name, f.v, f.limitName, f.limit)
		}
	}
	t.caps = *c
	t.caps.MaxSendWR = uapi.SlotCount(c.MaxSendWR)
	if t.srq == nil {
		t.caps.MaxRecvWR = uapi.SlotCount(c.MaxRecvWR)
	}
	return nil
}

// checkSRQ finds the shared receive queue that a creation names. It must be of
// the queue pair's domain: receives are checked against that.
func (p *program) checkSRQ(m *uapi.CreateQPRequest, t *qpParts) error {
	if m.SRQ == 0 {
		return nil
	}
	o, ok := p.srqs.lookup(m.SRQ)
	switch {
	case !ok:
		return errHandle("shared receive queue", m.SRQ)
	case o.pd != t.pd:
		return refuse(syscall.EINVAL, "srq %d is of another protection domain than the queue pair", m.SRQ)
	case o.over.Load():
		return refuse(syscall.EINVAL, "srq %d is in error: its ring was corrupt", m.SRQ)
	}
	t.srq = o
	return nil
}

// newQP takes what a queue pair needs, step by step, and gives it to its
// worker. The caller calls t.fail on an error.
func (p *program) newQP(m *uapi.CreateQPRequest, t *qpParts) (*qpObject, error) {
	if err := p.account.charge(ResourceQPs, 1); err != nil {
		return nil, err
	}
	t.undo = append(t.undo, func() { p.account.release(ResourceQPs, 1) })
	if err := p.takeNumbers(t); err != nil {
		return nil, err
	}
	if err := p.takeRings(t); err != nil {
		return nil, err
	}
	q := &qp{
		qpn: t.qpn, handle: p.qps.reserve(), index: t.index, prog: p, link: p.links[t.worker.index],
		sendCQ: t.send.cqueue, recvCQ: t.recv.cqueue, worker: t.worker, datagrams: m.Type == qpstate.UD,
	}
	if t.srq != nil {
		q.srq = t.srq.srqueue
	}
	if err := p.buildQP(m, t, q); err != nil {
		return nil, err
	}
	var err error
	if !t.worker.do(func() { err = t.worker.addQP(q) }) {
		return nil, p.a.errStopped()
	}
	if err != nil {
		return nil, refuse(errnoOf(err, syscall.ENOMEM), "%v", err)
	}
	return &qpObject{
		qp: q, pd: t.pd, send: t.send, recv: t.recv, srq: t.srq, sq: t.sq, rq: t.rq, worker: t.worker, caps: t.caps, kind: m.Type,
	}, nil
}

// takeNumbers takes a doorbell index, a place on a worker and a QPN. The
// worker is that of the SRQ's or the CQ's other queue pairs, when there are some,
// so that queue pairs that share a queue share a worker.
func (p *program) takeNumbers(t *qpParts) error {
	var ok bool
	if t.index, ok = p.index.take(MaxProgramQPs); !ok {
		return refuse(syscall.ENOMEM, "all %d doorbell indices of the program are in use", MaxProgramQPs)
	}
	t.undo = append(t.undo, func() { p.index.give(t.index) })
	home := -1
	if t.srq != nil {
		home = t.srq.home()
	}
	if home < 0 {
		home = t.send.home()
	}
	if home < 0 {
		home = t.recv.home()
	}
	place := p.a.placeQP(home)
	t.undo = append(t.undo, func() { p.a.unplaceQP(place) })
	t.worker = p.a.workers[place]
	var err error
	if t.qpn, err = p.a.qpns.alloc(place, len(p.a.workers)); err != nil {
		return err
	}
	t.undo = append(t.undo, func() { p.a.qpns.free(t.qpn) })
	return nil
}

func (p *program) takeRings(t *qpParts) (err error) {
	if t.sq, err = p.rings.alloc(uapi.SQRingSize(t.caps.MaxSendWR, t.caps.MaxSendSGE, t.caps.MaxInlineData)); err != nil {
		return err
	}
	t.undo = append(t.undo, func() { p.rings.release(t.sq) })
	if t.srq != nil {
		return nil
	}
	if t.rq, err = p.rings.alloc(uapi.RQRingSize(t.caps.MaxRecvWR, t.caps.MaxRecvSGE)); err != nil {
		return err
	}
	t.undo = append(t.undo, func() { p.rings.release(t.rq) })
	return nil
}

// buildQP makes the rings' consumers and the engine.
func (p *program) buildQP(m *uapi.CreateQPRequest, t *qpParts, q *qp) (err error) {
	if q.sq, err = uapi.NewSQConsumer(t.sq.mem, t.sqRef()); err != nil {
		return refuse(syscall.ENOMEM, "send queue: %v", err)
	}
	w, caps := t.worker, t.caps
	var recv wq.RecvSource
	if t.srq != nil {
		recv, caps.MaxRecvSGE = t.srq.source(w), t.srq.maxSGE
	} else {
		if q.rq, err = uapi.NewRQConsumer(t.rq.mem, t.rqRef()); err != nil {
			return refuse(syscall.ENOMEM, "receive queue: %v", err)
		}
		recv = q.rq
	}
	q.engine, err = transport.New(transport.Config{
		Type: m.Type, QPN: t.qpn, PD: t.pd.pd, Keys: p.a.keys,
		SendCQ: t.send.sink(w), RecvCQ: t.recv.sink(w), Recv: recv, SRQ: t.srq != nil, AHs: &p.links[w.index].ahs,
		Cap: caps, SQSigAll: m.SQSigAll, Slab: p.links[w.index].slab, Stage: &w.stage, Counters: &w.counters,
		MaxRDAtomic: p.a.cfg.Limits.MaxRDAtomic, Window: p.a.cfg.Window,
	})
	if err != nil {
		return refuse(errnoOf(err, syscall.EINVAL), "%v", err)
	}
	return nil
}

// modifyQP changes a queue pair's attributes; every error of the check is
// EINVAL and names the field (field case F43).
func (p *program) modifyQP(m *uapi.ModifyQPRequest) (reply, error) {
	o, ok := p.qps.lookup(m.Handle)
	if !ok {
		return reply{}, errHandle("queue pair", m.Handle)
	}
	if err := checkAccessFlags(&m.Attr, m.Mask); err != nil {
		return reply{}, err
	}
	if err := p.checkQKey(&m.Attr, m.Mask); err != nil {
		return reply{}, err
	}
	var err error
	var state qpstate.State
	ran := o.worker.do(func() {
		if _, err = p.a.qpLimits(&m.Attr, m.Mask).Check(o.kind, o.qp.engine.State(), &m.Attr, m.Mask); err != nil {
			return
		}
		err = o.worker.modifyQP(o.qp, &m.Attr, m.Mask)
		state = o.qp.engine.State()
	})
	switch {
	case !ran:
		return reply{}, p.a.errStopped()
	case err != nil:
		p.noteGID(fmt.Sprintf("modify of queue pair %#06x", uint32(o.qp.qpn)), err)
		return reply{}, refuse(errnoOf(err, syscall.EINVAL), "%v", err)
	}
	return reply{body: &uapi.ModifyQPReply{State: state}}, nil
}

// checkAccessFlags refuses rights that a queue pair cannot grant. Local write
// is ignored (ibv_modify_qp(3)); remote write needs no local write here.
func checkAccessFlags(a *qpstate.Attr, m qpstate.Mask) error {
	const known = mrtable.AccessLocalWrite | mrtable.AccessRemoteWrite | mrtable.AccessRemoteRead |
		mrtable.AccessRemoteAtomic | mrtable.AccessMWBind
	if m&qpstate.MaskAccessFlags == 0 {
		return nil
	}
	if more := mrtable.Access(a.AccessFlags) &^ known; more != 0 {
		return refuse(syscall.EINVAL, "qp_access_flags %#x: bits %#x mean nothing on a queue pair", a.AccessFlags, uint32(more))
	}
	return nil
}

// qpLimits is what the adapter allows the attributes of one modify: the path
// MTU must fit the link of the address that the vector names.
func (a *Adapter) qpLimits(attr *qpstate.Attr, m qpstate.Mask) qpstate.Limits {
	rd := a.cfg.Limits.MaxRDAtomic
	l := qpstate.Limits{MaxRDAtomic: rd, MaxDestRDAtomic: rd, MaxMTU: bth.MTU4096}
	gids := a.gids.load()
	if i := int(attr.AH.SGIDIndex); m&qpstate.MaskAV != 0 && i < len(gids) && gids[i].ifindex != 0 {
		l.MaxMTU = activeMTU(gids[i].linkMTU)
	}
	return l
}

func (p *program) queryQP(m *uapi.HandleRequest) (reply, error) {
	o, ok := p.qps.lookup(m.Handle)
	if !ok {
		return reply{}, errHandle("queue pair", m.Handle)
	}
	var r uapi.QueryQPReply
	ran := o.worker.do(func() {
		o.qp.engine.Query(&r.Attr)
		if o.qp.dead {
			r.Attr.State, r.Attr.CurState = qpstate.Err, qpstate.Err
		}
	})
	if !ran {
		return reply{}, p.a.errStopped()
	}
	r.Attr.Cap = o.caps
	return reply{body: &r}, nil
}

// destroyQP ends a queue pair that is attached to no multicast group: outstanding requests give no completion any
// more, completions in the CQ stay.
func (p *program) destroyQP(m *uapi.HandleRequest) (reply, error) {
	o, ok := p.qps.lookup(m.Handle)
	switch {
	case !ok:
		return reply{}, errHandle("queue pair", m.Handle)
	case len(o.groups) > 0:
		return reply{}, refuse(syscall.EBUSY, "the queue pair is attached to %d multicast groups; detach it first", len(o.groups))
	}
	if !o.worker.do(func() { o.worker.removeQP(o.qp) }) {
		return reply{}, p.a.errStopped()
	}
	o.worker.quiesce()
	p.qps.remove(m.Handle)
	delete(p.byQPN, o.qp.qpn)
	p.rings.release(o.sq)
	p.rings.release(o.rq)
	p.a.qpns.free(o.qp.qpn)
	p.a.unplaceQP(o.worker.index)
	p.index.give(o.qp.index)
	o.pd.users--
	if o.srq != nil {
		o.srq.users--
		o.srq.homes[o.worker.index]--
	}
	for _, c := range []*cqObject{o.send, o.recv} {
		c.users--
		c.homes[o.worker.index]--
	}
	p.account.release(ResourceQPs, 1)
	p.sweepAHs() // perhaps it was its datagrams that they waited for
	return reply{body: &uapi.DestroyReply{AsyncEvents: p.endAsync(asyncQP, m.Handle)}}, nil
}
