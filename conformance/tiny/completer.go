package tiny

import (
	"encoding/binary"
	"time"

	"github.com/softroce/softroce/pkg/bth"
)

// response takes an acknowledgement or a response (IBTA Vol 1 §9.7.5).
func (q *qp) response(p *packet) {
	t, psn := q.t, p.psn()
	if q.una == q.sent && !t.broken("stale-ack-kills") && !t.broken("ghost-ack-kills") && !t.broken("duplicate-ack-kills") {
		return
	}
	switch {
	case psn.Before(q.una):
		if t.broken("stale-ack-kills") || t.broken("duplicate-ack-kills") && psn == q.una.Add(uint32(bth.PSNMask)) {
			q.die()
		}
		return
	case !psn.Before(q.sent):
		switch {
		case t.broken("ghost-ack-kills"):
			q.die()
		case t.broken("ghost-ack-completes") && q.una != q.sent:
			q.acknowledge(q.sent.Add(uint32(bth.PSNMask)))
		}
		return
	}
	switch op := p.Info.Op; {
	case op == bth.OpAck:
		q.aethResponse(p, psn)
	case op == bth.OpReadResponse:
		q.readData(p, psn)
	case op == bth.OpAtomicAck:
		q.atomicData(p, psn)
	}
	if q.state == "RTS" || q.state == "SQD" {
		q.finish()
		q.pump()
	}
}

// die is what a break does with a packet that it should have ignored.
func (q *qp) die() {
	if w := q.owner(q.una); w != nil {
		q.fail(w, "BAD_RESP_ERR")
		return
	}
	q.toError()
}

// aethResponse takes an ACK, an RNR NAK or a NAK.
func (q *qp) aethResponse(p *packet, psn bth.PSN) {
	t, s := q.t, p.h.AETH.Syndrome
	switch {
	case s.IsACK():
		if t.broken("msn-checked") && p.h.AETH.MSN != q.expectedMSN(psn) {
			return
		}
		if n, ok := s.Credits(); t.broken("credit-zero-stops") && ok && n == 0 {
			q.rnrUntil = time.Now().Add(time.Hour)
		}
		q.acknowledge(psn)
	case s.IsRNR():
		if q.acknowledgeBefore(psn) {
			q.rnrWait(psn, s.RNRTimer())
		}
	case s == bth.NAKSequence:
		q.sequenceNAK(psn)
	default:
		status := map[bth.Syndrome]string{
			bth.NAKInvalidRequest: "REM_INV_REQ_ERR", bth.NAKRemoteAccess: "REM_ACCESS_ERR", bth.NAKRemoteOperational: "REM_OP_ERR",
		}[s]
		if status == "" {
			status = "BAD_RESP_ERR"
		}
		if q.naksWrong(s) {
			return
		}
		if t.broken("nak-status-wrong") {
			status = "RETRY_EXC_ERR"
		}
		if q.acknowledgeBefore(psn) {
			w := q.owner(psn)
			if t.broken("nak-fails-newest") {
				w = q.owner(q.sent.Add(uint32(bth.PSNMask)))
			}
			q.fail(w, status)
		}
	}
}

// naksWrong holds the breaks that do not take a NAK for one.
func (q *qp) naksWrong(s bth.Syndrome) bool {
	t := q.t
	switch {
	case t.broken("nak-invalid-ignored") && s == bth.NAKInvalidRequest,
		t.broken("nak-access-ignored") && s == bth.NAKRemoteAccess,
		t.broken("nak-operational-ignored") && s == bth.NAKRemoteOperational,
		t.broken("reserved-syndrome-ignored") && s.IsReserved():
		return true
	}
	return false
}

// expectedMSN is how many messages the ACK of psn ends.
func (q *qp) expectedMSN(psn bth.PSN) (n uint32) {
	for _, w := range q.sq {
		if w.started && !w.last().After(psn) {
			n++
		}
	}
	return q.doneMSN + n
}

// progress reloads what counts failures.
func (q *qp) progress(una bth.PSN) {
	if una == q.una {
		return
	}
	q.una = una
	if q.cursor.Before(una) {
		q.cursor = una
	}
	if !q.t.broken("retries-not-reloaded") {
		q.retries, q.rnrs = q.retryCnt, q.rnrRetry
	}
	q.ackBy, q.implied = time.Time{}, false
}

// acknowledge takes every request packet up to psn for received. It stops at a READ or atomic without its response: that
// is an implied NAK. False: it stopped.
func (q *qp) acknowledge(psn bth.PSN) bool {
	t := q.t
	for _, w := range q.sq {
		if !w.started || w.done || w.n == 0 {
			continue
		}
		if w.first.After(psn) {
			break
		}
		if t.broken("ack-completes-one") && !w.owns(psn) {
			continue
		}
		if w.fetches() && !t.broken("ack-completes-read") {
			q.impliedNAK(w)
			return false
		}
		if w.last().After(psn) && !t.broken("partial-ack-completes") {
			break
		}
		w.done = true
	}
	q.progress(psn.Add(1))
	return true
}

// acknowledgeBefore does so with what lies before psn.
func (q *qp) acknowledgeBefore(psn bth.PSN) bool {
	if psn == q.una || q.t.broken("nak-acks-nothing") {
		return true
	}
	return q.acknowledge(psn.Add(uint32(bth.PSNMask)))
}

