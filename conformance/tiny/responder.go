package tiny

import (
	"slices"

	"github.com/softroce/softroce/conformance/agent"
	"github.com/softroce/softroce/pkg/bth"
)

// message is a SEND or WRITE in progress.
type message struct {
	op     bth.Op
	recv   *recvWR // of a SEND
	va     uint64
	key    uint32
	length uint64 // of a WRITE, from its RETH
	got    uint64
}

// request takes a request of a reliable connection, by its PSN (IBTA Vol 1 §9.7.4).
func (q *qp) request(p *packet) {
	t := q.t
	d := p.psn().Sub(q.epsn)
	if t.broken("psn-window-small") && (d > 1<<16 || d < -1<<16) {
		return
	}
	if t.broken("psn-window-inverted") && (d > 1<<22 || d < -1<<22) {
		d = -d
	}
	switch {
	case d > 0:
		q.outOfSequence(p)
	case d < 0:
		q.duplicate(p)
	case t.broken("nak-then-deaf") && q.nakked:
	default:
		q.rnr = false
		if !t.broken("nak-never-again") {
			q.nakked = false
		}
		q.execute(p)
	}
}

// outOfSequence answers a gap: one NAK, then silence until the expected packet comes (IBTA Vol 1 §9.7.5.1.1).
func (q *qp) outOfSequence(p *packet) {
	t := q.t
	switch {
	case t.broken("gap-executed"):
		q.epsn = p.psn()
		q.execute(p)
		return
	case t.broken("gap-silent"):
		return
	case q.rnr && t.broken("nak-after-rnr"):
	case q.rnr, q.nakked && !t.broken("nak-every-gap"):
		return
	}
	q.nakked = true
	psn := q.epsn
	if t.broken("nak-psn-of-packet") {
		psn = p.psn()
	}
	q.nak(bth.NAKSequence, psn)
}

// execute takes the expected packet through the checks, in the order of the specification (transport §4.1).
func (q *qp) execute(p *packet) {
	info := p.Info
	if !q.inSequence(p) || q.t.broken("last-invalidate-refused") && p.Opcode == bth.RCSendLastInvalidate {
		q.refuse(p, bth.NAKInvalidRequest, "QP_REQ_ERR")
		return
	}
	if s := q.enabled(info.Op, p); s != 0 {
		q.refuse(p, s, "QP_REQ_ERR")
		return
	}
	if q.dropsHere(p) {
		return
	}
	if info.ConsumesRecv && !q.hasRecv() {
		if q.t.broken("write-imm-without-recv") && info.Op == bth.OpWrite {
			q.executed(p)
			return
		}
		q.receiverNotReady(p)
		return
	}
	if q.t.broken("write-needs-recv") && info.Op == bth.OpWrite && !q.hasRecv() {
		q.receiverNotReady(p)
		return
	}
	if !q.lengthOK(p) {
		q.refuse(p, bth.NAKInvalidRequest, "QP_REQ_ERR")
		return
	}
	op := info.Op
	if q.t.broken("operations-mixed") && q.cur != nil {
		op = q.cur.op
	}
	map[bth.Op]func(*packet){
		bth.OpSend: q.send, bth.OpWrite: q.write, bth.OpReadRequest: q.read, bth.OpCmpSwap: q.atomicRequest,
		bth.OpFetchAdd: q.atomicRequest, bth.OpFlush: q.flushRequest, bth.OpAtomicWrite: q.atomicWrite,
	}[op](p)
}

// dropsHere holds the breaks that drop a good request.
func (q *qp) dropsHere(p *packet) bool {
	t := q.t
	switch {
	case t.broken("unasked-not-executed"):
		return !p.h.BTH.AckReq && p.Info.Position == bth.Only
	case t.broken("srq-silent"):
		return q.srq != nil && p.Info.ConsumesRecv && !q.hasRecv()
	case t.broken("reads-many-dropped"):
		return p.Info.Op == bth.OpReadRequest && len(q.ring) == q.maxDest
	}
	return false
}

// inSequence checks the succession of opcodes (IBTA Vol 1 §9.7.4.1.1).
func (q *qp) inSequence(p *packet) bool {
	t, info := q.t, p.Info
	if q.cur == nil {
		if info.Position.Begins() {
			return true
		}
		switch {
		case t.broken("middle-first-accepted") && info.Position == bth.Middle,
			t.broken("last-first-accepted") && info.Position == bth.Last:
			q.cur = &message{op: info.Op, length: 1 << 31}
			return true
		}
		return false
	}
	if !info.Position.Begins() && info.Op == q.cur.op {
		return true
	}
	switch {
	case t.broken("message-cut-by-only") && info.Position == bth.Only,
		t.broken("message-cut-by-first") && info.Position == bth.First:
		q.cur = nil
		return true
	case t.broken("operations-mixed") && !info.Position.Begins():
		return true
	}
	return false
}

