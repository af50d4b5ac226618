package transport

import (
	"math"
	"time"

	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/cq"
	"github.com/softroce/softroce/pkg/wq"
)

// rnrForever is the rnr_retry that never ends (IBTA Vol 1 §9.7.5.2.8).
const rnrForever = 7

// maxDeferred is how often the ACK timer starts anew although it expired: IBTA
// Vol 1 §9.7.6.1.3 lets it expire between T and 4T.
const maxDeferred = 3

// leastWindow is the smallest window: two packets of the path MTU.
func (q *QP) leastWindow() uint32 { return minWindowPackets * (q.mtu + packetCost) }

// maxWindow is the most that the queue pair may have in flight.
func (q *QP) maxWindow() uint32 {
	return max(uint32(min(q.cfg.Window, maxWindow)), q.leastWindow())
}

// inflight is the cost of [una, nxt).
func (r *requester) inflight() uint32 {
	return r.shares[outbound].flight + r.shares[inbound].flight
}

// fits says whether the next request packet stays within the queue pair's own
// limits. One request always may be in flight: progress must be possible.
func (q *QP) fits(p *plan) bool {
	r := &q.req
	n := r.inflight()
	return n == 0 || n+p.cost <= r.window && uint32(r.nxt.Sub(r.una))+p.n <= maxOutstanding
}

// maySend says whether a request packet may leave now.
func (q *QP) maySend() bool {
	var p plan
	if q.localReady() {
		return true
	}
	return q.planNext(&p) && q.fits(&p) && q.peer.flows[p.dir].allows(q, &q.req.shares[p.dir], p.cost)
}

// take takes what the next request packet needs of the windows, or waits for the
// peer's.
func (q *QP) take(now time.Time, p *plan) bool {
	if !q.fits(p) {
		return false
	}
	if q.peer.flows[p.dir].take(q, &q.req.shares[p.dir], p.cost) {
		q.leaveLine()
		return true
	}
	q.wait(now, p.dir, p.cost, q.wholeCost(p))
	return false
}

// wholeCost is what a SEND or a WRITE costs from a packet to its end.
func (q *QP) wholeCost(p *plan) uint32 {
	if answered(p.e.Opcode) {
		return p.cost
	}
	n := packetsOf(p.e) - p.off
	left := p.e.User[userLength] - uint64(p.off)*uint64(q.mtu)
	return uint32(min(left+uint64(n)*packetCost, math.MaxUint32))
}

// giveBack returns what was taken of the windows and is not needed now.
func (q *QP) giveBack() {
	for d := range q.req.shares {
		if s := &q.req.shares[d]; s.credit > 0 && q.peer != nil {
			q.peer.flows[d].giveBack(s)
		}
	}
}

// depart puts a packet in flight.
func (q *QP) depart(p *plan) {
	s := &q.req.shares[p.dir]
	s.credit -= p.cost
	s.flight += p.cost
	if e := q.peer.flows[p.dir].epoch; s.epoch != e {
		s.epoch, s.since = e, q.req.nxt
	}
}

// arrived takes what was acknowledged out of flight, from una on, which is psn
// now.
func (q *QP) arrived(d direction, cost uint32, psn bth.PSN) {
	r := &q.req
	s := &r.shares[d]
	q.peer.flows[d].ack(s, cost)
	if s.since.Before(psn) {
		s.since = psn // stays near, so that it can be compared
	}
	r.window = min(r.window+cost/8, q.maxWindow())
}

// lost tells the window to the peer of a loss at una, and says whether that
// window was full.
func (q *QP) lost() (full bool) {
	d := directionOf(q.sq.At(0).Opcode)
	return q.peer.flows[d].lost(&q.req.shares[d], q.req.una)
}

// costOf is the window cost of PSNs [from, to) of a request, counted from its
// first.
func (q *QP) costOf(e *wq.WQE, from, to uint32) uint32 {
	length, mtu := e.User[userLength], uint64(q.mtu)
	if answered(e.Opcode) && e.Opcode != wq.RDMARead {
		length = 0
	}
	return uint32(min(uint64(to)*mtu, length)-min(uint64(from)*mtu, length)) + (to-from)*packetCost
}

// armAckTimer starts the local ACK timer when something is out
// (IBTA Vol 1 §9.7.6.1.3: it expires between T and 4T).
func (q *QP) armAckTimer(now time.Time) {
	r := &q.req
	r.ackDeadline = time.Time{}
	if t := bth.AckTimeout(q.attr.Timeout); t > 0 && r.una != r.nxt && !r.rnrWait {
		r.ackDeadline = now.Add(t)
		r.armedAt = q.peer.flows[outbound].total + q.peer.flows[inbound].total
	}
}

// mayStillCome says whether an expiry of the ACK timer is a wait, not a loss:
// own packets wait to be pulled, since the network here is full; or the peer
// answers others of its queue pairs, and these packets may be behind theirs.
// That is believed three times, which keeps the timer within 4T.
func (q *QP) mayStillCome() bool {
	r := &q.req
	if q.maySend() {
		return true
	}
	d := directionOf(q.sq.At(0).Opcode)
	f, s := &q.peer.flows[d], &r.shares[d]
	if r.deferred == maxDeferred || f.round-s.round > 1 ||
		r.armedAt == q.peer.flows[outbound].total+q.peer.flows[inbound].total {
		return false
	}
	r.deferred++
	return true
}