// impliedNAK goes back to a READ or atomic whose response must be lost, once.
func (q *qp) impliedNAK(w *wqe) {
	una := w.first.Add(w.got)
	q.progress(una)
	if q.implied {
		return
	}
	q.retry(una)
	q.implied = true
}

// rnrWait waits as long as an RNR NAK says, then sends again from psn (IBTA Vol 1 §9.7.5.2.8).
func (q *qp) rnrWait(psn bth.PSN, timer uint8) {
	t := q.t
	left := q.rnrs
	if t.broken("rnr-one-more") {
		left++
	}
	if t.broken("rnr-seven-counts") && left == 7 && q.rnrRetry == 7 {
		q.rnrRetry, q.rnrs, left = 5, 5, 5
	}
	if q.rnrRetry != 7 {
		if left <= 0 {
			q.fail(q.owner(psn), "RNR_RETRY_EXC_ERR")
			return
		}
		q.rnrs--
	}
	d := bth.RNRTimerDuration(timer)
	switch {
	case t.broken("rnr-at-once"):
		d = 0
	case t.broken("rnr-zero-short") && timer == 0:
		d = 10 * time.Microsecond
	}
	q.cursor = psn
	q.ackBy = time.Time{}
	q.rnrUntil = time.Now().Add(d)
}

// sequenceNAK goes back to psn at once.
func (q *qp) sequenceNAK(psn bth.PSN) {
	t := q.t
	if t.broken("sequence-nak-ignored") {
		return
	}
	if !q.acknowledgeBefore(psn) {
		return
	}
	if !q.rnrUntil.IsZero() {
		if !t.broken("rnr-cut-by-nak") {
			return
		}
		q.rnrUntil = time.Time{}
	}
	q.ackBy = time.Time{}
	switch {
	case t.broken("sequence-nak-not-counted"):
		q.retries++
	case t.broken("sequence-nak-resends-next"):
		psn = psn.Add(1)
	case t.broken("sequence-nak-twice"):
		q.retry(psn)
		q.retries++
	}
	q.retry(psn)
}

// fetching finds the oldest READ or atomic that waits for its response.
func (q *qp) fetching() *wqe {
	for _, w := range q.sq {
		if w.started && !w.done && w.fetches() {
			return w
		}
	}
	return nil
}

// expected checks that a response belongs to the oldest READ or atomic and is the next of it. It acknowledges what is before.
func (q *qp) expected(psn bth.PSN, read bool) *wqe {
	t, w := q.t, q.fetching()
	own := q.owner(psn)
	if own == nil || !own.fetches() || w == nil {
		if !t.broken("response-for-send-ignored") {
			q.fail(q.owner(psn), "BAD_RESP_ERR")
		}
		return nil
	}
	next := w.first.Add(w.got)
	if psn.Before(next) {
		return nil
	}
	if own != w || psn != next {
		if t.broken("read-gap-accepted") && own == w {
			w.got = uint32(psn.Sub(w.first))
			return w
		}
		if t.broken("read-gap-restarts") {
			w.got = 0
		}
		q.acknowledgeBefore(next)
		q.impliedNAK(w)
		return nil
	}
	if isRead := w.wr.Op != "ATOMIC_CMP_AND_SWP" && w.wr.Op != "ATOMIC_FETCH_AND_ADD"; isRead != read {
		q.fail(w, "BAD_RESP_ERR")
		return nil
	}
	if psn != q.una && !t.broken("read-acks-nothing") {
		q.acknowledgeBefore(psn)
	}
	return w
}

// readData takes a READ response packet.
func (q *qp) readData(p *packet, psn bth.PSN) {
	t := q.t
	if p.Has(bth.HasAETH) && !p.h.AETH.Syndrome.IsACK() {
		return
	}
	w := q.expected(psn, true)
	if w == nil || !q.resumes(p, w) {
		return
	}
	off := w.got * uint32(q.mtu)
	want := min(w.length-off, uint32(q.mtu))
	ends := p.Info.Position.Ends()
	if t.broken("read-length-ignored") && ends {
		want = uint32(len(p.Payload))
		w.got = w.n - 1
	}
	if uint32(len(p.Payload)) != want || ends != (w.got == w.n-1) {
		q.fail(w, "BAD_RESP_ERR")
		return
	}
	if err := q.scatter(w.wr.SGEs, uint64(off), p.Payload); err != nil {
		q.fail(w, "LOC_PROT_ERR")
		return
	}
	w.got++
	if w.got == w.n {
		w.done = true
	}
	q.progress(psn.Add(1))
}

// resumes holds the breaks about how a response goes on after a retry.
func (q *qp) resumes(p *packet, w *wqe) bool {
	begins := p.Info.Position.Begins()
	switch {
	case q.t.broken("read-restart-refused") && w.got > 0 && begins,
		q.t.broken("read-continuation-refused") && w.got > 0 && !begins && w.resumed:
		q.fail(w, "BAD_RESP_ERR")
		return false
	}
	return true
}

// atomicData takes an Atomic ACK.
func (q *qp) atomicData(p *packet, psn bth.PSN) {
	w := q.expected(psn, false)
	if w == nil {
		return
	}
	b := binary.LittleEndian.AppendUint64(nil, p.h.AtomicAckETH.Original)
	if q.t.broken("atomic-result-swapped") {
		reverse(b)
	}
	if err := q.scatter(w.wr.SGEs, 0, b); err != nil {
		q.fail(w, "LOC_PROT_ERR")
		return
	}
	w.got, w.done = 1, true
	q.progress(psn.Add(1))
}
