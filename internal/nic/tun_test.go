package nic

import (
	"net/netip"
	"os"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/softroce/softroce/internal/testnet"
	"github.com/softroce/softroce/pkg/verbs"
)

// The link of a TUN adapter goes and comes back: the port is down meanwhile, programs
// hear of both, and the GIDs stay.
func TestTUNLinkGoesAndComesBack(t *testing.T) {
	h := testnet.One(t)
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		t.Skipf("no TUN links here: %v", err)
	}
	h.Enter(t)
	addrs := []netip.Addr{netip.MustParseAddr("10.99.7.2"), netip.MustParseAddr("fd5c:4799::2")}
	link := testnet.TUN(t, addrs)
	a, err := New(Config{Addrs: addrs, Backend: BackendTUN, TUN: link, Workers: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	state := func(up bool) {
		t.Helper()
		until(t, "the port follows the link", func() bool { return a.port.Load().up == up })
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
		w.want(t, verbs.EventPortErr)
		if testnet.TUN(t, addrs) != link {
			t.Fatal("another link")
		}
		state(true)
		w.want(t, verbs.EventPortActive)
	}
	if got := a.Addrs(); len(got) != len(addrs) {
		t.Errorf("addresses: %v", got)
	}
}
