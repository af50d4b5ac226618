package transport

import (
	"time"

	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/cq"
	"github.com/softroce/softroce/pkg/wq"
)

// rnrForever is the rnr_retry that never ends (IBTA Vol 1 §9.7.5.2.8).
const rnrForever = 7

// leastWindow is the smallest window: two packets of the path MTU.
func (q *QP) leastWindow() uint32 { return minWindowPackets * (q.mtu + packetCost) }

// fits says whether n more PSNs of this cost may be in flight. One request
// always may: progress must be possible.
func (q *QP) fits(n, cost uint32) bool {
	r := &q.req
	if r.inflight == 0 {
		return true
	}
	return r.inflight+cost <= r.window && uint32(r.nxt.Sub(r.una))+n <= maxOutstanding
}

// shrink halves the window after a loss, once a window.
func (q *QP) shrink() {
	r := &q.req
	if r.shrunk && r.una.Before(r.recover) {
		return
	}
	r.shrunk, r.recover = true, r.max
	r.window = max(r.window/2, q.leastWindow())
}

// grow opens the window by an eighth of what was acknowledged.
func (q *QP) grow(cost uint32) {
	r := &q.req
	if r.shrunk && !r.una.Before(r.recover) {
		r.shrunk = false
	}
	r.window = max(min(r.window+cost/8, uint32(min(q.cfg.Window, 1<<30))), q.leastWindow())
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
	}
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
	if _, ok := q.planNext(); ok {
		// Own packets wait to be pulled: the network here is full. That is a
		// wait, not a loss.
		q.cfg.Counters.AckDeferred++
		q.armAckTimer(now)
		return
	}
	q.cfg.Counters.LocalAckTimeoutErr++
	q.stats.Timeouts++
	r.impliedBy = false
	q.retry()
}

// retry goes back to the oldest PSN that was not acknowledged, or ends the
// request when retry_cnt is used up.
func (q *QP) retry() {
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
		q.failHead(cq.RetryExcErr)
		return
	}
	r.retries--
	q.shrink()
	q.goBack()
}

// goBack makes una the next PSN to send. The ACK timer starts again when that
// is sent.
func (q *QP) goBack() {
	r := &q.req
	r.nxt, r.cur, r.curPSN = r.una, 0, r.headPSN
	r.reads.sent = 0
	r.inflight, r.sinceAck, r.localErr = 0, 0, 0
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
	q.noteOnce(Event{Kind: NoteRNRTimer, Code: code, Wait: wait})
	if !q.mayWait() {
		q.cfg.Counters.RetryRNRExceededErr++
		q.event(Event{Kind: NoteRNRRetryExceeded, PSN: r.una, Count: int(q.attr.RNRRetry), Code: code, Wait: wait})
		q.failHead(cq.RNRRetryExcErr)
		return
	}
	if q.attr.RNRRetry != rnrForever {
		r.rnrLeft--
	}
	// The peer answered: it is there.
	r.retries = q.attr.RetryCnt
	q.stats.RNRWait += wait
	q.goBack()
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
	q.retry()
}
