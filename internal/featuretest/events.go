package featuretest

import "github.com/softroce/softroce/pkg/verbs"

// events are asynchronous events; those of SRQs and SQD are with their cases.
var events = []Case{
	{"event-comm-est", commEstCase},
	{"event-qp-req-err", requestErrCase},
	{"event-qp-access-err", accessErrCase},
	{"event-cq-err", overflowCase},
}

// commEstCase: the first packet comes in RTR.
func commEstCase(a, b *end) {
	a.qp, b.qp = a.newQP(verbs.RC, nil), b.newQP(verbs.RC, nil)
	a.must(a.qp.Connect(b.id(b.qp), verbs.RCConfig{PSN: 0xFFFFF8}))
	b.must(b.qp.ToInit(allAccess))
	attr := verbs.QPAttr{
		State: verbs.StateRTR, PathMTU: 3, DestQPN: a.qp.Num(), RQPSN: 0xFFFFF8, MaxDestRDAtomic: 1, MinRNRTimer: 12,
		AH: verbs.AHAttr{DGID: a.gid, IsGlobal: true, PortNum: 1, HopLimit: 64},
	}
	b.modify(attr, verbs.QPStateMask|verbs.QPAVMask|verbs.QPPathMTUMask|verbs.QPDestQPNMask|verbs.QPRQPSNMask|
		verbs.QPMaxDestRDAtomicMask|verbs.QPMinRNRTimerMask)
	a.do(a.rdma(verbs.WRRDMAWrite, b, 0, 64))
	if ev := b.event(verbs.EventCommEst); ev.QP != b.qp {
		b.t.Errorf("event %+v, want the queue pair's", ev)
	}
}

// requestErrCase: a READ to a queue pair that allows none.
func requestErrCase(a, b *end) {
	a.qp, b.qp = a.newQP(verbs.RC, nil), b.newQP(verbs.RC, nil)
	join(a, b, a.qp, b.qp, verbs.RCConfig{})
	wr := a.rdma(verbs.WRAtomicFetchAdd, b, 0, 8)
	b.modify(verbs.QPAttr{AccessFlags: uint32(verbs.AccessRemoteWrite)}, verbs.QPAccessFlagsMask)
	a.fails(wr, verbs.WCRemInvReqErr)
	if ev := b.event(verbs.EventQPReqErr); ev.QP != b.qp {
		b.t.Errorf("event %+v, want the queue pair's", ev)
	}
	b.ends(b.qp)
}

func accessErrCase(a, b *end) {
	connect(a, b, verbs.RC)
	a.writeTo(b.mr.RKey()^0x100, b.mr.Addr(), 10, verbs.WCRemAccessErr)
	if ev := b.event(verbs.EventQPAccessErr); ev.QP != b.qp {
		b.t.Errorf("event %+v, want the queue pair's", ev)
	}
	b.ends(b.qp)
}

// overflowCase: a queue that nobody polls fills up.
func overflowCase(a, b *end) {
	cq, err := a.dev.CreateCQ(4, nil, 0)
	a.must(err)
	a.cq = cq
	connect(a, b, verbs.RC)
	for range 2 * cq.Cap() {
		wr := a.rdma(verbs.WRRDMAWrite, b, 0, 64)
		wr.Flags = verbs.SendSignaled
		a.post(wr)
	}
	if ev := a.event(verbs.EventCQErr); ev.CQ != cq {
		a.t.Errorf("event %+v, want the queue's", ev)
	}
	a.event(verbs.EventQPFatal)
}
