package rdmacm

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/uapi"
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/verbs"
)

var (
	here   = netip.MustParseAddrPort("192.0.2.1:4000")
	there  = netip.MustParseAddrPort("192.0.2.2:7471")
	limits = verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1}
)

func newID2(t *testing.T, dev *verbs.Device, space PortSpace) (*EventChannel, *ID) {
	t.Helper()
	ch, err := NewEventChannel(dev)
	check(t, err)
	id, err := ch.CreateID(space)
	check(t, err)
	return ch, id
}

// next takes an event that must be there.
func next(t *testing.T, ch *EventChannel, want EventType) *Event {
	t.Helper()
	e, err := ch.Get(patience(t))
	check(t, err)
	if e.Type != want {
		t.Fatalf("event %v (%v), want %v", e.Type, e.Err(), want)
	}
	return e
}

// The client's calls and events, with a queue pair of CreateQP: the library takes
// it to RTS at the peer's answer and tells ESTABLISHED.
func TestClient(t *testing.T) {
	f, dev := newFake(t)
	ch, id := newID2(t, dev, PSTCP)
	var addr uapi.CMAddrRequest
	f.answer(uapi.OpResolveCMAddr, keeps(t, &addr, &uapi.CMAddrReply{}))
	check(t, id.ResolveAddr(netip.AddrPort{}, there, 2*time.Second))
	if addr.Timeout != 2000 || addr.Peer != cmAddr(there) || addr.Own != (uapi.CMAddr{}) {
		t.Errorf("resolve address asks %+v", addr)
	}
	f.raise(ch, uapi.CMRecord{Event: uapi.CMAddrResolved, ID: id.handle, Own: cmAddr(here), Peer: cmAddr(there)})
	next(t, ch, EventAddrResolved).Ack()
	if id.LocalAddr() != here || id.PeerAddr() != there {
		t.Errorf("addresses %v and %v", id.LocalAddr(), id.PeerAddr())
	}
	check(t, id.ResolveRoute(time.Second))
	f.raise(ch, uapi.CMRecord{Event: uapi.CMRouteResolved, ID: id.handle})
	next(t, ch, EventRouteResolved).Ack()

	check(t, id.CreateQP(nil, &verbs.QPInitAttr{Cap: limits}))
	if s, _, _ := f.states(); !slices.Equal(s, []verbs.QPState{verbs.StateInit}) {
		t.Errorf("a new queue pair goes through %v", s)
	}
	var call uapi.CMCallRequest
	f.answer(uapi.OpConnectCM, keeps(t, &call, nil))
	check(t, id.Connect(&ConnParam{PrivateData: []byte("hi"), ResponderResources: 1, InitiatorDepth: 2, RetryCount: 3, RNRRetryCount: 4}))
	p := call.Param
	if string(call.Private) != "hi" || p.QPN != id.QP().Num() || p.ResponderResources != 1 || p.InitiatorDepth != 2 || p.RetryCount != 3 || p.RNRRetryCount != 4 {
		t.Errorf("connect asks %+v", call)
	}
	f.took()
	f.raise(ch, uapi.CMRecord{Event: uapi.CMConnectResponse, ID: id.handle, Private: []byte("ho")})
	e := next(t, ch, EventEstablished)
	if string(e.Private) != "ho" || e.Err() != nil {
		t.Errorf("event %+v", e)
	}
	s, resources, depth := f.states()
	if !slices.Equal(s, []verbs.QPState{verbs.StateRTR, verbs.StateRTS}) || resources != 7 || depth != 9 {
		t.Errorf("the queue pair went through %v, depths %d and %d", s, resources, depth)
	}
	if asked := f.took(); asked[len(asked)-1] != "establish" {
		t.Errorf("requests %q, want establish last", asked)
	}
	e.Ack()
	check(t, id.Disconnect())
	if s, _, _ := f.states(); !slices.Equal(s, []verbs.QPState{verbs.StateErr}) {
		t.Errorf("disconnect takes the queue pair through %v", s)
	}
	check(t, id.Destroy())
	want(t, "a call after Destroy", id.Disconnect(), unix.EINVAL)
	want(t, "a second Destroy", id.Destroy(), unix.EINVAL)
	check(t, ch.Destroy())
	a := f.took()
	for _, op := range []string{"destroy QP", "destroy CQ", "destroy channel", "dealloc PD", "destroy CM id"} {
		if !slices.Contains(a, op) {
			t.Errorf("nobody asked for %q: %q", op, a)
		}
	}
}

