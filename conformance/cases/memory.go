package cases

import (
	"github.com/softroce/softroce/conformance/agent"
	"github.com/softroce/softroce/conformance/suite"
	"github.com/softroce/softroce/pkg/bth"
)

var memoryCases = []suite.Case{
	{ID: "MEM-01", Needs: []string{agent.FeatureMW1}, Run: windowType1},
	{ID: "MEM-02", Needs: []string{agent.FeatureMW2}, Run: windowWithoutRight},
	{ID: "MEM-03", Needs: []string{agent.FeatureMW2}, Run: windowBounds},
	{ID: "MEM-04", Needs: []string{agent.FeatureMW2}, Run: windowOfOther},
	{ID: "MEM-05", Needs: []string{agent.FeatureMW2}, Run: func(t *suite.T) {
		badBind(t, []string{"LOCAL_WRITE", "REMOTE_WRITE"}, 0, 4096, "REMOTE_WRITE")
	}},
	{ID: "MEM-06", Needs: []string{agent.FeatureMW2}, Run: func(t *suite.T) {
		badBind(t, []string{"REMOTE_READ", "MW_BIND"}, 0, 4096, "REMOTE_WRITE")
	}},
	{ID: "MEM-07", Needs: []string{agent.FeatureMW2}, Run: func(t *suite.T) { badBind(t, bindable, 128<<10-4095, 4096, "REMOTE_WRITE") }},
	{ID: "MEM-08", Needs: []string{agent.FeatureMW2}, Run: boundTwice},
	{ID: "MEM-09", Needs: []string{agent.FeatureMW2, agent.FeatureInv}, Run: invalidated},
	{ID: "MEM-10", Needs: []string{agent.FeatureMW2, agent.FeatureInv}, Run: invalidateRegion},
	{ID: "MEM-11", Needs: []string{agent.FeatureMW2}, Run: deregisterBound},
	{ID: "MEM-12", Run: remoteWithoutLocal},
	{ID: "MEM-13", Run: foreignGather},
	{ID: "MEM-14", Run: readIntoReadOnly},
	{ID: "MEM-15", Needs: []string{agent.FeatureMW2}, Run: bindThenSend},
}

// bindType1 binds a window of type 1 to n bytes of p's region and returns its key.
func bindType1(p *suite.Peer, id uint64, mw, off, n int) uint32 {
	a := p.T.Do(agent.Request{
		Do: agent.DoBind, QP: p.QP, MW: mw, ID: id,
		Bind: &agent.Bind{MR: p.MR.ID, Addr: p.MR.Addr + uint64(off), Length: uint64(n), Access: []string{"REMOTE_WRITE"}},
	})
	p.Sent(id)
	return a.RKey
}

func windowType1(t *suite.T) {
	p := t.Connect(suite.Options{MRAccess: bindable})
	mw := t.Do(agent.Request{Do: agent.DoMW, PD: p.PD, Type: "1"}).MW
	old := bindType1(p, 1, mw, 0, 4096)
	rkey := bindType1(p, 2, mw, 0, 4096)
	w := writeWith(p, rkey, 8, t.Bytes(8))
	p.Request(w)
	p.Ack(w.BTH.PSN)
	p.Holds(8, w.Payload)
	refused(p, writeWith(p, old, 16, t.Bytes(8)), bth.NAKRemoteAccess)
	p.Holds(16, make([]byte, 8))
}

func windowWithoutRight(t *suite.T) {
	p := t.Connect(suite.Options{MRAccess: bindable})
	_, rkey := window(p, 0, "REMOTE_READ")
	refused(p, writeWith(p, rkey, 0, t.Bytes(8)), bth.NAKRemoteAccess)
	p.Holds(0, make([]byte, 8))
}

func windowBounds(t *suite.T) {
	p := t.Connect(suite.Options{MRAccess: bindable})
	_, rkey := window(p, 4096, "REMOTE_WRITE")
	w := writeWith(p, rkey, 8192-8, t.Bytes(8))
	p.Request(w)
	p.Ack(w.BTH.PSN)
	p.Holds(8192-8, w.Payload)
	refused(p, writeWith(p, rkey, 8192-7, t.Bytes(8)), bth.NAKRemoteAccess)
	p.Holds(8192, make([]byte, 8))
}

func windowOfOther(t *suite.T) {
	p := t.Connect(suite.Options{MRAccess: bindable})
	other := t.Connect(suite.Options{Share: p})
	_, rkey := window(p, 0, "REMOTE_WRITE")
	refused(other, writeWith(other, rkey, 0, t.Bytes(8)), bth.NAKRemoteAccess)
	p.Holds(0, make([]byte, 8))
	w := writeWith(p, rkey, 0, t.Bytes(8))
	p.Request(w)
	p.Ack(w.BTH.PSN)
}

// bindWR is a request that binds a window of type 2.
func bindWR(p *suite.Peer, id uint64, mw int, rkey uint32, off, n int, rights ...string) agent.SendWR {
	return agent.SendWR{
		ID: id, Op: "BIND_MW", Flags: suite.Signaled, MW: mw,
		Bind: &agent.Bind{MR: p.MR.ID, Addr: p.MR.Addr + uint64(off), Length: uint64(n), Access: rights, RKey: rkey},
	}
}

