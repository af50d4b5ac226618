package nic

import (
	"net/netip"
	"os"
	"syscall"
	"testing"

	"github.com/softroce/softroce/internal/cm"
	"github.com/softroce/softroce/internal/testaddr"
	"github.com/softroce/softroce/internal/testmatrix"
	"github.com/softroce/softroce/internal/testnet"
	"github.com/softroce/softroce/internal/uapi"
	"github.com/softroce/softroce/pkg/bth"
)

// boundTo makes an identifier with options and binds it; 0 is no error.
func (n *cmNode) boundTo(own netip.AddrPort, options ...uint32) (uint32, answer) {
	n.t.Helper()
	id := n.id(cm.SpaceTCP)
	for _, o := range options {
		n.ok(uapi.OpSetCMOption, &uapi.CMValueRequest{ID: id, Option: o, Value: 1})
	}
	return id, n.call(uapi.OpBindCM, &uapi.CMAddrRequest{ID: id, Own: cmAddr(own)})
}

// Ports: who can have which at the same time (rdma_bind_addr(3)).
func TestCMPorts(t *testing.T) {
	addrs := testaddr.Take(t, 2)
	a := startAdapter(t, func(c *Config) { c.Addrs = addrs })
	any4, any6 := netip.IPv4Unspecified(), netip.IPv6Unspecified()
	const reuse, only = uapi.CMOptionReuseAddr, uapi.CMOptionAFOnly
	for _, row := range []struct {
		name          string
		first, second netip.Addr
		options       []uint32
		want          syscall.Errno
	}{
		{"the same address", addrs[0], addrs[0], nil, syscall.EADDRINUSE},
		{"two addresses", addrs[0], addrs[1], nil, 0},
		{"one and all of its family", addrs[0], any4, nil, syscall.EADDRINUSE},
		{"all of IPv4, then one", any4, addrs[0], nil, syscall.EADDRINUSE},
		{"one and all of both families", addrs[0], any6, nil, syscall.EADDRINUSE},
		{"both families, then IPv4", any6, any4, nil, syscall.EADDRINUSE},
		{"IPv6 alone, then IPv4", any6, any4, []uint32{only}, 0},
		{"both want to share", addrs[0], addrs[0], []uint32{reuse}, 0},
		{"all want to share", any4, addrs[0], []uint32{reuse}, 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			n := newCMNode(t, a)
			id, got := n.boundTo(netip.AddrPortFrom(row.first, 7200), row.options...)
			if got.errno != 0 {
				t.Fatal(got.text)
			}
			if _, got = n.boundTo(netip.AddrPortFrom(row.second, 7200), row.options...); got.errno != row.want {
				t.Errorf("got %v (%s), want %v", got.errno, got.text, row.want)
			}
			udp := n.id(cm.SpaceUDP) // a space of its own
			n.bind(udp, netip.AddrPortFrom(row.first, 7200))
			n.destroy(id)
			if _, got = n.boundTo(netip.AddrPortFrom(row.first, 7200)); got.errno != 0 && row.want == syscall.EADDRINUSE {
				t.Errorf("the port did not come back: %s", got.text)
			}
			n.hangUp(t)
			wantNoCM(t, a)
		})
	}
}

// One of those who share a port may listen, when the others have gone.
func TestCMListenersDoNotShare(t *testing.T) {
	a := startAdapter(t, nil)
	n := newCMNode(t, a)
	own := netip.AddrPortFrom(a.Addrs()[0], 7201)
	first, _ := n.boundTo(own, uapi.CMOptionReuseAddr)
	second, _ := n.boundTo(own, uapi.CMOptionReuseAddr)
	listen := func(id uint32) answer { return n.call(uapi.OpListenCM, &uapi.CMValueRequest{ID: id, Value: 1}) }
	n.wantRefusal(listen(first), syscall.EADDRINUSE, "7201")
	n.destroy(second)
	if got := listen(first); got.errno != 0 {
		t.Fatal(got.text)
	}
	_, got := n.boundTo(own, uapi.CMOptionReuseAddr)
	n.wantRefusal(got, syscall.EADDRINUSE, "7201")
	n.wantRefusal(listen(first), syscall.EINVAL, "listening")
	n.wantRefusal(n.call(uapi.OpSetCMOption, &uapi.CMValueRequest{ID: first, Option: uapi.CMOptionReuseAddr}), syscall.EINVAL, "listening")
}

