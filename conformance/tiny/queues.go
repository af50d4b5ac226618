package tiny

import (
	"github.com/softroce/softroce/conformance/agent"
	"github.com/softroce/softroce/pkg/bth"
)

// cq is a completion queue.
type cq struct {
	t       *Target
	handle  int
	cqe     int
	wcs     []agent.WC
	channel bool
	armed   bool
	onlySE  bool // armed for solicited completions
	events  int
	dead    bool
}

// push adds a completion. solicited: the SE bit of what completed, or an error.
func (c *cq) push(wc agent.WC, solicited bool) {
	t := c.t
	if c.dead || t.broken("no-completions") {
		return
	}
	solicited = solicited || wc.Status != "SUCCESS"
	if wc.Status != "SUCCESS" {
		wc = agent.WC{ID: wc.ID, Status: wc.Status, QPN: wc.QPN}
	}
	if len(c.wcs) >= c.cqe {
		c.overrun()
		return
	}
	c.wcs = append(c.wcs, wc)
	if t.broken("completions-twice") {
		c.wcs = append(c.wcs, wc)
	}
	if c.armed && (solicited || !c.onlySE || t.broken("solicited-arm-takes-all")) && !t.broken("no-channel-events") {
		c.armed = false
		c.events++
	}
	t.wake()
}

// overrun is what happens when there is no place for a completion (IBTA Vol 1 §10.7.2).
func (c *cq) overrun() {
	t := c.t
	if t.broken("cq-overrun-silent") {
		return
	}
	c.dead = true
	t.event(agent.Event{Type: "CQ_ERR", CQ: c.handle})
	for _, q := range t.qps {
		if q.sendCQ == c || q.recvCQ == c {
			q.toError()
			t.event(agent.Event{Type: "QP_FATAL", QP: q.handle})
		}
	}
}

// forget removes a queue pair's completions, as its reset does.
func (c *cq) forget(num bth.QPN) {
	var keep []agent.WC
	for _, wc := range c.wcs {
		if wc.QPN != uint32(num) {
			keep = append(keep, wc)
		}
	}
	c.wcs = keep
}

// srq is a shared receive queue.
type srq struct {
	handle int
	pd     int
	max    int
	sges   int
	rq     []recvWR
	limit  int
}

// recvWR is a posted receive.
type recvWR struct {
	agent.RecvWR
	pd int
}

func (r *recvWR) capacity() (n uint64) {
	for _, s := range r.SGEs {
		n += uint64(s.Length)
	}
	return n
}

// takeRecv takes the next receive for a message, or none.
func (q *qp) takeRecv() *recvWR {
	from := &q.rq
	if q.srq != nil {
		from = &q.srq.rq
	}
	if len(*from) == 0 {
		return nil
	}
	at := 0
	if q.srq != nil && q.t.broken("srq-newest-first") {
		at = len(*from) - 1
	}
	r := (*from)[at]
	*from = append((*from)[:at:at], (*from)[at+1:]...)
	if s := q.srq; s != nil && s.limit > 0 && q.limitReached(s) {
		if !q.t.broken("srq-limit-again") {
			s.limit = 0
		}
		if !q.t.broken("srq-limit-missing") {
			q.t.event(agent.Event{Type: "SRQ_LIMIT_REACHED", SRQ: s.handle})
		}
	}
	return &r
}

func (q *qp) limitReached(s *srq) bool {
	if q.t.broken("srq-limit-early") {
		return len(s.rq) <= s.limit
	}
	return len(s.rq) < s.limit
}

// hasRecv reports whether a receive is there to be taken.
func (q *qp) hasRecv() bool {
	if q.srq != nil {
		return len(q.srq.rq) > 0
	}
	return len(q.rq) > 0
}
