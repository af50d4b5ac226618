package cm_test

import (
	"bytes"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/softroce/softroce/internal/cm"
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/qpstate"
)

// send hands an end a message that the other made up, and returns the answer.
func (p *pair) send(to *end, m cm.Message) (cm.Verdict, cm.Message) {
	p.t.Helper()
	h := cm.Header{BaseVersion: 1, Class: 7, ClassVersion: 2, Method: cm.MethodSend, TID: 77}
	if m.Attr() == cm.AttrClassPortInfo {
		h.Method = cm.MethodGet
	}
	v := to.HandleMAD(p.now, path(to.addr, p.other(to).addr), cm.AppendMAD(nil, h, m))
	_, mad, ok := to.PollSend()
	if !ok {
		return v, nil
	}
	got, answer, err := cm.ParseMAD(mad)
	if err != nil {
		p.t.Fatal(err)
	}
	if got.TID != 77 && m.Attr() != cm.AttrREQ && m.Attr() != cm.AttrREP {
		p.t.Errorf("answer to %v has TID %d", m.Attr(), got.TID)
	}
	return v, answer
}

// TestAnswersWithoutID: messages about nothing that is known.
func TestAnswersWithoutID(t *testing.T) {
	p := newPair(t)
	for _, tt := range []struct {
		msg, want cm.Message
		verdict   cm.Verdict
	}{
		{&cm.DREQ{LocalID: 5, RemoteID: 6}, &cm.DREP{LocalID: 6, RemoteID: 5}, cm.Answered},
		{&cm.REP{LocalID: 5, RemoteID: 6}, &cm.REJ{LocalID: 6, RemoteID: 5, Subject: cm.SubjectREP, Reason: cm.RejInvalidCommID}, cm.Answered},
		{&cm.RTU{LocalID: 5, RemoteID: 6}, &cm.REJ{LocalID: 6, RemoteID: 5, Subject: cm.SubjectOther, Reason: cm.RejInvalidCommID}, cm.Answered},
		{&cm.LAP{LocalID: 5, RemoteID: 6}, &cm.APR{LocalID: 6, RemoteID: 5, Status: cm.APInvalidCommID}, cm.Answered},
		{&cm.REQ{LocalID: 5}, &cm.REJ{RemoteID: 5, Reason: cm.RejInvalidServiceID}, cm.Answered},
		{&cm.SIDRREQ{RequestID: 5, ServiceID: 9}, &cm.SIDRREP{RequestID: 5, ServiceID: 9, Status: cm.SIDRUnsupported}, cm.Answered},
		{
			&cm.ClassPortInfo{},
			&cm.ClassPortInfo{BaseVersion: 1, ClassVersion: 2, Capability: 1<<9 | 1<<12 | 1<<13, ResponseTime: 20}, cm.Answered,
		},
		{&cm.DREP{LocalID: 5, RemoteID: 6}, nil, cm.DropUnknown},
		{&cm.REJ{LocalID: 5, RemoteID: 6}, nil, cm.DropUnknown},
		{&cm.MRA{LocalID: 5, RemoteID: 6}, nil, cm.DropUnknown},
		{&cm.SIDRREP{RequestID: 6}, nil, cm.DropUnknown},
		{&cm.APR{LocalID: 5, RemoteID: 6}, nil, cm.DropState},
	} {
		v, got := p.send(p.b, tt.msg)
		if v != tt.verdict || (got == nil) != (tt.want == nil) {
			t.Errorf("%v: verdict %v, answer %+v", tt.msg.Attr(), v, got)
			continue
		}
		if got != nil && !bytes.Equal(cm.AppendMAD(nil, cm.Header{}, got), cm.AppendMAD(nil, cm.Header{}, tt.want)) {
			t.Errorf("%v: answered %+v, want %+v", tt.msg.Attr(), got, tt.want)
		}
	}
	p.b.quiet()
	p.nothingLeft()
}