// Ephemeral ports: from the host's range, each its own, until there are no more.
func TestEphemeralPorts(t *testing.T) {
	table := newPortTable(77)
	if table.first >= table.last || table.first < table.open {
		t.Errorf("range %d to %d, open from %d", table.first, table.last, table.open)
	}
	table.first, table.last = 50000, 50009
	own := netip.MustParseAddrPort("127.0.0.1:0")
	seen := map[uint16]bool{}
	var ids []*cmID
	for range 10 {
		id := &cmID{space: cm.SpaceTCP}
		if err := table.bind(id, own); err != nil {
			t.Fatal(err)
		}
		if p := id.own.Port(); p < 50000 || p > 50009 || seen[p] {
			t.Errorf("port %d", p)
		}
		seen[id.own.Port()] = true
		ids = append(ids, id)
	}
	if err := table.bind(&cmID{space: cm.SpaceTCP}, own); errnoOf(err, 0) != syscall.EADDRNOTAVAIL {
		t.Errorf("an eleventh of ten: %v", err)
	}
	other := &cmID{space: cm.SpaceTCP} // for another address
	if err := table.bind(other, netip.MustParseAddrPort("127.0.0.2:0")); err != nil {
		t.Error(err)
	}
	for _, id := range append(ids, other) {
		table.release(id)
		table.release(id) // a second time is nothing
	}
	if len(table.at) != 0 {
		t.Errorf("%d ports left", len(table.at))
	}
}

// Bad calls: too early, too late, of nothing, with nonsense.
func TestCMRefusals(t *testing.T) {
	a := startAdapter(t, nil)
	n := newCMNode(t, a)
	own := anyPort(a.Addrs()[0])
	bound := n.id(cm.SpaceTCP)
	n.bind(bound, own)
	routed := n.route(cm.SpaceTCP, netip.AddrPortFrom(own.Addr(), 9))
	udpRouted := n.route(cm.SpaceUDP, netip.AddrPortFrom(own.Addr(), 9))
	rc, ud := n.rcQP(), n.udQP()
	h := func(id uint32) uapi.Body { return &uapi.HandleRequest{Handle: id} }
	v := func(id, value, option uint32) uapi.Body {
		return &uapi.CMValueRequest{ID: id, Value: value, Option: option}
	}
	addr := func(id uint32, own, peer netip.AddrPort) uapi.Body {
		return &uapi.CMAddrRequest{ID: id, Own: cmAddr(own), Peer: cmAddr(peer)}
	}
	call := func(id uint32, qpn bth.QPN, private int) uapi.Body {
		return &uapi.CMCallRequest{ID: id, Param: paramOfQP(qpn), Private: make([]byte, private)}
	}
	stranger, none := netip.MustParseAddrPort("192.0.2.1:0"), netip.AddrPort{}
	peer := netip.AddrPortFrom(own.Addr(), 7)
	for _, row := range []struct {
		name  string
		op    uapi.Op
		body  uapi.Body
		errno syscall.Errno
		words []string
	}{
		{"no such identifier", uapi.OpQueryCM, h(99), syscall.EINVAL, []string{"connection identifier", "99"}},
		{"no such channel", uapi.OpCreateCMID, &uapi.CreateCMIDRequest{Channel: 9, Space: 0x106}, syscall.EINVAL, []string{"event channel"}},
		{"port space", uapi.OpCreateCMID, &uapi.CreateCMIDRequest{Channel: n.ch, Space: 0x13F}, syscall.EPROTONOSUPPORT, []string{"0x13f"}},
		{"bound twice", uapi.OpBindCM, addr(bound, own, none), syscall.EINVAL, []string{"bound"}},
		{"another one's address", uapi.OpBindCM, addr(n.id(cm.SpaceTCP), stranger, none), syscall.EADDRNOTAVAIL, []string{"192.0.2.1"}},
		{"from another one's address", uapi.OpResolveCMAddr, addr(n.id(cm.SpaceTCP), stranger, peer), syscall.EADDRNOTAVAIL, []string{"192.0.2.1"}},
		{"peer without a port", uapi.OpResolveCMAddr, addr(n.id(cm.SpaceTCP), none, own), syscall.EINVAL, []string{"port is 0"}},
		{"RC to a group", uapi.OpResolveCMAddr, addr(n.id(cm.SpaceTCP), none, netip.MustParseAddrPort("239.1.2.3:5")), syscall.EINVAL, []string{"multicast"}},
		{"route before the address", uapi.OpResolveCMRoute, h(bound), syscall.EINVAL, []string{"bound"}},
		{"address after the route", uapi.OpResolveCMAddr, addr(routed, none, peer), syscall.EINVAL, []string{"route resolved"}},
		{"listen after the route", uapi.OpListenCM, v(routed, 1, 0), syscall.EINVAL, []string{"route resolved"}},
		{"connect before the route", uapi.OpConnectCM, call(bound, rc.QPN, 0), syscall.EINVAL, []string{"bound"}},
		{"another one's queue pair", uapi.OpConnectCM, call(routed, rc.QPN+8, 0), syscall.EINVAL, []string{"none of this program's"}},
		{"UD queue pair", uapi.OpConnectCM, call(routed, ud.QPN, 0), syscall.EINVAL, []string{"UD", "port space"}},
		{"private data of 57 bytes", uapi.OpConnectCM, call(routed, rc.QPN, 57), syscall.EINVAL, []string{"private data"}},
		{"private data of 181 bytes, UD", uapi.OpConnectCM, call(udpRouted, 0, 181), syscall.EINVAL, []string{"private data"}},
		{"accept of nothing", uapi.OpAcceptCM, call(routed, rc.QPN, 0), syscall.EINVAL, []string{"accept", "route resolved"}},
		{"reject of nothing", uapi.OpRejectCM, call(routed, 0, 0), syscall.EINVAL, []string{"reject"}},
		{"reason", uapi.OpRejectCM, &uapi.CMCallRequest{ID: routed, Reason: 1 << 16}, syscall.EINVAL, []string{"65536"}},
		{"establish of nothing", uapi.OpEstablishCM, h(routed), syscall.EINVAL, []string{"establish"}},
		{"disconnect of nothing", uapi.OpDisconnectCM, h(routed), syscall.EINVAL, []string{"disconnect"}},
		{"notify of nothing", uapi.OpNotifyCM, v(bound, 4, 0), syscall.EINVAL, []string{"notify"}},
		{"attributes for RTR too early", uapi.OpQPAttrCM, v(routed, 2, 0), syscall.EINVAL, []string{"route resolved"}},
		{"attributes for ERR", uapi.OpQPAttrCM, v(routed, 6, 0), syscall.EINVAL, []string{"state 6"}},
		{"option", uapi.OpSetCMOption, v(bound, 1, 9), syscall.ENOSYS, []string{"option 9"}},
		{"TOS", uapi.OpSetCMOption, v(bound, 256, uapi.CMOptionTOS), syscall.EINVAL, []string{"256", "255"}},
		{"ACK timeout", uapi.OpSetCMOption, v(bound, 32, uapi.CMOptionAckTimeout), syscall.EINVAL, []string{"32", "31"}},
	} {
		t.Run(row.name, func(t *testing.T) { n.wantRefusal(n.call(row.op, row.body), row.errno, row.words...) })
	}
	n.hangUp(t)
	wantNoCM(t, a)
}

