package transport

import (
	"time"

	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/cq"
	"github.com/softroce/softroce/pkg/qpstate"
	"github.com/softroce/softroce/pkg/wq"
)

// handleResponse takes an acknowledgement or a response. Those before una are
// stale, those that nothing was sent for are ghosts (IBTA Vol 1 §9.7.5.1.1).
func (q *QP) handleResponse(now time.Time, p *Packet) Verdict {
	r := &q.req
	psn := p.BTH().PSN()
	switch {
	case !psn.Before(r.max):
		return DropStale
	case psn.Before(r.una):
		return Duplicate
	}
	if p.Info.Op == bth.OpAck {
		return q.handleAck(now, psn, p.AETH().Syndrome())
	}
	return q.handleAnswer(now, psn, p)
}

// handleAck takes an Acknowledge packet: acknowledgement, RNR NAK or NAK.
func (q *QP) handleAck(now time.Time, psn bth.PSN, s bth.Syndrome) Verdict {
	if s.IsACK() {
		if !q.ackUpTo(now, psn) {
			q.impliedNAK()
		}
		return Accepted
	}
	// A NAK acknowledges everything before its PSN.
	due := q.ackBefore(now, psn)
	if !q.state.ProcessesResponses() {
		return Accepted // a local fault behind what was acknowledged
	}
	switch {
	case s.IsRNR() && (due || q.mayWait()):
		q.notReady(now, psn, s.RNRTimer())
	case !due:
		q.impliedNAK()
	case s == bth.NAKSequence:
		q.sequenceNAK(now)
	default:
		q.fatalNAK(now, s)
	}
	return Accepted
}

// sequenceNAK goes back to una. The same NAK again before anything was sent
// again is ignored, and so is one during an RNR wait: kernel rxe sends it for
// the packet behind the one that found no receive.
func (q *QP) sequenceNAK(now time.Time) {
	r := &q.req
	q.past().NAKRcvd = NAK{bth.NAKSequence, r.una, now}
	q.cfg.Counters.RcvdSeqErr++
	q.cfg.Counters.RcvdNAKs[bth.NAKSequence.NAKCode()]++
	q.stats.SeqNAKsRcvd++
	if r.rnrWait || r.nxt == r.una {
		return
	}
	q.retry(WhyGap)
}

// fatalNAK ends the request that una belongs to.
func (q *QP) fatalNAK(now time.Time, s bth.Syndrome) {
	r := &q.req
	q.past().NAKRcvd = NAK{s, r.una, now}
	if s.IsNAK() {
		q.cfg.Counters.RcvdNAKs[s.NAKCode()]++
	}
	q.event(Event{Kind: NoteRemoteNAK, Syndrome: s, PSN: r.una})
	if e := q.sq.At(0); s == bth.NAKInvalidRequest && e.User[userLength] > uint64(bth.MTU256.Bytes()) && r.una == r.headPSN {
		q.noteOnce(Event{Kind: NoteMTU, OwnMTU: int(q.mtu)})
	}
	q.headTrouble(Trouble{Kind: TroubleRefused, Syndrome: s, Status: nakStatus(s)})
	q.failHead(nakStatus(s))
}

// handleAnswer takes a READ response or an Atomic Acknowledge. It must be the
// one due at una, after acknowledging the SENDs and WRITEs before it.
func (q *QP) handleAnswer(now time.Time, psn bth.PSN, p *Packet) Verdict {
	r := &q.req
	if !q.ackBefore(now, psn) {
		q.cfg.Counters.PacketSeqErr++
		q.impliedNAK()
		return OutOfSequence
	}
	if !q.state.ProcessesResponses() {
		return Accepted // a local fault behind what was acknowledged
	}
	e := q.sq.At(0)
	status := cq.BadRespErr
	if p.Info.Headers.Has(bth.HasAETH) && !p.AETH().Syndrome().IsACK() {
		q.answerTrouble(status, p)
		q.failHead(status)
		return Accepted
	}
	switch {
	case p.Info.Op == bth.OpReadResponse && e.Opcode == wq.RDMARead:
		status = q.takeReadResponse(e, p)
	case p.Info.Op == bth.OpAtomicAck && answered(e.Opcode) && e.Opcode != wq.RDMARead:
		status = q.takeAtomicAck(e, p)
	}
	if status != cq.Success {
		q.answerTrouble(status, p)
		q.failHead(status)
		return Accepted
	}
	r.reads.answered(psn)
	q.advance(now, e, psn.Add(1))
	return Accepted
}

