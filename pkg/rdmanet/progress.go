package rdmanet

import (
	"context"
	"net"
	"time"

	"github.com/softroce/softroce/pkg/verbs"
)

// wait waits until ready says so, or the deadline ends it. One of those who wait
// takes in completions; the others wait for what that changes. The caller holds
// mu, which is given up meanwhile.
func (c *Conn) wait(ready func() bool, by *deadline) error {
	for {
		switch {
		case c.closed && !by.linger:
			return net.ErrClosed
		case by.past:
			return errTimeout
		}
		select {
		case <-c.e.dev.Done(): // its memory may be gone with it
			c.fail(verbs.ErrDeviceDead)
			return c.err
		default:
		}
		if ready() {
			return nil
		}
		if !c.driving {
			c.driving, c.solicited = true, !c.needsSends()
			ctx, solicited, r := c.drive, c.solicited, c.rest()
			c.mu.Unlock()
			err := c.step(ctx, solicited, r)
			c.mu.Lock()
			c.driving = false
			if err != nil {
				c.fail(err)
			}
			c.tell()
			continue
		}
		if c.solicited && c.needsSends() {
			c.kickDriver()
		}
		if c.changed == nil {
			c.changed = make(chan struct{})
		}
		changed := c.changed
		c.mu.Unlock()
		<-changed
		c.mu.Lock()
	}
}

// look takes in completions that are there, unless somebody does so already. The
// caller holds mu, which is given up meanwhile.
func (c *Conn) look() {
	if c.driving {
		return
	}
	c.driving = true
	c.mu.Unlock()
	var wcs [32]verbs.WC
	n, err := c.e.cq.Poll(wcs[:])
	c.handle(wcs[:n])
	c.mu.Lock()
	c.driving = false
	if err != nil {
		c.fail(err)
	}
	c.tell()
}

// tell has those who wait for a change look again. The caller holds mu.
func (c *Conn) tell() {
	if c.changed != nil {
		close(c.changed)
		c.changed = nil
	}
}

// wake is tell, also for the one that takes in completions. The caller holds mu.
func (c *Conn) wake() {
	c.tell()
	if c.driving {
		c.kickDriver()
	}
}

// kickDriver has the one that takes in completions begin anew.
func (c *Conn) kickDriver() {
	c.kick()
	c.drive, c.kick = context.WithCancel(context.Background())
}

// needsSends says that somebody waits for own sends to complete. While nobody
// does, the wait is for the peer's messages only: half of the wake-ups when one end
// asks and the other answers.
func (c *Conn) needsSends() bool {
	return c.finishing || c.inSpace || c.inWrite && c.window > 0 && c.credits > reserve || c.posted()+reserve+1 >= sends
}

// step takes in completions, waiting for the first, until ctx ends the wait. The
// caller is the one that drives.
func (c *Conn) step(ctx context.Context, solicited bool, r rest) error {
	var wcs [32]verbs.WC
	cq := c.e.cq
	for start := time.Now(); ; {
		n, err := cq.Poll(wcs[:])
		if err != nil || n > 0 {
			c.handle(wcs[:n])
			return err
		}
		if ctx.Err() != nil {
			return nil
		}
		if time.Since(start) > spin {
			break
		}
	}
	if r.nap > 0 {
		n, err := c.nap(ctx, r.nap, wcs[:])
		if err != nil || n > 0 {
			c.handle(wcs[:n])
			c.learn(r)
			return err
		}
	}
	if err := cq.ReqNotify(solicited); err != nil {
		return err
	}
	n, err := cq.Poll(wcs[:])
	if err != nil || n > 0 {
		c.handle(wcs[:n])
		return err
	}
	if _, err := c.e.ch.Get(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	cq.AckEvents(1)
	n, err = cq.Poll(wcs[:])
	c.handle(wcs[:n])
	return err
}

var noRecvs [32]verbs.RecvWR

// handle takes in completions.
func (c *Conn) handle(wcs []verbs.WC) {
	c.mu.Lock()
	defer c.mu.Unlock()
	recvs := 0
	c.alive.heard = c.alive.heard || len(wcs) > 0
	for i := range wcs {
		wc := &wcs[i]
		switch {
		case wc.Status != verbs.WCSuccess:
			c.fail(failure(wc))
		case wc.Opcode.IsRecv():
			recvs++
			if !c.came(wc) {
				c.fail(errProtocol)
			}
		default:
			c.went(wc.WRID)
		}
	}
	if recvs > 0 && c.err == nil {
		if _, err := c.e.qp.PostRecv(noRecvs[:recvs]...); err != nil {
			c.postFailed(err)
			return
		}
		c.owed += uint32(recvs)
	}
	c.update()
}

// went takes in that a send, and what was sent before it, is in the peer's adapter.
func (c *Conn) went(number uint64) {
	w := c.onWay[number%sends]
	c.completed, c.done = number+1, w.upTo
	c.own.done, c.direct.done = w.ownUpTo, w.directUpTo
	c.closeDone = c.closeDone || w.kind == kindClose
	c.endDone = c.endDone || w.kind == kindEnd || w.kind == kindClose
}

// came takes in a message; false: it cannot be one of a peer that keeps to the
// protocol.
func (c *Conn) came(wc *verbs.WC) bool {
	m := message(wc.ImmData)
	n := uint64(m.bytes())
	if wc.Flags&verbs.WCWithImm == 0 || wc.Opcode != verbs.WCRecvRDMAWithImm || c.peerClosed {
		return false
	}
	if m.kind() == kindClose {
		return wc.ByteLen == 0 && c.peerCloses(m.taken())
	}
	if c.credits+m.grant() > uint32(c.peer.receives) {
		return false
	}
	c.credits += m.grant()
	switch m.kind() {
	case kindData:
		if n == 0 || wc.ByteLen != 0 && uint64(wc.ByteLen) != n || c.eof || c.recvd+n-c.told > uint64(c.e.conf.RecvBuffer) {
			return false
		}
		c.recvd += n
		return true
	case kindUpdate:
		if wc.ByteLen != 0 || c.window+n > uint64(c.peer.size) {
			return false
		}
		c.window += n
		return true
	case kindEnd:
		c.eof = wc.ByteLen == 0 && n == 0
		return c.eof
	}
	return false
}

// peerCloses takes in the peer's last message, with how much of what is sent it has
// taken in, by its last bits; false: that cannot be.
func (c *Conn) peerCloses(taken uint32) bool {
	missing := uint64((uint32(c.sent) - taken) & maxTaken)
	if missing > uint64(c.peer.size)-c.window {
		return false
	}
	c.eof, c.peerClosed, c.took = true, true, c.sent-missing
	return true
}