// A port below the range that is for everybody needs a capability.
func TestCMLowPort(t *testing.T) {
	a := startAdapter(t, nil)
	n := newCMNode(t, a)
	a.gsi.w.do(func() { a.gsi.ports.open = 1024 })
	for _, uid := range []uint32{0, 12345} {
		for _, p := range a.programList() {
			p.mu.Lock()
			p.uid, p.cred.PID = uid, 1<<22+1 // nobody's capabilities
			p.mu.Unlock()
		}
		_, got := n.boundTo(netip.AddrPortFrom(a.Addrs()[0], 1023))
		if want := map[uint32]syscall.Errno{0: 0, 12345: syscall.EACCES}[uid]; got.errno != want {
			t.Errorf("user %d: %v (%s), want %v", uid, got.errno, got.text, want)
		}
	}
}

// Options reach the connection: traffic class and ACK timeout.
func TestCMOptions(t *testing.T) {
	a := startAdapter(t, nil)
	client, server := newCMNode(t, a), newCMNode(t, a)
	_, to := server.listen(cm.SpaceTCP, anyPort(a.Addrs()[0]))
	id := client.id(cm.SpaceTCP)
	client.ok(uapi.OpSetCMOption, &uapi.CMValueRequest{ID: id, Option: uapi.CMOptionTOS, Value: 0x68})
	client.ok(uapi.OpSetCMOption, &uapi.CMValueRequest{ID: id, Option: uapi.CMOptionAckTimeout, Value: 19})
	client.ok(uapi.OpResolveCMAddr, &uapi.CMAddrRequest{ID: id, Peer: cmAddr(to)})
	client.ok(uapi.OpResolveCMRoute, &uapi.HandleRequest{Handle: id})
	client.next(uapi.CMAddrResolved)
	client.next(uapi.CMRouteResolved)
	client.ok(uapi.OpConnectCM, &uapi.CMCallRequest{ID: id, Param: paramOfQP(client.rcQP().QPN)})
	req := server.next(uapi.CMConnectRequest)
	for _, state := range []uint32{2, 3} {
		attr := must[uapi.QPAttrCMReply](server.rawClient, uapi.OpQPAttrCM, &uapi.CMValueRequest{ID: req.ID, Value: state}).Attr
		if state == 2 && attr.AH.TrafficClass != 0x68 || state == 3 && attr.Timeout != 19 {
			t.Errorf("state %d: %+v", state, attr)
		}
	}
}

