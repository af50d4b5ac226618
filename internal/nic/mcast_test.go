package nic

import (
	"errors"
	"net/netip"
	"runtime"
	"syscall"
	"testing"

	"github.com/softroce/softroce/internal/shm"
	"github.com/softroce/softroce/internal/testmatrix"
	"github.com/softroce/softroce/internal/testnet"
	"github.com/softroce/softroce/internal/uapi"
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/cq"
	"github.com/softroce/softroce/pkg/qpstate"
	"github.com/softroce/softroce/pkg/verbs"
)

// groupOf is a multicast group that no other test uses: made of an address that
// the adapter has for itself.
func groupOf(a *Adapter) verbs.GID {
	b := a.Addrs()[0].As4()
	return bth.GIDFromAddr(netip.AddrFrom4([4]byte{239, b[1], b[2], b[3]}))
}

func (e *endpoint) attach(t testing.TB, gid verbs.GID) {
	t.Helper()
	if err := e.qp.AttachMcast(gid, 0); err != nil {
		t.Fatal(err)
	}
}

func (e *endpoint) detach(t testing.TB, gid verbs.GID) {
	t.Helper()
	if err := e.qp.DetachMcast(gid, 0); err != nil {
		t.Fatal(err)
	}
}

// wantNothing checks that the endpoint has no completion.
func (e *endpoint) wantNothing(t testing.TB) {
	t.Helper()
	var wcs [1]verbs.WC
	if n, err := e.cq.Poll(wcs[:]); n != 0 || err != nil {
		t.Errorf("unexpected completion %+v, %v", wcs[0], err)
	}
}

// A datagram to a group comes once to each attached queue pair, on every worker
// and every adapter, the sender's own included when it is attached, and to no
// other.
func TestMulticast(t *testing.T) {
	testmatrix.SkipOn(t, "a host routes no multicast to a TUN link", BackendTUN)
	b := startAdapter(t, func(c *Config) { c.Workers = 3 })
	a := startAdapter(t, nil)
	group := groupOf(b)
	d := openDevice(t, b)
	var ys []*endpoint
	for range 7 { // on all workers
		ys = append(ys, newUD(t, d, 1<<12, nil))
	}
	x, idle := newUD(t, openDevice(t, a), 1<<12, nil), newUD(t, d, 1<<12, nil)
	all := append(ys, x, idle)
	round := byte(0)
	ah := x.handleTo(t, group)
	send := func(to ...*endpoint) {
		t.Helper()
		round++
		for _, e := range all {
			e.postRecv(t, uint64(round), 0, 64)
		}
		x.mr.Bytes()[100] = round
		x.post(t, x.datagram(ah, bth.MulticastQPN, 100, 1))
		x.next(t, cq.Send, cq.Success)
		for _, e := range to {
			wc := e.next(t, cq.Recv, cq.Success)
			if wc.SrcQP != x.qp.Num() || wc.ByteLen != 41 || e.mr.Bytes()[40] != round {
				t.Errorf("round %d: completion %+v, byte %d", round, wc, e.mr.Bytes()[40])
			}
			if got := netip.AddrFrom4([4]byte(e.mr.Bytes()[36:40])); got != group.Addr() {
				t.Errorf("the header area names %v, want the group %v", got, group)
			}
		}
		a.quiesce()
		b.quiesce()
		for _, e := range all {
			e.wantNothing(t)
		}
	}
	send()
	for i, y := range ys {
		y.attach(t, group)
		send(ys[:i+1]...)
	}
	x.attach(t, group)
	send(append(ys[:7:7], x)...)
	ys[0].attach(t, group) // again: nothing changes
	send(append(ys[:7:7], x)...)
	ys[0].detach(t, group)
	send(append(ys[1:7:7], x)...)
	for _, y := range ys[1:] {
		y.detach(t, group)
	}
	send(x)
	x.detach(t, group)
	send()
	for _, adapter := range []*Adapter{a, b} {
		wantNoGroups(t, adapter)
	}
}

// wantNoGroups checks that nothing of multicast is left on an adapter.
func wantNoGroups(t testing.TB, a *Adapter) {
	t.Helper()
	a.mcast.mu.Lock()
	defer a.mcast.mu.Unlock()
	if n := len(a.mcast.groups); n != 0 {
		t.Errorf("%d groups are still joined", n)
	}
	for i, w := range a.workers {
		w.do(func() {
			if len(w.groups) != 0 {
				t.Errorf("worker %d still has %d groups", i, len(w.groups))
			}
		})
	}
	if n := a.ledger.usage()[ResourceMcast]; n != 0 {
		t.Errorf("%d attachments still booked", n)
	}
}

