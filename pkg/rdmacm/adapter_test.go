package rdmacm_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/testaddr"
	"github.com/softroce/softroce/internal/testdevices"
	"github.com/softroce/softroce/internal/testmatrix"
	"github.com/softroce/softroce/pkg/adapter"
	"github.com/softroce/softroce/pkg/rdmacm"
	"github.com/softroce/softroce/pkg/verbs"
)

var limits = verbs.QPCap{MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 1, MaxRecvSGE: 1}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// patience ends waits of a test that hangs; nothing is measured by it.
func patience(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// event takes the next event, acknowledges it, and tells its type.
func event(t testing.TB, ch *rdmacm.EventChannel, want rdmacm.EventType) *rdmacm.Event {
	t.Helper()
	e, err := ch.Get(patience(t))
	check(t, err)
	e.Ack()
	if e.Type != want {
		t.Fatalf("event %v (%v), want %v", e.Type, e.Err(), want)
	}
	return e
}

// Both sides by hand, in librdmacm's order, to the end of time-wait; data goes
// both ways.
func TestIdentifiers(t *testing.T) {
	devs, addrs := testdevices.Open(t, 2)
	cch, err := rdmacm.NewEventChannel(devs[0])
	check(t, err)
	sch, err := rdmacm.NewEventChannel(devs[1])
	check(t, err)
	l, err := sch.CreateID(rdmacm.PSTCP)
	check(t, err)
	check(t, l.Bind(netip.AddrPortFrom(addrs[1], 0)))
	check(t, l.Listen(0))

	c, err := cch.CreateID(rdmacm.PSTCP)
	check(t, err)
	check(t, c.ResolveAddr(netip.AddrPort{}, l.LocalAddr(), 2*time.Second))
	event(t, cch, rdmacm.EventAddrResolved)
	check(t, c.ResolveRoute(2*time.Second))
	event(t, cch, rdmacm.EventRouteResolved)
	if p, err := c.Path(); err != nil || p.AH.DGID.Addr() != addrs[1] || p.MTU != verbs.MTU4096 {
		t.Errorf("path %+v, %v", p, err)
	}
	check(t, c.CreateQP(nil, &verbs.QPInitAttr{Cap: limits}))
	check(t, c.Connect(&rdmacm.ConnParam{PrivateData: []byte("from the client"), ResponderResources: 3, InitiatorDepth: 5, RetryCount: 7, RNRRetryCount: 7}))

	e := event(t, sch, rdmacm.EventConnectRequest)
	s := e.ID
	if e.Listen != l || !strings.HasPrefix(string(e.Private), "from the client\x00") || len(e.Private) != rdmacm.MaxConnectPrivate {
		t.Errorf("request %+v", e)
	}
	if e.Conn.ResponderResources != 5 || e.Conn.InitiatorDepth != 3 || s.PeerAddr() != c.LocalAddr() || s.LocalAddr() != l.LocalAddr() {
		t.Errorf("request %+v between %v and %v", e.Conn, s.LocalAddr(), s.PeerAddr())
	}
	check(t, s.CreateQP(nil, &verbs.QPInitAttr{Cap: limits}))
	check(t, s.Accept(&rdmacm.ConnParam{PrivateData: []byte("from the server"), ResponderResources: 2, InitiatorDepth: 1, RNRRetryCount: 7}))
	e = event(t, cch, rdmacm.EventEstablished)
	if !strings.HasPrefix(string(e.Private), "from the server\x00") || e.Conn.QPN != s.QP().Num() {
		t.Errorf("answer %+v", e)
	}
	event(t, sch, rdmacm.EventEstablished)
	for _, v := range []struct {
		id                *rdmacm.ID
		resources, depths uint8
	}{{c, 1, 2}, {s, 2, 1}} {
		a, err := v.id.QP().Query()
		check(t, err)
		if a.State != verbs.StateRTS || a.MaxDestRDAtomic != v.resources || a.MaxRDAtomic != v.depths {
			t.Errorf("queue pair in %v, takes %d and makes %d READs, want %d and %d", a.State, a.MaxDestRDAtomic, a.MaxRDAtomic, v.resources, v.depths)
		}
	}
	exchange(t, c, s, "there")
	exchange(t, s, c, "and back")

	check(t, c.Disconnect())
	event(t, sch, rdmacm.EventDisconnected)
	check(t, s.Disconnect())
	event(t, cch, rdmacm.EventDisconnected)
	event(t, cch, rdmacm.EventTimewaitExit)
	event(t, sch, rdmacm.EventTimewaitExit)
	for _, id := range []*rdmacm.ID{c, s, l} {
		check(t, id.Destroy())
	}
	check(t, cch.Destroy())
	check(t, sch.Destroy())
}

// exchange sends a text by one queue pair of CreateQP to another.
func exchange(t testing.TB, from, to *rdmacm.ID, text string) {
	t.Helper()
	a, err := from.PD().AllocMR(64, verbs.AccessLocalWrite)
	check(t, err)
	b, err := to.PD().AllocMR(64, verbs.AccessLocalWrite)
	check(t, err)
	_, err = to.QP().PostRecv(verbs.RecvWR{SGList: []verbs.SGE{b.SGE(0, 64)}})
	check(t, err)
	_, err = from.QP().PostSend(verbs.SendWR{
		Opcode: verbs.WRSend, Flags: verbs.SendSignaled, SGList: []verbs.SGE{a.SGE(0, copy(a.Bytes(), text))},
	})
	check(t, err)
	scq, _, _, _ := from.CQs()
	_, rcq, _, _ := to.CQs()
	one(t, scq)
	if wc := one(t, rcq); string(b.Bytes()[:wc.ByteLen]) != text {
		t.Errorf("got %q, want %q", b.Bytes()[:wc.ByteLen], text)
	}
	check(t, a.Dereg())
	check(t, b.Dereg())
}

func one(t testing.TB, cq *verbs.CQ) verbs.WC {
	t.Helper()
	ctx := patience(t)
	for ctx.Err() == nil {
		var wc [1]verbs.WC
		n, err := cq.Poll(wc[:])
		check(t, err)
		if n == 1 {
			if wc[0].Status != verbs.WCSuccess {
				t.Fatal(wc[0].Status)
			}
			return wc[0]
		}
	}
	t.Fatal("no completion")
	return verbs.WC{}
}

// A queue pair of the program's own, which it takes to RTS by InitQPAttr.
func TestOwnQPConnects(t *testing.T) {
	devs, addrs := testdevices.Open(t, 2)
	l, err := rdmacm.Listen(devs[1], netip.AddrPortFrom(addrs[1], 0), nil)
	check(t, err)
	defer func() { check(t, l.Close()) }()
	accepted := make(chan *rdmacm.Conn)
	go func() {
		c, err := l.Accept(patience(t), &rdmacm.Config{QP: verbs.QPInitAttr{Cap: limits}})
		if err != nil {
			t.Error(err)
		}
		accepted <- c
	}()
	ch, err := rdmacm.NewEventChannel(devs[0])
	check(t, err)
	id, err := ch.CreateID(rdmacm.PSTCP)
	check(t, err)
	pd, err := devs[0].AllocPD()
	check(t, err)
	cq, err := devs[0].CreateCQ(8, nil, 0)
	check(t, err)
	qp, err := pd.CreateQP(&verbs.QPInitAttr{Type: verbs.RC, SendCQ: cq, RecvCQ: cq, Cap: limits})
	check(t, err)
	check(t, id.ResolveAddr(netip.AddrPort{}, l.Addr(), time.Second))
	event(t, ch, rdmacm.EventAddrResolved)
	check(t, id.ResolveRoute(time.Second))
	event(t, ch, rdmacm.EventRouteResolved)
	p := rdmacm.DefaultConnParam()
	p.QPN = qp.Num()
	check(t, id.Connect(&p))
	event(t, ch, rdmacm.EventConnectResponse)
	for _, s := range []verbs.QPState{verbs.StateInit, verbs.StateRTR, verbs.StateRTS} {
		attr, mask, err := id.InitQPAttr(s)
		check(t, err)
		check(t, qp.Modify(&attr, mask))
	}
	check(t, id.Establish())
	c := <-accepted
	check(t, c.Close())
	event(t, ch, rdmacm.EventDisconnected)
	check(t, id.Disconnect())
	check(t, id.Destroy())
	check(t, qp.Destroy())
}

// Dial and Listen: private data both ways, refusals in words, contexts that end,
// and the end of a connection on both sides.
func TestDialAndListen(t *testing.T) {
	devs, addrs := testdevices.Open(t, 2)
	ctx := patience(t)
	l, err := rdmacm.Listen(devs[1], netip.AddrPortFrom(addrs[1], 0), &rdmacm.ListenConfig{Backlog: 4})
	check(t, err)
	conf := func(private string) *rdmacm.Config {
		p := rdmacm.DefaultConnParam()
		p.PrivateData = []byte(private)
		return &rdmacm.Config{QP: verbs.QPInitAttr{Cap: limits}, Param: &p}
	}
	go func() {
		for {
			r, err := l.Request(ctx)
			if err != nil {
				if !errors.Is(err, net.ErrClosed) {
					t.Error(err)
				}
				return
			}
			switch name, _, _ := strings.Cut(string(r.Private()), "\x00"); name {
			case "friend":
				c, err := r.Accept(ctx, conf("welcome"))
				if err != nil {
					t.Error(err)
					continue
				}
				<-c.Done() // the peer's end
				if err := c.Close(); err != nil {
					t.Error(err)
				}
			case "foe":
				if err := r.Reject([]byte("not you")); err != nil {
					t.Error(err)
				}
			default: // is left waiting, and goes with the listener
			}
		}
	}()
	c, err := rdmacm.Dial(ctx, devs[0], l.Addr(), conf("friend"))
	check(t, err)
	if !strings.HasPrefix(string(c.Private()), "welcome\x00") || c.PeerAddr() != l.Addr() || c.QP().State() != verbs.StateRTS {
		t.Errorf("connected to %v: %q, %v", c.PeerAddr(), c.Private(), c.QP().State())
	}
	check(t, c.Disconnect())
	<-c.Done()
	check(t, c.Close())

	_, err = rdmacm.Dial(ctx, devs[0], l.Addr(), conf("foe"))
	var r *rdmacm.RejectError
	if !errors.As(err, &r) || r.Reason != rdmacm.RejectConsumer || !strings.HasPrefix(string(r.Private), "not you\x00") {
		t.Errorf("refused: %v", err)
	}
	waiting, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	if _, err := rdmacm.Dial(waiting, devs[0], l.Addr(), conf("nobody")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("nobody answers: %v", err)
	}
	cancel()
	if _, err := rdmacm.Listen(devs[1], l.Addr(), nil); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("a second listener: %v", err)
	}
	check(t, l.Close())
	_, err = rdmacm.Dial(ctx, devs[0], l.Addr(), conf("friend"))
	if !errors.As(err, &r) || r.Reason != rdmacm.RejectNoListener {
		t.Errorf("nobody listens: %v", err)
	}
	if _, err = rdmacm.Listen(devs[1], netip.MustParseAddrPort("192.0.2.77:1"), nil); err == nil {
		t.Error("listen on another's address: no error")
	}
}