// Listeners of their own addresses and of all: each request finds the one that
// is nearest.
func TestCMSeveralListeners(t *testing.T) {
	addrs := testaddr.Take(t, 3)
	b := startAdapter(t, func(c *Config) { c.Addrs = addrs })
	a := startAdapter(t, nil)
	client, server := newCMNode(t, a), newCMNode(t, b)
	want := map[netip.AddrPort]uint32{}
	for _, addr := range addrs[:2] {
		id, own := server.listen(cm.SpaceTCP, netip.AddrPortFrom(addr, 7300))
		want[own] = id
	}
	wild, own := server.listen(cm.SpaceTCP, netip.AddrPortFrom(netip.IPv6Unspecified(), 7301))
	if own.Port() != 7301 || !own.Addr().IsUnspecified() {
		t.Errorf("the wildcard is %v", own)
	}
	for _, addr := range addrs {
		want[netip.AddrPortFrom(addr, 7301)] = wild
	}
	unbound := server.id(cm.SpaceTCP)
	server.ok(uapi.OpListenCM, &uapi.CMValueRequest{ID: unbound, Value: 1})
	rep := must[uapi.CMAddrReply](server.rawClient, uapi.OpQueryCM, &uapi.HandleRequest{Handle: unbound})
	want[netip.AddrPortFrom(addrs[2], rep.Own.Port)] = unbound
	for to, listener := range want {
		id := client.route(cm.SpaceTCP, to)
		client.ok(uapi.OpConnectCM, &uapi.CMCallRequest{ID: id, Param: paramOfQP(client.rcQP().QPN)})
		if req := server.next(uapi.CMConnectRequest); req.Listen != listener || addrOf(&req.Own) != to {
			t.Errorf("a request to %v went to listener %d as %v, want %d", to, req.Listen, addrOf(&req.Own), listener)
		}
	}
}

// A peer named by the loopback address, or by none, is this adapter.
func TestCMToMyself(t *testing.T) {
	host, _ := testnet.Pair(t, 1500)
	a := adapterOn(t, host)
	n := newCMNode(t, a)
	listener, own := n.listen(cm.SpaceTCP, netip.MustParseAddrPort("127.0.0.1:7302"))
	if !own.Addr().IsUnspecified() {
		t.Errorf("bound to %v", own)
	}
	for _, peer := range []string{"127.0.0.1:7302", "0.0.0.0:7302", host.Addr4.String() + ":7302"} {
		id := n.route(cm.SpaceTCP, netip.MustParseAddrPort(peer))
		n.ok(uapi.OpConnectCM, &uapi.CMCallRequest{ID: id, Param: paramOfQP(n.rcQP().QPN)})
		req := n.next(uapi.CMConnectRequest)
		if req.Listen != listener || req.Own.GID != bth.GIDFromAddr(host.Addr4) || req.Peer.GID != req.Own.GID {
			t.Errorf("to %s: %+v", peer, req)
		}
	}
}

// adapterOn starts an adapter on the interface of a host.
func adapterOn(t *testing.T, h *testnet.Host) (a *Adapter) {
	t.Helper()
	waitBindable(t, h)
	err := h.Do(func() (err error) {
		a, err = New(Config{Interface: testnet.Iface, Workers: testmatrix.Workers(t, 2), RecvBuffer: 212992, Offload: testmatrix.Offload(t), Backend: testmatrix.Backend(t), TUN: testmatrix.TUN(t, nil)})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.Close() })
	return a
}