// TestAnswersConnected: what a connection that is up makes of messages.
func TestAnswersConnected(t *testing.T) {
	p := newPair(t)
	a, b := p.connect()
	for _, tt := range []struct {
		name string
		to   *end
		msg  cm.Message
		want cm.AttrID // of the answer; 0: none
	}{
		{"a REP again: the RTU was lost", p.a, &cm.REP{LocalID: b, RemoteID: a, QPN: qpnB, CAGUID: guidB}, cm.AttrRTU},
		{"a REP of another connection", p.a, &cm.REP{LocalID: b + 1, RemoteID: a, QPN: qpnB, CAGUID: guidB}, cm.AttrREJ},
		{"a REP to the passive side", p.b, &cm.REP{LocalID: a, RemoteID: b, QPN: qpnA, CAGUID: guidA}, cm.AttrREJ},
		{"an RTU again", p.b, &cm.RTU{LocalID: a, RemoteID: b}, 0},
		{"a REQ again", p.b, &cm.REQ{LocalID: a, CAGUID: guidA, QPN: qpnA}, 0},
		{"no alternate path", p.b, &cm.LAP{LocalID: a, RemoteID: b, RemoteQPN: qpnB}, cm.AttrAPR},
		{"no alternate path for a wrong queue pair", p.b, &cm.LAP{LocalID: a, RemoteID: b, RemoteQPN: qpnB + 1}, cm.AttrAPR},
		{"a DREQ with a wrong queue pair", p.b, &cm.DREQ{LocalID: a, RemoteID: b, RemoteQPN: qpnB + 1}, 0},
		{"a DREQ with a wrong id", p.b, &cm.DREQ{LocalID: a + 1, RemoteID: b, RemoteQPN: qpnB}, cm.AttrDREP},
		{"a DREP to nothing", p.b, &cm.DREP{LocalID: a, RemoteID: b}, 0},
		{"a REJ of a REQ that came again", p.a, &cm.REJ{LocalID: b, RemoteID: a, Subject: cm.SubjectREQ, Reason: cm.RejStaleConnection}, 0},
		{"a REJ with a wrong id", p.a, &cm.REJ{LocalID: b + 1, RemoteID: a, Subject: cm.SubjectOther, Reason: cm.RejConsumer}, 0},
		{"an MRA", p.a, &cm.MRA{LocalID: b, RemoteID: a}, 0},
	} {
		_, got := p.send(tt.to, tt.msg)
		switch {
		case got == nil && tt.want != 0:
			t.Errorf("%s: no answer", tt.name)
		case got != nil && got.Attr() != tt.want:
			t.Errorf("%s: answered by %v, want %v", tt.name, got.Attr(), tt.want)
		}
		p.a.state(a, cm.Connected)
		p.b.state(b, cm.Connected)
	}
	p.a.quiet()
	p.b.quiet()
	// Nobody else's word counts.
	elsewhere := path(addrB, addrA.Next().Next())
	for _, m := range []cm.Message{
		&cm.DREQ{LocalID: a, RemoteID: b, RemoteQPN: qpnB},
		&cm.REJ{LocalID: a, RemoteID: b, Subject: cm.SubjectOther, Reason: cm.RejConsumer},
	} {
		p.b.HandleMAD(p.now, elsewhere, cm.AppendMAD(nil, cm.Header{BaseVersion: 1, Class: 7, ClassVersion: 2, Method: 3}, m))
		p.b.state(b, cm.Connected)
	}
	if to, _, _ := p.b.PollSend(); to.Remote != elsewhere.Remote {
		t.Errorf("the DREP went to %v", to.Remote)
	}
	// A REJ that fits ends it.
	p.send(p.b, &cm.REJ{LocalID: a, RemoteID: b, Subject: cm.SubjectOther, Reason: cm.RejInvalidCommID})
	if ev := p.b.expect(cm.Rejected); ev.Status != int32(cm.RejInvalidCommID) {
		t.Errorf("%+v", ev)
	}
	p.b.state(b, cm.TimeWait)
	if _, got := p.send(p.b, &cm.REQ{LocalID: a, CAGUID: guidA, QPN: qpnA}); got == nil || got.Attr() != cm.AttrREJ {
		t.Errorf("a REQ again in time-wait is answered by %+v", got)
	}
	p.nothingLeftNow()
}

// TestLAP: which answer a request for an alternate path gets.
func TestLAP(t *testing.T) {
	p := newPair(t)
	a, b := p.connect()
	for qpn, want := range map[bth.QPN]cm.APStatus{qpnB: cm.APUnsupported, qpnB + 1: cm.APInvalidCommID} {
		_, got := p.send(p.b, &cm.LAP{LocalID: a, RemoteID: b, RemoteQPN: qpn})
		if apr, _ := got.(*cm.APR); apr == nil || apr.Status != want || apr.LocalID != b || apr.RemoteID != a {
			t.Errorf("queue pair %v: %+v, want %v", qpn, got, want)
		}
	}
}

