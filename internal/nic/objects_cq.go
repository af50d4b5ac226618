package nic

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/shm"
	"github.com/softroce/softroce/internal/uapi"
)

// numCompVectors is the number of completion vectors. Vector v of a completion
// queue has its queue pairs live on worker v, unless they have another reason to
// live elsewhere. Vector 0 is what programs give that do not care, and leaves the
// choice to the adapter.
func (a *Adapter) numCompVectors() uint32 { return uint32(len(a.workers)) }

func (p *program) createChannel(*uapi.CreateChannelRequest) (reply, error) {
	if err := p.account.charge(ResourceChannels, 1); err != nil {
		return reply{}, err
	}
	w, readFD, err := shm.NewRecordPipe()
	if err != nil {
		p.account.release(ResourceChannels, 1)
		return reply{}, refuse(errnoOf(err, syscall.ENOMEM), "%v", err)
	}
	h := p.channels.add(&channelObject{channel: channel{pipe: w}, room: channelRoom(readFD)})
	fds := []int{readFD}
	return reply{body: &uapi.HandleReply{Handle: h}, fds: fds, closeAfter: fds}, nil
}

// channelRoom is how many CQs a channel's pipe serves so that it can never be
// full, with one record of each unread: the kernel frees a pipe's memory by
// pages, so one page may be taken by a single record.
func channelRoom(fd int) int {
	size, err := unix.FcntlInt(uintptr(fd), unix.F_GETPIPE_SZ, 0)
	if err != nil {
		return 1
	}
	pages := size / os.Getpagesize()
	return max(1, (pages-1)*(os.Getpagesize()/uapi.ChannelRecordSize))
}

func (p *program) destroyChannel(m *uapi.HandleRequest) (reply, error) {
	c, ok := p.channels.lookup(m.Handle)
	switch {
	case !ok:
		return reply{}, errHandle("completion channel", m.Handle)
	case c.users > 0:
		return reply{}, errBusy("the completion channel", c.users, "completion queues")
	}
	p.channels.remove(m.Handle)
	_ = c.pipe.Close()
	p.account.release(ResourceChannels, 1)
	return reply{}, nil
}

func (p *program) createCQ(m *uapi.CreateCQRequest) (reply, error) {
	var ch *channelObject
	if m.Channel != 0 {
		var ok bool
		if ch, ok = p.channels.lookup(m.Channel); !ok {
			return reply{}, errHandle("completion channel", m.Channel)
		}
		if ch.users >= ch.room {
			return reply{}, refuse(syscall.ENOMEM, "completion channel %d serves %d completion queues, the most its pipe has room for", m.Channel, ch.users)
		}
	}
	limit := p.a.cfg.Limits.MaxCQE
	switch {
	case m.CQE < 1 || m.CQE > limit:
		return reply{}, refuse(syscall.EINVAL, "cqe %d, want 1 to max_cqe %d", m.CQE, limit)
	case m.Vector >= p.a.numCompVectors():
		return reply{}, refuse(syscall.EINVAL, "comp_vector %d, the device has %d", m.Vector, p.a.numCompVectors())
	}
	if err := p.account.charge(ResourceCQs, 1); err != nil {
		return reply{}, err
	}
	slots := uapi.SlotCount(m.CQE)
	o, h, err := p.newCQ(slots, ch)
	if err == nil {
		o.vector = int(m.Vector)
	}
	if err != nil {
		p.account.release(ResourceCQs, 1)
		return reply{}, err
	}
	o.slots = slots
	return p.cqReply(o, h), nil
}

func (p *program) cqReply(o *cqObject, h uint32) reply {
	r := reply{body: &uapi.CreateCQReply{Handle: h, CQE: o.slots, Ring: o.area.ref(o.slots, 0, 0)}}
	r.fds = p.rings.appendUnsent(r.fds, o.area)
	return r
}

// resizeCQ gives a completion queue a new ring, with what was not polled.
// Workers go on completing: they meet the old ring or the new one, never both.
func (p *program) resizeCQ(m *uapi.ResizeCQRequest) (reply, error) {
	o, ok := p.cqs.lookup(m.Handle)
	limit := p.a.cfg.Limits.MaxCQE
	switch {
	case !ok:
		return reply{}, errHandle("completion queue", m.Handle)
	case m.CQE < 1 || m.CQE > limit:
		return reply{}, refuse(syscall.EINVAL, "cqe %d, want 1 to max_cqe %d", m.CQE, limit)
	}
	slots := uapi.SlotCount(m.CQE)
	area, err := p.rings.alloc(uapi.CQRingSize(slots))
	if err != nil {
		return reply{}, err
	}
	if err := o.moveTo(area, area.ref(slots, 0, 0)); err != nil {
		p.rings.release(area)
		return reply{}, refuse(syscall.EINVAL, "cqe %d: %v", m.CQE, err)
	}
	p.rings.release(o.area)
	o.area, o.slots = area, slots
	return p.cqReply(o, m.Handle), nil
}

// moveTo has the queue go on in another ring. On an error nothing is changed.
func (c *cqueue) moveTo(area ringArea, ref uapi.RingRef) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dead || c.cq.Dead() {
		return errors.New("the completion queue overflowed and is in error")
	}
	ring, err := c.ring.MoveTo(area.mem, ref)
	if err != nil {
		return err
	}
	c.ring = ring
	c.cq.Move(ring)
	return nil
}

func (p *program) newCQ(slots uint32, ch *channelObject) (*cqObject, uint32, error) {
	area, err := p.rings.alloc(uapi.CQRingSize(slots))
	if err != nil {
		return nil, 0, err
	}
	ring, err := uapi.NewCQRing(area.mem, area.ref(slots, 0, 0))
	if err != nil {
		p.rings.release(area)
		return nil, 0, refuse(syscall.ENOMEM, "%v", err)
	}
	h := p.cqs.reserve()
	o := &cqObject{area: area, channel: ch, homes: make([]int, len(p.a.workers))}
	if ch != nil {
		o.cqueue = newCQueue(p.a, ring, &ch.channel, h, p)
		ch.users++
	} else {
		o.cqueue = newCQueue(p.a, ring, nil, h, p)
	}
	p.cqs.put(h, o)
	return o, h, nil
}

// home is the worker that has most of the queue's QPs; when there are none that
// of its completion vector, or -1 when it has none.
func (o *cqObject) home() int {
	home, most := -1, 0
	if o.vector > 0 {
		home = o.vector
	}
	for i, n := range o.homes {
		if n > most {
			home, most = i, n
		}
	}
	return home
}

func (p *program) destroyCQ(m *uapi.HandleRequest) (reply, error) {
	o, ok := p.cqs.lookup(m.Handle)
	switch {
	case !ok:
		return reply{}, errHandle("completion queue", m.Handle)
	case o.users > 0:
		return reply{}, errBusy("the completion queue", o.users, "queues of queue pairs")
	}
	o.retire()
	p.a.quiesce() // a worker may still hold staged completions
	p.cqs.remove(m.Handle)
	p.rings.release(o.area)
	if o.channel != nil {
		o.channel.users--
	}
	p.account.release(ResourceCQs, 1)
	return reply{body: &uapi.DestroyReply{CompEvents: o.eventsSent(), AsyncEvents: p.endAsync(asyncCQ, m.Handle)}}, nil
}

// eventsSent is how many completion events were written for the queue.
func (o *cqObject) eventsSent() uint32 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.ring.EventsSent()
}