// A queue pair that cannot be taken to RTS is CONNECT_ERROR, the peer is refused,
// and what it says after that is not told.
func TestConnectError(t *testing.T) {
	f, dev := newFake(t)
	ch, id := newID2(t, dev, PSTCP)
	check(t, id.CreateQP(nil, &verbs.QPInitAttr{Cap: limits}))
	f.answer(uapi.OpEstablishCM, fails(unix.ENOMEM))
	var call uapi.CMCallRequest
	f.answer(uapi.OpRejectCM, keeps(t, &call, nil))
	f.raise(ch, uapi.CMRecord{Event: uapi.CMConnectResponse, ID: id.handle})
	e := next(t, ch, EventConnectError)
	want(t, "the event", e.Err(), unix.ENOMEM)
	e.Ack()
	if call.Reason != uint32(RejectConsumer) || id.QP().State() != verbs.StateErr {
		t.Errorf("rejected with %d, queue pair in %v", call.Reason, id.QP().State())
	}
	f.raise(ch, uapi.CMRecord{Event: uapi.CMDisconnected, ID: id.handle})
	f.raise(ch, uapi.CMRecord{Event: uapi.CMTimewaitExit, ID: id.handle})
	next(t, ch, EventTimewaitExit).Ack()
	check(t, id.Destroy())
}

// Without a queue pair of CreateQP the program sees CONNECT_RESPONSE.
func TestOwnQP(t *testing.T) {
	f, dev := newFake(t)
	ch, id := newID2(t, dev, PSTCP)
	var call uapi.CMCallRequest
	f.answer(uapi.OpConnectCM, keeps(t, &call, nil))
	check(t, id.Connect(&ConnParam{QPN: 77, SRQ: true}))
	if call.Param.QPN != 77 || !call.Param.SRQ {
		t.Errorf("connect asks %+v", call.Param)
	}
	f.raise(ch, uapi.CMRecord{Event: uapi.CMConnectResponse, ID: id.handle, Param: uapi.CMParam{QPN: 88}})
	e := next(t, ch, EventConnectResponse)
	if e.Conn.QPN != 88 {
		t.Errorf("event %+v", e.Conn)
	}
	e.Ack()
	attr, mask, err := id.InitQPAttr(verbs.StateRTR)
	if err != nil || attr.State != verbs.StateRTR || mask&verbs.QPStateMask == 0 || attr.MaxDestRDAtomic != 7 {
		t.Errorf("attributes %+v, %#x, %v", attr, mask, err)
	}
	f.took()
	check(t, id.Accept(nil)) // as Establish
	check(t, id.Establish())
	if a := f.took(); !slices.Equal(a, []string{"establish", "establish"}) {
		t.Errorf("requests %q", a)
	}
	check(t, id.Destroy())
}

// The server's: a new identifier on the listener's channel, which has its context;
// Accept takes the queue pair to RTS first, with the depths of the program.
func TestServer(t *testing.T) {
	f, dev := newFake(t)
	ch, l := newID2(t, dev, PSTCP)
	l.Context = "ours"
	check(t, l.Bind(here))
	if l.LocalAddr() != here {
		t.Errorf("bound to %v", l.LocalAddr())
	}
	var v uapi.CMValueRequest
	f.answer(uapi.OpListenCM, keeps(t, &v, nil))
	check(t, l.Listen(5))
	if v.Value != 5 {
		t.Errorf("backlog %d", v.Value)
	}
	f.raise(ch, uapi.CMRecord{
		Event: uapi.CMConnectRequest, ID: 99, Listen: l.handle, Own: cmAddr(here), Peer: cmAddr(there), Private: []byte("let me in"),
		Param: uapi.CMParam{ResponderResources: 3, InitiatorDepth: 4},
	})
	e := next(t, ch, EventConnectRequest)
	id := e.ID
	if e.Listen != l || id == l || id.Context != "ours" || id.PeerAddr() != there || string(e.Private) != "let me in" || e.Conn.InitiatorDepth != 4 {
		t.Errorf("request %+v", e)
	}
	e.Ack()
	check(t, id.CreateQP(nil, &verbs.QPInitAttr{Cap: limits}))
	f.states()
	f.took()
	check(t, id.Accept(&ConnParam{ResponderResources: 1, InitiatorDepth: 2}))
	s, resources, depth := f.states()
	if !slices.Equal(s, []verbs.QPState{verbs.StateRTR, verbs.StateRTS}) || resources != 1 || depth != 2 {
		t.Errorf("the queue pair went through %v, depths %d and %d", s, resources, depth)
	}
	if a := f.took(); a[len(a)-1] != "accept" {
		t.Errorf("requests %q, want accept last", a)
	}
	f.raise(ch, uapi.CMRecord{Event: uapi.CMEstablished, ID: 99})
	next(t, ch, EventEstablished).Ack()
	f.raise(ch, uapi.CMRecord{Event: uapi.CMDisconnected, ID: 99})
	next(t, ch, EventDisconnected).Ack()
	check(t, id.Destroy())
	check(t, l.Destroy())
}

