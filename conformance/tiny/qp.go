package tiny

import (
	"net/netip"
	"time"

	"github.com/softroce/softroce/conformance/agent"
	"github.com/softroce/softroce/conformance/wire"
	"github.com/softroce/softroce/pkg/bth"
)

// addressHandle is where a datagram goes.
type addressHandle struct {
	pd   int
	path agent.Path
}

// qp is a queue pair. All of it is guarded by its target's mutex.
type qp struct {
	t      *Target
	handle int
	num    bth.QPN
	typ    string // RC, UC, UD, GSI
	pd     int
	sendCQ *cq
	recvCQ *cq
	srq    *srq
	caps   agent.Request // as asked for at creation
	sigAll bool

	state       string
	access      access
	path        agent.Path
	remote      netip.Addr
	mtu         int
	qkey        uint32
	dest        bth.QPN
	timeout     int
	retryCnt    int
	rnrRetry    int
	minRNR      int
	maxRD       int
	maxDest     int
	rqPSN       bth.PSN
	sqPSN       bth.PSN
	drainNotify bool
	drained     bool
	oldPSN      bth.PSN  // that was expected before a reset, for a break
	flushed     []recvWR // the last receives that were flushed, for breaks about a reset
	commEst     bool
	peerPort    uint16 // UDP source port of the last packet from the peer

	responder
	requester
}

// responder is what the receiving side of a connection remembers.
type responder struct {
	rq     []recvWR // posted receives, unless there is an SRQ
	epsn   bth.PSN  // expected
	msn    uint32
	cur    *message // in progress
	nakked bool     // a NAK of the sequence error is out
	rnr    bool     // an RNR NAK is out
	ring   []replay // the last READs and atomics
	resync bool     // UC: drop until a message begins
}

// requester is what the sending side of a connection remembers.
type requester struct {
	sq       []*wqe
	una      bth.PSN // oldest that is not acknowledged
	cursor   bth.PSN // to be sent next
	sent     bth.PSN // after the last that was sent
	next     bth.PSN // of the next message to start
	retries  int
	rnrs     int
	ackBy    time.Time // local ACK timeout
	rnrUntil time.Time
	implied  bool    // went back for an implied NAK since the last progress
	ud       bth.PSN // of the next datagram
	doneMSN  uint32  // messages completed
}

func (q *qp) receivesRequests() bool {
	switch q.state {
	case "RTR", "RTS", "SQD", "SQE":
		return !(q.t.broken("sqd-deaf") && q.state == "SQD")
	case "INIT":
		return q.t.broken("init-receives")
	}
	return false
}

func (q *qp) takesResponses() bool { return q.state == "RTS" || q.state == "SQD" }

// startResponder and startRequester make the state of a direction new, from the attributes.
func (q *qp) startResponder() {
	msn, epsn := q.msn, q.oldPSN
	q.responder = responder{rq: q.rq, epsn: q.rqPSN}
	if q.t.broken("reset-keeps-psn") && epsn != 0 {
		q.epsn = epsn
	}
	if q.t.broken("reset-keeps-msn") {
		q.msn = msn
	}
}

func (q *qp) startRequester() {
	sq := q.sq
	q.requester = requester{sq: sq, una: q.sqPSN, cursor: q.sqPSN, sent: q.sqPSN, next: q.sqPSN, ud: q.sqPSN}
	q.retries, q.rnrs = q.retryCnt, q.rnrRetry
}

// deliver takes a packet for this queue pair (transport packet acceptance, IBTA Vol 1 §9.6.1).
func (t *Target) deliver(q *qp, p *packet) {
	info := p.Info
	class := map[string]bth.Class{"RC": bth.ClassRC, "UC": bth.ClassUC, "UD": bth.ClassUD, "GSI": bth.ClassUD}[q.typ]
	if info.Op == bth.OpCNP {
		if t.broken("cnp-kills") || t.broken("odd-cnp-kills") && p.h.CNPReserved != (bth.CNPReserved{}) {
			q.toError()
		}
		return
	}
	if info.Class != class {
		t.wrongClass(q)
		return
	}
	if !q.pkeyOK(p.h.BTH.PKey) {
		t.counts["bad_pkey"]++
		return
	}
	if t.broken("migreq-needed") && !p.h.BTH.MigReq || t.broken("reserved-bits-checked") && (p.h.BTH.Resv7 != 0) ||
		t.broken("fecn-refused") && (p.h.BTH.FECN || p.h.BTH.BECN || p.h.BTH.Resv6 != 0) {
		return
	}
	if class != bth.ClassUD && p.src != q.remote && !t.broken("any-source") && q.state != "INIT" {
		return
	}
	q.peerPort = p.sport
	if info.Response {
		if q.takesResponses() {
			q.response(p)
		}
		return
	}
	if !info.Request || !q.receivesRequests() {
		if t.broken("nak-in-error") && q.state == "ERR" && q.typ == "RC" {
			q.nak(bth.NAKInvalidRequest, p.psn())
		}
		return
	}
	if q.state == "RTR" && !q.commEst {
		q.commEst = true
		if !t.broken("comm-est-missing") {
			t.event(agent.Event{Type: "COMM_EST", QP: q.handle})
		}
	}
	if q.state == "INIT" {
		q.epsn = p.psn() // of "init-receives"
	}
	switch q.typ {
	case "RC":
		q.request(p)
	case "UC":
		q.ucRequest(p)
	default:
		q.datagram(p)
	}
}

