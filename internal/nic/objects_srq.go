package nic

import (
	"syscall"

	"github.com/softroce/softroce/internal/uapi"
)

// An srqObject is a shared receive queue behind a program's handle.
type srqObject struct {
	*srqueue
	pd     *pdObject
	area   ringArea
	slots  uint32
	maxSGE uint32
	users  int   // queue pairs
	homes  []int // queue pairs by worker
}

// createSRQ makes a shared receive queue, and arms its limit when there is one, as
// kernel rxe does: ibv_create_srq(3) leaves it open.
func (p *program) createSRQ(m *uapi.CreateSRQRequest) (reply, error) {
	d, ok := p.pds.lookup(m.PD)
	l := &p.a.cfg.Limits
	switch {
	case !ok:
		return reply{}, errHandle("protection domain", m.PD)
	case m.Attr.MaxWR < 1 || m.Attr.MaxWR > l.MaxRecvWR:
		return reply{}, refuse(syscall.EINVAL, "max_wr %d, want 1 to max_srq_wr %d", m.Attr.MaxWR, l.MaxRecvWR)
	case m.Attr.MaxSGE > l.MaxSGE:
		return reply{}, refuse(syscall.EINVAL, "max_sge %d, the device's max_srq_sge is %d", m.Attr.MaxSGE, l.MaxSGE)
	case m.Attr.Limit > m.Attr.MaxWR:
		return reply{}, refuse(syscall.EINVAL, "srq_limit %d of a queue with max_wr %d", m.Attr.Limit, m.Attr.MaxWR)
	}
	if err := p.account.charge(ResourceSRQs, 1); err != nil {
		return reply{}, err
	}
	o, err := p.newSRQ(d, uapi.SlotCount(m.Attr.MaxWR), m.Attr.MaxSGE)
	if err != nil {
		p.account.release(ResourceSRQs, 1)
		return reply{}, err
	}
	o.limit = m.Attr.Limit
	d.users++
	p.srqs.put(o.handle, o)
	r := reply{body: &uapi.CreateSRQReply{Handle: o.handle, Number: o.handle, Attr: o.attr(), Ring: o.ref()}}
	r.fds = p.rings.appendUnsent(r.fds, o.area)
	return r, nil
}

func (p *program) newSRQ(d *pdObject, slots, maxSGE uint32) (*srqObject, error) {
	area, err := p.rings.alloc(uapi.RQRingSize(slots, maxSGE))
	if err != nil {
		return nil, err
	}
	ring, err := uapi.NewRQConsumer(area.mem, area.ref(slots, maxSGE, 0))
	if err != nil {
		p.rings.release(area)
		return nil, refuse(syscall.ENOMEM, "shared receive queue: %v", err)
	}
	return &srqObject{
		srqueue: newSRQueue(p, ring, p.srqs.reserve()), pd: d, area: area, slots: slots, maxSGE: maxSGE,
		homes: make([]int, len(p.a.workers)),
	}, nil
}

func (o *srqObject) ref() uapi.RingRef { return o.area.ref(o.slots, o.maxSGE, 0) }

// attr is what the queue is now.
func (o *srqObject) attr() uapi.SRQAttr {
	o.mu.Lock()
	defer o.mu.Unlock()
	return uapi.SRQAttr{MaxWR: o.slots, MaxSGE: o.maxSGE, Limit: o.limit}
}

// home is the worker that has most of the queue's queue pairs, -1 when there is
// none.
func (o *srqObject) home() int { return mostOf(o.homes) }

// mostOf is the index of the largest number, -1 when all are 0.
func mostOf(homes []int) int {
	home, most := -1, 0
	for i, n := range homes {
		if n > most {
			home, most = i, n
		}
	}
	return home
}

// modifySRQ arms the limit, resizes the queue, or both; or nothing at all.
func (p *program) modifySRQ(m *uapi.ModifySRQRequest) (reply, error) {
	o, ok := p.srqs.lookup(m.Handle)
	if !ok {
		return reply{}, errHandle("shared receive queue", m.Handle)
	}
	slots, limit := o.slots, o.attr().Limit
	if m.Mask&uapi.SRQMaxWR != 0 {
		slots = uapi.SlotCount(m.Attr.MaxWR)
	}
	if m.Mask&uapi.SRQLimit != 0 {
		limit = m.Attr.Limit
	}
	most := p.a.cfg.Limits.MaxRecvWR
	switch {
	case m.Mask&^(uapi.SRQMaxWR|uapi.SRQLimit) != 0:
		return reply{}, refuse(syscall.EINVAL, "srq_attr_mask %#x: unknown bits", uint32(m.Mask))
	case m.Mask&uapi.SRQMaxWR != 0 && (m.Attr.MaxWR < 1 || m.Attr.MaxWR > most):
		return reply{}, refuse(syscall.EINVAL, "max_wr %d, want 1 to max_srq_wr %d", m.Attr.MaxWR, most)
	case limit > slots:
		return reply{}, refuse(syscall.EINVAL, "srq_limit %d of a queue with max_wr %d", limit, slots)
	case o.over.Load():
		return reply{}, refuse(syscall.EIO, "the shared receive queue is in error: its ring was corrupt")
	}
	r := uapi.ModifySRQReply{}
	var fds []int
	if m.Mask&uapi.SRQMaxWR != 0 {
		if err := p.resizeSRQ(o, slots); err != nil {
			return reply{}, err
		}
		r.Ring = o.ref()
		fds = p.rings.appendUnsent(nil, o.area)
	}
	if m.Mask&uapi.SRQLimit != 0 {
		o.mu.Lock()
		o.limit = limit
		o.mu.Unlock()
	}
	r.Attr = o.attr()
	return reply{body: &r, fds: fds}, nil
}

// resizeSRQ gives the queue a ring of another size. Workers meet the old ring or
// the new one, never both.
func (p *program) resizeSRQ(o *srqObject, slots uint32) error {
	area, err := p.rings.alloc(uapi.RQRingSize(slots, o.maxSGE))
	if err != nil {
		return err
	}
	o.mu.Lock()
	err = o.moveTo(area, area.ref(slots, o.maxSGE, 0))
	o.mu.Unlock()
	if err != nil {
		p.rings.release(area)
		return refuse(syscall.EINVAL, "resize: %v", err)
	}
	p.rings.release(o.area)
	o.area, o.slots = area, slots
	return nil
}

func (p *program) querySRQ(m *uapi.HandleRequest) (reply, error) {
	o, ok := p.srqs.lookup(m.Handle)
	if !ok {
		return reply{}, errHandle("shared receive queue", m.Handle)
	}
	return reply{body: &uapi.QuerySRQReply{Attr: o.attr()}}, nil
}

// destroySRQ ends a queue that no queue pair uses; what waits in it makes no
// completions.
func (p *program) destroySRQ(m *uapi.HandleRequest) (reply, error) {
	o, ok := p.srqs.lookup(m.Handle)
	switch {
	case !ok:
		return reply{}, errHandle("shared receive queue", m.Handle)
	case o.users > 0:
		return reply{}, errBusy("the shared receive queue", o.users, "queue pairs")
	}
	p.srqs.remove(m.Handle)
	p.rings.release(o.area)
	o.pd.users--
	p.account.release(ResourceSRQs, 1)
	return reply{body: &uapi.DestroyReply{AsyncEvents: p.endAsync(uapi.ElementSRQ, m.Handle)}}, nil
}
