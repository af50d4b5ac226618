package cases

import (
	"fmt"

	"github.com/softroce/softroce/conformance/agent"
	"github.com/softroce/softroce/conformance/suite"
	"github.com/softroce/softroce/conformance/wire"
	"github.com/softroce/softroce/pkg/bth"
)

var stateCases = []suite.Case{
	{ID: "QPS-01", Run: beforeRTR},
	{ID: "QPS-02", Run: inRTR},
	{ID: "QPS-03", Run: func(t *suite.T) { p := t.Connect(suite.Options{State: "RESET"}); notModified(p, p.RTR()) }},
	{ID: "QPS-04", Run: func(t *suite.T) {
		p := t.Connect(suite.Options{State: "INIT"})
		a := p.RTR()
		a.RQPSN = nil
		notModified(p, a)
	}},
	{ID: "QPS-05", Run: func(t *suite.T) {
		p := t.Connect(suite.Options{State: "INIT"})
		a := p.RTR()
		a.Timeout = new(14)
		notModified(p, a)
	}},
	{ID: "QPS-06", Run: func(t *suite.T) {
		p := t.Connect(suite.Options{State: "RESET"})
		notModified(p, &agent.Attrs{State: new("ERR")})
	}},
	{ID: "QPS-07", Run: flushOfReceives},
	{ID: "QPS-08", Run: postsInError},
	{ID: "QPS-09", Run: flushOfUnsignaled},
	{ID: "QPS-10", Run: backFromError},
	{ID: "QPS-11", Needs: []string{agent.FeatureSQD}, Run: func(t *suite.T) { drained(t) }},
	{ID: "QPS-12", Needs: []string{agent.FeatureSQD}, Run: resumed},
	{ID: "QPS-13", Needs: []string{agent.FeatureSQD}, Run: servedInSQD},
	{ID: "QPS-14", Needs: []string{agent.FeatureUC}, Run: sendQueueError},
	{ID: "QPS-15", Needs: []string{agent.FeatureEvents}, Run: overrun},
	{ID: "QPS-16", Run: destroyed},
	{ID: "QPS-17", Run: staleConnection},
	{ID: "QPS-18", Run: rightsTakenAway},
}

func beforeRTR(t *suite.T) {
	p := t.Connect(suite.Options{State: "RESET"})
	data := t.Bytes(8)
	p.Put(p.Write(0, data))
	p.Silent()
	p.Modify(p.Init())
	p.Put(p.Write(0, data))
	p.Silent()
	p.Modify(p.RTR())
	p.Modify(p.RTS())
	p.Holds(0, make([]byte, 8))
	p.Alive()
}

func inRTR(t *suite.T) {
	p := t.Connect(suite.Options{State: "RTR", Recvs: 1})
	data := t.Bytes(8)
	w := p.Send(data)
	p.Request(w)
	p.Ack(w.BTH.PSN)
	delivered(p, 1, data)
	if t.Has(agent.FeatureEvents) {
		t.Event("COMM_EST")
	}
}

// notModified asks for a change that must be refused with EINVAL, and of which nothing may stay.
func notModified(p *suite.Peer, a *agent.Attrs) {
	before := p.Query()
	p.T.Refused(agent.Request{Do: agent.DoModify, QP: p.QP, Attrs: a}, "EINVAL")
	after := p.Query()
	if *after.State != *before.State || mtu(after) != mtu(before) {
		p.T.Failed(fmt.Sprintf("nothing changed: state %s, path MTU %d", *before.State, mtu(before)),
			fmt.Sprintf("%s, %d", *after.State, mtu(after)))
	}
}

func mtu(a *agent.Attrs) int {
	if a.PathMTU == nil {
		return 0
	}
	return *a.PathMTU
}

func toError(p *suite.Peer) {
	p.Modify(&agent.Attrs{State: new("ERR")})
}

func flushOfReceives(t *suite.T) {
	p := t.Connect(suite.Options{Recvs: 3})
	toError(p)
	for i := range 3 {
		p.Received(uint64(i+1), "WR_FLUSH_ERR")
	}
}

func postsInError(t *suite.T) {
	p := t.Connect(suite.Options{})
	toError(p)
	p.PostRecvs(1)
	p.Received(1, "WR_FLUSH_ERR")
	p.PostSend(p.SendWR(7, "SEND", 0, 8))
	p.Sent(7, "WR_FLUSH_ERR")
	p.Silent()
}

func flushOfUnsignaled(t *suite.T) {
	p := t.Connect(suite.Options{})
	for id := range uint64(3) {
		wr := p.SendWR(id+1, "SEND", 0, 8)
		wr.Flags = nil
		p.PostSend(wr)
	}
	toError(p)
	for id := range uint64(3) {
		p.Sent(id+1, "WR_FLUSH_ERR")
	}
}