// The way to a datagram queue pair by address.
func TestLookupUD(t *testing.T) {
	devs, addrs := testdevices.Open(t, 2)
	ctx := patience(t)
	l, err := rdmacm.Listen(devs[1], netip.AddrPortFrom(addrs[1], 0), &rdmacm.ListenConfig{Space: rdmacm.PSUDP})
	check(t, err)
	ch, err := rdmacm.NewEventChannel(devs[1])
	check(t, err)
	s, err := ch.CreateID(rdmacm.PSUDP)
	check(t, err)
	check(t, s.CreateQP(nil, &verbs.QPInitAttr{Cap: limits}))
	go func() {
		r, err := l.Request(ctx)
		if err != nil {
			t.Error(err)
			return
		}
		if !strings.HasPrefix(string(r.Private()), "who?\x00") {
			t.Errorf("asked %q", r.Private())
		}
		if err := r.AnswerUD(s.QP().Num(), 0x77, []byte("me")); err != nil {
			t.Error(err)
		}
		if r, err = l.Request(ctx); err != nil {
			t.Error(err)
		} else if err := r.Reject(nil); err != nil {
			t.Error(err)
		}
	}()
	where, private, err := rdmacm.LookupUD(ctx, devs[0], l.Addr(), &rdmacm.Config{Param: &rdmacm.ConnParam{PrivateData: []byte("who?")}})
	check(t, err)
	if where.QPN != s.QP().Num() || where.QKey != 0x77 || where.AH.DGID.Addr() != addrs[1] || !strings.HasPrefix(string(private), "me\x00") {
		t.Errorf("%+v, %q", where, private)
	}
	pd, err := devs[0].AllocPD()
	check(t, err)
	ah, err := pd.CreateAH(&where.AH)
	check(t, err)
	check(t, ah.Destroy())
	if _, _, err := rdmacm.LookupUD(ctx, devs[0], l.Addr(), nil); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("refused: %v", err)
	}
	check(t, l.Close())
	if _, _, err := rdmacm.LookupUD(ctx, devs[0], l.Addr(), nil); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("nobody listens: %v", err)
	}
	check(t, s.Destroy())
}