// ibv_attach_mcast(3): what is refused, and why.
func TestMulticastRefused(t *testing.T) {
	testmatrix.SkipOn(t, "a host routes no multicast to a TUN link", BackendTUN)
	a := startAdapter(t, func(c *Config) { c.Limits.Program.Mcast = 2 })
	r := rawHello(t, a)
	pd, c := r.pd(), r.cq(16)
	rc := r.qp(pd, c).Handle
	m := rcRequest(pd, c)
	m.Type = qpstate.UD
	ud := must[uapi.CreateQPReply](r, uapi.OpCreateQP, m).Handle
	group := groupOf(a)
	second, third := group, group
	second[12], third[12] = 238, 237
	unicast := bth.GIDFromAddr(a.Addrs()[0])
	call := func(op uapi.Op, qp uint32, gid bth.GID) answer {
		t.Helper()
		return r.call(op, &uapi.McastRequest{QP: qp, GID: gid})
	}
	for _, op := range []uapi.Op{uapi.OpAttachMcast, uapi.OpDetachMcast} {
		r.wantRefusal(call(op, 99, group), syscall.EINVAL, "queue pair", "99")
		r.wantRefusal(call(op, rc, group), syscall.EINVAL, "type RC")
		r.wantRefusal(call(op, ud, unicast), syscall.EINVAL, "no multicast group")
		r.wantRefusal(call(op, ud, bth.GID{}), syscall.EINVAL, "no multicast group")
	}
	r.wantRefusal(call(uapi.OpDetachMcast, ud, group), syscall.EINVAL, "not attached")
	r.wantRefusal(call(uapi.OpAttachMcast, ud, bth.GIDFromAddr(netip.MustParseAddr("ff0e::1"))), syscall.EINVAL, "address family")
	for _, gid := range []bth.GID{group, second, group} {
		if got := call(uapi.OpAttachMcast, ud, gid); got.errno != 0 {
			t.Fatal(got.errno, got.text)
		}
	}
	r.wantRefusal(call(uapi.OpAttachMcast, ud, third), syscall.ENOMEM, "multicast attachments of this program", "limit 2")
	r.wantRefusal(r.call(uapi.OpDestroyQP, &uapi.HandleRequest{Handle: ud}), syscall.EBUSY, "2 multicast groups")
	for _, gid := range []bth.GID{group, second} {
		if got := call(uapi.OpDetachMcast, ud, gid); got.errno != 0 {
			t.Fatal(got.errno, got.text)
		}
		r.wantRefusal(call(uapi.OpDetachMcast, ud, gid), syscall.EINVAL, "not attached")
	}
	must[uapi.DestroyReply](r, uapi.OpDestroyQP, &uapi.HandleRequest{Handle: ud})
	wantNoGroups(t, a)
}

// Packets to a group whose socket is open and to others, with a wrong QPN or
// ICRC: dropped, one reason counted.
func TestMulticastBadPackets(t *testing.T) {
	testmatrix.SkipOn(t, "a host routes no multicast to a TUN link", BackendTUN)
	a := startAdapter(t, nil)
	y := newUD(t, openDevice(t, a), 1<<12, nil)
	group := groupOf(a)
	y.attach(t, group)
	y.postRecv(t, 1, 0, 100)
	raw := newRawSender(t)
	broken := rawDatagram(bth.MulticastQPN, testQKey, []byte("data"))
	for _, row := range []struct {
		name   string
		dst    netip.Addr
		packet []byte
		want   Drop
	}{
		{"multicast QPN to a unicast address", a.Addrs()[0], rawDatagram(bth.MulticastQPN, testQKey, nil), DropNoGroup},
		{"queue pair's QPN to the group", group.Addr(), rawDatagram(y.qp.Num(), testQKey, nil), DropNoGroup},
		{"reserved opcode", group.Addr(), append([]byte{0x7F}, broken[1:]...), DropOpcode},
		{"short", group.Addr(), broken[:12:12], DropShort},
	} {
		_, before := a.verdicts()
		raw.send(row.dst, row.packet)
		awaitDrop(t, a, row.name, row.want, before)
	}
	_, before := a.verdicts()
	raw.addr = netip.MustParseAddr("127.0.0.1") // the ICRC is for another sender
	raw.send(group.Addr(), append(broken[:len(broken):len(broken)], 0, 0, 0, 0))
	awaitDrop(t, a, "wrong ICRC", DropICRC, before)
	raw.addr = raw.g.Addrs()[0]
	v, _ := a.verdicts()
	raw.send(group.Addr(), rawDatagram(bth.MulticastQPN, testQKey+1, nil))
	awaitVerdict(t, a, "wrong Q_Key", "drop_qkey", v)
	raw.send(group.Addr(), rawDatagram(bth.MulticastQPN, testQKey, []byte("good")))
	if wc := y.next(t, cq.Recv, cq.Success); wc.SrcQP != 0x77 || string(y.mr.Bytes()[40:44]) != "good" {
		t.Errorf("the good one: %+v", wc)
	}
}