// TestDREPs: a DREQ is answered in every state that it can come in.
func TestDREPs(t *testing.T) {
	p := newPair(t)
	a, b := p.connect()
	dreq := &cm.DREQ{LocalID: a, RemoteID: b, RemoteQPN: qpnB}
	ok(t, p.b.Disconnect(p.now, b, nil))
	p.b.sent() // lost, and crosses with:
	if v, got := p.send(p.b, dreq); v != cm.Handled || got == nil || got.Attr() != cm.AttrDREP {
		t.Errorf("crossing: %v, %+v", v, got)
	}
	p.b.state(b, cm.TimeWait)
	p.b.expect(cm.Disconnected)
	if v, got := p.send(p.b, dreq); v != cm.Duplicate || got == nil || got.Attr() != cm.AttrDREP {
		t.Errorf("in time-wait: %v, %+v", v, got)
	}
	p.advance(time.Second)
	p.b.state(b, cm.Idle)
	if v, got := p.send(p.b, dreq); v != cm.Duplicate || got == nil || got.Attr() != cm.AttrDREP {
		t.Errorf("afterwards: %v, %+v", v, got)
	}
	a, b = p.connectAs(qpnA+1, qpnB+1)
	ok(t, p.a.Disconnect(p.now, a, nil))
	p.exchange()
	ok(t, p.b.Destroy(p.now, b)) // which is an answer, too
	p.exchange()
	p.a.state(a, cm.TimeWait)
	p.nothingLeftNow()
}

// TestDestroyed: the peer learns at once why, and the program nothing more.
func TestDestroyed(t *testing.T) {
	p := newPair(t)
	p.b.listen()
	a, b := p.request()
	ok(t, p.a.Destroy(p.now, a))
	p.exchange()
	if ev := p.b.expect(cm.Rejected); ev.ID != b || ev.Status != int32(cm.RejTimeout) {
		t.Errorf("%+v", ev)
	}
	a = must[cm.CommID](t)(p.a.Connect(p.now, connectArgs()))
	p.exchange()
	ev, _ := p.b.PollEvent()
	ok(t, p.b.Reject(p.now, ev.ID, cm.RejConsumer, nil))
	p.exchange()
	ok(t, p.a.Destroy(p.now, a)) // with Rejected in the queue
	p.a.quiet()
	if err := p.a.Destroy(p.now, a); !errors.Is(err, cm.ErrUnknownID) {
		t.Errorf("again: %v", err)
	}
	p.nothingLeft()
}

// TestREJWithoutREP: the peer's program went when its REP was lost; what it says
// is about an id that was never heard of here.
func TestREJWithoutREP(t *testing.T) {
	p := newPair(t)
	p.b.listen()
	a, b := p.request()
	ok(t, p.b.Accept(p.now, b, acceptParam(), nil))
	p.b.sent() // lost
	ok(t, p.b.Destroy(p.now, b))
	p.exchange()
	if ev := p.a.expect(cm.Rejected); ev.ID != a || ev.Status != int32(cm.RejConsumer) {
		t.Errorf("%+v", ev)
	}
	p.advance(time.Second)
	if n := p.b.Counters().Conns; n != 0 {
		t.Errorf("%d ids left", n)
	}
	p.nothingLeft()
}

// TestDREQWithoutREP: the same, and the REJ is lost as well, or the REP comes last.
func TestDREQWithoutREP(t *testing.T) {
	p := newPair(t)
	p.b.listen()
	a, b := p.request()
	ok(t, p.b.Accept(p.now, b, acceptParam(), nil))
	rep := p.b.sent()
	ok(t, p.b.Destroy(p.now, b))
	p.b.PollSend() // the REJ is lost
	p.exchange()
	if ev := p.a.expect(cm.Rejected); ev.ID != a || ev.Status != int32(cm.RejConsumer) {
		t.Errorf("%+v", ev)
	}
	p.a.HandleMAD(p.now, path(addrA, addrB), rep)
	p.a.quiet()
	// A kernel's active side does not connect the DREQ with its REQ. Its RTU is
	// answered in time-wait, too.
	if _, got := p.send(p.b, &cm.RTU{LocalID: a, RemoteID: b}); got == nil || got.Attr() != cm.AttrREJ {
		t.Errorf("the RTU is answered by %+v", got)
	}
	p.exchange()
	p.nothingLeft()
}

