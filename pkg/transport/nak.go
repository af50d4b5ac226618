package transport

import (
	"time"

	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/qpstate"
)

// answers are what the responder has to say beside READ responses and atomic
// acknowledgements. They wait here until PollTransmit: a burst of requests gets
// one ACK, for the newest.
type answers struct {
	ack    bool
	nak    bth.Syndrome // 0: none
	nakPSN bth.PSN      // of a fatal NAK
}

// acknowledges says whether an ACK or a NAK waits.
func (r *responder) acknowledges() bool { return r.answers.ack || r.answers.nak != 0 }

// hasAnswers says whether anything waits to be answered.
func (r *responder) hasAnswers() bool { return r.acknowledges() || r.replays.waiting > 0 }

// dropAnswers makes the responder silent.
func (r *responder) dropAnswers() {
	r.answers = answers{}
	r.replays.cancel()
}

// gap takes a request beyond the expected PSN: one NAK for a gap, and nothing
// more before the missing packet came (IBTA Vol 1 §9.7.5.2.3). While an RNR NAK
// for that packet stands, the requester has been told already.
func (q *QP) gap(now time.Time, psn bth.PSN) Verdict {
	r := &q.rsp
	q.cfg.Counters.OutOfSeqRequest++
	r.oosPSN = psn
	if r.rnrTold {
		if r.rnrUntil.IsZero() || now.Before(r.rnrUntil) {
			return DropWaiting
		}
		r.rnrTold = false
	}
	if r.gapTold {
		return DropWaiting
	}
	r.gapTold = true
	r.answers.nak = bth.NAKSequence
	return OutOfSequence
}

// expectedCame clears what was said about the expected packet. A sequence NAK
// that did not leave yet stands: what came behind the gap was dropped, and the
// NAK will name the PSN expected then.
func (q *QP) expectedCame() {
	r := &q.rsp
	switch {
	case r.answers.nak.IsRNR():
		r.answers.nak = 0
	case r.answers.nak == 0:
		r.gapTold = false
	}
	r.rnrTold, r.rnrUntil = false, time.Time{}
}

// tellNotReady queues an RNR NAK for the expected packet, one for each try.
func (q *QP) tellNotReady() {
	r := &q.rsp
	r.answers.nak = bth.RNRSyndrome(q.attr.MinRNRTimer)
	r.rnrTold, r.gapTold = true, false
}

// duplicate takes a request that was executed before (IBTA Vol 1 §9.7.5.1.4,
// C9-105, C9-106): it is answered again, never refused, and changes nothing.
func (q *QP) duplicate(psn bth.PSN, p *Packet) Verdict {
	q.cfg.Counters.DuplicateRequest++
	q.stats.Duplicates++
	again := operations[p.Info.Op].again
	if again == nil {
		return DropDuplicate
	}
	return again(q, psn, p)
}

// acknowledgeAgain answers a duplicate SEND or WRITE, asked to or not.
func (q *QP) acknowledgeAgain(bth.PSN, *Packet) Verdict {
	q.rsp.answers.ack = true
	return Duplicate
}

// pollResponse builds the next answer. Answers leave in the order of their PSNs:
// an ACK waits for READ responses and atomic acknowledgements of requests
// before it, a NAK for all.
func (q *QP) pollResponse(now time.Time, buf []byte) (int, Transmit) {
	r := &q.rsp
	for {
		s := r.replays.pending()
		if r.answers.ack && r.answers.nak == 0 && (s == nil || r.newest.Before(s.next)) {
			r.answers.ack = false
			return q.buildAck(buf, bth.AckNoCredit, r.newest)
		}
		if s == nil {
			break
		}
		if n, tx, ok := q.pollReplay(s, buf); ok {
			return n, tx
		}
	}
	if r.answers.nak == 0 {
		return 0, Transmit{}
	}
	return q.pollNAK(now, buf)
}

// pollNAK builds the NAK that waits; it acknowledges all before it.
func (q *QP) pollNAK(now time.Time, buf []byte) (int, Transmit) {
	r := &q.rsp
	s, psn := r.answers.nak, r.expected
	r.answers.nak = 0
	c := q.cfg.Counters
	switch {
	case s.IsRNR():
		r.rnrUntil = now.Add(bth.RNRTimerDuration(s.RNRTimer()))
		c.SendRNRErr++
		q.stats.RNRNAKsSent++
		if s.RNRTimer() == 0 {
			q.noteOnce(Event{Kind: NoteLongRNRTimer, Wait: bth.RNRTimerDuration(0)})
		}
	case s == bth.NAKSequence:
		if r.oosPSN.Before(psn) {
			// Everything came in the meantime.
			r.gapTold = false
			return q.pollResponse(now, buf)
		}
		c.SendSeqErr++
		c.SentNAKs[s.NAKCode()]++
		q.stats.SeqNAKsSent++
	default:
		psn = r.answers.nakPSN
		c.SentNAKs[s.NAKCode()]++
	}
	r.answers.ack = false
	q.past().NAKSent = NAK{s, psn, now}
	return q.buildAck(buf, s, psn)
}

// pollReplay builds the next response of s, the oldest that has one to send. It
// reports false when there is none after all: its memory is gone.
func (q *QP) pollReplay(s *replay, buf []byte) (int, Transmit, bool) {
	var n int
	var tx Transmit
	var err error
	if s.op == bth.OpReadRequest {
		n, tx, err = q.buildReadResponse(s, buf)
	} else {
		n, tx = q.buildAtomicAck(s, buf)
	}
	if err != nil {
		q.replayFailed(s)
		return 0, tx, false
	}
	s.next = s.next.Add(1)
	if s.next == s.end {
		q.rsp.replays.done(s)
	}
	if tx.Resend {
		q.cfg.Counters.Replays++
	}
	return n, tx, true
}

// replayFailed ends a READ whose memory cannot be read any more. The first time
// it is answered with a NAK; a repetition is dropped, since a duplicate is never
// refused.
func (q *QP) replayFailed(s *replay) {
	r := &q.rsp
	psn, again := s.next, s.again
	r.replays.done(s)
	if again || q.state == qpstate.Err {
		return
	}
	r.dropAnswers()
	r.answers.nak, r.answers.nakPSN = bth.NAKRemoteAccess, psn
	q.event(Event{Kind: QPAccessErr})
	q.trouble(Trouble{Kind: TroubleReplay, Syndrome: bth.NAKRemoteAccess, PSN: psn})
	q.becomeErr(true)
}

// aeth appends an AETH.
func (q *QP) aeth(b []byte, s bth.Syndrome, msn uint32) []byte {
	h := bth.AETHFields{Syndrome: s, MSN: msn}
	return h.Append(b)
}

// buildAck builds an Acknowledge packet with any syndrome.
func (q *QP) buildAck(buf []byte, s bth.Syndrome, psn bth.PSN) (int, Transmit) {
	b := q.header(buf[:0], bth.RCAcknowledge, psn, 0, false, false)
	b = q.aeth(b, s, q.rsp.msn)
	_, reg := q.body(b, 0)
	n, icrc := seal(buf, len(b), 0, reg)
	return n, Transmit{ICRC: icrc, Opcode: bth.RCAcknowledge, PSN: psn}
}