// Errors of calls are found before the adapter is asked.
func TestBadCalls(t *testing.T) {
	f, dev := newFake(t)
	ch, id := newID2(t, dev, PSTCP)
	long := make([]byte, 256)
	want(t, "connect", id.Connect(&ConnParam{PrivateData: long[:57]}), unix.EINVAL)
	want(t, "connect", id.Connect(&ConnParam{PrivateData: long[:56]}), 0)
	want(t, "accept", id.Accept(&ConnParam{PrivateData: long[:197]}), unix.EINVAL)
	want(t, "reject", id.Reject(long[:149]), unix.EINVAL)
	want(t, "reject", id.Reject(long[:148]), 0)
	want(t, "create QP of UD", id.CreateQP(nil, &verbs.QPInitAttr{Type: verbs.UD, Cap: limits}), unix.EINVAL)
	check(t, id.CreateQP(nil, &verbs.QPInitAttr{Cap: limits}))
	want(t, "a second QP", id.CreateQP(nil, &verbs.QPInitAttr{Cap: limits}), unix.EINVAL)
	want(t, "establish", id.Establish(), unix.EINVAL)
	want(t, "destroy the channel", ch.Destroy(), unix.EBUSY)
	f.answer(uapi.OpListenCM, fails(unix.EADDRINUSE))
	want(t, "listen", id.Listen(0), unix.EADDRINUSE)
	ud, err := ch.CreateID(PSUDP)
	check(t, err)
	want(t, "UD connect", ud.Connect(&ConnParam{PrivateData: long[:181]}), unix.EINVAL)
	want(t, "UD connect", ud.Connect(&ConnParam{PrivateData: long[:180]}), 0)
	_, err = ch.TryGet()
	want(t, "TryGet", err, unix.EAGAIN)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := ch.Get(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Get: %v", err)
	}
}

// What fails is told by the event, with librdmacm's errno.
func TestEventErrors(t *testing.T) {
	f, dev := newFake(t)
	ch, id := newID2(t, dev, PSTCP)
	udCh, ud := newID2(t, dev, PSUDP)
	for _, c := range []struct {
		ch     *EventChannel
		rec    uapi.CMRecord
		errno  unix.Errno
		text   string
		string string
	}{
		{ch, uapi.CMRecord{Event: uapi.CMAddrError, Status: -int32(unix.ENODEV)}, unix.ENODEV, "no way", "RDMA_CM_EVENT_ADDR_ERROR"},
		{ch, uapi.CMRecord{Event: uapi.CMRouteError, Status: -int32(unix.ENETUNREACH)}, unix.ENETUNREACH, "no route", "RDMA_CM_EVENT_ROUTE_ERROR"},
		{ch, uapi.CMRecord{Event: uapi.CMUnreachable, Status: -int32(unix.ETIMEDOUT)}, unix.ETIMEDOUT, "does not answer", "RDMA_CM_EVENT_UNREACHABLE"},
		{ch, uapi.CMRecord{Event: uapi.CMRejected, Status: 8}, unix.ECONNREFUSED, "nobody listens", "RDMA_CM_EVENT_REJECTED"},
		{ch, uapi.CMRecord{Event: uapi.CMRejected, Status: 28}, unix.ECONNREFUSED, "refused by the program", "RDMA_CM_EVENT_REJECTED"},
		{ch, uapi.CMRecord{Event: uapi.CMDisconnected}, unix.ECONNRESET, "ended", "RDMA_CM_EVENT_DISCONNECTED"},
		{udCh, uapi.CMRecord{Event: uapi.CMUnreachable, Status: 1}, unix.ECONNREFUSED, "", "RDMA_CM_EVENT_UNREACHABLE"},
		{ch, uapi.CMRecord{Event: uapi.CMTimewaitExit}, 0, "", "RDMA_CM_EVENT_TIMEWAIT_EXIT"},
	} {
		if c.rec.ID = id.handle; c.ch == udCh {
			c.rec.ID = ud.handle
		}
		f.raise(c.ch, c.rec)
		e, err := c.ch.TryGet()
		check(t, err)
		want(t, c.string, e.Err(), c.errno)
		if e.Type.String() != c.string || c.errno != 0 && !strings.Contains(e.Err().Error(), c.text) {
			t.Errorf("%v: %v, want %s with %q", e.Type, e.Err(), c.string, c.text)
		}
		if r := (*RejectError)(nil); errors.As(e.Err(), &r) && uint32(r.Reason) != uint32(c.rec.Status) {
			t.Errorf("reason %v, want %d", r.Reason, c.rec.Status)
		}
		e.Ack()
	}
}

