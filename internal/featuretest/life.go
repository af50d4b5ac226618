package featuretest

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/pkg/verbs"
)

// life are the states of a queue pair.
var life = []Case{
	{"qp-sqd", drainCase},
	{"qp-sqd-attributes", sqdAttributesCase},
	{"qp-err-flush", flushCase},
	{"qp-reset-reuse", reuseCase},
	{"qp-query", queryCase},
	{"qp-illegal-transition", illegalCase},
	{"qp-states-posting", postingCase},
	{"qp-rts-attributes", rtsAttributesCase},
}

func (e *end) modify(attr verbs.QPAttr, mask verbs.QPAttrMask) {
	e.t.Helper()
	e.must(e.qp.Modify(&attr, mask))
}

// drainCase: SQD finishes what began, starts nothing, and RTS goes on.
func drainCase(a, b *end) {
	connect(a, b, verbs.RC)
	a.do(a.rdma(verbs.WRRDMAWrite, b, 0, 64))
	a.modify(verbs.QPAttr{State: verbs.StateSQD, EnSQDAsyncNotify: true}, verbs.QPStateMask|verbs.QPEnSQDAsyncNotifyMask)
	if ev := a.event(verbs.EventSQDrained); ev.QP != a.qp {
		a.t.Errorf("event %+v, want the queue pair's", ev)
	}
	want := a.fill(0, 100, 1)
	wr := a.rdma(verbs.WRRDMAWrite, b, 1000, 100)
	wr.WRID, wr.Flags = 5, verbs.SendSignaled
	a.post(wr)
	b.qp2way(a)
	a.none()
	a.modify(verbs.QPAttr{State: verbs.StateRTS}, verbs.QPStateMask)
	a.next(5, verbs.WCSuccess)
	b.same(1000, want)
}

// qp2way has the other end's responder answer once, so that its worker has had
// its turn.
func (e *end) qp2way(to *end) {
	e.t.Helper()
	e.do(e.rdma(verbs.WRRDMARead, to, 0, 8))
}

func sqdAttributesCase(a, b *end) {
	connect(a, b, verbs.RC)
	a.modify(verbs.QPAttr{State: verbs.StateSQD}, verbs.QPStateMask)
	a.modify(verbs.QPAttr{Timeout: 10, RetryCnt: 3, RNRRetry: 2}, verbs.QPTimeoutMask|verbs.QPRetryCntMask|verbs.QPRNRRetryMask)
	a.modify(verbs.QPAttr{State: verbs.StateRTS}, verbs.QPStateMask)
	attr, err := a.qp.Query()
	a.must(err)
	if attr.Timeout != 10 || attr.RetryCnt != 3 || attr.RNRRetry != 2 {
		a.t.Errorf("attributes %+v", attr)
	}
	a.do(a.rdma(verbs.WRRDMAWrite, b, 0, 64))
}

func flushCase(a, b *end) {
	connect(a, b, verbs.RC)
	for i := range uint64(3) {
		b.recv(i, 0, 100)
	}
	b.modify(verbs.QPAttr{State: verbs.StateErr}, verbs.QPStateMask)
	for i := range uint64(3) {
		b.next(i, verbs.WCWRFlushErr)
	}
	b.recv(9, 0, 100)
	b.next(9, verbs.WCWRFlushErr)
	wr := b.send(0, 10)
	wr.WRID = 10
	b.post(wr)
	b.next(10, verbs.WCWRFlushErr)
}

func reuseCase(a, b *end) {
	connect(a, b, verbs.RC)
	b.recv(1, 0, 100)
	for _, e := range []*end{a, b} {
		e.modify(verbs.QPAttr{State: verbs.StateReset}, verbs.QPStateMask)
	}
	b.none()
	join(a, b, a.qp, b.qp, verbs.RCConfig{})
	b.recv(2, 0, 100)
	a.do(a.send(0, 10))
	b.next(2, verbs.WCSuccess)
}

func queryCase(a, b *end) {
	a.qp, b.qp = a.newQP(verbs.RC, nil), b.newQP(verbs.RC, nil)
	conf := verbs.RCConfig{MTU: 3, MaxRDAtomic: 4, MinRNRTimer: 9, Timeout: 13, RetryCnt: 5, RNRRetry: 6, TrafficClass: 8, HopLimit: 33}
	join(a, b, a.qp, b.qp, conf)
	got, err := a.qp.Query()
	a.must(err)
	if got.PathMTU != 3 || got.MaxRDAtomic != 4 || got.MaxDestRDAtomic != 4 || got.MinRNRTimer != 9 || got.Timeout != 13 ||
		got.RetryCnt != 5 || got.RNRRetry != 6 || got.DestQPN != b.qp.Num() || got.SQPSN != 0xFFFFF8 || got.RQPSN != 0xFFFFF8 ||
		got.AH.TrafficClass != 8 || got.AH.HopLimit != 33 || got.AH.DGID != b.gid || got.Cap != a.qp.Cap() {
		a.t.Errorf("attributes %+v", got)
	}
}

func illegalCase(a, _ *end) {
	for _, typ := range []verbs.QPType{verbs.RC, verbs.UC, verbs.UD} {
		q := a.newQP(typ, nil)
		for _, to := range []verbs.QPState{verbs.StateRTR, verbs.StateRTS, verbs.StateSQD, verbs.StateSQE, verbs.StateErr} {
			if err := q.Modify(&verbs.QPAttr{State: to}, verbs.QPStateMask); !errors.Is(err, unix.EINVAL) {
				a.t.Errorf("%v from RESET to %v: %v, want EINVAL", typ, to, err)
			}
		}
		a.state(q, verbs.StateReset)
	}
}

func postingCase(a, _ *end) {
	q := a.newQP(verbs.RC, nil)
	_, err := q.PostRecv(verbs.RecvWR{})
	a.refused("a receive in RESET", err)
	a.must(q.ToInit(allAccess))
	_, err = q.PostRecv(verbs.RecvWR{})
	a.must(err)
	_, err = q.PostSend(a.send(0, 10))
	a.refused("a send in INIT", err)
}

func rtsAttributesCase(a, b *end) {
	connect(a, b, verbs.RC)
	a.do(a.rdma(verbs.WRRDMAWrite, b, 0, 64))
	b.modify(verbs.QPAttr{AccessFlags: uint32(verbs.AccessRemoteRead), MinRNRTimer: 3}, verbs.QPAccessFlagsMask|verbs.QPMinRNRTimerMask)
	a.do(a.rdma(verbs.WRRDMARead, b, 0, 64))
	a.fails(a.rdma(verbs.WRRDMAWrite, b, 0, 64), verbs.WCRemInvReqErr)
}
