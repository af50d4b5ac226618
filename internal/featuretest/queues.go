package featuretest

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/pkg/verbs"
)

// queues are completion queues and channels.
var queues = []Case{
	{"cq-resize", resizeCase},
	{"cq-extended-polling", extendedCase},
	{"cq-vectors", vectorsCase},
	{"cq-shared-channel", channelCase},
	{"cq-solicited", solicitedCase},
	{"list-resources", resourcesCase},
	{"list-counters", countersCase},
}

// resizeCase: completions that wait are kept, and there is room for more.
func resizeCase(a, b *end) {
	cq, err := a.dev.CreateCQ(4, nil, 0)
	a.must(err)
	a.cq = cq
	connect(a, b, verbs.RC)
	write := func(id uint64) {
		wr := a.rdma(verbs.WRRDMAWrite, b, 0, 64)
		wr.WRID, wr.Flags = id, verbs.SendSignaled
		a.post(wr)
	}
	for id := range uint64(3) {
		write(id)
	}
	a.next(0, verbs.WCSuccess)
	a.must(cq.Resize(64))
	if cq.Cap() < 64 {
		a.t.Errorf("room for %d, want 64", cq.Cap())
	}
	for id := uint64(3); id < 40; id++ {
		write(id)
	}
	for id := uint64(1); id < 40; id++ {
		a.next(id, verbs.WCSuccess)
	}
	a.refused("no entries at all", cq.Resize(0))
}

func extendedCase(a, b *end) {
	cq, err := a.dev.CreateCQEx(&verbs.CQInitAttrEx{
		CQE: 16, WCFlags: verbs.WCExWithByteLen | verbs.WCExWithQPNum | verbs.WCExWithCompletionTimestamp,
	})
	a.must(err)
	a.cq = cq
	connect(a, b, verbs.RC)
	if err := cq.StartPoll(); !errors.Is(err, unix.ENOENT) {
		a.t.Fatalf("an empty queue: %v, want ENOENT", err)
	}
	for id := range uint64(2) {
		wr := a.rdma(verbs.WRRDMARead, b, 0, 100)
		wr.WRID, wr.Flags = id, verbs.SendSignaled
		a.post(wr)
	}
	a.eventually("a completion is there", func() bool { return cq.StartPoll() == nil })
	first := cq.ReadCompletionTS()
	if cq.ReadWRID() != 0 || cq.ReadByteLen() != 100 || cq.ReadQPNum() != a.qp.Num() || first == 0 {
		a.t.Errorf("request %d, %d bytes, %v, time %d", cq.ReadWRID(), cq.ReadByteLen(), cq.ReadQPNum(), first)
	}
	a.eventually("the second is there", func() bool { return cq.NextPoll() == nil })
	if cq.ReadWRID() != 1 || cq.ReadCompletionTS() < first {
		a.t.Errorf("request %d at %d, after %d", cq.ReadWRID(), cq.ReadCompletionTS(), first)
	}
	if err := cq.NextPoll(); !errors.Is(err, unix.ENOENT) {
		a.t.Errorf("no more: %v, want ENOENT", err)
	}
	cq.EndPoll()
	_, err = a.dev.CreateCQEx(&verbs.CQInitAttrEx{CQE: 16, WCFlags: verbs.WCExWithCVLAN})
	if !errors.Is(err, unix.EOPNOTSUPP) {
		a.t.Errorf("completions with a VLAN: %v, want EOPNOTSUPP", err)
	}
}

func vectorsCase(a, b *end) {
	n := a.dev.NumCompVectors()
	if n < 1 {
		a.t.Fatalf("%d completion vectors", n)
	}
	for v := range n {
		cq, err := a.dev.CreateCQ(16, nil, v)
		a.must(err)
		a.cq = cq
		connect(a, b, verbs.RC)
		a.do(a.rdma(verbs.WRRDMAWrite, b, 0, 64))
	}
	_, err := a.dev.CreateCQ(16, nil, n)
	a.refused("a vector too many", err)
}

// armed makes a queue with a channel.
func (e *end) armed(ch *verbs.CompChannel, solicited bool) *verbs.CQ {
	e.t.Helper()
	cq, err := e.dev.CreateCQ(16, ch, 0)
	e.must(err)
	e.must(cq.ReqNotify(solicited))
	return cq
}

func (e *end) get(ch *verbs.CompChannel) *verbs.CQ {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cq, err := ch.Get(ctx)
	e.must(err)
	cq.AckEvents(1)
	return cq
}

// channelCase: one channel tells of two queues.
func channelCase(a, b *end) {
	ch, err := a.dev.CreateCompChannel()
	a.must(err)
	for _, cq := range []*verbs.CQ{a.armed(ch, false), a.armed(ch, false)} {
		a.cq = cq
		connect(a, b, verbs.RC)
		wr := a.rdma(verbs.WRRDMAWrite, b, 0, 64)
		wr.Flags = verbs.SendSignaled
		a.post(wr)
		if got := a.get(ch); got != cq {
			a.t.Error("the event is of another queue")
		}
		a.next(0, verbs.WCSuccess)
	}
	a.refused("the end of a channel in use", ch.Destroy())
}

func solicitedCase(a, b *end) {
	ch, err := b.dev.CreateCompChannel()
	b.must(err)
	b.cq = b.armed(ch, true)
	connect(a, b, verbs.RC)
	b.recv(1, 0, 100)
	b.recv(2, 0, 100)
	a.do(a.send(0, 10))
	b.next(1, verbs.WCSuccess)
	if _, err := ch.TryGet(); !errors.Is(err, unix.EAGAIN) {
		b.t.Errorf("an event without a solicited completion: %v", err)
	}
	wr := a.send(0, 10)
	wr.Flags = verbs.SendSolicited
	a.do(wr)
	b.get(ch)
	b.next(2, verbs.WCSuccess)
}

func resourcesCase(a, b *end) {
	connect(a, b, verbs.RC)
	list, err := a.dev.Resources(verbs.ResourceQP)
	a.must(err)
	for _, r := range list {
		if verbs.QPN(r.Number) == a.qp.Num() {
			if r.Type != "RC" || r.State != verbs.StateRTS.String() || verbs.QPN(r.PeerQPN) != b.qp.Num() {
				a.t.Errorf("the queue pair is listed as %+v", r)
			}
			return
		}
	}
	a.t.Errorf("no queue pair %v among %+v", a.qp.Num(), list)
}

func countersCase(a, b *end) {
	connect(a, b, verbs.RC)
	before := a.counter("sent_pkts")
	a.do(a.rdma(verbs.WRRDMAWrite, b, 0, 64))
	a.eventually("sent_pkts counts", func() bool { return a.counter("sent_pkts") > before })
}
