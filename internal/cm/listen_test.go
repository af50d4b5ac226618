package cm_test

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/softroce/softroce/internal/cm"
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/qpstate"
)

// TestListenConflicts: which listeners exclude each other.
func TestListenConflicts(t *testing.T) {
	any4, any6, one4, two4, one6 := "0.0.0.0", "::", "10.77.0.11", "10.77.0.12", "fd77::11"
	for _, tt := range []struct {
		first, second         string
		firstOnly, secondOnly bool
		ok                    bool
	}{
		{first: any4, second: any4},
		{first: any4, second: one4},
		{first: one4, second: any4},
		{first: one4, second: one4},
		{first: one4, second: two4, ok: true},
		{first: one4, second: "::ffff:10.77.0.11"},
		{first: any4, second: one6, ok: true},
		{first: any6, second: one4},
		{first: any6, second: any4},
		{first: any6, second: any4, firstOnly: true, ok: true},
		{first: any4, second: any6, secondOnly: true, ok: true},
		{first: any6, second: one6, firstOnly: true},
		{first: one6, second: "fe80::1", ok: true},
		{first: "", second: one6},
		{first: "", second: any4},
	} {
		e := newEnd(t, addrB, guidB, cm.Limits{})
		listen := func(addr string, only bool) error {
			a := cm.ListenArgs{Type: qpstate.RC, Service: cm.IPService(cm.SpaceTCP, port), Only: only}
			if addr != "" {
				a.Addr = netip.MustParseAddr(addr)
			}
			_, err := e.Listen(a)
			return err
		}
		ok(t, listen(tt.first, tt.firstOnly))
		if err := listen(tt.second, tt.secondOnly); (err == nil) != tt.ok || err != nil && !errors.Is(err, cm.ErrInUse) {
			t.Errorf("%q only %v, then %q only %v: %v, want ok %v", tt.first, tt.firstOnly, tt.second, tt.secondOnly, err, tt.ok)
		}
		// Another port space is another service id.
		_, err := e.Listen(cm.ListenArgs{Type: qpstate.UD, Service: cm.IPService(cm.SpaceUDP, port)})
		ok(t, err)
	}
}

// TestListenChoice: the nearest listener gets the request, one after another as
// they go.
func TestListenChoice(t *testing.T) {
	p := newPair(t)
	exact := must[cm.ListenerID](t)(p.b.Listen(cm.ListenArgs{Type: qpstate.RC, Service: cm.IPService(cm.SpaceTCP, port), Addr: addrB}))
	other := must[cm.ListenerID](t)(p.b.Listen(cm.ListenArgs{Type: qpstate.RC, Service: cm.IPService(cm.SpaceTCP, port), Addr: addrA}))
	six := must[cm.ListenerID](t)(p.b.Listen(cm.ListenArgs{
		Type: qpstate.RC, Service: cm.IPService(cm.SpaceTCP, port), Addr: netip.IPv6Unspecified(), Only: true,
	}))
	try := func(want cm.ListenerID, reason cm.RejectReason) {
		t.Helper()
		must[cm.CommID](t)(p.a.Connect(p.now, connectArgs()))
		p.exchange()
		if want != 0 {
			if ev := p.b.expect(cm.ConnectRequest); ev.Listener != want {
				t.Errorf("listener %d, want %d", ev.Listener, want)
			} else {
				ok(t, p.b.Reject(p.now, ev.ID, cm.RejConsumer, nil))
			}
			p.exchange()
		}
		if ev := p.a.expect(cm.Rejected); ev.Status != int32(reason) {
			t.Errorf("status %d, want %d", ev.Status, reason)
		}
	}
	try(exact, cm.RejConsumer)
	ok(t, p.b.Unlisten(p.now, exact))
	try(0, cm.RejConsumer) // somebody listens on the port, but elsewhere
	ok(t, p.b.Unlisten(p.now, other))
	try(0, cm.RejConsumer)
	ok(t, p.b.Unlisten(p.now, six))
	try(0, cm.RejInvalidServiceID)
	try(p.b.listen(), cm.RejConsumer)
	p.nothingLeft()
}

// TestBacklog: requests beyond it wait in the network, and come again.
func TestBacklog(t *testing.T) {
	p := newPair(t)
	l := must[cm.ListenerID](t)(p.b.Listen(cm.ListenArgs{Type: qpstate.RC, Service: cm.IPService(cm.SpaceTCP, port), Backlog: 2}))
	for i := range 4 {
		args := connectArgs()
		args.Param.QPN += bth.QPN(i)
		must[cm.CommID](t)(p.a.Connect(p.now, args))
	}
	p.exchange()
	first := p.b.expect(cm.ConnectRequest)
	second := p.b.expect(cm.ConnectRequest)
	p.b.quiet()
	if n := p.b.Counters(); n.Verdicts[cm.DropFull] != 2 || n.HalfOpen != 2 {
		t.Errorf("%+v", n)
	}
	ok(t, p.b.Taken(first.ID))
	p.advance(5 * time.Second)
	third := p.b.expect(cm.ConnectRequest)
	p.b.quiet()
	ok(t, p.b.Accept(p.now, second.ID, acceptParam(), nil))
	p.advance(5 * time.Second)
	p.b.expect(cm.ConnectRequest)
	// The requests that nobody has taken go with their listener.
	ok(t, p.b.Unlisten(p.now, l))
	p.exchange()
	if _, there := p.b.Info(third.ID); there {
		t.Error("a request outlived its listener")
	}
	if _, there := p.b.Info(first.ID); !there {
		t.Error("a request that was taken is gone")
	}
	p.nothingLeftNow()
}