// An identifier moves to another channel between request and answer.
func TestMigrateRequest(t *testing.T) {
	devs, addrs := testdevices.Open(t, 2)
	sch, err := rdmacm.NewEventChannel(devs[1])
	check(t, err)
	own, err := rdmacm.NewEventChannel(devs[1])
	check(t, err)
	l, err := sch.CreateID(rdmacm.PSTCP)
	check(t, err)
	check(t, l.Bind(netip.AddrPortFrom(addrs[1], 0)))
	check(t, l.Listen(0))
	var dialed sync.WaitGroup
	dialed.Go(func() {
		c, err := rdmacm.Dial(patience(t), devs[0], l.LocalAddr(), &rdmacm.Config{QP: verbs.QPInitAttr{Cap: limits}})
		if err != nil {
			t.Error(err)
			return
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	s := event(t, sch, rdmacm.EventConnectRequest).ID
	check(t, s.Migrate(own))
	check(t, s.CreateQP(nil, &verbs.QPInitAttr{Cap: limits}))
	check(t, s.Accept(nil))
	event(t, own, rdmacm.EventEstablished)
	event(t, own, rdmacm.EventDisconnected)
	dialed.Wait()
	check(t, s.Destroy())
	check(t, l.Destroy())
	check(t, own.Destroy())
	check(t, sch.Destroy())
}

// Handshakes that are given up at any point leave nothing.
func TestGivenUp(t *testing.T) {
	devs, addrs := testdevices.Open(t, 2)
	l, err := rdmacm.Listen(devs[1], netip.AddrPortFrom(addrs[1], 0), nil)
	check(t, err)
	left := func() string {
		var b strings.Builder
		for _, d := range devs {
			for _, k := range []verbs.ResourceKind{verbs.ResourcePD, verbs.ResourceCQ, verbs.ResourceQP} {
				rs, err := d.Resources(k)
				check(t, err)
				fmt.Fprintf(&b, "%v: %d, ", k, len(rs))
			}
		}
		return b.String()
	}
	before := left()
	ctx, stop := context.WithCancel(patience(t))
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			r, err := l.Request(ctx)
			if err != nil {
				return
			}
			wg.Go(func() {
				c, err := r.Accept(ctx, &rdmacm.Config{QP: verbs.QPInitAttr{Cap: limits}})
				if err == nil {
					_ = c.Close()
				}
			})
		}
	})
	n := 60
	if testing.Short() {
		n = 20
	}
	for i := range n {
		once, cancel := context.WithTimeout(ctx, time.Duration(i)*500*time.Microsecond)
		c, err := rdmacm.Dial(once, devs[0], l.Addr(), &rdmacm.Config{QP: verbs.QPInitAttr{Cap: limits}})
		if err == nil {
			_ = c.Close()
		}
		cancel()
	}
	stop()
	check(t, l.Close())
	wg.Wait()
	if now := left(); now != before {
		t.Errorf("left %s, before %s", now, before)
	}
}

