package cm_test

import (
	"errors"
	"testing"
	"time"

	"github.com/softroce/softroce/internal/cm"
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/qpstate"
)

// TestConnect brings a connection up and down, and looks at every event.
func TestConnect(t *testing.T) {
	p := newPair(t)
	l := p.b.listen()
	args := connectArgs()
	args.Private = []byte("hello")
	a := must[cm.CommID](t)(p.a.Connect(p.now, args))
	p.exchange()
	ev := p.b.expect(cm.ConnectRequest)
	want := cm.Param{QPN: qpnA, ResponderResources: 3, InitiatorDepth: 2, RetryCount: 7, RNRRetry: 6}
	if ev.Listener != l || ev.Param != want || ev.Local.String() != "10.77.0.12:7174" || ev.Remote.String() != "10.77.0.11:35405" ||
		ev.PrivateLen != 56 || string(ev.Private[:6]) != "hello\x00" {
		t.Errorf("%+v", ev)
	}
	b := ev.ID
	wantAttr(t, p.b, b, acceptParam(), attrs{dest: qpnA, timeout: 17, responder: 3, initiator: 2, rnr: 6})
	own := acceptParam()
	own.ResponderResources, own.InitiatorDepth = 1, 200
	wantAttr(t, p.b, b, own, attrs{dest: qpnA, timeout: 17, responder: 1, initiator: cm.DefaultMaxDepth, rnr: 6})
	ok(t, p.b.Accept(p.now, b, acceptParam(), []byte("yes")))
	p.exchange()
	ev = p.a.expect(cm.ConnectResponse)
	want = cm.Param{QPN: qpnB, ResponderResources: 2, InitiatorDepth: 3, RNRRetry: 5}
	if ev.ID != a || ev.Param != want || ev.PrivateLen != cm.PrivateREP || string(ev.Private[:4]) != "yes\x00" {
		t.Errorf("%+v", ev)
	}
	wantAttr(t, p.a, a, cm.Param{}, attrs{dest: qpnB, timeout: 17, responder: 2, initiator: 3, rnr: 5})
	wantPSNs(t, p, a, b)
	if next := p.a.NextTimeout(); !next.IsZero() {
		t.Errorf("with the REP there, A still waits until %v", next)
	}
	p.b.quiet()
	ok(t, p.a.Establish(p.now, a, []byte("now")))
	p.exchange()
	if next := p.b.NextTimeout(); !next.IsZero() {
		t.Errorf("with the RTU there, B still waits until %v", next)
	}
	ev = p.b.expect(cm.Established)
	if ev.ID != b || string(ev.Private[:4]) != "now\x00" {
		t.Errorf("%+v", ev)
	}
	ok(t, p.a.Disconnect(p.now, a, []byte("bye")))
	p.exchange()
	ev = p.b.expect(cm.Disconnected)
	if ev.ID != b || ev.Status != 0 || string(ev.Private[:4]) != "bye\x00" {
		t.Errorf("%+v", ev)
	}
	p.a.quiet()
	ok(t, p.b.Disconnect(p.now, b, nil))
	p.exchange()
	p.a.expect(cm.Disconnected)
	p.a.state(a, cm.TimeWait)
	p.b.state(b, cm.TimeWait)
	p.advance(511 * time.Millisecond)
	p.a.quiet()
	p.advance(time.Millisecond)
	p.a.expect(cm.TimewaitExit)
	p.b.expect(cm.TimewaitExit)
	p.nothingLeft()
}

// attrs is what a queue pair is to be modified with.
type attrs struct {
	dest                      bth.QPN
	timeout                   uint8
	responder, initiator, rnr uint8
}