// TestAnswerlessPeers: a peer that asks and takes back fills the backlog, not the
// memory.
func TestAnswerlessPeers(t *testing.T) {
	p := newPair(t)
	must[cm.ListenerID](t)(p.b.Listen(cm.ListenArgs{Type: qpstate.RC, Service: cm.IPService(cm.SpaceTCP, port), Backlog: 8}))
	for range 100 {
		id := must[cm.CommID](t)(p.a.Connect(p.now, connectArgs()))
		p.exchange()
		ok(t, p.a.Destroy(p.now, id))
		p.exchange()
	}
	if n := p.b.Counters(); n.Conns != 8 {
		t.Errorf("%d ids, want 8", n.Conns)
	}
	p.nothingLeftNow()
}

// TestPeerHalf: one host cannot take the places of all.
func TestPeerHalf(t *testing.T) {
	p := newPair(t)
	p.b = newEnd(t, addrB, guidB, cm.Limits{PeerHalf: 2})
	p.b.listen()
	other := newEnd(t, addrB.Next(), guidB+1, cm.Limits{})
	ask := func(e *end, i int) cm.Verdict {
		args := connectArgs()
		args.Param.QPN += bth.QPN(i)
		args.CMA.Src, args.Path = netip.AddrPortFrom(e.addr, 9), path(e.addr, addrB)
		must[cm.CommID](t)(e.Connect(p.now, args))
		return p.b.HandleMAD(p.now, path(addrB, e.addr), e.sent())
	}
	for i, want := range []cm.Verdict{cm.Handled, cm.Handled, cm.DropFull, cm.DropFull} {
		if v := ask(p.a, i); v != want {
			t.Errorf("request %d: %v, want %v", i, v, want)
		}
	}
	if v := ask(other, 9); v != cm.Handled {
		t.Errorf("another host: %v", v)
	}
	ok(t, p.b.Reject(p.now, p.b.expect(cm.ConnectRequest).ID, cm.RejConsumer, nil))
	if v := ask(p.a, 5); v != cm.Handled {
		t.Errorf("with one refused: %v", v)
	}
}

// TestLimits: what does not fit is refused, or waits with the peer.
func TestLimits(t *testing.T) {
	p := newPair(t)
	p.a = newEnd(t, addrA, guidA, cm.Limits{Conns: 3, Listeners: 1})
	p.b = newEnd(t, addrB, guidB, cm.Limits{HalfOpen: 2, Sends: 1})
	p.b.listen()
	for i := range 3 {
		args := connectArgs()
		args.Param.QPN += bth.QPN(i)
		must[cm.CommID](t)(p.a.Connect(p.now, args))
	}
	if _, err := p.a.Connect(p.now, connectArgs()); !errors.Is(err, cm.ErrFull) {
		t.Errorf("connect: %v", err)
	}
	p.a.listen()
	if _, err := p.a.Listen(cm.ListenArgs{Type: qpstate.RC}); !errors.Is(err, cm.ErrFull) {
		t.Errorf("listen: %v", err)
	}
	p.exchange()
	if n := p.b.Counters(); n.HalfOpen != 2 || n.Verdicts[cm.DropFull] != 1 {
		t.Errorf("%+v", n)
	}
	x, y := p.b.expect(cm.ConnectRequest), p.b.expect(cm.ConnectRequest)
	ok(t, p.b.Accept(p.now, x.ID, acceptParam(), nil))
	other := acceptParam()
	other.QPN++
	ok(t, p.b.Accept(p.now, y.ID, other, nil))
	if n := p.b.Counters(); n.SendsLost != 1 {
		t.Errorf("%d lost, want 1", n.SendsLost)
	}
	p.exchange()
	ok(t, p.a.Establish(p.now, p.a.expect(cm.ConnectResponse).ID, nil))
	p.exchange()
	p.a.quiet()
	p.advance(5 * time.Second) // the lost REP comes again
	p.a.expect(cm.ConnectResponse)
	for _, limits := range []cm.Limits{{Conns: -1}, {HalfOpen: -1}, {PeerHalf: -1}, {Listeners: -1}, {Sends: -1}} {
		if _, err := cm.New(cm.Config{GUID: 1, Limits: limits}); !errors.Is(err, cm.ErrInvalid) {
			t.Errorf("%+v: %v", limits, err)
		}
	}
	for _, cfg := range []cm.Config{{}, {GUID: 1, AckDelay: 32}} {
		if _, err := cm.New(cfg); !errors.Is(err, cm.ErrInvalid) {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
}