// Between two hosts, by each family: the source is what the routing table says,
// the MTU the link's, and where there is no route an event says so.
func TestCMBetweenHosts(t *testing.T) {
	hostA, hostB := testnet.Pair(t, 1500)
	a, b := adapterOn(t, hostA), adapterOn(t, hostB)
	client, server := newCMNode(t, a), newCMNode(t, b)
	listener, own := server.listen(cm.SpaceTCP, netip.AddrPortFrom(netip.IPv6Unspecified(), 0))
	families := []netip.Addr{hostB.Addr4, hostB.Addr6}
	if _, err := os.Stat("/proc/sys/net/ipv6"); err != nil {
		t.Log("IPv4 only: this kernel has no IPv6")
		families = families[:1]
	}
	for i, addr := range families {
		l := connectNodes(t, client, server, listener, netip.AddrPortFrom(addr, own.Port()))
		checkConnected(t, l)
		rep := must[uapi.CMAddrReply](client.rawClient, uapi.OpQueryCM, &uapi.HandleRequest{Handle: l.clientID})
		if want := []netip.Addr{hostA.Addr4, hostA.Addr6}[i]; rep.Own.GID != bth.GIDFromAddr(want) || rep.MTU != bth.MTU1024 {
			t.Errorf("to %v from %s with MTU %v, want %v", addr, rep.Own.GID, rep.MTU, want)
		}
	}
	id := client.id(cm.SpaceTCP)
	client.ok(uapi.OpResolveCMAddr, &uapi.CMAddrRequest{ID: id, Peer: cmAddr(netip.MustParseAddrPort("203.0.113.9:5"))})
	if rec := client.next(uapi.CMAddrError); rec.ID != id || rec.Status != -int32(syscall.ENETUNREACH) {
		t.Errorf("no route: %+v", rec)
	}
	client.ok(uapi.OpResolveCMAddr, &uapi.CMAddrRequest{ID: id, Peer: cmAddr(netip.AddrPortFrom(hostB.Addr4, own.Port()))}) // another try
	client.next(uapi.CMAddrResolved)
	client.hangUp(t)
	server.hangUp(t)
	wantNoCM(t, a)
	wantNoCM(t, b)
}

// An adapter whose addresses are not on the interface that leads to the peer has
// no way there, as kernel rdma_cm has no device.
func TestCMOtherInterface(t *testing.T) {
	hostA, hostB := testnet.Pair(t, 1500)
	own := netip.MustParseAddr("198.51.100.7")
	hostA.AddLoopback(t, own)
	var a *Adapter
	err := hostA.Do(func() (err error) {
		a, err = New(Config{Addrs: []netip.Addr{own}, Workers: 1, RecvBuffer: 212992})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.Close() })
	n := newCMNode(t, a)
	id := n.id(cm.SpaceTCP)
	n.ok(uapi.OpResolveCMAddr, &uapi.CMAddrRequest{ID: id, Peer: cmAddr(netip.AddrPortFrom(hostB.Addr4, 7))})
	if rec := n.next(uapi.CMAddrError); rec.ID != id || rec.Status != -int32(syscall.ENODEV) {
		t.Errorf("resolved to %+v", rec)
	}
	n.route(cm.SpaceTCP, netip.AddrPortFrom(hostA.Addr4, 7)) // on this host: any address does
}

// The way is found from an address of the adapter that the routing table does not
// name, where the peer is on this host; and not where the way leads elsewhere.
func TestFindWay(t *testing.T) {
	addrs := testaddr.Take(t, 2)
	a := startAdapter(t, func(c *Config) { c.Addrs = addrs[:1] })
	for _, with := range []bool{true, false} {
		if !with {
			a.routes.Close()
			a.routes = nil
		}
		way, mtu, err := a.findWay(netip.IPv4Unspecified(), addrs[1], 0x20)
		if err != nil || way.Local != bth.GIDFromAddr(addrs[0]) || way.Remote != bth.GIDFromAddr(addrs[1]) || way.TrafficClass != 0x20 || way.HopLimit != 64 || mtu != bth.MTU4096 {
			t.Errorf("to a neighbour: %+v, %v, %v", way, mtu, err)
		}
		// Where the host sends what comes by a TUN link, the adapter does not know.
		if _, _, err := a.findWay(netip.Addr{}, netip.MustParseAddr("8.8.8.8"), 0); (err == nil) != (testmatrix.Backend(t) == BackendTUN) {
			t.Errorf("from a loopback or TUN address into the world: %v", err)
		}
		if _, _, err := a.findWay(netip.Addr{}, netip.IPv6Loopback(), 0); errnoOf(err, 0) != syscall.ENODEV {
			t.Errorf("to IPv6 without an IPv6 address: %v", err)
		}
	}
}