func wantAttr(t *testing.T, e *end, id cm.CommID, param cm.Param, want attrs) {
	t.Helper()
	state := qpstate.Reset
	var all qpstate.Attr
	for _, to := range []qpstate.State{qpstate.Init, qpstate.RTR, qpstate.RTS} {
		a, mask, err := e.QPAttr(id, to, param)
		ok(t, err)
		next, err := qpstate.Check(qpstate.RC, state, &a, mask)
		ok(t, err)
		state = next
		switch {
		case to == qpstate.Init:
			all.AccessFlags = a.AccessFlags
		case to == qpstate.RTR:
			if a.AccessFlags != all.AccessFlags || mask&qpstate.MaskAccessFlags == 0 {
				t.Errorf("rights %#x in INIT, %#x in RTR, mask %#x", all.AccessFlags, a.AccessFlags, mask)
			}
			all.DestQPN, all.MaxDestRDAtomic, all.PathMTU, all.AH = a.DestQPN, a.MaxDestRDAtomic, a.PathMTU, a.AH
		default:
			all.Timeout, all.MaxRDAtomic, all.RNRRetry, all.RetryCnt = a.Timeout, a.MaxRDAtomic, a.RNRRetry, a.RetryCnt
		}
	}
	got := attrs{all.DestQPN, all.Timeout, all.MaxDestRDAtomic, all.MaxRDAtomic, all.RNRRetry}
	if got != want || all.PathMTU != bth.MTU1024 || all.RetryCnt != 7 || all.AccessFlags != 14 || all.AH.HopLimit != 64 ||
		all.AH.SGIDIndex != 1 || !all.AH.IsGlobal {
		t.Errorf("%v: %+v, %+v, want %+v", e.addr, got, all, want)
	}
}

// wantPSNs: each side sends from where the other receives.
func wantPSNs(t *testing.T, p *pair, a, b cm.CommID) {
	t.Helper()
	psn := func(e *end, id cm.CommID, to qpstate.State) bth.PSN {
		attr, _, err := e.QPAttr(id, to, acceptParam())
		ok(t, err)
		if to == qpstate.RTR {
			return attr.RQPSN
		}
		return attr.SQPSN
	}
	ra, sa := psn(p.a, a, qpstate.RTR), psn(p.a, a, qpstate.RTS)
	rb, sb := psn(p.b, b, qpstate.RTR), psn(p.b, b, qpstate.RTS)
	if ra != sb || rb != sa || ra == rb {
		t.Errorf("A receives from %v and sends from %v, B from %v and %v", ra, sa, rb, sb)
	}
}

// TestRefusals: why a REQ is refused, and with which reason.
func TestRefusals(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*cm.REQ)
		want   cm.RejectReason
	}{
		{"§12.6.7.2 (8) nobody listens on the port", func(r *cm.REQ) { r.ServiceID++ }, cm.RejInvalidServiceID},
		{"(8) UDP port space", func(r *cm.REQ) { r.ServiceID = cm.IPService(cm.SpaceUDP, port) }, cm.RejInvalidServiceID},
		{"(12) GIDs of two families", func(r *cm.REQ) { r.Primary.LocalGID = bth.GID{0: 0xFD, 15: 1} }, cm.RejInvalidGID},
		{"(12) another GID than it came to", func(r *cm.REQ) { r.Primary.RemoteGID[15]++ }, cm.RejInvalidGID},
		{"(18) an alternate path", func(r *cm.REQ) { r.Alternate.LocalLID = 1 }, cm.RejInvalidAltGID},
		{"(28) CMA version 1", func(r *cm.REQ) { r.Private[0] = 1 }, cm.RejConsumer},
		{"(28) IP version 5", func(r *cm.REQ) { r.Private[1] = 0x50 }, cm.RejConsumer},
		{"(28) destination is another address", func(r *cm.REQ) { r.Private[35]++ }, cm.RejConsumer},
		{"(28) source is 0", func(r *cm.REQ) { clear(r.Private[4:20]) }, cm.RejConsumer},
		{"(28) source is a group", func(r *cm.REQ) { r.Private[16] = 239 }, cm.RejConsumer},
		{"(28) source is broadcast", func(r *cm.REQ) { copy(r.Private[16:], "\xff\xff\xff\xff") }, cm.RejConsumer},
		{"(9) UC", func(r *cm.REQ) { r.Service = cm.ServiceUC }, cm.RejInvalidTransport},
		{"(9) XRC", func(r *cm.REQ) { r.Service, r.Extended = cm.ServiceExtended, 1 }, cm.RejInvalidTransport},
		{"(9) RD", func(r *cm.REQ) { r.Service = 2 }, cm.RejInvalidTransport},
		{"(26) MTU 0", func(r *cm.REQ) { r.MTU = 0 }, cm.RejInvalidMTU},
		{"(26) MTU 6", func(r *cm.REQ) { r.MTU = 6 }, cm.RejInvalidMTU},
		{"(1) queue pair 0", func(r *cm.REQ) { r.QPN = 0 }, cm.RejNoQP},
		{"none", func(*cm.REQ) {}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := newPair(t)
			p.b.listen()
			a := must[cm.CommID](t)(p.a.Connect(p.now, connectArgs()))
			_, mad, _ := p.a.PollSend()
			h, msg, err := cm.ParseMAD(mad)
			ok(t, err)
			req, _ := msg.(*cm.REQ)
			tt.change(req)
			v := p.b.HandleMAD(p.now, path(addrB, addrA), cm.AppendMAD(nil, h, req))
			p.exchange()
			if tt.want == 0 {
				p.b.expect(cm.ConnectRequest)
				return
			}
			if v != cm.Answered {
				t.Errorf("verdict %v", v)
			}
			p.b.quiet()
			if ev := p.a.expect(cm.Rejected); ev.ID != a || ev.Status != int32(tt.want) || ev.PrivateLen != cm.PrivateREJ {
				t.Errorf("status %v, want %v", cm.RejectReason(ev.Status), tt.want)
			}
			if next := p.a.NextTimeout(); !next.IsZero() {
				t.Errorf("refused, and still waits until %v", next)
			}
			p.a.state(a, cm.Idle)
			p.nothingLeft()
		})
	}
}