// An adapter that dies ends its connections and listeners, and its identifiers
// learn of it.
func TestAdapterDies(t *testing.T) {
	addrs := testaddr.Take(t, 1)
	a, err := adapter.Start(adapter.Config{Addrs: addrs})
	check(t, err)
	dev, err := a.Open()
	check(t, err)
	t.Cleanup(func() { _ = dev.Close() })
	l, err := rdmacm.Listen(dev, netip.AddrPortFrom(addrs[0], 0), nil)
	check(t, err)
	conns := make(chan *rdmacm.Conn)
	go func() {
		c, err := l.Accept(patience(t), &rdmacm.Config{QP: verbs.QPInitAttr{Cap: limits}})
		if err != nil {
			t.Error(err)
		}
		conns <- c
	}()
	dialed, err := rdmacm.Dial(patience(t), dev, l.Addr(), &rdmacm.Config{QP: verbs.QPInitAttr{Cap: limits}})
	check(t, err)
	accepted := <-conns
	if t.Failed() {
		return
	}
	ch, err := rdmacm.NewEventChannel(dev)
	check(t, err)
	id, err := ch.CreateID(rdmacm.PSTCP)
	check(t, err)
	check(t, a.Close())
	for _, c := range []*rdmacm.Conn{dialed, accepted} {
		select {
		case <-c.Done():
		case <-patience(t).Done():
			t.Fatal("a connection outlives its adapter")
		}
		select {
		case <-dev.Done():
		default:
			t.Error("the connection's end is told before the adapter's")
		}
		if err := c.Close(); !errors.Is(err, verbs.ErrDeviceDead) {
			t.Errorf("Close: %v", err)
		}
	}
	if _, err := l.Accept(patience(t), &rdmacm.Config{QP: verbs.QPInitAttr{Cap: limits}}); !errors.Is(err, verbs.ErrDeviceDead) {
		t.Errorf("Accept: %v", err)
	}
	_ = l.Close()
	if e := event(t, ch, rdmacm.EventDeviceRemoval); e.ID != id {
		t.Errorf("%+v", e)
	}
	_ = id.Destroy()
}

