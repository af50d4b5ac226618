package cm_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/softroce/softroce/internal/cm"
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/qpstate"
)

var (
	start = time.Date(2024, 5, 1, 0, 0, 0, 0, time.UTC)
	addrA = netip.MustParseAddr("10.77.0.11")
	addrB = netip.MustParseAddr("10.77.0.12")
)

const (
	guidA = 0x505400fffe770011
	guidB = 0x505400fffe770012
	port  = 7174
	// qpnA and qpnB are the ends' queue pairs.
	qpnA = 0x11e
	qpnB = 0xa8
)

// end is a machine with its address.
type end struct {
	*cm.Machine
	t    testing.TB
	addr netip.Addr
}

func newEnd(t testing.TB, addr netip.Addr, guid uint64, limits cm.Limits) *end {
	t.Helper()
	m, err := cm.New(cm.Config{GUID: guid, Secret: [16]byte{byte(guid), 1}, Limits: limits})
	if err != nil {
		t.Fatal(err)
	}
	return &end{m, t, addr}
}

// path leads from one address to another.
func path(from, to netip.Addr) cm.Path {
	return cm.Path{Local: bth.GIDFromAddr(from), Remote: bth.GIDFromAddr(to), SGIDIndex: 1, HopLimit: 64}
}

// pair is two ends and the virtual time.
type pair struct {
	t    testing.TB
	now  time.Time
	a, b *end
	// lose says of a MAD whether it is lost; nil: none is.
	lose func(from *end, attr cm.AttrID) bool
}

func newPair(t testing.TB) *pair {
	return &pair{
		t: t, now: start,
		a: newEnd(t, addrA, guidA, cm.Limits{}), b: newEnd(t, addrB, guidB, cm.Limits{}),
	}
}

func (p *pair) other(e *end) *end {
	if e == p.a {
		return p.b
	}
	return p.a
}

// exchange carries MADs until nobody has one to send.
func (p *pair) exchange() {
	for quiet := false; !quiet; {
		quiet = true
		for _, e := range []*end{p.a, p.b} {
			to, mad, ok := e.PollSend()
			if !ok {
				continue
			}
			quiet = false
			h, _, err := cm.ParseMAD(mad)
			if err != nil {
				p.t.Fatalf("sent a bad MAD: %v", err)
			}
			if p.lose != nil && p.lose(e, h.Attr) {
				continue
			}
			if to.Remote != bth.GIDFromAddr(p.other(e).addr) {
				p.t.Fatalf("%v sent %v to %v", e.addr, h.Attr, to.Remote)
			}
			p.other(e).HandleMAD(p.now, path(p.other(e).addr, e.addr), mad)
		}
	}
}

// advance moves the time, with every timeout on the way.
func (p *pair) advance(d time.Duration) {
	for until := p.now.Add(d); ; {
		next := until
		for _, e := range []*end{p.a, p.b} {
			if t := e.NextTimeout(); !t.IsZero() && t.Before(next) {
				next = t
			}
		}
		if next.After(p.now) {
			p.now = next
		}
		p.a.HandleTimeout(p.now)
		p.b.HandleTimeout(p.now)
		p.exchange()
		if !p.now.Before(until) {
			return
		}
	}
}

// expect polls the next event of an end, which must be of this kind.
func (e *end) expect(kind cm.EventKind) cm.Event {
	e.t.Helper()
	ev, ok := e.PollEvent()
	if !ok || ev.Kind != kind {
		e.t.Fatalf("%v: event %v (%v, status %d), want %v", e.addr, ev.Kind, ok, ev.Status, kind)
	}
	return ev
}

// quiet says that an end has no event.
func (e *end) quiet() {
	e.t.Helper()
	if ev, ok := e.PollEvent(); ok {
		e.t.Fatalf("%v: event %v status %d, want none", e.addr, ev.Kind, ev.Status)
	}
}

// state checks what an id is doing.
func (e *end) state(id cm.CommID, want cm.State) {
	e.t.Helper()
	info, ok := e.Info(id)
	if !ok || info.State != want {
		e.t.Fatalf("%v: id %#x is in %v (%v), want %v", e.addr, id, info.State, ok, want)
	}
}

func must[T any](t testing.TB) func(v T, err error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// connectArgs asks from A's to B's port.
func connectArgs() cm.ConnectArgs {
	return cm.ConnectArgs{
		Type: qpstate.RC, Service: cm.IPService(cm.SpaceTCP, port),
		CMA:  cm.CMA{Src: netip.AddrPortFrom(addrA, 35405), Dst: addrB},
		Path: path(addrA, addrB), MTU: bth.MTU1024,
		Param: cm.Param{QPN: qpnA, ResponderResources: 2, InitiatorDepth: 3, RetryCount: 7, RNRRetry: 6},
	}
}

func acceptParam() cm.Param {
	return cm.Param{QPN: qpnB, ResponderResources: cm.DepthMax, InitiatorDepth: cm.DepthMax, RNRRetry: 5}
}

// listen makes an end listen for RC on every address.
func (e *end) listen() cm.ListenerID {
	e.t.Helper()
	return must[cm.ListenerID](e.t)(e.Listen(cm.ListenArgs{
		Type: qpstate.RC, Service: cm.IPService(cm.SpaceTCP, port), Addr: netip.IPv4Unspecified(),
	}))
}

// request makes A ask B, up to B's ConnectRequest.
func (p *pair) request() (a, b cm.CommID) {
	p.t.Helper()
	return p.requestAs(qpnA)
}

func (p *pair) requestAs(qpn bth.QPN) (a, b cm.CommID) {
	p.t.Helper()
	args := connectArgs()
	args.Param.QPN = qpn
	a = must[cm.CommID](p.t)(p.a.Connect(p.now, args))
	p.exchange()
	return a, p.b.expect(cm.ConnectRequest).ID
}

// connect brings a connection up.
func (p *pair) connect() (a, b cm.CommID) {
	p.t.Helper()
	return p.connectAs(qpnA, qpnB)
}

// connectAs brings a connection of these queue pairs up; older events are lost.
func (p *pair) connectAs(qpnA, qpnB bth.QPN) (a, b cm.CommID) {
	p.t.Helper()
	if p.b.Counters().Listeners == 0 {
		p.b.listen()
	}
	p.a.forget()
	p.b.forget()
	a, b = p.requestAs(qpnA)
	param := acceptParam()
	param.QPN = qpnB
	ok(p.t, p.b.Accept(p.now, b, param, nil))
	p.exchange()
	p.a.expect(cm.ConnectResponse)
	ok(p.t, p.a.Establish(p.now, a, nil))
	p.exchange()
	p.b.expect(cm.Established)
	p.a.state(a, cm.Connected)
	p.b.state(b, cm.Connected)
	return a, b
}

// nothingLeft checks that nothing is left once the ids are destroyed and time has passed.
func (p *pair) nothingLeft() {
	p.t.Helper()
	for _, e := range []*end{p.a, p.b} {
		for _, id := range e.IDs() {
			ok(p.t, e.Destroy(p.now, id))
		}
	}
	p.exchange()
	p.advance(10 * time.Minute)
	for _, e := range []*end{p.a, p.b} {
		if n := e.Counters(); n.Conns != 0 || n.HalfOpen != 0 || !e.NextTimeout().IsZero() || cm.TableSizes(e.Machine) != 0 {
			p.t.Fatalf("%v: left: %d ids, %d half open, next timeout %v, %d table entries",
				e.addr, n.Conns, n.HalfOpen, e.NextTimeout(), cm.TableSizes(e.Machine))
		}
		e.quiet()
	}
}
