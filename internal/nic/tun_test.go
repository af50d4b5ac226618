package nic

import (
	"bytes"
	"errors"
	"net/netip"
	"os"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/softroce/softroce/internal/testnet"
	"github.com/softroce/softroce/internal/uapi"
	"github.com/softroce/softroce/pkg/verbs"
)

// tunHost moves the test to a network namespace that has TUN links and forwards.
func tunHost(t *testing.T) {
	t.Helper()
	h := testnet.One(t)
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		t.Skipf("no TUN links here: %v", err)
	}
	h.Enter(t)
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
}

// startTUN starts an adapter on a TUN link of its own.
func startTUN(t *testing.T, workers int, addrs ...netip.Addr) *Adapter {
	t.Helper()
	a, err := New(Config{Addrs: addrs, Backend: BackendTUN, TUN: testnet.TUN(t, addrs), Workers: workers})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	return a
}

// The kernel gives what comes by a TUN link to whichever worker it likes: however
// much of it is another's, all of it comes there, and nothing is sent again.
func TestTUNPacketsOfAnotherWorker(t *testing.T) {
	tunHost(t)
	a, b := startTUN(t, 1, netip.MustParseAddr("10.99.8.2")), startTUN(t, 4, netip.MustParseAddr("10.99.9.2"))
	da, db := openDevice(t, a), openDevice(t, b)
	const pairs, n = 8, 1 << 20
	handed := func() (n, lost uint64) {
		for _, w := range b.Snapshot().Workers {
			n, lost = n+w.Stats.Handovers, lost+w.Stats.Drops[DropHandover]
		}
		return n, lost
	}
	for i := range pairs {
		x, y := newEndpoint(t, da, n), newEndpoint(t, db, n)
		connectPair(t, x, y)
		if err := transfer(within(t), x, y, byte(i)); err != nil {
			t.Fatal(err)
		}
	}
	if n, lost := handed(); n == 0 || lost != 0 {
		t.Errorf("%d packets were handed over, %d lost", n, lost)
	}
}

// The link of a TUN adapter goes and comes back: the port is down meanwhile, programs
// hear of both, and the GIDs stay.
func TestTUNLinkGoesAndComesBack(t *testing.T) {
	tunHost(t)
	addrs := []netip.Addr{netip.MustParseAddr("10.99.7.2"), netip.MustParseAddr("fd5c:4799::2")}
	a := startTUN(t, 2, addrs...)
	link := a.group.Link()
	state := func(up bool) {
		t.Helper()
		until(t, "the port follows the link", func() bool { return a.port.Load().up == up })
	}
	r := rawHello(t, a)
	usable := func(want bool, why string) func() bool {
		return func() bool {
			all := must[uapi.ListGIDsReply](r, uapi.OpListGIDs, nil).GIDs
			for _, s := range all {
				if s.Usable != want || s.Why != why || s.LinkMTU != 9000 || s.Interface != link {
					return false
				}
			}
			return len(all) == len(addrs)
		}
	}
	state(true)
	if mtu := a.port.Load().linkMTU; mtu != 9000 {
		t.Errorf("MTU of the link: %d", mtu)
	}
	w := watchEvents(t, a)
	for range 2 {
		l, err := netlink.LinkByName(link)
		if err != nil {
			t.Fatal(err)
		}
		if err := netlink.LinkDel(l); err != nil {
			t.Fatal(err)
		}
		state(false)
		until(t, "no GID is usable, and why", usable(false, "link gone: there is no interface "+link+" any more"))
		w.want(t, verbs.EventPortErr)
		if testnet.TUN(t, addrs) != link {
			t.Fatal("another link")
		}
		state(true)
		until(t, "the GIDs are usable again", usable(true, ""))
		w.want(t, verbs.EventPortActive)
	}
	if got := a.Addrs(); len(got) != len(addrs) {
		t.Errorf("addresses: %v", got)
	}
}