// TestReject: both sides may refuse, with private data.
func TestReject(t *testing.T) {
	p := newPair(t)
	p.b.listen()
	_, b := p.request()
	ok(t, p.b.Reject(p.now, b, cm.RejConsumer, []byte("no")))
	p.exchange()
	if ev := p.a.expect(cm.Rejected); ev.Status != 28 || string(ev.Private[:3]) != "no\x00" {
		t.Errorf("%+v", ev)
	}
	p.b.quiet()
	a, b := p.request()
	ok(t, p.b.Accept(p.now, b, acceptParam(), nil))
	p.exchange()
	p.a.expect(cm.ConnectResponse)
	ok(t, p.a.Reject(p.now, a, cm.RejConsumer, []byte("on second thought")))
	p.exchange()
	if ev := p.b.expect(cm.Rejected); ev.ID != b || ev.Status != 28 || ev.Private[0] != 'o' {
		t.Errorf("%+v", ev)
	}
	p.nothingLeft()
}

// TestUnreachable: nobody answers; how often, and for how long.
func TestUnreachable(t *testing.T) {
	p := newPair(t)
	sent := 0
	p.lose = func(_ *end, attr cm.AttrID) bool {
		if attr == cm.AttrREQ {
			sent++
		}
		return true
	}
	a := must[cm.CommID](t)(p.a.Connect(p.now, connectArgs()))
	p.exchange()
	p.advance(16*4608*time.Millisecond - time.Millisecond)
	p.a.quiet()
	p.advance(time.Millisecond)
	if ev := p.a.expect(cm.Unreachable); ev.ID != a || ev.Status != cm.StatusTimeout || sent != 16 {
		t.Errorf("%+v after %d REQs", ev, sent)
	}
	p.nothingLeft()
}

// TestREPUnanswered: the passive side gives up, and its peer hears of it when it
// can.
func TestREPUnanswered(t *testing.T) {
	p := newPair(t)
	p.b.listen()
	a, b := p.request()
	ok(t, p.b.Accept(p.now, b, acceptParam(), nil))
	p.exchange()
	p.a.expect(cm.ConnectResponse)
	p.lose = func(e *end, attr cm.AttrID) bool { return attr == cm.AttrRTU || attr == cm.AttrMRA }
	ok(t, p.a.Establish(p.now, a, nil))
	p.advance(16 * 4096 * time.Millisecond)
	if ev := p.b.expect(cm.Unreachable); ev.ID != b || ev.Status != cm.StatusTimeout {
		t.Errorf("%+v", ev)
	}
	if ev := p.a.expect(cm.Rejected); ev.Status != int32(cm.RejTimeout) {
		t.Errorf("%+v", ev)
	}
	p.nothingLeft()
}

