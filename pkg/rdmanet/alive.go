package rdmanet

import (
	"time"

	"github.com/softroce/softroce/pkg/verbs"
)

// usualKeepAlive is as that of package net; our own tuning.
const usualKeepAlive = 15 * time.Second

// keepAlive asks the peer's adapter for a sign of life after each period without
// one. It is guarded by the connection's mu.
type keepAlive struct {
	period time.Duration
	timer  *time.Timer
	heard  bool // completions came in this period
}

// watch starts the keep-alive, unless the program has none.
func (c *Conn) watch(period time.Duration) {
	if period <= 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.alive.period = period
	c.alive.timer = time.AfterFunc(period, c.probe)
}

// unwatch ends it; the caller holds mu.
func (c *Conn) unwatch() {
	if c.alive.timer != nil {
		c.alive.timer.Stop()
		c.alive.timer = nil
	}
}

// probe asks for a sign of life when somebody waits and none came. Who does not
// wait need not know, and takes in no completions either.
func (c *Conn) probe() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.alive.timer == nil || c.over() {
		return
	}
	c.alive.timer.Reset(c.alive.period)
	if heard := c.alive.heard; heard || !c.driving || c.closeSent || c.posted()+reserve+1 >= sends {
		c.alive.heard = false
		return
	}
	c.ask()
	c.wake() // for completions that nobody waited for
}

// ask sends a RDMA WRITE of no bytes, which takes nothing of the peer's and tells
// its program nothing, but is acknowledged by its adapter. When it is not, the
// queue pair fails. The caller holds mu.
func (c *Conn) ask() {
	wr := verbs.SendWR{
		WRID: c.posts, Opcode: verbs.WRRDMAWrite, Flags: verbs.SendSignaled, RemoteAddr: c.peer.addr, RKey: c.peer.rkey,
	}
	c.number(kindData)
	c.asked, c.askedUpTo = c.posts, c.sent
	_, err := c.e.qp.PostSend(wr)
	c.postFailed(err)
}