// badRequest posts what must fail: at the post, or with one of the statuses and the queue pair in error.
func badRequest(p *suite.Peer, wr agent.SendWR, statuses ...string) {
	if _, refusal := p.T.Try(agent.Request{Do: agent.DoSend, QP: p.QP, Sends: []agent.SendWR{wr}}); refusal != nil {
		p.T.Notef("refused at the post: %s", refusal.Errno)
		return
	}
	p.Sent(wr.ID, statuses...)
	p.State("ERR")
}

func badBind(t *suite.T, region []string, off, n int, rights ...string) {
	p := t.Connect(suite.Options{MRAccess: region})
	a := t.Do(agent.Request{Do: agent.DoMW, PD: p.PD, Type: "2"})
	badRequest(p, bindWR(p, 1, a.MW, nextKey(a.RKey), off, n, rights...), "MW_BIND_ERR")
}

// nextKey is a key with the next low byte, which is the program's to choose.
func nextKey(rkey uint32) uint32 { return rkey&^0xFF | (rkey+1)&0xFF }

func boundTwice(t *suite.T) {
	p := t.Connect(suite.Options{MRAccess: bindable})
	mw, rkey := window(p, 0, "REMOTE_WRITE")
	badRequest(p, bindWR(p, 1, mw, nextKey(rkey), 4096, 4096, "REMOTE_WRITE"), "MW_BIND_ERR")
}

func invalidated(t *suite.T) {
	p := t.Connect(suite.Options{MRAccess: bindable})
	_, rkey := window(p, 0, "REMOTE_WRITE")
	w := writeWith(p, rkey, 0, t.Bytes(8))
	p.Request(w)
	p.Ack(w.BTH.PSN)
	p.PostSend(agent.SendWR{ID: 5, Op: "LOCAL_INV", Flags: suite.Signaled, Inv: rkey})
	p.Sent(5)
	refused(p, writeWith(p, rkey, 8, t.Bytes(8)), bth.NAKRemoteAccess)
	p.Holds(8, make([]byte, 8))
}

func invalidateRegion(t *suite.T) {
	p := t.Connect(suite.Options{MRAccess: bindable})
	window(p, 0, "REMOTE_WRITE")
	badRequest(p, agent.SendWR{ID: 5, Op: "LOCAL_INV", Flags: suite.Signaled, Inv: p.MR.RKey},
		"LOC_QP_OP_ERR", "MW_BIND_ERR", "LOC_PROT_ERR", "LOC_ACCESS_ERR")
}

func deregisterBound(t *suite.T) {
	p := t.Connect(suite.Options{MRAccess: bindable})
	window(p, 0, "REMOTE_WRITE")
	t.Refused(agent.Request{Do: agent.DoDestroy, MR: p.MR.ID})
}

func remoteWithoutLocal(t *suite.T) {
	pd := t.Do(agent.Request{Do: agent.DoPD}).PD
	t.Refused(agent.Request{Do: agent.DoMR, PD: pd, Length: 4096, Access: []string{"REMOTE_WRITE"}}, "EINVAL")
	t.Refused(agent.Request{Do: agent.DoMR, PD: pd, Length: 4096, Access: []string{"REMOTE_ATOMIC"}}, "EINVAL")
}

func foreignGather(t *suite.T) {
	p := t.Connect(suite.Options{})
	pd := t.Do(agent.Request{Do: agent.DoPD}).PD
	foreign := t.Region(pd, 4096, "LOCAL_WRITE")
	wr := p.SendWR(1, "SEND", 0, 8)
	wr.SGEs[0].Addr, wr.SGEs[0].LKey = foreign.Addr, foreign.LKey
	p.PostSend(wr)
	p.Sent(1, "LOC_PROT_ERR")
	p.State("ERR")
	p.Silent()
}

func readIntoReadOnly(t *suite.T) {
	p := t.Connect(suite.Options{})
	target := t.Region(p.PD, 4096, "REMOTE_READ")
	wr := p.SendWR(1, "RDMA_READ", 0, 8)
	wr.SGEs[0].Addr, wr.SGEs[0].LKey = target.Addr, target.LKey
	p.PostSend(wr)
	if f := p.NextOrNone(); f != nil {
		t.Notef("the request leaves, and fails at the response")
		if f.RoCE.Opcode != bth.RCReadRequest {
			t.Failed("a READ request", suite.Describe(f))
		}
		p.Put(p.Response(f.RoCE.BTH().PSN(), t.Bytes(8))...)
	}
	p.Sent(1, "LOC_PROT_ERR")
	p.State("ERR")
	t.Same("the region", make([]byte, 8), t.Memory(target, 0, 8))
}

func bindThenSend(t *suite.T) {
	p := t.Connect(suite.Options{MRAccess: bindable})
	a := t.Do(agent.Request{Do: agent.DoMW, PD: p.PD, Type: "2"})
	rkey := nextKey(a.RKey)
	p.PostSend(bindWR(p, 1, a.MW, rkey, 0, 4096, "REMOTE_WRITE"), p.SendWR(2, "SEND", 0, 8))
	f := p.Requested(bth.RCSendOnly)
	w := writeWith(p, rkey, 64, t.Bytes(8))
	p.Request(w)
	p.Ack(w.BTH.PSN)
	p.Holds(64, w.Payload)
	p.MSN++
	p.PutAck(f.RoCE.BTH().PSN())
	p.Sent(1)
	p.Sent(2)
}