// ackBefore acknowledges what comes before PSN psn; see ackUpTo. It makes una
// equal psn when it reports true and the queue pair did not fail.
func (q *QP) ackBefore(now time.Time, psn bth.PSN) bool {
	return psn == q.req.una || q.ackUpTo(now, psn.Add(uint32(bth.PSNMask)))
}

// ackUpTo acknowledges SENDs and WRITEs up to PSN last, inclusive. It stops at
// a READ or an atomic, which only its own response completes, and then reports
// false: that response was lost.
func (q *QP) ackUpTo(now time.Time, last bth.PSN) bool {
	r := &q.req
	for !r.una.After(last) && q.sq.Len() > 0 {
		e := q.sq.At(0)
		if answered(e.Opcode) {
			return false
		}
		to := r.headPSN.Add(packetsOf(e))
		if to.After(last.Add(1)) {
			to = last.Add(1)
		}
		q.advance(now, e, to)
	}
	return true
}

// advance moves una within entry 0, or to its end, which completes it. That is
// progress: all retry counters start anew.
func (q *QP) advance(now time.Time, e *wq.WQE, to bth.PSN) {
	r := &q.req
	from := uint32(r.una.Sub(r.headPSN))
	done := uint32(to.Sub(r.headPSN))
	cost := q.costOf(e, from, done)
	if to.After(r.nxt) {
		r.nxt, r.localErr = to, 0 // answered before it was sent again
	}
	r.una = to
	q.progress(to)
	q.arrived(directionOf(e.Opcode), cost, to)
	if done == packetsOf(e) {
		q.popHead(cq.Success)
		q.completeLocal()
	}
	q.armAckTimer(now)
	q.settleLocal()
	q.checkDrained()
}

// progress starts all retry counters anew: una is to now.
func (q *QP) progress(to bth.PSN) {
	r := &q.req
	r.retries, r.rnrLeft, r.deferred = q.attr.RetryCnt, q.attr.RNRRetry, 0
	r.impliedBy = false
	r.rnrWait = r.rnrWait && !to.After(r.rnrPSN)
}

// popHead completes entry 0 and drops it.
func (q *QP) popHead(status cq.Status) {
	r := &q.req
	e := q.sq.At(0)
	r.headPSN = r.headPSN.Add(packetsOf(e))
	if r.cur > 0 {
		r.cur--
	} else {
		r.curPSN = r.headPSN
	}
	q.completeSend(&e.SendWR, status)
	q.sq.PopFront()
}

// failHead completes entry 0 in error and moves the queue pair to ERR, or to SQE
// where nobody is told of the request.
func (q *QP) failHead(status cq.Status) {
	q.state = q.cfg.Type.SendErrorState()
	if q.sq.Len() > 0 {
		q.popHead(status)
	}
	if q.state == qpstate.SQE {
		q.becomeSQE()
		return
	}
	q.becomeErr(false)
}

// flushSend completes everything in the send queue with WR_FLUSH_ERR.
func (q *QP) flushSend() {
	for q.sq.Len() > 0 {
		q.completeSend(&q.sq.At(0).SendWR, cq.WRFlushErr)
		q.sq.PopFront()
	}
}

// sendOpcodes maps send operations to the completion's opcode.
var sendOpcodes = [...]cq.Opcode{
	wq.RDMAWrite: cq.RDMAWrite, wq.RDMAWriteWithImm: cq.RDMAWrite,
	wq.Send: cq.Send, wq.SendWithImm: cq.Send, wq.SendWithInv: cq.Send,
	wq.RDMARead: cq.RDMARead, wq.AtomicCmpAndSwp: cq.CompSwap, wq.AtomicFetchAndAdd: cq.FetchAdd,
	wq.LocalInv: cq.LocalInv, wq.BindMW: cq.BindMW, wq.RegMR: cq.RegMR,
}

// completeSend gives a send request its completion: on success only when it was
// asked for (IBTA Vol 1 §10.7.3.1), on error always.
func (q *QP) completeSend(wr *wq.SendWR, status cq.Status) {
	if status == cq.Success && !isLocal(wr.Opcode) {
		q.stats.SentMsgs++
	}
	if status == cq.Success && wr.Flags&wq.SendSignaled == 0 && !q.cfg.SQSigAll {
		return
	}
	q.wc = cq.WC{WRID: wr.WRID, Status: status, Opcode: sendOpcodes[wr.Opcode], QPN: q.cfg.QPN}
	if status == cq.Success && !isLocal(wr.Opcode) {
		q.wc.ByteLen = uint32(wr.Length())
	}
	q.cfg.SendCQ.Complete(&q.wc, status != cq.Success)
}
