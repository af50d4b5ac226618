package verbsagent

import (
	"context"
	"encoding/json"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/softroce/softroce/conformance/agent"
	"github.com/softroce/softroce/internal/testaddr"
	"github.com/softroce/softroce/pkg/adapter"
	"github.com/softroce/softroce/pkg/verbs"
)

const patience = 30_000 // ms, ends waits of a test that hangs

func remote() bool { return os.Getenv(remoteEnv) != "" }

// start starts an adapter on loopback.
func start(t testing.TB) (*adapter.Adapter, netip.Addr) {
	t.Helper()
	addr := testaddr.Take(t, 1)[0]
	a, err := adapter.Start(adapter.Config{Addrs: []netip.Addr{addr}, Workers: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.Close() })
	return a, addr
}

// serve starts an agent on an adapter and returns its address.
func serve(t *testing.T, a *adapter.Adapter) string {
	t.Helper()
	srv, err := agent.NewServer(agent.ServerConfig{
		New: Sessions(a.Open), Testers: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")},
	})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return l.Addr().String()
}

// asker is a client or a session, with the test that asks.
type asker struct {
	t *testing.T
	doer
}

type doer interface {
	Do(r agent.Request) (*agent.Answer, error)
}

func (a asker) ask(r agent.Request) *agent.Answer {
	a.t.Helper()
	got, err := a.Do(r)
	if err != nil {
		a.t.Fatalf("%+v: %v", r, err)
	}
	return got
}

// refused wants a refusal with this errno, and returns its text.
func (a asker) refused(r agent.Request, errno string) string {
	a.t.Helper()
	_, err := a.Do(r)
	e, ok := agent.Refusal(err)
	if remote() && (err == nil || ok && e.Errno != errno) { // its device may see it otherwise
		a.t.Logf("%s: got %v, not errno %q", r.Do, err, errno)
		return ""
	}
	if !ok || e.Errno != errno || e.Do != r.Do {
		a.t.Fatalf("%s: got %v, want errno %q", r.Do, err, errno)
	}
	return e.Text
}

func client(t *testing.T, a *adapter.Adapter) asker { return dial(t, serve(t, a)) }