// Destroying waits for acknowledgements, drops what is unread, and refuses peers
// that nobody will know of; the handle may be another's then.
func TestDestroyAndEvents(t *testing.T) {
	f, dev := newFake(t)
	ch, l := newID2(t, dev, PSTCP)
	f.raise(ch, uapi.CMRecord{Event: uapi.CMConnectRequest, ID: 98, Listen: l.handle})
	f.raise(ch, uapi.CMRecord{Event: uapi.CMConnectRequest, ID: 99, Listen: l.handle})
	f.raise(ch, uapi.CMRecord{Event: uapi.CMDisconnected, ID: 99})
	e := next(t, ch, EventConnectRequest)
	done := make(chan error)
	go func() { done <- l.Destroy() }()
	for gone := false; !gone; { // until only the acknowledgement is missing
		l.use.RLock()
		gone = l.gone
		l.use.RUnlock()
	}
	select {
	case err := <-done:
		t.Fatalf("destroyed with an event not acknowledged: %v", err)
	default:
	}
	e.Ack()
	e.Ack() // a second one does nothing
	check(t, <-done)
	f.mu.Lock()
	f.handles = l.handle - 1 // the same again
	f.mu.Unlock()
	again, err := ch.CreateID(PSTCP)
	check(t, err)
	f.took()
	f.raise(ch, uapi.CMRecord{Event: uapi.CMAddrResolved, ID: again.handle})
	if e := next(t, ch, EventAddrResolved); e.ID != again {
		t.Errorf("event of %p, want %p", e.ID, again)
	}
	if a := f.took(); !slices.Equal(a, []string{"destroy CM id"}) {
		t.Errorf("an unread request leads to %q", a)
	}
	if len(ch.skip) != 0 {
		t.Errorf("still to skip: %v", ch.skip)
	}
	check(t, e.ID.Destroy())
}

// Events that were not returned move with their identifier, those of others stay,
// and a reader that waits sees them.
func TestMigrate(t *testing.T) {
	f, dev := newFake(t)
	from, id := newID2(t, dev, PSTCP)
	other, err := from.CreateID(PSTCP)
	check(t, err)
	to, err := NewEventChannel(dev)
	check(t, err)
	f.raise(from, uapi.CMRecord{Event: uapi.CMAddrResolved, ID: id.handle})
	f.raise(from, uapi.CMRecord{Event: uapi.CMAddrError, ID: other.handle})
	f.raise(from, uapi.CMRecord{Event: uapi.CMRouteResolved, ID: id.handle})
	got := make(chan *Event)
	ctx := patience(t)
	go func() {
		for range 3 {
			e, err := to.Get(ctx)
			if err != nil {
				t.Error(err)
			}
			got <- e
		}
	}()
	e, err := from.TryGet()
	check(t, err)
	e.Ack()
	for waits := false; !waits; { // until the reader does
		to.mu.Lock()
		waits = to.kick != nil
		to.mu.Unlock()
	}
	check(t, id.Migrate(to))
	if id.Channel() != to {
		t.Error("the identifier has its former channel")
	}
	f.raise(to, uapi.CMRecord{Event: uapi.CMEstablished, ID: id.handle})
	f.raise(to, uapi.CMRecord{Event: uapi.CMDisconnected, ID: id.handle})
	for _, want := range []EventType{EventRouteResolved, EventEstablished, EventDisconnected} {
		e := <-got
		if e.Type != want || e.ID != id {
			t.Errorf("event %v, want %v", e.Type, want)
		}
		e.Ack()
	}
	if e := next(t, from, EventAddrError); e.ID != other {
		t.Error("another identifier's event is lost")
	} else {
		e.Ack()
	}
	check(t, id.Destroy())
	check(t, to.Destroy())
	check(t, other.Destroy())
	if len(from.forward)+len(from.skip)+len(to.skip)+len(from.ids)+len(to.ids) != 0 {
		t.Errorf("left behind: %v %v %v", from.forward, from.skip, to.skip)
	}
}