// pkeyOK checks the partition key against the only one there is.
func (q *qp) pkeyOK(k bth.PKey) bool {
	switch {
	case q.t.broken("pkey-ignored"):
		return true
	case q.t.broken("pkey-exact"):
		return k == bth.DefaultPKey
	case q.t.broken("pkey-limited-only"):
		return k == bth.DefaultPKey&0x7FFF
	}
	return bth.DefaultPKey.Match(k)
}

// wrongClass drops a packet of another transport service.
func (t *Target) wrongClass(q *qp) {
	switch {
	case t.broken("wrong-class-nak") && q.typ == "RC":
		q.nak(bth.NAKInvalidRequest, q.epsn)
	case t.broken("wrong-class-kills"):
		q.toError()
	}
}

// packetTo makes the headers and the addresses of a packet to the peer.
func (q *qp) packetTo(op bth.Opcode, psn bth.PSN) *wire.Packet {
	t := q.t
	w := &wire.Packet{}
	w.BTH = bth.BTHFields{Opcode: op, MigReq: true, PKey: bth.DefaultPKey, DestQP: q.dest, PSN: psn}
	w.Dst = q.remote
	w.TOS, w.TTL = uint8(q.path.TClass), uint8(q.path.HopLimit)
	w.SrcPort = 0xC000 + uint16(q.num)&0x3FFF
	t.breakOutput(q, w)
	return w
}

// toError moves the queue pair to ERR: what is posted is flushed, in order (IBTA Vol 1 §10.3.1).
func (q *qp) toError() {
	if q.state == "ERR" || q.state == "RESET" {
		return
	}
	t := q.t
	q.state = "ERR"
	q.ackBy, q.rnrUntil = time.Time{}, time.Time{}
	if t.broken("flush-missing") {
		q.sq, q.rq = nil, nil
	}
	q.flushSQ()
	q.flushRQ()
	if q.srq != nil && !t.broken("last-wqe-missing") {
		t.event(agent.Event{Type: "QP_LAST_WQE_REACHED", QP: q.handle})
	}
}

// flushSQ completes every send request with WR_FLUSH_ERR; those that were done already keep their success.
func (q *qp) flushSQ() {
	sq := q.sq
	q.sq = nil
	for _, w := range sq {
		switch {
		case w.done:
			q.completeSend(w, "SUCCESS")
		case q.t.broken("unsignaled-flush-silent") && !q.signaled(w):
		default:
			q.completeSend(w, "WR_FLUSH_ERR")
		}
	}
	if q.t.broken("flush-reversed") {
		reverse(q.sendCQ.wcs)
	}
}

// flushRQ completes every receive with WR_FLUSH_ERR, the one of a message in progress first.
func (q *qp) flushRQ() {
	var rq []recvWR
	if q.cur != nil && q.cur.recv != nil {
		rq = append(rq, *q.cur.recv)
		if q.t.broken("partial-recv-flushed-last") {
			rq = append(q.rq, rq...)
			q.rq = nil
		}
		if q.t.broken("partial-recv-forgotten") {
			rq = nil
		}
	}
	rq = append(rq, q.rq...)
	q.cur, q.rq, q.flushed = nil, nil, rq
	if q.t.broken("flush-out-of-order") {
		reverse(rq)
	}
	for _, r := range rq {
		q.recvCQ.push(agent.WC{ID: r.ID, Status: "WR_FLUSH_ERR", QPN: uint32(q.num)}, true)
	}
}

func reverse[T any](s []T) {
	for i, j := 0, len(s)-1; i < j; i, j = i+1, j-1 {
		s[i], s[j] = s[j], s[i]
	}
}

// destroy forgets the queue pair.
func (q *qp) destroy() {
	if q.t.broken("destroyed-qp-lives") {
		delete(q.t.qps, q.handle)
		return
	}
	delete(q.t.qps, q.handle)
	delete(q.t.byNum, q.num)
	for g, qs := range q.t.groups {
		for i, o := range qs {
			if o == q {
				q.t.groups[g] = append(qs[:i:i], qs[i+1:]...)
				break
			}
		}
	}
	for _, w := range q.t.mws {
		if w.qp == q {
			w.free()
		}
	}
}