// TestStaleREQ: a peer that started anew with an old queue pair is told so, and
// the old connection ends.
func TestStaleREQ(t *testing.T) {
	p := newPair(t)
	_, b := p.connect()
	p.a = newEnd(t, addrA, guidA, cm.Limits{}) // it lost its memory
	must[cm.CommID](t)(p.a.Connect(p.now, connectArgs()))
	p.a.PollSend() // this number was used before the restart
	a := must[cm.CommID](t)(p.a.Connect(p.now, connectArgs()))
	p.exchange()
	if ev := p.a.expect(cm.Rejected); ev.ID != a || ev.Status != int32(cm.RejStaleConnection) {
		t.Errorf("%+v", ev)
	}
	if ev := p.b.expect(cm.Disconnected); ev.ID != b {
		t.Errorf("%+v", ev)
	}
	p.advance(5 * time.Second)
	p.a.state(a, cm.Idle)
	p.b.expect(cm.TimewaitExit)
	p.nothingLeftNow()
}

// TestStaleHalfOpen: what a peer asked for before it started anew is over, so that
// its next attempt succeeds.
func TestStaleHalfOpen(t *testing.T) {
	for _, accepted := range []bool{false, true} {
		p := newPair(t)
		p.b.listen()
		_, b := p.request()
		if accepted {
			ok(t, p.b.Accept(p.now, b, acceptParam(), nil))
			p.b.sent() // lost
		}
		p.a = newEnd(t, addrA, guidA, cm.Limits{})
		must[cm.CommID](t)(p.a.Connect(p.now, connectArgs()))
		p.a.sent() // this number was used before the restart
		must[cm.CommID](t)(p.a.Connect(p.now, connectArgs()))
		mad := p.a.sent()
		p.b.HandleMAD(p.now, path(addrB, addrA.Next().Next()), mad) // not from there
		p.b.quiet()
		p.b.sent()
		p.b.HandleMAD(p.now, path(addrB, addrA), mad)
		p.exchange()
		if ev := p.a.expect(cm.Rejected); ev.Status != int32(cm.RejStaleConnection) {
			t.Errorf("%+v", ev)
		}
		if ev := p.b.expect(cm.Rejected); ev.ID != b || ev.Status != int32(cm.RejStaleConnection) {
			t.Errorf("%+v", ev)
		}
		p.connect()
		p.nothingLeftNow()
	}
}

// nothingLeftNow is nothingLeft, whatever events wait.
func (p *pair) nothingLeftNow() {
	p.a.forget()
	p.b.forget()
	p.nothingLeft()
}

// TestMRA: a program that takes its time is waited for, on either side.
func TestMRA(t *testing.T) {
	p := newPair(t)
	p.b.listen()
	a, b := p.request()
	p.advance(5 * time.Second) // the REQ comes again and is answered by an MRA
	p.a.state(a, cm.MRAReqRcvd)
	if n := p.a.Counters().Sent[0]; n != 2 {
		t.Errorf("%d REQs, want 2", n)
	}
	p.advance(60 * time.Second) // the MRA asked for 65.5 s
	if n := p.a.Counters().Sent[0]; n != 2 {
		t.Errorf("%d REQs, want 2", n)
	}
	ok(t, p.b.Accept(p.now, b, acceptParam(), nil))
	p.exchange()
	p.a.expect(cm.ConnectResponse)
	p.advance(60 * time.Second)
	p.b.state(b, cm.MRARepRcvd)
	if n := p.b.Counters().Sent[cm.AttrREP-cm.AttrREQ]; n != 2 {
		t.Errorf("%d REPs, want 2", n)
	}
	ok(t, p.a.Establish(p.now, a, nil))
	p.exchange()
	p.b.expect(cm.Established)
	p.nothingLeft()
}

