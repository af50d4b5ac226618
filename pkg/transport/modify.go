package transport

import (
	"time"

	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/qpstate"
)

// Modify changes attributes and state; what m does not name is not looked at.
// path goes with MaskAV. On error nothing changed. Errors: those of
// qpstate.Check, ErrPath, ErrDraining; all are EINVAL.
func (q *QP) Modify(now time.Time, a *qpstate.Attr, m qpstate.Mask, path *Path) error {
	limits := qpstate.Limits{MaxRDAtomic: q.cfg.MaxRDAtomic, MaxDestRDAtomic: q.cfg.MaxRDAtomic}
	next, err := limits.Check(q.cfg.Type, q.state, a, m)
	if err != nil {
		return err
	}
	if m&qpstate.MaskAV != 0 && path == nil {
		return ErrPath
	}
	if q.state == qpstate.SQD && (next == qpstate.SQD || next == qpstate.RTS) && !q.drained() {
		return ErrDraining
	}
	q.forgetTroubles(next)
	if next == qpstate.Reset {
		q.becomeReset()
		return nil
	}
	q.apply(a, m, path)
	if next == q.state {
		return nil
	}
	switch next {
	case qpstate.Init:
		q.state = next
	case qpstate.RTR:
		q.becomeRTR()
	case qpstate.RTS:
		q.becomeRTS()
	case qpstate.SQD:
		q.becomeSQD()
	case qpstate.Err:
		q.trouble(Trouble{Kind: TroubleAskedFor})
		q.becomeErr(false)
	case qpstate.Reset, qpstate.SQE: // RESET was, and nobody asks for SQE
	}
	return nil
}

// apply stores the attributes of m.
func (q *QP) apply(a *qpstate.Attr, m qpstate.Mask, path *Path) {
	t := &q.attr
	for _, f := range [...]struct {
		bit qpstate.Mask
		set func(t, a *qpstate.Attr)
	}{
		{qpstate.MaskEnSQDAsyncNotify, func(t, a *qpstate.Attr) { t.EnSQDAsyncNotify = a.EnSQDAsyncNotify }},
		{qpstate.MaskAccessFlags, func(t, a *qpstate.Attr) { t.AccessFlags = a.AccessFlags }},
		{qpstate.MaskPKeyIndex, func(t, a *qpstate.Attr) { t.PKeyIndex = a.PKeyIndex }},
		{qpstate.MaskPort, func(t, a *qpstate.Attr) { t.PortNum = a.PortNum }},
		{qpstate.MaskQKey, func(t, a *qpstate.Attr) { t.QKey = a.QKey }},
		{qpstate.MaskAV, func(t, a *qpstate.Attr) { t.AH = a.AH }},
		{qpstate.MaskPathMTU, func(t, a *qpstate.Attr) { t.PathMTU = a.PathMTU }},
		{qpstate.MaskTimeout, func(t, a *qpstate.Attr) { t.Timeout = a.Timeout }},
		{qpstate.MaskRetryCnt, func(t, a *qpstate.Attr) { t.RetryCnt = a.RetryCnt }},
		{qpstate.MaskRNRRetry, func(t, a *qpstate.Attr) { t.RNRRetry = a.RNRRetry }},
		{qpstate.MaskRQPSN, func(t, a *qpstate.Attr) { t.RQPSN = a.RQPSN & bth.PSNMask }},
		{qpstate.MaskMaxQPRDAtomic, func(t, a *qpstate.Attr) { t.MaxRDAtomic = a.MaxRDAtomic }},
		{qpstate.MaskAltPath, func(t, a *qpstate.Attr) {
			t.AltAH, t.AltPKeyIndex, t.AltPortNum, t.AltTimeout = a.AltAH, a.AltPKeyIndex, a.AltPortNum, a.AltTimeout
		}},
		{qpstate.MaskMinRNRTimer, func(t, a *qpstate.Attr) { t.MinRNRTimer = a.MinRNRTimer }},
		{qpstate.MaskSQPSN, func(t, a *qpstate.Attr) { t.SQPSN = a.SQPSN & bth.PSNMask }},
		{qpstate.MaskMaxDestRDAtomic, func(t, a *qpstate.Attr) { t.MaxDestRDAtomic = a.MaxDestRDAtomic }},
		{qpstate.MaskDestQPN, func(t, a *qpstate.Attr) { t.DestQPN = a.DestQPN & bth.QPNMask }},
	} {
		if m&f.bit != 0 {
			f.set(t, a)
		}
	}
	if m&qpstate.MaskPathMTU != 0 {
		q.mtu = uint32(a.PathMTU.Bytes())
	}
	if m&qpstate.MaskAV != 0 {
		q.path, q.seeds = *path, seedCache{}
		if q.cfg.Type == qpstate.RC {
			q.joinPeer()
		}
	}
	if m&qpstate.MaskRetryCnt != 0 {
		q.req.retries = a.RetryCnt
	}
	if m&qpstate.MaskRNRRetry != 0 {
		q.req.rnrLeft = a.RNRRetry
	}
	if m&qpstate.MaskMaxQPRDAtomic != 0 {
		q.req.growReads(int(a.MaxRDAtomic))
	}
	if m&qpstate.MaskMaxDestRDAtomic != 0 {
		q.rsp.limitReplays(int(a.MaxDestRDAtomic))
	}
}