// Joining attaches the own queue pair; the event has the program's context.
func TestMulticast(t *testing.T) {
	f, dev := newFake(t)
	ch, id := newID2(t, dev, PSUDP)
	check(t, id.CreateQP(nil, &verbs.QPInitAttr{Cap: limits}))
	if id.QP().Type() != verbs.UD || id.QP().State() != verbs.StateRTS {
		t.Errorf("queue pair %v in %v", id.QP().Type(), id.QP().State())
	}
	g := netip.MustParseAddr("239.1.2.3")
	var join uapi.CMMcastRequest
	f.answer(uapi.OpJoinCM, keeps(t, &join, nil))
	check(t, id.JoinMulticast(g, false, "why"))
	want(t, "a second join", id.JoinMulticast(g, false, nil), unix.EADDRINUSE)
	rec := uapi.CMRecord{Event: uapi.CMMulticastJoin, ID: id.handle, Param: uapi.CMParam{QPN: 0xFFFFFF, QKey: QKeyUDP}}
	rec.Param.AH.DGID = bth.GIDFromAddr(g)
	f.took()
	f.raise(ch, rec)
	e := next(t, ch, EventMulticastJoin)
	if e.Context != "why" || e.UD.QPN != 0xFFFFFF || e.UD.AH.DGID != join.Group {
		t.Errorf("event %+v", e)
	}
	if a := f.took(); !slices.Equal(a, []string{"attach multicast"}) {
		t.Errorf("requests %q", a)
	}
	e.Ack()
	check(t, id.LeaveMulticast(g))
	want(t, "a second leave", id.LeaveMulticast(g), unix.EADDRNOTAVAIL)
	if a := f.took(); !slices.Equal(a, []string{"detach multicast", "leave multicast"}) {
		t.Errorf("requests %q", a)
	}
	f.answer(uapi.OpAttachMcast, fails(unix.ENOMEM))
	check(t, id.JoinMulticast(g, false, "again"))
	f.raise(ch, rec)
	e = next(t, ch, EventMulticastError)
	want(t, "the event", e.Err(), unix.ENOMEM)
	e.Ack()
	check(t, id.Destroy())
}

// An adapter that is gone ends waits and destructions; what it told before comes
// first, then every identifier's DEVICE_REMOVAL, once.
func TestDeadAdapter(t *testing.T) {
	f, dev := newFake(t)
	ch, id := newID2(t, dev, PSTCP)
	second, err := ch.CreateID(PSTCP)
	check(t, err)
	gone, err := ch.CreateID(PSTCP)
	check(t, err)
	check(t, gone.Destroy())
	f.raise(ch, uapi.CMRecord{Event: uapi.CMAddrResolved, ID: id.handle})
	next(t, ch, EventAddrResolved) // not acknowledged
	check(t, f.conn.Close())
	<-dev.Done()
	for _, w := range f.pipes {
		_ = w.Close()
	}
	for i, of := range []*ID{id, second} {
		get := func() (*Event, error) { return ch.Get(patience(t)) }
		if i > 0 {
			get = ch.TryGet
		}
		e, err := get()
		check(t, err)
		if e.Type != EventDeviceRemoval || e.ID != of || !errors.Is(e.Err(), verbs.ErrDeviceDead) || !errors.Is(e.Err(), unix.ENODEV) {
			t.Errorf("%+v, %v", e, e.Err())
		}
	}
	if _, err := ch.TryGet(); !errors.Is(err, verbs.ErrDeviceDead) {
		t.Errorf("TryGet: %v", err)
	}
	if _, err := ch.Get(patience(t)); !errors.Is(err, verbs.ErrDeviceDead) {
		t.Errorf("Get: %v", err)
	}
	if err := second.Destroy(); !errors.Is(err, verbs.ErrDeviceDead) {
		t.Errorf("Destroy: %v", err)
	}
	if err := id.Destroy(); !errors.Is(err, verbs.ErrDeviceDead) {
		t.Errorf("Destroy: %v", err)
	}
	if err := ch.Destroy(); !errors.Is(err, verbs.ErrDeviceDead) {
		t.Errorf("destroy channel: %v", err)
	}
}
