package verbs

import (
	"sync"
	"sync/atomic"

	"github.com/softroce/softroce/internal/shm"
	"github.com/softroce/softroce/internal/uapi"
)

// emptyPolls is how many empty polls in a row a CQ takes before it yields the
// processor, so that a polling program does not starve the adapter.
const emptyPolls = 20

// CQ is a completion queue (ibv_cq).
type CQ struct {
	dev    *Device
	handle uint32
	cqe    int
	ch     *CompChannel
	yield  shm.Yielder
	polled atomic.Uint64 // completions polled in all; written under mu

	mu     sync.Mutex
	ring   *uapi.CQConsumer
	qps    map[QPN]*QP
	last   *QP
	empty  int
	closed bool

	evmu  sync.Mutex
	evc   *sync.Cond
	unack int // events returned and not acknowledged
}

// CreateCQ makes a completion queue of at least cqe entries (ibv_create_cq).
// ch may be nil. vector is 0. EINVAL: cqe is not in 1..max_cqe, or there is
// no such vector; ENOMEM: a limit is reached.
func (d *Device) CreateCQ(cqe int, ch *CompChannel, vector int) (*CQ, error) {
	const op = "create CQ"
	if cqe < 1 || vector < 0 {
		return nil, invalid(op, "cqe %d and completion vector %d must be at least 1 and 0", cqe, vector)
	}
	req := uapi.CreateCQRequest{CQE: uint32(cqe), Vector: uint32(vector)}
	if ch != nil {
		if ch.dev != d {
			return nil, invalid(op, "the channel is of another device")
		}
		req.Channel = ch.handle
	}
	var rep uapi.CreateCQReply
	fds, err := d.ctl.call(op, uapi.OpCreateCQ, &req, &rep, nil)
	if err != nil {
		return nil, err
	}
	mem, err := d.ringMemory(op, fds, rep.Ring)
	if err != nil {
		return nil, err
	}
	c := &CQ{dev: d, handle: rep.Handle, cqe: int(rep.CQE), ch: ch, qps: make(map[QPN]*QP)}
	c.yield.InProcess = d.inProcess
	c.evc = sync.NewCond(&c.evmu)
	if c.ring, err = uapi.NewCQConsumer(mem[0], rep.Ring); err != nil {
		return nil, invalid(op, "%v", err)
	}
	d.mu.Lock()
	d.cqs[c.handle] = c
	d.mu.Unlock()
	return c, nil
}

// Cap is the number of entries, at least what was asked for.
func (c *CQ) Cap() int { return c.cqe }

// Poll takes up to len(wcs) completions (ibv_poll_cq) and returns how many. It
// makes no system call while there is something, and yields the processor
// after some empty polls in a row. It still delivers after the adapter died:
// what it completed, then the rest as flushed.
func (c *CQ) Poll(wcs []WC) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return 0, invalid("poll CQ", "the queue is destroyed")
	}
	n := c.ring.Poll(wcs)
	first := c.polled.Load()
	for i := range wcs[:n] {
		c.retire(&wcs[i], first+uint64(i))
	}
	if n > 0 {
		c.polled.Store(first + uint64(n))
		c.empty = 0
		c.dev.busy()
		return n, nil
	}
	if c.dev.gone.Load() {
		return c.flushDead(wcs), nil
	}
	if c.empty++; c.empty >= emptyPolls {
		c.mu.Unlock()
		if nap := napAfter(c.dev.waiting.goesOn()); nap == 0 {
			c.yield.Yield()
		} else {
			shm.Nap(nap)
		}
		c.mu.Lock()
	}
	return 0, nil
}

// retire frees the queue entries that a completion stands for; at is how
// many were polled before it.
func (c *CQ) retire(wc *WC, at uint64) {
	q := c.last
	if q == nil || q.qpn != wc.QPN {
		if q = c.qps[wc.QPN]; q == nil {
			return // of a queue pair that was destroyed
		}
		c.last = q
	}
	q.retire(wc, at)
}

// produced is how many completions the adapter has put, in all. Its low 32 bits
// are the ring's, and polled is never 2^31 behind.
func (c *CQ) produced() uint64 {
	polled := c.polled.Load()
	return polled + uint64(c.ring.Produced()-uint32(polled))
}

// flushDead completes what is outstanding on the queue's queue pairs of a
// dead adapter.
func (c *CQ) flushDead(wcs []WC) int {
	n := 0
	for _, q := range c.qps {
		n += q.flushDead(c, wcs[n:])
		if n == len(wcs) {
			break
		}
	}
	return n
}

// ReqNotify arms the queue (ibv_req_notify_cq): the next completion that is
// added raises one event on the channel; with solicitedOnly, the next
// solicited or failed one. Completions already there raise none: arm, then
// poll.
func (c *CQ) ReqNotify(solicitedOnly bool) error {
	const op = "request notification"
	if c.ch == nil {
		return invalid(op, "the queue has no completion channel")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return invalid(op, "the queue is destroyed")
	}
	c.ring.Arm(solicitedOnly)
	if c.dev.gone.Load() {
		return dead(op)
	}
	return nil
}

// AckEvents acknowledges n events of the queue (ibv_ack_cq_events).
func (c *CQ) AckEvents(n int) {
	c.evmu.Lock()
	c.unack -= n
	c.evc.Broadcast()
	c.evmu.Unlock()
}

// Destroy ends the queue (ibv_destroy_cq). It waits until every event that was
// returned is acknowledged and drops those not yet read. EBUSY: a queue pair
// uses it.
func (c *CQ) Destroy() error {
	d := c.dev
	var rep uapi.DestroyReply
	err := d.ctl.do("destroy CQ", uapi.OpDestroyCQ, &uapi.HandleRequest{Handle: c.handle}, &rep)
	if err != nil && !d.gone.Load() {
		return err
	}
	c.shut(rep.CompEvents)
	d.mu.Lock()
	delete(d.cqs, c.handle)
	d.mu.Unlock()
	c.evmu.Lock()
	for c.unack > 0 {
		c.evc.Wait()
	}
	c.evmu.Unlock()
	return err
}

// shut ends the use of the ring's memory, and lets the channel drop what is
// unread of the events that the adapter wrote.
func (c *CQ) shut(written uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	if c.ch == nil {
		return
	}
	if unread := written - c.ring.EventsRead(); unread > 0 && unread < 1<<31 {
		c.ch.mu.Lock()
		c.ch.skip[c.handle] += unread
		c.ch.mu.Unlock()
	}
}
