package verbs

import (
	"math"
	"sync"
	"sync/atomic"

	"github.com/softroce/softroce/internal/devctl"
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
	cqe    atomic.Uint32
	ch     *CompChannel
	yield  shm.Yielder
	polled atomic.Uint64                   // completions polled in all; written under mu
	shown  atomic.Pointer[uapi.CQConsumer] // ring, for those who look without mu

	mu     sync.Mutex
	ring   *uapi.CQConsumer
	qps    map[QPN]*QP
	last   *QP
	empty  int
	closed bool
	read   uint32 // completion events read in all
	ext    extended

	compAcks, asyncAcks devctl.Acks
}

// use makes ring the queue's; the caller holds mu, or is the only one.
func (c *CQ) use(ring *uapi.CQConsumer, cqe uint32) {
	c.ring = ring
	c.cqe.Store(cqe)
	c.shown.Store(ring)
}

// CreateCQ makes a completion queue of at least cqe entries (ibv_create_cq).
// ch may be nil, and may serve several queues. vector is below the device's
// NumCompVectors; programs spread their queues over them. EINVAL: cqe is not in
// 1..max_cqe, or there is no such vector; ENOMEM: a limit is reached.
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
	mem, err := d.cqMemory(op, uapi.OpCreateCQ, &req, &rep)
	if err != nil {
		return nil, err
	}
	c := &CQ{dev: d, handle: rep.Handle, ch: ch, qps: make(map[QPN]*QP)}
	c.yield.InProcess = d.inProcess
	ring, err := uapi.NewCQConsumer(mem, rep.Ring)
	if err != nil {
		return nil, invalid(op, "%v", err)
	}
	c.use(ring, rep.CQE)
	d.mu.Lock()
	d.cqs[c.handle] = c
	d.mu.Unlock()
	return c, nil
}

// Cap is the number of entries, at least what was asked for.
func (c *CQ) Cap() int { return int(c.cqe.Load()) }

// Resize changes the number of entries to at least cqe (ibv_resize_cq).
// Completions that wait stay, in their order. EINVAL: cqe is not in 1..max_cqe,
// or more completions wait; the queue is then as before.
func (c *CQ) Resize(cqe int) error {
	const op = "resize CQ"
	if cqe < 1 || cqe > math.MaxInt32 {
		return invalid(op, "cqe is %d", cqe)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return invalid(op, "the queue is destroyed")
	}
	var rep uapi.CreateCQReply
	mem, err := c.dev.cqMemory(op, uapi.OpResizeCQ, &uapi.ResizeCQRequest{Handle: c.handle, CQE: uint32(cqe)}, &rep)
	if err != nil {
		return err
	}
	ring, err := uapi.NewCQConsumer(mem, rep.Ring)
	if err != nil {
		return invalid(op, "%v", err)
	}
	c.use(ring, rep.CQE)
	return nil
}

// cqMemory asks for a completion queue's ring and returns the memory that it
// lies in.
func (d *Device) cqMemory(op string, code uapi.Op, req message, rep *uapi.CreateCQReply) (*shm.Segment, error) {
	d.ringMu.Lock()
	defer d.ringMu.Unlock()
	fds, err := d.ctl.call(op, code, req, rep, nil)
	if err != nil {
		return nil, err
	}
	mem, err := d.ringMemory(op, fds, rep.Ring)
	if err != nil {
		return nil, err
	}
	return mem[0], nil
}

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
	return c.poll(wcs)
}

// poll is Poll under mu, which it gives up while it yields.
func (c *CQ) poll(wcs []WC) (int, error) {
	if n := c.ring.Poll(wcs); n > 0 {
		c.take(wcs[:n])
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
			c.dev.waiting.rest(nap, shm.Nap)
		}
		c.mu.Lock()
	}
	return 0, nil
}

// take accounts for completions that were moved out of the ring.
func (c *CQ) take(wcs []WC) {
	first := c.polled.Load()
	for i := range wcs {
		c.retire(&wcs[i], first+uint64(i))
	}
	c.polled.Store(first + uint64(len(wcs)))
	c.empty = 0
	c.dev.busy()
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

// produced is how many completions the adapter has put, in all, which the ring
// knows modulo 2^32, also after a resize; polled is never 2^31 behind. It takes
// no lock, and looks again when the ring was changed meanwhile.
func (c *CQ) produced() uint64 {
	for {
		ring := c.shown.Load()
		polled := c.polled.Load()
		n := polled + uint64(int32(ring.Produced()-uint32(polled)))
		if c.shown.Load() == ring {
			return n
		}
	}
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
func (c *CQ) AckEvents(n int) { c.compAcks.Ack(n) }

// Destroy ends the queue (ibv_destroy_cq). It waits until every event that was
// returned is acknowledged, completion events and asynchronous ones, and drops
// those not yet read. EBUSY: a queue pair uses it.
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
	c.compAcks.Wait(d.dying)
	c.asyncAcks.Wait(d.dying)
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
	if unread := written - c.read; unread > 0 && unread < 1<<31 {
		c.ch.mu.Lock()
		c.ch.skip[c.handle] += unread
		c.ch.mu.Unlock()
	}
}