func dial(t *testing.T, addr string) asker {
	t.Helper()
	c, err := agent.Dial(t.Context(), addr, agent.ClientConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return asker{t, c}
}

var all = []string{"LOCAL_WRITE", "REMOTE_WRITE", "REMOTE_READ", "REMOTE_ATOMIC", "MW_BIND"}

// remoteEnv names an agent that the tests of what requests do are to talk to, in place of adapters of their own: that is how
// agent.py is tried in the lab.
const remoteEnv = "SOFTROCE_CONFORMANCE_AGENT"

// target is an agent's device.
type target struct {
	asker
	ip       netip.Addr
	gid      int // its index
	features []string
}

func (g *target) has(feature string) bool { return slices.Contains(g.features, feature) }

// targets are two devices, which may be one.
func targets(t *testing.T) (x, y *target) {
	t.Helper()
	var c, d asker
	if addr := os.Getenv(remoteEnv); addr != "" {
		c = dial(t, addr)
		d = c
	} else {
		a, _ := start(t)
		b, _ := start(t)
		c, d = client(t, a), client(t, b)
	}
	both := make([]*target, 2)
	for i, c := range []asker{c, d} {
		h := c.ask(agent.Request{Do: agent.DoHello, Version: agent.Version}).Hello
		for _, g := range h.GIDs {
			if ip := netip.MustParseAddr(g.Addr); ip.Is4() && both[i] == nil {
				both[i] = &target{c, ip, g.Index, h.Features}
			}
		}
		if both[i] == nil {
			t.Fatalf("no IPv4 address in %v", h.GIDs)
		}
	}
	return both[0], both[1]
}

// end is one end of a connection.
type end struct {
	*target
	pd, cq, qp, mr int
	qpn            uint32
	addr           uint64
	lkey, rkey     uint32
}

// open makes a domain, a queue with a channel, a region and a queue pair.
func open(a *target, typ string, srq, pd int) *end {
	a.t.Helper()
	e := &end{target: a, pd: pd}
	if pd == 0 {
		e.pd = a.ask(agent.Request{Do: agent.DoPD}).PD
	}
	e.cq = a.ask(agent.Request{Do: agent.DoCQ, Channel: true}).CQ
	m := a.ask(agent.Request{Do: agent.DoMR, PD: e.pd, Length: 1 << 16, Access: all})
	e.mr, e.addr, e.lkey, e.rkey = m.MR, m.Addr, m.LKey, m.RKey
	q := a.ask(agent.Request{Do: agent.DoQP, Type: typ, PD: e.pd, SendCQ: e.cq, RecvCQ: e.cq, SRQ: srq, Inline: 64})
	e.qp, e.qpn = q.QP, q.QPN
	return e
}

func (e *end) sge(off, n int) []agent.SGE {
	return []agent.SGE{{Addr: e.addr + uint64(off), Length: uint32(n), LKey: e.lkey}}
}

// modify sets attributes; state is one of them.
func (e *end) modify(state string, at agent.Attrs) {
	e.t.Helper()
	at.State = &state
	e.ask(agent.Request{Do: agent.DoModify, QP: e.qp, Attrs: &at})
}

// connect takes an RC queue pair to RTS.
func (e *end) connect(peer *end) {
	e.t.Helper()
	e.modify("INIT", agent.Attrs{PKeyIndex: new(0), Port: new(1), Access: &all})
	e.modify("RTR", agent.Attrs{
		Path: &agent.Path{Addr: peer.ip.String(), GIDIndex: e.gid}, PathMTU: new(1024), DestQPN: new(peer.qpn), RQPSN: new(uint32(7)),
		MaxDestRDAtomic: new(4), MinRNRTimer: new(1),
	})
	e.modify("RTS", agent.Attrs{SQPSN: new(uint32(7)), Timeout: new(14), RetryCnt: new(7), RNRRetry: new(7), MaxRDAtomic: new(4)})
}

// send posts one signaled request and returns its completion.
func (e *end) send(w agent.SendWR) agent.WC {
	e.t.Helper()
	w.Flags = append(w.Flags, "SIGNALED")
	if n := e.ask(agent.Request{Do: agent.DoSend, QP: e.qp, Sends: []agent.SendWR{w}}).Posted; n != 1 {
		e.t.Fatalf("%d requests posted", n)
	}
	return e.poll()
}

func (e *end) recv(id uint64) {
	e.t.Helper()
	e.ask(agent.Request{Do: agent.DoRecv, QP: e.qp, Recvs: []agent.RecvWR{{ID: id, SGEs: e.sge(1024, 1024)}}})
}

func (e *end) poll() agent.WC {
	e.t.Helper()
	wcs := e.ask(agent.Request{Do: agent.DoPoll, CQ: e.cq, N: 1, MS: patience}).WCs
	if len(wcs) != 1 {
		e.t.Fatalf("%d completions, want 1", len(wcs))
	}
	return wcs[0]
}

func (e *end) bytes(off, n int) string {
	e.t.Helper()
	return string(e.ask(agent.Request{Do: agent.DoRead, MR: e.mr, Off: off, Length: n}).Data)
}

func (e *end) want(got, want agent.WC) {
	e.t.Helper()
	want.QPN = e.qpn
	if got != want {
		e.t.Errorf("completion %+v, want %+v", got, want)
	}
}

// pairOf is two connected ends.
func pairOf(t *testing.T) (x, y *end) {
	t.Helper()
	a, b := targets(t)
	x, y = open(a, "RC", 0, 0), open(b, "RC", 0, 0)
	x.connect(y)
	y.connect(x)
	return x, y
}

func TestHello(t *testing.T) {
	a, ip := start(t)
	c := client(t, a)
	h := c.ask(agent.Request{Do: agent.DoHello, Version: agent.Version}).Hello
	if h.Device != "softroce0" || h.Agent != Program || h.MaxRDAtomic == 0 || h.MaxSGE == 0 || h.MaxInline == 0 {
		t.Errorf("hello %+v", h)
	}
	if len(h.GIDs) != 1 || h.GIDs[0] != (agent.GID{Index: 0, Addr: ip.String()}) {
		t.Errorf("GIDs %v, want %v at 0", h.GIDs, ip)
	}
	if n := len(h.Features); n != 15 {
		t.Errorf("%d features: %v", n, h.Features)
	}
	if n := c.ask(agent.Request{Do: agent.DoCounters}).Counters; len(n) == 0 {
		t.Error("no counters")
	}
	c.refused(agent.Request{Do: "dance"}, "")
	c.refused(agent.Request{}, "")
}

func TestRC(t *testing.T) {
	x, y := pairOf(t)
	x.ask(agent.Request{Do: agent.DoWrite, MR: x.mr, Off: 8, Data: []byte("hello")})
	y.recv(21)
	x.want(x.send(agent.SendWR{ID: 1, Op: "SEND_WITH_IMM", SGEs: x.sge(8, 5), Imm: 0x01020304}), agent.WC{ID: 1, Status: "SUCCESS", Op: "SEND"})
	y.want(y.poll(), agent.WC{ID: 21, Status: "SUCCESS", Op: "RECV", ByteLen: 5, Imm: 0x01020304, WithImm: true})
	if got := y.bytes(1024, 5); got != "hello" {
		t.Errorf("received %q", got)
	}
	x.want(x.send(agent.SendWR{ID: 2, Op: "RDMA_WRITE", Flags: []string{"INLINE", "FENCE"}, Inline: []byte("inline"), Addr: y.addr + 100, RKey: y.rkey}),
		agent.WC{ID: 2, Status: "SUCCESS", Op: "RDMA_WRITE"})
	x.want(x.send(agent.SendWR{ID: 3, Op: "RDMA_READ", SGEs: x.sge(200, 6), Addr: y.addr + 100, RKey: y.rkey}),
		agent.WC{ID: 3, Status: "SUCCESS", Op: "RDMA_READ", ByteLen: 6})
	if got := x.bytes(200, 6); got != "inline" {
		t.Errorf("read %q", got)
	}
	x.want(x.send(agent.SendWR{ID: 4, Op: "ATOMIC_FETCH_AND_ADD", SGEs: x.sge(300, 8), Addr: y.addr, RKey: y.rkey, CompareAdd: 1<<63 + 1}),
		agent.WC{ID: 4, Status: "SUCCESS", Op: "FETCH_ADD", ByteLen: 8})
	x.want(x.send(agent.SendWR{ID: 5, Op: "ATOMIC_CMP_AND_SWP", SGEs: x.sge(300, 8), Addr: y.addr, RKey: y.rkey, CompareAdd: 1<<63 + 1, Swap: 9}),
		agent.WC{ID: 5, Status: "SUCCESS", Op: "COMP_SWAP", ByteLen: 8})
	if got := y.bytes(0, 8); got != "\x09\x00\x00\x00\x00\x00\x00\x00" {
		t.Errorf("after the atomics %q", got)
	}
	x.refused(agent.Request{Do: agent.DoModify, QP: x.qp, Attrs: &agent.Attrs{MinRNRTimer: new(256 + 12)}}, "EINVAL")
	x.ask(agent.Request{Do: agent.DoModify, QP: x.qp, Attrs: &agent.Attrs{MinRNRTimer: new(12)}})
	if wcs := x.ask(agent.Request{Do: agent.DoPoll, CQ: x.cq, N: 5}).WCs; len(wcs) != 0 {
		t.Errorf("further completions %+v", wcs)
	}
}

// What a broken key makes: a status, events, a state.
func TestErrorAndEvents(t *testing.T) {
	x, y := pairOf(t)
	x.ask(agent.Request{Do: agent.DoArm, CQ: x.cq, Solicited: !remote()}) // rxe 6.1 has no event of a failure then
	if x.ask(agent.Request{Do: agent.DoEvent, CQ: x.cq, MS: 1}).Event {
		t.Error("an event of nothing")
	}
	x.want(x.send(agent.SendWR{ID: 1, Op: "RDMA_WRITE", SGEs: x.sge(0, 8), Addr: y.addr, RKey: y.rkey + 1}),
		agent.WC{ID: 1, Status: "REM_ACCESS_ERR"})
	if !x.ask(agent.Request{Do: agent.DoEvent, CQ: x.cq, MS: patience}).Event {
		t.Error("no event")
	}
	at := x.ask(agent.Request{Do: agent.DoQuery, QP: x.qp}).Attrs
	if *at.State != "ERR" || *at.PathMTU != 1024 || at.Path.Addr != y.ip.String() || *at.DestQPN != y.qpn || len(*at.Access) == 0 {
		t.Errorf("attributes %+v", at)
	}
	for want := (agent.Event{Type: "QP_ACCESS_ERR", QP: y.qp}); ; {
		wait := patience
		if remote() {
			wait = 500
		}
		got := y.ask(agent.Request{Do: agent.DoAsync, MS: wait}).Events
		if len(got) == 0 && remote() {
			t.Logf("no %+v", want)
			break
		}
		if len(got) == 0 {
			t.Fatalf("no %+v", want)
		}
		if got[len(got)-1] == want {
			break
		}
	}
	if ev := x.ask(agent.Request{Do: agent.DoAsync}).Events; len(ev) != 0 {
		t.Errorf("the requester's events: %+v", ev)
	}
}

func TestMemory(t *testing.T) {
	x, y := pairOf(t)
	for i, r := range []struct {
		feature string
		access  []string
		iova    *uint64
		addr    uint64
	}{
		{agent.FeatureZeroBased, append([]string{"ZERO_BASED"}, all...), nil, 0},
		{agent.FeatureIova, all, new(uint64(1 << 50)), 1 << 50},
	} {
		if !y.has(r.feature) {
			t.Logf("no feature %s", r.feature)
			continue
		}
		m := y.ask(agent.Request{Do: agent.DoMR, PD: y.pd, Length: 4096, Access: r.access, Iova: r.iova})
		if m.Addr != r.addr {
			t.Errorf("region %d: address %#x", i, m.Addr)
		}
		x.want(x.send(agent.SendWR{ID: 1, Op: "RDMA_WRITE", Flags: []string{"INLINE"}, Inline: []byte("ab"), Addr: m.Addr + 3, RKey: m.RKey}),
			agent.WC{ID: 1, Status: "SUCCESS", Op: "RDMA_WRITE"})
		if got := y.ask(agent.Request{Do: agent.DoRead, MR: m.MR, Off: 2, Length: 4}).Data; string(got) != "\x00ab\x00" {
			t.Errorf("region %d: %q", i, got)
		}
		y.ask(agent.Request{Do: agent.DoDestroy, MR: m.MR})
	}
	rereg := agent.Request{Do: agent.DoRereg, MR: x.mr, Access: all}
	if !x.has(agent.FeatureRereg) {
		x.refused(rereg, "EOPNOTSUPP")
	} else if r := x.ask(rereg); r.RKey == 0 || r.LKey == 0 {
		t.Errorf("re-registered: %+v", r)
	} else {
		x.lkey, x.rkey = r.LKey, r.RKey
	}

	mw := y.ask(agent.Request{Do: agent.DoMW, PD: y.pd, Type: "1"})
	key := y.ask(agent.Request{Do: agent.DoBind, QP: y.qp, MW: mw.MW, ID: 31, Bind: &agent.Bind{MR: y.mr, Addr: y.addr, Length: 64, Access: []string{"REMOTE_WRITE"}}}).RKey
	y.want(y.poll(), agent.WC{ID: 31, Status: "SUCCESS", Op: "BIND_MW"})
	x.want(x.send(agent.SendWR{ID: 2, Op: "RDMA_WRITE", SGEs: x.sge(0, 8), Addr: y.addr, RKey: key}), agent.WC{ID: 2, Status: "SUCCESS", Op: "RDMA_WRITE"})
	y.refused(agent.Request{Do: agent.DoDestroy, MR: y.mr}, "EBUSY")

	mw2 := y.ask(agent.Request{Do: agent.DoMW, PD: y.pd, Type: "2"})
	bind := agent.SendWR{ID: 32, Op: "BIND_MW", Flags: []string{"SIGNALED"}, MW: mw2.MW, Bind: &agent.Bind{MR: y.mr, Addr: y.addr, Length: 64, Access: []string{"REMOTE_WRITE"}}}
	key = y.ask(agent.Request{Do: agent.DoSend, QP: y.qp, Sends: []agent.SendWR{bind}}).RKey
	y.want(y.poll(), agent.WC{ID: 32, Status: "SUCCESS", Op: "BIND_MW"})
	if key == mw2.RKey || key == 0 {
		t.Errorf("the window's key is %#x, was %#x", key, mw2.RKey)
	}
	y.recv(33)
	x.want(x.send(agent.SendWR{ID: 3, Op: "SEND_WITH_INV", Inv: key}), agent.WC{ID: 3, Status: "SUCCESS", Op: "SEND"})
	wc := y.poll()
	if remote() && !wc.WithInv { // rxe 6.1 has another number for the flag
		t.Logf("the completion does not say that a key was invalidated: %+v", wc)
		wc.WithInv, wc.Inv = true, key
	}
	y.want(wc, agent.WC{ID: 33, Status: "SUCCESS", Op: "RECV", WithInv: true, Inv: key})
	bind.Bind.RKey = key&^0xFF | (key+1)&0xFF
	y.want(y.send(bind), agent.WC{ID: 32, Status: "SUCCESS", Op: "BIND_MW"})
	y.want(y.send(agent.SendWR{ID: 34, Op: "LOCAL_INV", Inv: bind.Bind.RKey}), agent.WC{ID: 34, Status: "SUCCESS", Op: "LOCAL_INV"})
	y.ask(agent.Request{Do: agent.DoDestroy, MW: mw2.MW})
	y.ask(agent.Request{Do: agent.DoDestroy, MW: mw.MW})
	y.ask(agent.Request{Do: agent.DoDestroy, MR: y.mr})
}

func TestDatagramsSRQAndGroups(t *testing.T) {
	c, _ := targets(t)
	pd := c.ask(agent.Request{Do: agent.DoPD}).PD
	srq := c.ask(agent.Request{Do: agent.DoSRQ, PD: pd, RecvWRs: 8}).SRQ
	x, y := open(c, "UD", 0, pd), open(c, "UD", srq, pd)
	for _, e := range []*end{x, y} {
		e.modify("INIT", agent.Attrs{PKeyIndex: new(0), Port: new(1), QKey: new(uint32(0x1234))})
		e.modify("RTR", agent.Attrs{})
		e.modify("RTS", agent.Attrs{SQPSN: new(uint32(1))})
	}
	c.ask(agent.Request{Do: agent.DoSRQLimit, SRQ: srq, Limit: 1})
	c.ask(agent.Request{Do: agent.DoRecv, SRQ: srq, Recvs: []agent.RecvWR{{ID: 5, SGEs: y.sge(0, 100)}}})
	ah := c.ask(agent.Request{Do: agent.DoAH, PD: pd, Path: &agent.Path{Addr: c.ip.String(), GIDIndex: c.gid, HopLimit: 3, TClass: 4}}).AH
	x.want(x.send(agent.SendWR{ID: 1, Op: "SEND", SGEs: x.sge(0, 10), AH: ah, RemoteQPN: y.qpn, RemoteQKey: 0x1234}), agent.WC{ID: 1, Status: "SUCCESS", Op: "SEND"})
	y.want(y.poll(), agent.WC{ID: 5, Status: "SUCCESS", Op: "RECV", ByteLen: 50, SrcQP: x.qpn, GRH: true})
	if ev := c.ask(agent.Request{Do: agent.DoAsync, MS: patience}).Events; len(ev) != 1 || ev[0] != (agent.Event{Type: "SRQ_LIMIT_REACHED", SRQ: srq}) {
		t.Errorf("events %+v", ev)
	}

	group := agent.Request{Do: agent.DoAttach, QP: y.qp, GID: "239.1.2.3"}
	c.ask(group)
	c.refused(agent.Request{Do: agent.DoDestroy, QP: y.qp}, "EBUSY")
	group.Do = agent.DoDetach
	c.ask(group)
	c.refused(group, "EINVAL")
	c.ask(agent.Request{Do: agent.DoAttach, QP: y.qp, GID: "239.1.2.4"})
	c.refused(agent.Request{Do: agent.DoAttach, QP: x.qp, GID: "192.0.2.1"}, "EINVAL")
	c.ask(agent.Request{Do: agent.DoDestroy, AH: ah})
	c.ask(agent.Request{Do: agent.DoDestroy, QP: x.qp})
	c.ask(agent.Request{Do: agent.DoDestroy, CQ: x.cq})
	c.refused(agent.Request{Do: agent.DoDestroy, SRQ: srq}, "EBUSY")
	c.refused(agent.Request{Do: agent.DoDestroy, PD: pd}, "EBUSY")
	c.ask(agent.Request{Do: agent.DoReset})
	c.refused(agent.Request{Do: agent.DoDestroy, PD: pd}, "")
}

// Every request with a handle that is not the session's, and values out of every range.
func TestRefusals(t *testing.T) {
	addr := os.Getenv(remoteEnv)
	if !remote() {
		a, _ := start(t)
		addr = serve(t, a)
	}
	c, other := dial(t, addr), open(&target{asker: dial(t, addr)}, "RC", 0, 0)
	e := open(&target{asker: c}, "RC", 0, 0)
	const ip = "192.0.2.1"
	for _, do := range []string{
		agent.DoMR, agent.DoRereg, agent.DoWrite, agent.DoRead, agent.DoArm, agent.DoEvent, agent.DoPoll, agent.DoSRQ, agent.DoSRQLimit,
		agent.DoModify, agent.DoQuery, agent.DoSend, agent.DoRecv, agent.DoBind, agent.DoMW, agent.DoAH, agent.DoAttach, agent.DoDetach,
	} {
		handles := []int{0, -1, 1 << 40}
		if !remote() { // its sessions may have the same numbers
			handles = append(handles, other.cq, other.qp, other.mr)
			c.refused(agent.Request{Do: agent.DoDestroy, QP: other.qp}, "")
		}
		for _, h := range handles {
			r := agent.Request{Do: do, PD: h, MR: h, MW: h, CQ: h, QP: h, SRQ: h, AH: h, Type: "1"}
			if text := c.refused(r, ""); text != "" && !strings.Contains(text, "this session has no") {
				t.Errorf("%s with handle %d: %s", do, h, text)
			}
		}
	}
	c.refused(agent.Request{Do: agent.DoDestroy}, "")
	c.refused(agent.Request{Do: agent.DoDestroy, QP: 1, PD: 1}, "")

	noEvents := c.ask(agent.Request{Do: agent.DoCQ, CQE: 1}).CQ
	c.refused(agent.Request{Do: agent.DoEvent, CQ: noEvents}, "")
	for _, r := range []agent.Request{
		{Do: agent.DoMR, PD: e.pd},
		{Do: agent.DoMR, PD: e.pd, Length: -1},
		{Do: agent.DoMR, PD: e.pd, Length: 8, Access: []string{"REMOTE_WRITE"}},
		{Do: agent.DoMR, PD: e.pd, Length: 8, Access: []string{"FLUSH_GLOBAL"}},
		{Do: agent.DoMR, PD: e.pd, Length: 8, Access: []string{"EVERYTHING"}},
		{Do: agent.DoMR, PD: e.pd, Length: 4096, Iova: new(^uint64(0))},
		{Do: agent.DoRead, MR: e.mr, Off: -1, Length: 1},
		{Do: agent.DoRead, MR: e.mr, Off: 1 << 16, Length: 1},
		{Do: agent.DoRead, MR: e.mr, Length: -1},
		{Do: agent.DoRead, MR: e.mr, Length: 1 << 40},
		{Do: agent.DoRead, MR: e.mr, Off: 1<<63 - 1, Length: 1},
		{Do: agent.DoWrite, MR: e.mr, Off: 1<<16 - 1, Data: []byte{1, 2}},
		{Do: agent.DoWrite, MR: e.mr, Off: 1 << 62, Data: []byte{1, 2}},
		{Do: agent.DoCQ, CQE: -1},
		{Do: agent.DoCQ, CQE: 1 << 40},
		{Do: agent.DoPoll, CQ: e.cq, N: -1},
		{Do: agent.DoPoll, CQ: e.cq, N: 1 << 40},
		{Do: agent.DoSRQ, PD: e.pd, RecvWRs: -1},
		{Do: agent.DoSRQ, PD: e.pd, RecvSGEs: 1 << 40},
		{Do: agent.DoSRQ, PD: e.pd, RecvWRs: 1 << 31},
		{Do: agent.DoQP, PD: e.pd, SendCQ: e.cq, RecvCQ: e.cq, Type: "XRC"},
		{Do: agent.DoQP, PD: e.pd, SendCQ: e.cq, RecvCQ: e.cq, Type: "RC", Inline: -1},
		{Do: agent.DoQP, PD: e.pd, SendCQ: e.cq, RecvCQ: e.cq, Type: "RC", SendSGEs: 1 << 20},
		{Do: agent.DoModify, QP: e.qp, Attrs: &agent.Attrs{State: new("RTS")}},
		{Do: agent.DoModify, QP: e.qp, Attrs: &agent.Attrs{State: new("ASLEEP")}},
		{Do: agent.DoModify, QP: e.qp, Attrs: &agent.Attrs{CurState: new("")}},
		{Do: agent.DoModify, QP: e.qp, Attrs: &agent.Attrs{Timeout: new(256)}},
		{Do: agent.DoModify, QP: e.qp, Attrs: &agent.Attrs{Port: new(-1)}},
		{Do: agent.DoModify, QP: e.qp, Attrs: &agent.Attrs{PKeyIndex: new(1 << 16)}},
		{Do: agent.DoModify, QP: e.qp, Attrs: &agent.Attrs{PathMTU: new(1500)}},
		{Do: agent.DoModify, QP: e.qp, Attrs: &agent.Attrs{Path: &agent.Path{}}},
		{Do: agent.DoModify, QP: e.qp, Attrs: &agent.Attrs{Access: &[]string{"X"}}},
		{Do: agent.DoModify, QP: e.qp, Attrs: &agent.Attrs{State: new("INIT"), PKeyIndex: new(0), Port: new(1), Access: &all, EnSQDAsyncNotify: new(true)}},
		{Do: agent.DoAH, PD: e.pd},
		{Do: agent.DoAH, PD: e.pd, Path: &agent.Path{Addr: ip, GIDIndex: 9}},
		{Do: agent.DoAH, PD: e.pd, Path: &agent.Path{Addr: "fe80::1%lo"}},
		{Do: agent.DoAH, PD: e.pd, Path: &agent.Path{Addr: ip, TClass: -1}},
		{Do: agent.DoMW, PD: e.pd, Type: "3"},
		{Do: agent.DoAttach, QP: e.qp, GID: "239.1.2.3"},
		{Do: agent.DoAttach, QP: e.qp, GID: "x"},
		{Do: agent.DoSend, QP: e.qp, Sends: []agent.SendWR{{Op: "SEND"}}},
		{Do: agent.DoSend, QP: e.qp, Sends: []agent.SendWR{{Op: "SHOUT"}}},
		{Do: agent.DoSend, QP: e.qp, Sends: []agent.SendWR{{Op: "SEND", Flags: []string{"LOUD"}}}},
		{Do: agent.DoRecv, QP: e.qp, Recvs: []agent.RecvWR{{}}},
	} {
		c.refused(r, "EINVAL")
	}
	for _, r := range []agent.Request{{Do: agent.DoMR, PD: e.pd, Length: 1 << 40}, {Do: agent.DoMR, PD: e.pd, Length: maxMR + 1}} {
		c.refused(r, "ENOMEM")
	}
	c.refused(agent.Request{Do: agent.DoQP, PD: e.pd, SendCQ: e.cq, RecvCQ: e.cq, Type: "GSI"}, "EOPNOTSUPP")
	c.refused(agent.Request{Do: agent.DoQP, Type: "RC", PD: e.pd, SendCQ: 99, RecvCQ: e.cq}, "")
	c.refused(agent.Request{Do: agent.DoQP, Type: "RC", PD: e.pd, SendCQ: e.cq}, "")
	c.refused(agent.Request{Do: agent.DoQP, Type: "RC", PD: e.pd, SendCQ: e.cq, RecvCQ: e.cq, SRQ: 99}, "")
	for _, w := range []agent.SendWR{{Op: "SEND", AH: 99}, {Op: "BIND_MW"}, {Op: "BIND_MW", MW: 99}} {
		c.refused(agent.Request{Do: agent.DoSend, QP: e.qp, Sends: []agent.SendWR{w}}, "")
	}
	e.modify("INIT", agent.Attrs{PKeyIndex: new(0), Port: new(1), Access: &all})
	e.modify("ERR", agent.Attrs{})
	for _, op := range []string{"FLUSH", "ATOMIC_WRITE"} {
		c.refused(agent.Request{Do: agent.DoSend, QP: e.qp, Sends: []agent.SendWR{{Op: op}}}, "EINVAL")
	}
}

// What a session made is gone with its connection.
func TestGoneAfterDisconnect(t *testing.T) {
	a, ip := start(t)
	watch, err := a.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Close()
	left := func() (n int) {
		for _, k := range []verbs.ResourceKind{verbs.ResourceQP, verbs.ResourceCQ, verbs.ResourceMR, verbs.ResourcePD, verbs.ResourceSRQ, verbs.ResourceMW, verbs.ResourceAH} {
			list, err := watch.Resources(k)
			if err != nil {
				t.Fatal(err)
			}
			n += len(list)
		}
		return n
	}
	addr := serve(t, a)
	c, err := agent.Dial(t.Context(), addr, agent.ClientConfig{})
	if err != nil {
		t.Fatal(err)
	}
	e := open(&target{asker: asker{t, c}}, "UD", 0, 0)
	e.ask(agent.Request{Do: agent.DoMW, PD: e.pd, Type: "1"})
	e.ask(agent.Request{Do: agent.DoAH, PD: e.pd, Path: &agent.Path{Addr: ip.String()}})
	e.ask(agent.Request{Do: agent.DoAttach, QP: e.qp, GID: "239.1.2.3"})
	if n := left(); n < 6 {
		t.Errorf("%d objects, want 6", n)
	}
	_ = c.Close()
	for end := time.Now().Add(patience * time.Millisecond); left() > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d objects are left", left())
		}
	}
}

