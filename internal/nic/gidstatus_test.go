package nic

import (
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/softroce/softroce/internal/testnet"
	"github.com/softroce/softroce/internal/uapi"
)

// Each address is listed with what keeps it from being used, and why.
func TestGIDStatus(t *testing.T) {
	hostA, _ := testnet.Pair(t, 1500)
	noLinkLocal(t, hostA)
	a := startOn(t, hostA, Config{Addrs: []netip.Addr{hostA.Addr4}})
	r := rawHello(t, a)
	status := func() uapi.GIDStatus {
		all := must[uapi.ListGIDsReply](r, uapi.OpListGIDs, nil).GIDs
		if len(all) != 1 {
			t.Fatalf("got %+v, want one address", all)
		}
		return all[0]
	}
	is := func(index int, usable bool, why string) func() bool {
		return func() bool {
			s := status()
			return s.Index == index && s.Usable == usable && strings.Contains(s.Why, why) && (why != "" || s.Why == "") &&
				s.Address == hostA.Addr4.String() && s.Type == "RoCE v2"
		}
	}
	if !is(0, true, "")() || status().Interface != testnet.Iface || status().LinkMTU != 1500 {
		t.Errorf("at first: %+v", status())
	}
	changeLink(t, hostA, (*netlink.Handle).LinkSetDown)
	until(t, "the link is down", is(0, false, "link down: interface "+testnet.Iface+" is not up"))
	changeLink(t, hostA, (*netlink.Handle).LinkSetUp)
	until(t, "the link is up", is(0, true, ""))
	delAddress(t, hostA, hostA.Addr4)
	until(t, "the address is gone", is(-1, false, "the address is on no interface"))
	addAddress(t, hostA, hostA.Addr4)
	until(t, "the address is back", is(0, true, ""))
	changeLink(t, hostA, (*netlink.Handle).LinkDel)
	until(t, "the interface is gone", is(-1, false, "the address is on no interface"))
}

// A new IPv6 address is tentative at first, and says so; an interface that is gone is
// named.
func TestGIDStatusOfAnInterface(t *testing.T) {
	hostA, _ := testnet.Pair(t, 1500)
	noLinkLocal(t, hostA)
	a := startOn(t, hostA, Config{Interface: testnet.Iface})
	r := rawHello(t, a)
	find := func(address, why string) func() bool {
		return func() bool {
			for _, s := range must[uapi.ListGIDsReply](r, uapi.OpListGIDs, nil).GIDs {
				if s.Address == address && s.Index < 0 && !s.Usable && strings.Contains(s.Why, why) {
					return true
				}
			}
			return false
		}
	}
	err := hostA.Do(func() error { // so that nobody misses it
		return os.WriteFile("/proc/sys/net/ipv6/conf/"+testnet.Iface+"/dad_transmits", []byte("1000"), 0)
	})
	if err != nil {
		t.Skipf("skipped: how long duplicate address detection lasts cannot be set: %v", err)
	}
	changeLink(t, hostA, func(nl *netlink.Handle, l netlink.Link) error {
		addr, err := netlink.ParseAddr("fd77:1::5/64")
		if err != nil {
			return err
		}
		return nl.AddrAdd(l, addr)
	})
	until(t, "the new address is tentative", find("fd77:1::5", "tentative"))
	changeLink(t, hostA, (*netlink.Handle).LinkDel)
	until(t, "the interface is gone", find("", "interface "+testnet.Iface+" is gone"))
}