// A datagram to a group reaches the queue pairs of all who joined, and only those.
func TestMulticastGroup(t *testing.T) {
	testmatrix.SkipOn(t, "a host routes no multicast to a TUN link", adapter.BackendTUN)
	devs, addrs := testdevices.Open(t, 2)
	group := netip.AddrFrom4([4]byte{239, 77, addrs[0].As4()[2], addrs[0].As4()[3]})
	var ids []*rdmacm.ID
	var to rdmacm.UDParam
	for i, d := range devs {
		ch, err := rdmacm.NewEventChannel(d)
		check(t, err)
		id, err := ch.CreateID(rdmacm.PSUDP)
		check(t, err)
		check(t, id.Bind(netip.AddrPortFrom(addrs[i], 0)))
		check(t, id.CreateQP(nil, &verbs.QPInitAttr{Cap: limits}))
		check(t, id.JoinMulticast(group, i == 0, i)) // the first one only sends
		e := event(t, ch, rdmacm.EventMulticastJoin)
		if e.Context != i || e.UD.QPN != 0xFFFFFF || e.UD.QKey != rdmacm.QKeyUDP || e.UD.AH.DGID.Addr() != group {
			t.Errorf("joined %+v", e.UD)
		}
		if ids = append(ids, id); i == 0 {
			to = e.UD
		}
	}
	a, err := ids[0].PD().AllocMR(64, verbs.AccessLocalWrite)
	check(t, err)
	b, err := ids[1].PD().AllocMR(128, verbs.AccessLocalWrite)
	check(t, err)
	_, err = ids[1].QP().PostRecv(verbs.RecvWR{SGList: []verbs.SGE{b.SGE(0, 128)}})
	check(t, err)
	ah, err := ids[0].PD().CreateAH(&to.AH)
	check(t, err)
	_, err = ids[0].QP().PostSend(verbs.SendWR{
		Opcode: verbs.WRSend, Flags: verbs.SendSignaled, SGList: []verbs.SGE{a.SGE(0, copy(a.Bytes(), "to all"))},
		AH: ah.Handle(), RemoteQPN: to.QPN, RemoteQKey: to.QKey,
	})
	check(t, err)
	_, recvCQ, _, _ := ids[1].CQs()
	if wc := one(t, recvCQ); string(b.Bytes()[verbs.GRHSize:wc.ByteLen]) != "to all" {
		t.Errorf("got %q", b.Bytes()[:wc.ByteLen])
	}
	check(t, ids[1].LeaveMulticast(group))
	check(t, ah.Destroy())
	check(t, a.Dereg())
	check(t, b.Dereg())
	for _, id := range ids {
		check(t, id.Destroy())
	}
}