// TestIPv6 is a connection between IPv6 addresses, to a listener for all.
func TestIPv6(t *testing.T) {
	p := newPair(t)
	p.a.addr, p.b.addr = netip.MustParseAddr("fd77::11"), netip.MustParseAddr("fe80::12")
	must[cm.ListenerID](t)(p.b.Listen(cm.ListenArgs{Type: qpstate.UC, Service: cm.IPService(cm.SpaceTCP, port), Addr: netip.IPv6Unspecified()}))
	args := connectArgs()
	args.Type = qpstate.UC
	args.CMA = cm.CMA{Src: netip.MustParseAddrPort("[fd77::11]:9"), Dst: netip.MustParseAddr("fe80::12%eth0")}
	args.Path = path(p.a.addr, p.b.addr)
	a := must[cm.CommID](t)(p.a.Connect(p.now, args))
	p.exchange()
	ev := p.b.expect(cm.ConnectRequest)
	if ev.Remote != args.CMA.Src || ev.Local.String() != "[fe80::12]:7174" || ev.Type != qpstate.UC {
		t.Errorf("%+v", ev)
	}
	ok(t, p.b.Accept(p.now, ev.ID, acceptParam(), nil))
	p.exchange()
	p.a.expect(cm.ConnectResponse)
	state := qpstate.Reset
	for _, to := range []qpstate.State{qpstate.Init, qpstate.RTR, qpstate.RTS} {
		attr, mask, err := p.a.QPAttr(a, to, cm.Param{})
		ok(t, err)
		if state, err = qpstate.Check(qpstate.UC, state, &attr, mask); err != nil {
			t.Error(err)
		}
	}
	p.nothingLeftNow()
}

// TestQPNAgain: a peer may use its queue pair for the next connection when the
// last one has ended, though time-wait goes on here.
func TestQPNAgain(t *testing.T) {
	p := newPair(t)
	a, b := p.connect()
	ok(t, p.a.Disconnect(p.now, a, nil))
	p.exchange()
	p.b.expect(cm.Disconnected)
	ok(t, p.b.Disconnect(p.now, b, nil))
	p.exchange()
	p.a.expect(cm.Disconnected)
	p.connect()
	p.nothingLeftNow()
}

// TestStaleREP: the peer's answer names a queue pair that another connection has.
func TestStaleREP(t *testing.T) {
	p := newPair(t)
	p.connect()
	args := connectArgs()
	args.Param.QPN++
	must[cm.CommID](t)(p.a.Connect(p.now, args))
	p.exchange()
	second := p.b.expect(cm.ConnectRequest).ID
	ok(t, p.b.Accept(p.now, second, acceptParam(), nil)) // the queue pair of the first
	p.exchange()
	if ev := p.a.expect(cm.Rejected); ev.Status != int32(cm.RejStaleConnection) {
		t.Errorf("%+v", ev)
	}
	if ev := p.b.expect(cm.Rejected); ev.ID != second || ev.Status != int32(cm.RejStaleConnection) {
		t.Errorf("%+v", ev)
	}
	p.nothingLeftNow()
}

// TestSelf: a machine that connects to itself.
func TestSelf(t *testing.T) {
	e := newEnd(t, addrA, guidA, cm.Limits{})
	e.listen()
	args := connectArgs()
	args.CMA.Dst, args.Path = addrA, path(addrA, addrA)
	carry := func() {
		for _, mad, ok := e.PollSend(); ok; _, mad, ok = e.PollSend() {
			e.HandleMAD(start, path(addrA, addrA), bytes.Clone(mad))
		}
	}
	a := must[cm.CommID](t)(e.Connect(start, args))
	carry()
	b := e.expect(cm.ConnectRequest).ID
	ok(t, e.Accept(start, b, acceptParam(), nil))
	carry()
	e.expect(cm.ConnectResponse)
	ok(t, e.Establish(start, a, nil))
	carry()
	e.expect(cm.Established)
	ok(t, e.Disconnect(start, a, nil))
	carry()
	e.expect(cm.Disconnected)
	ok(t, e.Disconnect(start, b, nil))
	carry()
	e.expect(cm.Disconnected)
	e.HandleTimeout(start.Add(time.Second))
	e.expect(cm.TimewaitExit)
	e.expect(cm.TimewaitExit)
}

// TestRandomStarts: another secret, other numbers; the same secret, the same.
func TestRandomStarts(t *testing.T) {
	first := func(secret byte) (cm.Header, *cm.REQ) {
		m, err := cm.New(cm.Config{GUID: guidA, Secret: [16]byte{secret}})
		ok(t, err)
		must[cm.CommID](t)(m.Connect(start, connectArgs()))
		_, mad, _ := m.PollSend()
		h, msg, err := cm.ParseMAD(mad)
		ok(t, err)
		req, _ := msg.(*cm.REQ)
		return h, req
	}
	h1, r1 := first(1)
	h2, r2 := first(2)
	h3, r3 := first(1)
	if h1.TID>>32 == h2.TID>>32 || r1.LocalID == r2.LocalID || r1.PSN == r2.PSN {
		t.Errorf("%x %x %v: the same with another secret", h1.TID, r1.LocalID, r1.PSN)
	}
	if h1 != h3 || *r1 != *r3 {
		t.Error("not the same with the same secret")
	}
	if r1.PSN&^bth.PSNMask != 0 {
		t.Errorf("PSN %v has more than 24 bits", r1.PSN)
	}
}