func backFromError(t *suite.T) {
	p := t.Connect(suite.Options{Recvs: 2})
	p.Alive()
	toError(p)
	p.Received(1, "WR_FLUSH_ERR")
	p.Received(2, "WR_FLUSH_ERR")
	p.Modify(&agent.Attrs{State: new("RESET")})
	p.NothingReceived()
	p.PSN = p.PSN.Add(1 << 20)
	p.To("RTS")
	w := p.Send(t.Bytes(8))
	p.Put(w)
	f := p.Next("an RNR NAK")
	if f.RoCE.Opcode != bth.RCAcknowledge || !f.RoCE.AETH().Syndrome().IsRNR() {
		t.Failed("an RNR NAK: the receive queue is empty", suite.Describe(f))
	}
	msnIs(t, f, 0)
	p.PostRecvs(1)
	p.Request(w)
	msnIs(t, p.Ack(w.BTH.PSN), 1)
	delivered(p, 1, w.Payload)
}

// drained brings a queue pair to SQD while a READ is outstanding and a fenced SEND waits behind it. The READ ends, the
// SEND stays, the event comes.
func drained(t *suite.T) *suite.Peer {
	p := t.Connect(suite.Options{})
	send := p.SendWR(2, "SEND", 0, 8)
	send.Flags = []string{"SIGNALED", "FENCE"}
	p.PostSend(p.SendWR(1, "RDMA_READ", 0, 2*p.MTU), send)
	read := p.Requested(bth.RCReadRequest)
	p.Modify(&agent.Attrs{State: new("SQD"), EnSQDAsyncNotify: new(true)})
	p.MSN++
	data := t.Bytes(2 * p.MTU)
	p.Put(p.Response(read.RoCE.BTH().PSN(), data)...)
	p.Sent(1)
	p.Holds(0, data)
	if t.Has(agent.FeatureEvents) {
		t.Event("SQ_DRAINED")
	}
	p.Silent()
	p.NothingSent()
	return p
}

func resumed(t *suite.T) {
	p := drained(t)
	p.Modify(&agent.Attrs{State: new("RTS")})
	f := p.Requested(bth.RCSendOnly)
	p.MSN++
	p.PutAck(f.RoCE.BTH().PSN())
	p.Sent(2)
}

func servedInSQD(t *suite.T) {
	p := t.Connect(suite.Options{Recvs: 1})
	p.Modify(&agent.Attrs{State: new("SQD")})
	data := t.Bytes(8)
	w := p.Send(data)
	p.Request(w)
	p.Ack(w.BTH.PSN)
	delivered(p, 1, data)
	r := p.Read(0, 8)
	p.Request(r)
	p.ReadResponse(r.BTH.PSN, 8)
}

func sendQueueError(t *suite.T) {
	p := uc(t, 2)
	bad := p.SendWR(1, "SEND", 0, 8)
	bad.SGEs[0].LKey ^= 0x55AA00
	p.PostSend(bad)
	p.Sent(1, "LOC_PROT_ERR", "LOC_QP_OP_ERR")
	p.State("SQE")
	nextDelivered(p, 1)
	p.Modify(&agent.Attrs{State: new("RTS")})
	p.PostSend(p.SendWR(2, "SEND", 0, 8))
	p.Next("a SEND")
	p.Sent(2)
	nextDelivered(p, 2)
}

func overrun(t *suite.T) {
	p := t.Connect(suite.Options{CQE: 1, Recvs: 127, RecvSize: 64})
	for range 127 {
		p.Request(p.Send(t.Bytes(8)))
	}
	t.Event("CQ_ERR")
	p.State("ERR")
}

func destroyed(t *suite.T) {
	p := t.Connect(suite.Options{})
	other := t.Connect(suite.Options{Share: p, Recvs: 1})
	m := other.Message(bth.RCSendOnly, 0, t.Bytes(3*p.MTU))
	other.Request(m[0])
	t.Do(agent.Request{Do: agent.DoDestroy, QP: other.QP})
	other.Put(m[1:]...)
	p.Alive()
	other.Silent()
}

// staleConnection connects a queue pair a second time and sends it packets of its first connection. They may be dropped,
// answered as duplicates, or refused as out of sequence, but not executed.
func staleConnection(t *suite.T) {
	p := t.Connect(suite.Options{Recvs: 2})
	old := []*wire.Packet{p.Write(0, t.Bytes(8)), p.Send(t.Bytes(8))}
	p.Modify(&agent.Attrs{State: new("RESET")})
	p.PSN = p.PSN.Add(1 << 22)
	p.To("RTS")
	p.PostRecvs(2)
	for _, w := range old {
		p.Put(w)
	}
	for _, f := range p.Meanwhile() {
		t.Notef("answered with %s", suite.Describe(f))
	}
	p.Holds(0, make([]byte, 8))
	p.NothingReceived()
	p.Alive()
	nextAcked(p, 1)
}

// nextAcked sends a SEND of one packet that must be delivered into the receive with this id and acknowledged.
func nextAcked(p *suite.Peer, id int) {
	w := p.Send(p.T.Bytes(8))
	p.Request(w)
	p.Ack(w.BTH.PSN)
	delivered(p, id, w.Payload)
}

