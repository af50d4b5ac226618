package featuretest

import (
	"time"

	"github.com/softroce/softroce/pkg/verbs"
)

// datagrams are what UD has.
var datagrams = []Case{
	{"ud-send", func(a, b *end) { datagramCase(a, b, verbs.WRSend) }},
	{"ud-send-imm", func(a, b *end) { datagramCase(a, b, verbs.WRSendWithImm) }},
	{"ud-ah-from-wc", answerCase},
	{"ud-too-long", tooLongCase},
	{"ud-wrong-qkey", wrongKeyCase},
	{"ud-drops-without-receive", udNoReceiveCase},
	{"ah-destroy", destroyedHandleCase},
}

// to makes a request a datagram to the other end.
func (e *end) to(b *end, h *verbs.AH, wr verbs.SendWR) verbs.SendWR {
	wr.AH, wr.RemoteQPN, wr.RemoteQKey = h.Handle(), b.qp.Num(), qkey
	return wr
}

func (e *end) send(off, n int) verbs.SendWR {
	return verbs.SendWR{Opcode: verbs.WRSend, SGList: []verbs.SGE{e.mr.SGE(off, n)}}
}

func (e *end) portMTU() int {
	e.t.Helper()
	port, err := e.dev.QueryPort(1)
	e.must(err)
	return port.ActiveMTU.Bytes()
}

func datagramCase(a, b *end, op verbs.WROpcode) {
	h := ready(a, b)
	for i, n := range []int{0, 1, 1000, a.portMTU()} {
		b.recv(uint64(i), 0, verbs.GRHSize+a.portMTU())
		want := a.fill(0, n, i)
		wr := a.to(b, h, a.send(0, n))
		wr.Opcode, wr.ImmData = op, 0xA1B2C3D4
		a.do(wr)
		wc := b.next(uint64(i), verbs.WCSuccess)
		b.received(wc, verbs.WCRecv, verbs.GRHSize+n, op == verbs.WRSendWithImm)
		if wc.SrcQP != a.qp.Num() || wc.Flags&verbs.WCGRH == 0 {
			b.t.Errorf("completion %+v, want source %v and the GRH flag", wc, a.qp.Num())
		}
		b.same(verbs.GRHSize, want)
	}
}

// answerCase: a receiver answers by what the datagram told it.
func answerCase(a, b *end) {
	h := ready(a, b)
	b.recv(1, 0, 1000)
	a.recv(2, 2000, 1000)
	a.do(a.to(b, h, a.send(0, 10)))
	wc := b.next(1, verbs.WCSuccess)
	back, err := b.pd.CreateAHFromWC(1, &wc, b.mr.Bytes()[:verbs.GRHSize])
	b.must(err)
	want := b.fill(1000, 100, 2)
	wr := b.send(1000, 100)
	wr.AH, wr.RemoteQPN, wr.RemoteQKey = back.Handle(), wc.SrcQP, qkey
	b.do(wr)
	a.received(a.next(2, verbs.WCSuccess), verbs.WCRecv, verbs.GRHSize+100, false)
	a.same(2000+verbs.GRHSize, want)
}

// tooLongCase: longer than the path MTU is an error of the request, and the
// queue pair goes on after SQE.
func tooLongCase(a, b *end) {
	h := ready(a, b)
	a.fails(a.to(b, h, a.send(0, a.portMTU()+1)), verbs.WCLocLenErr)
	a.state(a.qp, verbs.StateSQE)
	a.fails(a.to(b, h, a.send(0, 10)), verbs.WCWRFlushErr)
	a.must(a.qp.Modify(&verbs.QPAttr{State: verbs.StateRTS}, verbs.QPStateMask))
	b.recv(1, 0, 1000)
	a.do(a.to(b, h, a.send(0, 10)))
	b.next(1, verbs.WCSuccess)
}

func wrongKeyCase(a, b *end) {
	h := ready(a, b)
	b.recv(1, 0, 1000)
	wr := a.to(b, h, a.send(0, 100))
	wr.RemoteQKey++
	a.do(wr)
	a.do(a.to(b, h, a.send(0, 10)))
	b.received(b.next(1, verbs.WCSuccess), verbs.WCRecv, verbs.GRHSize+10, false)
}

func udNoReceiveCase(a, b *end) {
	h := ready(a, b)
	arrived := arrivals(a, b)
	a.do(a.to(b, h, a.send(0, 100)))
	arrived()
	b.recv(1, 0, 1000)
	a.do(a.to(b, h, a.send(0, 10)))
	b.received(b.next(1, verbs.WCSuccess), verbs.WCRecv, verbs.GRHSize+10, false)
}

func destroyedHandleCase(a, b *end) {
	h := ready(a, b)
	handle := h.Handle()
	a.must(h.Destroy())
	wr := a.to(b, h, a.send(0, 10))
	wr.AH = handle
	wr.WRID = 1
	a.post(wr)
	if wc := a.nextOf(a.cq); wc.Status == verbs.WCSuccess {
		a.t.Errorf("a datagram to a destroyed address handle was sent: %+v", wc)
	}
}

func (e *end) counter(name string) uint64 {
	e.t.Helper()
	all, err := e.dev.Counters()
	e.must(err)
	for _, c := range all {
		if c.Name == name {
			return c.Value
		}
	}
	e.t.Fatalf("no counter %s", name)
	return 0
}

// arrivals returns a wait for all packets that a sends from here on to have come
// to b: of what UC and UD lose, or place, no completion tells.
func arrivals(a, b *end) func() {
	sent, rcvd := a.counter("sent_pkts"), b.counter("rcvd_pkts")
	return func() {
		a.t.Helper()
		b.eventually("the packets have come", func() bool { return b.counter("rcvd_pkts")-rcvd >= a.counter("sent_pkts")-sent })
	}
}

// eventually waits for a condition that nothing announces.
func (e *end) eventually(what string, ok func() bool) {
	e.t.Helper()
	deadline := time.Now().Add(patience)
	for !ok() {
		if time.Now().After(deadline) {
			e.t.Fatalf("still not: %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}