// Query fills a with the present attributes. PSNs are those of the next request
// sent and of the next expected.
func (q *QP) Query(a *qpstate.Attr) {
	*a = q.attr
	a.State, a.CurState = q.state, q.state
	a.Cap = q.cfg.Cap
	if q.state >= qpstate.RTR && q.state != qpstate.Err {
		a.RQPSN = q.rsp.expected
	}
	if q.state == qpstate.RTS || q.state == qpstate.SQD || q.state == qpstate.SQE {
		a.SQPSN = q.req.max
	}
	a.SQDraining = q.state == qpstate.SQD && !q.drained()
}

// becomeReset empties both queues without completions and forgets everything
// but what New was given. It takes as many receives as the queue has room for:
// a hostile program posts as fast as they are taken.
func (q *QP) becomeReset() {
	q.state = qpstate.Reset
	q.sq.Reset()
	q.leavePeer()
	q.req = requester{}
	q.rsp.reset(q)
	for n := uint32(0); n < q.cfg.Cap.MaxRecvWR && !q.cfg.SRQ && q.cfg.Recv.TakeRecv(&q.rsp.recv); n++ {
	}
	q.attr, q.path, q.mtu, q.seeds = qpstate.Attr{}, Path{}, 0, seedCache{}
	q.noted, q.events, q.answerNext = 0, nil, false
}

// becomeRTR makes the responder ready.
func (q *QP) becomeRTR() {
	q.state = qpstate.RTR
	q.rsp.start(q.attr.RQPSN)
}

// becomeRTS makes the requester ready; from SQD and SQE it goes on.
func (q *QP) becomeRTS() {
	if q.state == qpstate.RTR {
		q.req.start(q)
	}
	q.state = qpstate.RTS
	q.req.drainTold = false
}

// becomeSQD lets started requests finish and starts no more.
func (q *QP) becomeSQD() {
	q.state = qpstate.SQD
	q.checkDrained()
}

// becomeSQE flushes the send queue after an error in it; the other side goes on
// (IBTA Vol 1 §10.3.1.6). The next request that is sent has the next PSN.
func (q *QP) becomeSQE() {
	q.state = qpstate.SQE
	q.flushSend()
	r := &q.req
	r.una, r.max, r.headPSN, r.curPSN = r.nxt, r.nxt, r.nxt, r.nxt
	r.cur, r.localErr = 0, 0
}

// becomeErr flushes both queues, in order. answers: what the responder still
// has to say, a NAK above all, is sent before it falls silent.
func (q *QP) becomeErr(answers bool) {
	q.state = qpstate.Err
	q.req.stop()
	q.leavePeer()
	if !answers {
		q.rsp.dropAnswers()
	}
	q.flushSend()
	q.flushRecv()
	if q.cfg.SRQ {
		q.event(Event{Kind: LastWQE})
	}
}

// drained says whether no started send request is unfinished.
func (q *QP) drained() bool {
	r := &q.req
	return r.una == r.max && r.nxt == r.curPSN
}

// checkDrained raises SQDrained once when it is due (IBTA Vol 1 §10.3.1.5).
func (q *QP) checkDrained() {
	if q.state == qpstate.SQD && !q.req.drainTold && q.drained() {
		q.req.drainTold = true
		if q.attr.EnSQDAsyncNotify {
			q.event(Event{Kind: SQDrained})
		}
	}
}
