package featuretest

import "github.com/softroce/softroce/pkg/verbs"

// shared are shared receive queues.
var shared = []Case{
	{"srq-rc", srqRCCase},
	{"srq-ud", srqUDCase},
	{"srq-limit", srqLimitCase},
	{"srq-resize", srqResizeCase},
	{"srq-last-wqe", srqLastCase},
	{"srq-destroy-busy", srqBusyCase},
}

func (e *end) newSRQ(maxWR uint32) *verbs.SRQ {
	e.t.Helper()
	s, err := e.pd.CreateSRQ(verbs.SRQAttr{MaxWR: maxWR, MaxSGE: 2})
	e.must(err)
	return s
}

func (e *end) srqRecv(s *verbs.SRQ, wrid uint64, off, n int) {
	e.t.Helper()
	_, err := s.PostRecv(verbs.RecvWR{WRID: wrid, SGList: []verbs.SGE{e.mr.SGE(off, n)}})
	e.must(err)
}

func (e *end) onSRQ(typ verbs.QPType, s *verbs.SRQ) *verbs.QP {
	e.t.Helper()
	return e.newQP(typ, func(init *verbs.QPInitAttr) { init.SRQ = s })
}

// srqRCCase: two connections take from one queue, in order.
func srqRCCase(a, b *end) {
	s := b.newSRQ(16)
	a.qp = a.newQP(verbs.RC, nil)
	first, second := a.qp, a.newQP(verbs.RC, nil)
	b1, b2 := b.onSRQ(verbs.RC, s), b.onSRQ(verbs.RC, s)
	join(a, b, first, b1, verbs.RCConfig{})
	join(a, b, second, b2, verbs.RCConfig{})
	_, err := b1.PostRecv(verbs.RecvWR{})
	b.refused("a receive of a queue pair with an SRQ", err)
	for i := range uint64(4) {
		b.srqRecv(s, i, int(i)*long, long)
	}
	for i := range uint64(4) {
		a.qp = []*verbs.QP{first, second}[i%2]
		want := a.fill(0, long, int(i))
		a.do(a.send(0, long))
		if wc := b.next(i, verbs.WCSuccess); wc.QPN != []*verbs.QP{b1, b2}[i%2].Num() {
			b.t.Errorf("request %d was taken by %v", i, wc.QPN)
		}
		b.same(int(i)*long, want)
	}
}

func srqUDCase(a, b *end) {
	h := ready(a, b)
	s := b.newSRQ(4)
	b.qp = b.onSRQ(verbs.UD, s)
	b.must(b.qp.ReadyUD(qkey, 1))
	b.srqRecv(s, 1, 0, 1000)
	want := a.fill(0, 100, 1)
	a.do(a.to(b, h, a.send(0, 100)))
	b.received(b.next(1, verbs.WCSuccess), verbs.WCRecv, verbs.GRHSize+100, false)
	b.same(verbs.GRHSize, want)
}

// rcOnSRQ connects a to a queue pair of b over an SRQ.
func rcOnSRQ(a, b *end, maxWR uint32) *verbs.SRQ {
	s := b.newSRQ(maxWR)
	a.qp, b.qp = a.newQP(verbs.RC, nil), b.onSRQ(verbs.RC, s)
	join(a, b, a.qp, b.qp, verbs.RCConfig{})
	return s
}

func srqLimitCase(a, b *end) {
	s := rcOnSRQ(a, b, 8)
	for i := range uint64(4) {
		b.srqRecv(s, i, 0, 100)
	}
	b.must(s.Modify(verbs.SRQAttr{Limit: 3}, verbs.SRQLimitMask))
	a.do(a.send(0, 10)) // 3 are left
	if attr, err := s.Query(); err != nil || attr.Limit != 3 {
		b.t.Errorf("limit %d, %v, want 3: not below it yet", attr.Limit, err)
	}
	a.do(a.send(0, 10))
	if ev := b.event(verbs.EventSRQLimitReached); ev.SRQ != s {
		b.t.Errorf("event %+v, want the queue's", ev)
	}
	if attr, err := s.Query(); err != nil || attr.Limit != 0 {
		b.t.Errorf("limit %d, %v, want 0 after the event", attr.Limit, err)
	}
}

func srqResizeCase(a, b *end) {
	s := rcOnSRQ(a, b, 4)
	for i := range uint64(4) {
		b.srqRecv(s, i, int(i)*100, 100)
	}
	b.refused("fewer than wait", s.Modify(verbs.SRQAttr{MaxWR: 2}, verbs.SRQMaxWRMask))
	b.must(s.Modify(verbs.SRQAttr{MaxWR: 64}, verbs.SRQMaxWRMask))
	for i := uint64(4); i < 40; i++ {
		b.srqRecv(s, i, int(i)*100, 100)
	}
	for i := range uint64(40) {
		want := a.fill(0, 100, int(i))
		a.do(a.send(0, 100))
		b.next(i, verbs.WCSuccess)
		b.same(int(i)*100, want)
	}
}

// srqLastCase: ERR leaves in the queue what was not taken, and says so.
func srqLastCase(a, b *end) {
	s := rcOnSRQ(a, b, 4)
	b.srqRecv(s, 1, 0, 100)
	b.must(b.qp.Modify(&verbs.QPAttr{State: verbs.StateErr}, verbs.QPStateMask))
	if ev := b.event(verbs.EventQPLastWQE); ev.QP != b.qp {
		b.t.Errorf("event %+v, want the queue pair's", ev)
	}
	b.none()
	b.must(b.qp.Destroy())
	a.qp, b.qp = a.newQP(verbs.RC, nil), b.onSRQ(verbs.RC, s)
	join(a, b, a.qp, b.qp, verbs.RCConfig{})
	a.do(a.send(0, 10))
	b.next(1, verbs.WCSuccess)
}

func srqBusyCase(a, b *end) {
	s := rcOnSRQ(a, b, 4)
	b.refused("to destroy a queue in use", s.Destroy())
	b.must(b.qp.Destroy())
	b.must(s.Destroy())
}