// enabled checks that the operation is supported and allowed on the queue pair; 0 says yes.
func (q *qp) enabled(op bth.Op, p *packet) bth.Syndrome {
	t := q.t
	need, name := access(0), Mutation("")
	switch {
	case op == bth.OpWrite || op == bth.OpAtomicWrite:
		need, name = remoteWrite, "qp-write-right-ignored"
	case op == bth.OpReadRequest:
		need, name = remoteRead, "qp-read-right-ignored"
	case op == bth.OpCmpSwap || op == bth.OpFetchAdd:
		need, name = remoteAtomic, "qp-atomic-right-ignored"
	case op == bth.OpFlush && t.broken("flush-acked-without-support"):
		return 0
	case op == bth.OpFlush && slices.Contains(t.without, agent.FeatureFlush):
		return bth.NAKInvalidRequest
	case op == bth.OpFlush:
		if p.h.FETH.PLT&bth.FlushGlobal != 0 {
			need |= flushGlobal
		}
		if p.h.FETH.PLT&bth.FlushPersistent != 0 {
			need |= flushPersistent
		}
		name = "qp-flush-right-ignored"
	case op != bth.OpSend:
		return bth.NAKInvalidRequest
	}
	if q.access&need != need && !t.broken(name) {
		return bth.NAKInvalidRequest
	}
	if (op == bth.OpReadRequest || need == remoteAtomic) && q.maxDest == 0 && !t.broken("no-resources-served") {
		return bth.NAKInvalidRequest
	}
	return 0
}

// lengthOK checks payload and pad against the path MTU, and the length of the message (C9-92, C9-94).
func (q *qp) lengthOK(p *packet) bool {
	t, info, n := q.t, p.Info, len(p.Payload)
	if p.Has(bth.HasRETH) && p.h.RETH.Length > 1<<31 && !t.broken("length-limit-ignored") {
		return false
	}
	switch {
	case t.broken("first-length-ignored") && info.Position == bth.First,
		t.broken("middle-length-ignored") && info.Position == bth.Middle,
		t.broken("last-length-ignored") && info.Position == bth.Last,
		t.broken("only-length-ignored") && info.Position == bth.Only && info.Payload == bth.PayloadAny,
		t.broken("read-payload-ignored") && info.Op == bth.OpReadRequest:
		return true
	}
	if !info.Payload.Allows(n, q.mtu) {
		return false
	}
	return p.Aligned()
}

// receiverNotReady sends an RNR NAK (IBTA Vol 1 §9.7.5.2.8).
func (q *qp) receiverNotReady(p *packet) {
	t := q.t
	if t.broken("rnr-silent") {
		return
	}
	q.rnr = true
	timer, psn := uint8(q.minRNR), p.psn()
	switch {
	case t.broken("rnr-timer-wrong"):
		timer++
	case t.broken("rnr-psn-wrong"):
		psn = psn.Add(1)
	case t.broken("rnr-kills"):
		defer q.toError()
	case t.broken("rnr-advances"):
		q.epsn = q.epsn.Add(1)
	case t.broken("rnr-counts-msn"):
		q.msn++
	}
	q.nak(bth.RNRSyndrome(timer), psn)
}

// refuse answers a bad request: NAK, the receive in progress in error or an event, ERR (fault class C).
func (q *qp) refuse(p *packet, s bth.Syndrome, event string) {
	t := q.t
	if t.broken("bad-request-dropped") {
		return
	}
	if s == bth.NAKRemoteAccess && t.broken("access-error-as-invalid") {
		s = bth.NAKInvalidRequest
	}
	if s == bth.NAKInvalidRequest && t.broken("invalid-as-operational") {
		s = bth.NAKRemoteOperational
	}
	psn := p.psn()
	if t.broken("error-nak-psn-wrong") {
		psn = psn.Add(1)
	}
	q.nak(s, psn)
	if t.broken("error-nak-only") {
		return
	}
	if q.cur == nil || q.cur.recv == nil {
		t.event(agent.Event{Type: event, QP: q.handle})
	}
	q.toError()
}

// executed ends the execution of a packet: the PSN, the MSN and the acknowledgement.
func (q *qp) executed(p *packet) {
	t := q.t
	q.epsn = q.epsn.Add(1)
	if t.broken("psn-does-not-wrap") {
		q.epsn = (p.psn() + 1)
		if q.epsn > bth.PSNMask {
			q.epsn = 1
		}
	}
	ends := p.Info.Position.Ends()
	if ends && !t.broken("msn-stuck") || t.broken("msn-counts-packets") {
		q.msn = (q.msn + 1) & 0xFFFFFF
	}
	if ends {
		q.cur = nil
	}
	if p.h.BTH.AckReq && !(t.broken("ack-missing-last") && p.Info.Position == bth.Last) {
		q.ack(p.psn())
	}
}
