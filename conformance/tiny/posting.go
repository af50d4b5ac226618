package tiny

import (
	"slices"

	"github.com/softroce/softroce/conformance/agent"
)

// operations lists what each type of queue pair can send.
var operations = map[string][]string{
	"RC": {
		"SEND", "SEND_WITH_IMM", "SEND_WITH_INV", "RDMA_WRITE", "RDMA_WRITE_WITH_IMM", "RDMA_READ", "ATOMIC_CMP_AND_SWP",
		"ATOMIC_FETCH_AND_ADD", "LOCAL_INV", "BIND_MW", "ATOMIC_WRITE",
	},
	"UC":  {"SEND", "SEND_WITH_IMM", "RDMA_WRITE", "RDMA_WRITE_WITH_IMM", "LOCAL_INV", "BIND_MW"},
	"UD":  {"SEND", "SEND_WITH_IMM"},
	"GSI": {"SEND", "SEND_WITH_IMM"},
}

// doSend posts send requests; those before a refused one stay posted.
func (t *Target) doSend(r *agent.Request, a *agent.Answer) error {
	q, err := find(t.qps, "qp", r.QP)
	if err != nil {
		return err
	}
	for i := range r.Sends {
		w := r.Sends[i]
		if err := q.post(w); err != nil {
			return err
		}
		a.Posted++
		if mw := t.mws[w.MW]; mw != nil {
			a.RKey = mw.key
			if q := q.sq; len(q) > 0 && q[len(q)-1].wr.Bind != nil {
				a.RKey = q[len(q)-1].wr.Bind.RKey // still to come
			}
		}
	}
	return nil
}

// post posts one send request.
func (q *qp) post(wr agent.SendWR) error {
	t := q.t
	if s := q.state; (s == "RESET" || s == "INIT" || s == "RTR") && !t.broken("post-in-any-state") {
		return invalid("a %s queue pair does not send", s)
	}
	if q.state == "ERR" && t.broken("post-in-error-refused") {
		return invalid("the queue pair is in error")
	}
	if err := q.checkSend(&wr); err != nil {
		return err
	}
	w := &wqe{wr: wr}
	if w.has("INLINE") && len(wr.Inline) == 0 && !t.broken("inline-late") { // the payload is in memory that may change
		_ = q.gather(w)
		w.wr.Inline, w.data = w.data, nil
	}
	if wr.Op == "BIND_MW" {
		if err := q.bindKey(w); err != nil {
			return err
		}
	}
	if q.state == "ERR" || q.state == "SQE" {
		if !t.broken("post-in-error-lost") {
			q.completeSend(w, "WR_FLUSH_ERR")
		}
		return nil
	}
	q.sq = append(q.sq, w)
	q.pump()
	return nil
}

// bindKey gives a bind the key that its window will have, the next one unless the request names one.
func (q *qp) bindKey(w *wqe) error {
	mw, err := find(q.t.mws, "mw", w.wr.MW)
	if err != nil {
		return err
	}
	if w.wr.Bind == nil {
		return invalid("a bind without what it is to")
	}
	b := *w.wr.Bind
	if b.RKey == 0 {
		b.RKey = nextKey(mw.key)
	}
	w.wr.Bind = &b
	return nil
}

// nextKey counts up the low byte of a key.
func nextKey(k uint32) uint32 { return k&^0xFF | (k+1)&0xFF }

// checkSend refuses what cannot be sent at all.
func (q *qp) checkSend(w *agent.SendWR) error {
	t := q.t
	switch {
	case !slices.Contains(operations[q.typ], w.Op) && !t.broken("post-any-operation"):
		return invalid("%s on a %s queue pair", w.Op, q.typ)
	case len(w.SGEs) > q.caps.SendSGEs && !t.broken("post-any-sges"):
		return invalid("%d SGEs, at most %d", len(w.SGEs), q.caps.SendSGEs)
	case len(w.Inline) > q.caps.Inline:
		return invalid("%d bytes inline, at most %d", len(w.Inline), q.caps.Inline)
	case len(q.sq) >= q.caps.SendWRs:
		return &errno{"ENOMEM", "the send queue is full"}
	}
	total := uint64(0)
	for _, s := range w.SGEs {
		total += uint64(s.Length)
	}
	if slices.Contains(w.Flags, "INLINE") && total > uint64(q.caps.Inline) {
		return invalid("%d bytes inline, at most %d", total, q.caps.Inline)
	}
	if total > 1<<31 && !t.broken("huge-message-done") {
		return invalid("a message of %d bytes", total)
	}
	if (w.Op == "ATOMIC_CMP_AND_SWP" || w.Op == "ATOMIC_FETCH_AND_ADD") && total != 8 {
		return invalid("an atomic has 8 bytes, not %d", total)
	}
	return nil
}

// doRecv posts receives to a queue pair or a shared queue.
func (t *Target) doRecv(r *agent.Request, a *agent.Answer) error {
	if r.SRQ != 0 {
		s, err := find(t.srqs, "srq", r.SRQ)
		if err != nil {
			return err
		}
		for _, w := range r.Recvs {
			if len(s.rq) >= s.max {
				return &errno{"ENOMEM", "the queue is full"}
			}
			s.rq = append(s.rq, recvWR{RecvWR: w, pd: s.pd})
			a.Posted++
		}
		return nil
	}
	q, err := find(t.qps, "qp", r.QP)
	if err != nil {
		return err
	}
	if q.srq != nil && !t.broken("post-recv-beside-srq") {
		return invalid("the queue pair has a shared receive queue")
	}
	if q.state == "RESET" && !t.broken("post-in-any-state") {
		return invalid("the queue pair is in RESET")
	}
	for _, w := range r.Recvs {
		switch {
		case len(w.SGEs) > q.caps.RecvSGEs && !t.broken("post-any-sges"):
			return invalid("%d SGEs, at most %d", len(w.SGEs), q.caps.RecvSGEs)
		case len(q.rq) >= q.caps.RecvWRs:
			return &errno{"ENOMEM", "the queue is full"}
		case q.state == "ERR" && t.broken("post-in-error-refused"):
			return invalid("the queue pair is in error")
		case q.state == "ERR":
			if !t.broken("post-in-error-lost") {
				q.recvCQ.push(agent.WC{ID: w.ID, Status: "WR_FLUSH_ERR", QPN: uint32(q.num)}, true)
			}
		default:
			q.rq = append(q.rq, recvWR{RecvWR: w, pd: q.pd})
		}
		a.Posted++
	}
	return nil
}

// doBind binds a window of type 1, by a signaled request.
func (t *Target) doBind(r *agent.Request, a *agent.Answer) error {
	q, err := find(t.qps, "qp", r.QP)
	if err != nil {
		return err
	}
	mw, err := find(t.mws, "mw", r.MW)
	if err != nil {
		return err
	}
	if r.Bind == nil || mw.typ != 1 {
		return invalid("a bind of a window of type 1 says what it is to")
	}
	b := *r.Bind
	b.RKey = nextKey(mw.key)
	a.RKey = b.RKey
	return q.post(agent.SendWR{ID: r.ID, Op: "BIND_MW", Flags: []string{"SIGNALED"}, MW: r.MW, Bind: &b})
}