// A session without a connection, as tests in one process use it; the device stays.
func TestInProcess(t *testing.T) {
	a, _ := start(t)
	dev, err := a.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	s := New(dev)
	open(&target{asker: asker{t, s}}, "RC", 0, 0)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Do(agent.Request{Do: agent.DoPD}); err != nil {
		t.Errorf("after a session: %v", err)
	}
	_ = a.Close()
	c := asker{t, s}
	c.refused(agent.Request{Do: agent.DoPD}, "EIO")
	if err := s.Close(); err == nil || len(s.pds) != 0 {
		t.Errorf("the adapter is gone: %v, %d domains", err, len(s.pds))
	}
}

// No request of any numbers brings the agent down.
func FuzzHandle(f *testing.F) {
	a, _ := start(f)
	for _, l := range []string{
		`{"do":"poll","cq":2,"n":3}`, `{"do":"mr","pd":1,"length":64,"iova":5,"access":["LOCAL_WRITE"]}`,
		`{"do":"send","qp":4,"sends":[{"id":1,"op":"BIND_MW","mw":3,"bind":{"mr":3,"addr":1,"length":2,"access":[]}}]}`,
		`{"do":"modify","qp":4,"attrs":{"state":"INIT","pkey_index":0,"port":1,"access":["LOCAL_WRITE"]}}`,
		`{"do":"destroy","pd":1}`, `{"do":"read","mr":3,"off":1,"length":5}`,
	} {
		f.Add([]byte(l))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		var r agent.Request
		if json.Unmarshal(line, &r) != nil || r.Length > 1<<20 || r.CQE > 1<<16 {
			t.Skip("no request, or one for more memory than a fuzz run has")
		}
		r.MS = 0
		dev, err := a.Open()
		if err != nil {
			t.Fatal(err)
		}
		defer dev.Close()
		s := New(dev)
		open(&target{asker: asker{t, s}}, "RC", 0, 0)
		_, _ = s.Do(r)
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}