// A link goes with requests in flight and comes back within the queue pair's retries:
// all of them end well, and so do those after.
func TestTUNQueuePairsOutliveTheirLink(t *testing.T) {
	tunHost(t)
	a, b := startTUN(t, 2, netip.MustParseAddr("10.99.10.2")), startTUN(t, 2, netip.MustParseAddr("10.99.11.2"))
	const n = 4 << 20
	x, y := newEndpoint(t, openDevice(t, a), n), newEndpoint(t, openDevice(t, b), n)
	for _, side := range [][2]*endpoint{{x, y}, {y, x}} {
		gid, err := side[1].dev.QueryGID(0)
		if err != nil {
			t.Fatal(err)
		}
		peer := verbs.RCPeer{QPN: side[1].qp.Num(), PSN: 7, GID: gid}
		if err := side[0].qp.ConnectRC(peer, verbs.RCConfig{PSN: 7, Timeout: 17}); err != nil { // half a second, seven times
			t.Fatal(err)
		}
	}
	for i, gone := range []*Adapter{a, b} {
		w := watchEvents(t, gone)
		for k := range x.mr.Bytes() {
			x.mr.Bytes()[k] = byte(k>>12 ^ k + i)
		}
		clear(y.mr.Bytes())
		addrs, link := gone.Addrs(), gone.group.Link()
		l, err := netlink.LinkByName(link)
		if err != nil {
			t.Fatal(err)
		}
		wr := verbs.SendWR{
			Opcode: verbs.WRRDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{x.mr.SGE(0, n)},
			RemoteAddr: y.mr.Addr(), RKey: y.mr.RKey(),
		}
		if _, err := x.qp.PostSend(wr); err != nil {
			t.Fatal(err)
		}
		if err := netlink.LinkDel(l); err != nil {
			t.Fatal(err)
		}
		w.want(t, verbs.EventPortErr)
		if _, err := x.qp.PostSend(wr); err != nil {
			t.Fatal(err)
		}
		testnet.TUN(t, addrs)
		w.want(t, verbs.EventPortActive)
		for range 2 {
			if wc, err := completion(within(t), x.cq); err != nil || wc.Status != verbs.WCSuccess {
				t.Fatalf("%v, %v", wc.Status, err)
			}
		}
		if !bytes.Equal(x.mr.Bytes(), y.mr.Bytes()) {
			t.Error("the data that arrived is not what was sent")
		}
	}
}

// A network that the host reaches otherwise stays reachable so: the adapter's address
// alone is routed to its link.
func TestTUNLeavesTheHostsRoutes(t *testing.T) {
	h := testnet.One(t)
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		t.Skipf("no TUN links here: %v", err)
	}
	h.Enter(t)
	own := netip.MustParsePrefix("10.99.8.0/24")
	lan := &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: "lan"}, Mode: netlink.TUNTAP_MODE_TUN}
	if err := errors.Join(netlink.LinkAdd(lan), netlink.LinkSetUp(lan)); err != nil {
		t.Fatal(err)
	}
	index := lan.Attrs().Index
	for _, r := range []*netlink.Route{
		{LinkIndex: index, Scope: netlink.SCOPE_LINK, Dst: ipNet(own), Priority: 100},
		{LinkIndex: index, Scope: netlink.SCOPE_LINK, Dst: ipNet(netip.MustParsePrefix("0.0.0.0/0"))},
	} {
		if err := netlink.RouteAdd(r); err != nil {
			t.Fatal(err)
		}
	}
	var log logLines
	a, err := New(Config{
		Addrs:   []netip.Addr{netip.MustParseAddr("10.99.8.2"), netip.MustParseAddr("10.99.9.2"), netip.MustParseAddr("10.99.10.2")},
		Routes:  []netip.Prefix{netip.MustParsePrefix("10.99.9.2/24"), netip.MustParsePrefix("10.99.10.2/0"), netip.MustParsePrefix("10.99.8.2/24")},
		Backend: BackendTUN, TUN: "tun8", Workers: 1, Log: log.logger(),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	for to, want := range map[string]string{
		"10.99.8.7": "lan", "192.0.2.1": "lan", "10.99.10.7": "lan", "10.99.8.2": "tun8", "10.99.9.7": "tun8", "10.99.10.2": "tun8",
	} {
		routes, err := netlink.RouteGet(netip.MustParseAddr(to).AsSlice())
		if err != nil || len(routes) != 1 {
			t.Errorf("to %s: %v, %v", to, routes, err)
			continue
		}
		if l, err := netlink.LinkByIndex(routes[0].LinkIndex); err != nil || l.Attrs().Name != want {
			t.Errorf("%s is reached by %v, %v; want %s", to, l.Attrs().Name, err, want)
		}
	}
	if lines := log.with("by lan, which stays"); len(lines) != 2 {
		t.Errorf("want a line for each network, got %q", lines)
	}
}
