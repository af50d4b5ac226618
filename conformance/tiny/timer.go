package tiny

import (
	"time"

	"github.com/softroce/softroce/pkg/bth"
)

// ackTimeout is when the local ACK timer fires: between T and 4 T (IBTA Vol 1 §9.7.6.1.3).
func (q *qp) ackTimeout() time.Duration {
	t := q.t
	d := bth.AckTimeout(uint8(q.timeout))
	switch {
	case t.broken("timer-early"):
		return d / 4
	case t.broken("timer-late"):
		return d * 20
	}
	return d + d/4
}

// startTimer starts the local ACK timer when it should run and does not.
func (q *qp) startTimer() {
	t := q.t
	if q.typ != "RC" {
		return
	}
	waiting := q.una != q.sent && q.state != "ERR" && q.state != "RESET"
	if !waiting || !q.rnrUntil.IsZero() || q.timeout == 0 && !t.broken("timeout-zero-fires") {
		q.ackBy = time.Time{}
		return
	}
	if q.ackBy.IsZero() {
		d := q.ackTimeout()
		if q.timeout == 0 {
			d = 20 * time.Millisecond
		}
		q.ackBy = time.Now().Add(d)
	}
}

// expire runs the timers that are due.
func (q *qp) expire(now time.Time) {
	if !q.rnrUntil.IsZero() && !now.Before(q.rnrUntil) {
		q.rnrUntil = time.Time{}
		q.pump()
	}
	if q.ackBy.IsZero() || now.Before(q.ackBy) {
		return
	}
	q.ackBy = time.Time{}
	q.retry(q.una)
}

// retry goes back to psn, if there is a try left (IBTA Vol 1 §9.7.6.1.2).
func (q *qp) retry(psn bth.PSN) {
	t := q.t
	left := q.retries
	if t.broken("retry-one-less") {
		left--
	}
	if left <= 0 && !(t.broken("retry-one-more") && left == 0 && !q.implied) {
		q.fail(q.owner(q.una), "RETRY_EXC_ERR")
		return
	}
	if left == 0 {
		q.implied = true // of "retry-one-more": once
	}
	if !t.broken("retry-forever") {
		q.retries--
	}
	q.cursor = psn
	q.pump()
}