func rightsTakenAway(t *suite.T) {
	p := t.Connect(suite.Options{})
	w := p.Write(0, t.Bytes(8))
	p.Request(w)
	p.Ack(w.BTH.PSN)
	p.Modify(&agent.Attrs{State: new("RTS"), Access: new([]string{"REMOTE_READ"})})
	refused(p, p.Write(8, t.Bytes(8)), bth.NAKInvalidRequest, bth.NAKRemoteAccess)
	p.Holds(8, make([]byte, 8))
}

var srqCases = needing(agent.FeatureSRQ, []suite.Case{
	{ID: "SRQ-01", Run: sharedOrder},
	{ID: "SRQ-02", Run: sharedEmpty},
	{ID: "SRQ-03", Run: sharedCredits},
	{ID: "SRQ-04", Needs: []string{agent.FeatureEvents}, Run: func(t *suite.T) { limitReached(t) }},
	{ID: "SRQ-05", Needs: []string{agent.FeatureEvents}, Run: limitOnce},
	{ID: "SRQ-06", Run: sharedError},
	{ID: "SRQ-07", Run: receiveOnShared},
})

// shared makes a shared receive queue with n receives, and two queue pairs on it; a's region has the receives.
func shared(t *suite.T, n int) (a, b *suite.Peer, srq int) {
	pd := t.Do(agent.Request{Do: agent.DoPD}).PD
	srq = t.Do(agent.Request{Do: agent.DoSRQ, PD: pd, RecvWRs: 64, RecvSGEs: 1}).SRQ
	a = t.Connect(suite.Options{PD: pd, SRQ: srq})
	b = t.Connect(suite.Options{Share: a, SRQ: srq})
	for i := range n {
		t.Do(agent.Request{Do: agent.DoRecv, SRQ: srq, Recvs: []agent.RecvWR{{ID: uint64(i + 1), SGEs: []agent.SGE{a.SGE(a.RecvOff(i), 2048)}}}})
	}
	return a, b, srq
}

func sharedOrder(t *suite.T) {
	a, b, _ := shared(t, 4)
	for i, p := range []*suite.Peer{a, b, b, a} {
		w := p.Send(t.Bytes(16))
		p.Request(w)
		p.Ack(w.BTH.PSN)
		if wc := delivered(a, i+1, w.Payload); wc.QPN != uint32(p.QPN) {
			t.Failed(fmt.Sprintf("the completion of queue pair %v", p.QPN), fmt.Sprintf("%#x", wc.QPN))
		}
	}
}

func sharedEmpty(t *suite.T) {
	a, _, _ := shared(t, 0)
	w := a.Send(t.Bytes(8))
	a.Put(w)
	f := a.Next("an RNR NAK")
	if f.RoCE.Opcode != bth.RCAcknowledge || !f.RoCE.AETH().Syndrome().IsRNR() || f.RoCE.BTH().PSN() != w.BTH.PSN {
		t.Failed("an RNR NAK", suite.Describe(f))
	}
}

func sharedCredits(t *suite.T) {
	a, _, _ := shared(t, 2)
	w := a.Send(t.Bytes(8))
	a.Request(w)
	if s := a.Ack(w.BTH.PSN).RoCE.AETH().Syndrome(); s != bth.AckNoCredit {
		t.Failed("credit code 31", s.String())
	}
}

// limitReached arms a limit of 4 on a queue of 5 and takes two.
func limitReached(t *suite.T) (a *suite.Peer) {
	a, _, srq := shared(t, 5)
	t.Do(agent.Request{Do: agent.DoSRQLimit, SRQ: srq, Limit: 4})
	nextAcked(a, 1)
	t.NoEvent("SRQ_LIMIT_REACHED")
	nextAcked(a, 2)
	if e := t.Event("SRQ_LIMIT_REACHED"); e.SRQ != srq {
		t.Failed(fmt.Sprintf("the event of shared receive queue %d", srq), fmt.Sprint(e.SRQ))
	}
	return a
}

func limitOnce(t *suite.T) {
	a := limitReached(t)
	nextAcked(a, 3)
	nextAcked(a, 4)
	t.NoEvent("SRQ_LIMIT_REACHED")
}

func sharedError(t *suite.T) {
	a, b, _ := shared(t, 3)
	toError(a)
	if t.Has(agent.FeatureEvents) {
		if e := t.Event("QP_LAST_WQE_REACHED"); e.QP != a.QP {
			t.Failed(fmt.Sprintf("the event of queue pair %d", a.QP), fmt.Sprint(e.QP))
		}
	}
	w := b.Send(t.Bytes(8))
	b.Request(w)
	b.Ack(w.BTH.PSN)
	delivered(a, 1, w.Payload)
	a.NothingReceived()
}

func receiveOnShared(t *suite.T) {
	a, _, _ := shared(t, 0)
	t.Refused(agent.Request{Do: agent.DoRecv, QP: a.QP, Recvs: []agent.RecvWR{{ID: 1}}})
}