// deadline is the next time that something is due.
func (r *requester) deadline() time.Time {
	if r.rnrWait {
		return r.rnrUntil
	}
	return r.ackDeadline
}

// expire serves the timers. An RNR wait is the only timer while it lasts: the
// ACK timer does not run.
func (q *QP) expire(now time.Time) {
	r := &q.req
	if r.rnrWait {
		r.rnrWait = now.Before(r.rnrUntil)
		return
	}
	if r.ackDeadline.IsZero() || now.Before(r.ackDeadline) {
		return
	}
	if q.mayStillCome() {
		q.cfg.Counters.AckDeferred++
		q.armAckTimer(now)
		return
	}
	q.cfg.Counters.LocalAckTimeoutErr++
	q.stats.Timeouts++
	r.impliedBy = false
	q.retry(WhyTimeout)
}

// retry goes back to the oldest PSN that was not acknowledged, or ends the
// request when retry_cnt is used up.
func (q *QP) retry(why Why) {
	r := &q.req
	if q.sq.Len() == 0 {
		return
	}
	if r.retries == 0 {
		q.cfg.Counters.RetryExceededErr++
		q.event(Event{
			Kind: NoteRetryExceeded, PSN: r.una, Count: int(q.attr.RetryCnt),
			Wait: bth.AckTimeout(q.attr.Timeout),
		})
		q.headTrouble(Trouble{Kind: TroubleNoAnswer, Why: why, Status: cq.RetryExcErr, Retries: q.attr.RetryCnt})
		q.failHead(cq.RetryExcErr)
		return
	}
	r.retries--
	full := q.lost()
	q.goBack()
	for d := range r.shares {
		q.peer.flows[d].goBack(&r.shares[d], full)
	}
}

// goBack makes una the next PSN to send. The ACK timer starts again when that
// is sent.
func (q *QP) goBack() {
	r := &q.req
	r.nxt, r.cur, r.curPSN = r.una, 0, r.headPSN
	r.reads.sent = 0
	r.sinceAck, r.localErr = 0, 0
	r.ackDeadline = time.Time{}
}

// mayWait says whether rnr_retry allows one more wait.
func (q *QP) mayWait() bool { return q.req.rnrLeft > 0 }

// notReady obeys an RNR NAK for PSN psn: nothing is sent until its time is over
// (IBTA Vol 1 §9.7.5.2.8). The PSN is una, or behind a READ or an atomic whose
// answer is still to come, and may come during the wait.
func (q *QP) notReady(now time.Time, psn bth.PSN, code uint8) {
	r := &q.req
	if r.rnrWait {
		return
	}
	wait := bth.RNRTimerDuration(code)
	q.cfg.Counters.RcvdRNRErr++
	q.stats.RNRNAKsRcvd++
	q.past().NAKRcvd = NAK{bth.RNRSyndrome(code), psn, now}
	q.noteOnce(Event{Kind: NoteRNRTimer, Code: code, Wait: wait})
	if !q.mayWait() {
		q.cfg.Counters.RetryRNRExceededErr++
		q.event(Event{Kind: NoteRNRRetryExceeded, PSN: r.una, Count: int(q.attr.RNRRetry), Code: code, Wait: wait})
		q.headTrouble(Trouble{Kind: TroubleNotReady, Status: cq.RNRRetryExcErr, Retries: q.attr.RNRRetry, RNRTimer: code})
		q.failHead(cq.RNRRetryExcErr)
		return
	}
	if q.attr.RNRRetry != rnrForever {
		r.rnrLeft--
	}
	// The peer answered: it is there.
	r.retries = q.attr.RetryCnt
	q.stats.RNRWait += wait
	// The wait outlasts what is on its way. The next try is a smaller one: what
	// follows a request that finds no receive is sent for nothing.
	q.goBack()
	for d := range r.shares {
		q.peer.flows[d].forgive(&r.shares[d])
	}
	r.window = max(r.window/2, q.leastWindow())
	r.rnrWait, r.rnrPSN, r.rnrUntil = true, psn, now.Add(wait)
}

// impliedNAK obeys a response that shows that the one due at una was lost
// (IBTA Vol 1 §9.7.5.1.3): once, then not before progress or the timer. Unlike
// the specification's it uses up no retry, unless there were none from the
// start: a response that stays away would count a second time at the timer, and
// a mere change of order would count as a loss.
func (q *QP) impliedNAK() {
	r := &q.req
	if r.rnrWait || r.impliedBy {
		return
	}
	r.impliedBy = true
	if r.nxt == r.una {
		return // going back already
	}
	q.cfg.Counters.CompleterRetryErr++
	if q.attr.RetryCnt > 0 {
		r.retries++
	}
	q.retry(WhyImplied)
}