func awaitDrop(t testing.TB, a *Adapter, name string, want Drop, before [NumDrops]uint64) {
	t.Helper()
	ctx := within(t)
	for {
		_, now := a.verdicts()
		for d := range NumDrops {
			if now[d] == before[d] {
				continue
			}
			if d != want || now[d] != before[d]+1 {
				t.Errorf("%s: %d times %v, want one %v", name, now[d]-before[d], d, want)
			}
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("%s: nothing was counted", name)
		}
		runtime.Gosched()
	}
}

// connectOn is connect for an adapter in a network namespace: the sockets that a
// program's requests open are opened there.
func connectOn(t testing.TB, h *testnet.Host, a *Adapter) *verbs.Device {
	t.Helper()
	ours, theirs, err := shm.Socketpair()
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() {
		done <- h.Do(func() error { a.ServeConn(theirs); return nil })
	}()
	t.Cleanup(func() {
		_ = ours.Close() // may be closed already
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	d, err := verbs.OpenConn(ours)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() }) // may be closed already
	return d
}

// Field case F32: the joiner is on another host. By IPv4 and IPv6, one copy for
// each attached queue pair, and the sender's own once.
func TestF32MulticastBetweenHosts(t *testing.T) {
	hostA, hostB := testnet.Pair(t, 1500)
	start := func(h *testnet.Host, workers int) (a *Adapter) {
		t.Helper()
		waitBindable(t, h)
		err := h.Do(func() (err error) {
			a, err = New(Config{Interface: testnet.Iface, Workers: testmatrix.Workers(t, workers), RecvBuffer: 212992, Offload: testmatrix.Offload(t), Backend: testmatrix.Backend(t), TUN: testmatrix.TUN(t, nil)})
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = a.Close() })
		return a
	}
	a, b := start(hostA, 1), start(hostB, 3)
	da, db := connectOn(t, hostA, a), connectOn(t, hostB, b)
	for i, addr := range a.Addrs() {
		group := bth.GIDFromAddr(netip.MustParseAddr("239.77.0.1"))
		if addr.Is6() {
			group = bth.GIDFromAddr(netip.MustParseAddr("ff12::77:1"))
		}
		if addr.IsLinkLocalUnicast() {
			continue
		}
		x := newUD(t, da, 1<<13, nil)
		var ys []*endpoint
		for range 3 {
			y := newUD(t, db, 1<<13, nil)
			y.attach(t, group)
			y.postRecv(t, 1, 0, 2000)
			ys = append(ys, y)
		}
		x.attach(t, group)
		x.postRecv(t, 1, 4096, 2000)
		x.postRecv(t, 2, 4096, 2000)
		ah, err := x.pd.CreateAH(&verbs.AHAttr{DGID: group, SGIDIndex: uint8(i), IsGlobal: true, PortNum: 1, HopLimit: 1})
		if err != nil {
			t.Fatal(err)
		}
		for k := range 1024 {
			x.mr.Bytes()[k] = byte(k * 7)
		}
		wr := x.datagram(ah, bth.MulticastQPN, 0, 1024)
		wr.Opcode, wr.ImmData = verbs.WRSendWithImm, 77
		x.post(t, wr)
		if wc, err := completion(within(t), x.cq); err != nil || wc.Status != cq.Success {
			t.Fatalf("%v: %+v, %v", addr, wc, err)
		}
		for _, e := range append(ys, x) {
			off := 0
			if e == x {
				off = 4096
			}
			wc := e.next(t, cq.Recv, cq.Success)
			if wc.SrcQP != x.qp.Num() || wc.ByteLen != 40+1024 || wc.ImmData != 77 || string(e.mr.Bytes()[off+40:off+40+1024]) != string(x.mr.Bytes()[:1024]) {
				t.Errorf("%v: completion %+v", addr, wc)
			}
		}
		a.quiesce()
		b.quiesce()
		for _, e := range append(ys, x) {
			e.wantNothing(t)
			e.detach(t, group)
		}
		if err := ah.Destroy(); err != nil {
			t.Fatal(err)
		}
	}
	wantNoGroups(t, a)
	wantNoGroups(t, b)
	// ibv_create_ah(3): no way there.
	pd, err := da.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	far := bth.GIDFromAddr(netip.MustParseAddr("192.0.2.1"))
	if _, err := pd.CreateAH(&verbs.AHAttr{DGID: far, IsGlobal: true, PortNum: 1}); !errors.Is(err, syscall.ENETUNREACH) {
		t.Errorf("handle to an address without a route: %v, want ENETUNREACH", err)
	}
}
