package testnet

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// tunMTU lets the largest path MTU pass.
const tunMTU = 9000

// TUN gives an adapter of the test a link for addresses of its own, in the calling
// thread's network namespace, and returns its name. The host routes to the addresses
// by it. One that is there already for the first of them is returned again.
func TUN(t testing.TB, addrs []netip.Addr) string {
	t.Helper()
	b := addrs[0].AsSlice()
	name := fmt.Sprintf("tun%x", b[len(b)-4:])
	if _, err := netlink.LinkByName(name); err == nil {
		return name
	}
	err := makeTUN(name, addrs)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOENT) {
		t.Skipf("testnet: no TUN link is to be had: %v", err)
	}
	if err != nil {
		t.Fatalf("testnet: TUN link %s: %v", name, err)
	}
	t.Cleanup(func() {
		if link, err := netlink.LinkByName(name); err == nil {
			_ = netlink.LinkDel(link) // the test may have done it
		}
	})
	return name
}

func makeTUN(name string, addrs []netip.Addr) error {
	link := &netlink.Tuntap{
		LinkAttrs: netlink.LinkAttrs{Name: name}, Mode: netlink.TUNTAP_MODE_TUN,
		Flags: netlink.TUNTAP_MULTI_QUEUE_DEFAULTS, Queues: 1,
	}
	if err := netlink.LinkAdd(link); err != nil {
		return err
	}
	for _, fd := range link.Fds {
		_ = fd.Close() // the link stays without
	}
	l, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	if err := errors.Join(netlink.LinkSetMTU(l, tunMTU), netlink.LinkSetTxQLen(l, 4096), netlink.LinkSetUp(l)); err != nil {
		return err
	}
	for _, a := range addrs {
		// In the local table: there may be a route that makes all addresses around
		// it the host's.
		err := netlink.RouteReplace(&netlink.Route{
			LinkIndex: l.Attrs().Index, Scope: netlink.SCOPE_LINK, Table: unix.RT_TABLE_LOCAL,
			Dst: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())},
		})
		if err != nil {
			return err
		}
	}
	return nil
}