// TestDisconnectTogether: both ask at once.
func TestDisconnectTogether(t *testing.T) {
	p := newPair(t)
	a, b := p.connect()
	ok(t, p.a.Disconnect(p.now, a, nil))
	ok(t, p.b.Disconnect(p.now, b, nil))
	p.exchange()
	p.a.expect(cm.Disconnected)
	p.b.expect(cm.Disconnected)
	p.a.state(a, cm.TimeWait)
	p.b.state(b, cm.TimeWait)
	ok(t, p.a.Disconnect(p.now, a, nil)) // as programs do that got the event
	p.exchange()
	p.advance(time.Second)
	p.a.expect(cm.TimewaitExit)
	p.b.expect(cm.TimewaitExit)
	p.nothingLeft()
}

// TestDisconnectAlone: the peer has vanished.
func TestDisconnectAlone(t *testing.T) {
	p := newPair(t)
	a, _ := p.connect()
	p.lose = func(*end, cm.AttrID) bool { return true }
	ok(t, p.a.Disconnect(p.now, a, nil))
	p.advance(16 * 4608 * time.Millisecond)
	if ev := p.a.expect(cm.Disconnected); ev.Status != cm.StatusTimeout {
		t.Errorf("%+v", ev)
	}
	p.advance(time.Second)
	p.a.expect(cm.TimewaitExit)
	p.lose = nil
	p.nothingLeftNow()
}

// TestWrongCalls: what a program may not do.
func TestWrongCalls(t *testing.T) {
	p := newPair(t)
	p.b.listen()
	wantErr := func(want, err error) {
		t.Helper()
		if !errors.Is(err, want) {
			t.Errorf("%v, want %v", err, want)
		}
	}
	a, b := p.request()
	wantErr(cm.ErrState, p.a.Establish(p.now, a, nil))
	wantErr(cm.ErrState, p.a.Disconnect(p.now, a, nil))
	wantErr(cm.ErrState, p.a.Accept(p.now, a, acceptParam(), nil))
	wantErr(cm.ErrState, p.a.Reject(p.now, a, 28, nil))
	wantErr(cm.ErrUnknownID, p.a.Accept(p.now, a+1, acceptParam(), nil))
	wantErr(cm.ErrUnknownID, p.a.Destroy(p.now, a+1))
	wantErr(cm.ErrUnknownID, p.a.Taken(a+1))
	wantErr(cm.ErrUnknownID, p.a.Unlisten(p.now, 9))
	wantErr(cm.ErrPrivate, p.b.Accept(p.now, b, acceptParam(), make([]byte, 197)))
	wantErr(cm.ErrPrivate, p.b.Reject(p.now, b, 28, make([]byte, 149)))
	wantErr(cm.ErrInvalid, p.b.Accept(p.now, b, cm.Param{}, nil))
	_, _, err := p.a.QPAttr(a, qpstate.RTR, cm.Param{})
	wantErr(cm.ErrState, err)
	_, _, err = p.b.QPAttr(b, qpstate.SQD, cm.Param{})
	wantErr(cm.ErrInvalid, err)
	for _, change := range []func(*cm.ConnectArgs){
		func(c *cm.ConnectArgs) { c.Type = qpstate.GSI },
		func(c *cm.ConnectArgs) { c.Type = 9 },
		func(c *cm.ConnectArgs) { c.MTU = 0 },
		func(c *cm.ConnectArgs) { c.Param.QPN = 1 },
		func(c *cm.ConnectArgs) { c.LifeTime = 31 },
		func(c *cm.ConnectArgs) { c.Path.Remote = bth.GID{} },
		func(c *cm.ConnectArgs) { c.Path.Remote = bth.GID{0: 0xFD, 15: 1} },
		func(c *cm.ConnectArgs) { c.CMA.Dst = bth.GID{0: 0xFD}.Addr() },
	} {
		args := connectArgs()
		change(&args)
		_, err := p.a.Connect(p.now, args)
		wantErr(cm.ErrInvalid, err)
	}
	args := connectArgs()
	args.Private = make([]byte, 57)
	_, err = p.a.Connect(p.now, args)
	wantErr(cm.ErrPrivate, err)
	args.Private, args.CMA, args.Service = make([]byte, 92), cm.CMA{}, cm.IPService(cm.SpaceIB, port)
	must[cm.CommID](t)(p.a.Connect(p.now, args))
	p.nothingLeftNow()
}
