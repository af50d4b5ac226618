package tiny

import (
	"github.com/softroce/softroce/conformance/agent"
)

// finish completes what is done, in order, and fails what failed here.
func (q *qp) finish() {
	for len(q.sq) > 0 {
		w := q.sq[0]
		if w.status != "" {
			q.fail(w, w.status)
			return
		}
		if !w.done {
			break
		}
		q.sq = q.sq[1:]
		q.doneMSN++
		if q.signaled(w) {
			q.completeSend(w, "SUCCESS")
			if w.sends > 1 && q.t.broken("resent-completes-twice") {
				q.completeSend(w, "SUCCESS")
			}
		}
		if q.state == "ERR" {
			return
		}
	}
	started := len(q.sq) > 0 && q.sq[0].started
	if q.state == "SQD" && !started && !q.drained {
		q.drained = true
		if q.drainNotify && !q.t.broken("sq-drained-missing") {
			q.t.event(agent.Event{Type: "SQ_DRAINED", QP: q.handle})
		}
	}
}

func (q *qp) signaled(w *wqe) bool { return q.sigAll || w.has("SIGNALED") }

// fail completes a request in error. A connection goes to ERR by it, a datagram's queue pair and a UC one to SQE.
func (q *qp) fail(w *wqe, status string) {
	t := q.t
	if w == nil {
		q.toError()
		return
	}
	for len(q.sq) > 0 && q.sq[0] != w && (q.sq[0].done || t.broken("nak-fails-newest")) {
		if q.signaled(q.sq[0]) {
			q.completeSend(q.sq[0], "SUCCESS")
		}
		q.sq = q.sq[1:]
	}
	if len(q.sq) > 0 && q.sq[0] == w {
		q.sq = q.sq[1:]
	}
	q.completeSend(w, status)
	if t.broken("error-without-state") {
		q.una, q.cursor = q.next, q.next
		return
	}
	if q.typ == "RC" || t.broken("send-error-kills") {
		q.toError()
		return
	}
	q.state = "SQE"
	q.flushSQ()
}

// completeSend pushes the completion of a send request.
func (q *qp) completeSend(w *wqe, status string) {
	op := map[string]string{
		"SEND": "SEND", "SEND_WITH_IMM": "SEND", "SEND_WITH_INV": "SEND", "RDMA_WRITE": "RDMA_WRITE",
		"RDMA_WRITE_WITH_IMM": "RDMA_WRITE", "RDMA_READ": "RDMA_READ", "ATOMIC_CMP_AND_SWP": "COMP_SWAP",
		"ATOMIC_FETCH_AND_ADD": "FETCH_ADD", "LOCAL_INV": "LOCAL_INV", "BIND_MW": "BIND_MW", "FLUSH": "FLUSH",
		"ATOMIC_WRITE": "ATOMIC_WRITE",
	}[w.wr.Op]
	wc := agent.WC{ID: w.wr.ID, Status: status, Op: op, QPN: uint32(q.num)}
	if w.fetches() {
		wc.ByteLen = w.length
	}
	q.sendCQ.push(wc, false)
}
