package nic

import (
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/softroce/softroce/pkg/bth"
)

// Field case F41: an adapter given addresses has exactly these
// GIDs in this order.
func TestF41GivenAddressesAreTheGIDs(t *testing.T) {
	addrs := []netip.Addr{netip.MustParseAddr("127.0.0.2"), netip.MustParseAddr("::1")}
	got, err := resolveGIDs(addrs, "")
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 2 {
		t.Fatalf("%d GIDs, want 2: %+v", len(got), got)
	}
	want := []string{"::ffff:127.0.0.2", "::1"}
	for i, w := range want {
		if got[i].gid != bth.GIDFromAddr(netip.MustParseAddr(w)) {
			t.Errorf("GID %d is %v, want %s", i, got[i].gid, w)
		}
	}
	lo := loopback(t)
	if got[0].ifindex != lo.Index || got[0].linkMTU != lo.MTU {
		t.Errorf("127.0.0.2 is on interface %d with MTU %d, want %d with %d", got[0].ifindex, got[0].linkMTU, lo.Index, lo.MTU)
	}
}

func loopback(t *testing.T) net.Interface {
	t.Helper()
	list, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, in := range list {
		if in.Flags&net.FlagLoopback != 0 {
			return in
		}
	}
	t.Fatal("no loopback interface")
	return net.Interface{}
}

// An interface gives the addresses it has and no invented one, IPv4-mapped
// first (F41).
func TestF41InterfaceGivesItsAddresses(t *testing.T) {
	lo := loopback(t)
	got, err := resolveGIDs(nil, lo.Name)
	if err != nil {
		t.Fatal(err)
	}
	if len(got) == 0 || !got[0].gid.Is4() {
		t.Fatalf("first GID of %s is not IPv4-mapped: %+v", lo.Name, got)
	}
	addrs, err := lo.Addrs()
	if err != nil {
		t.Fatal(err)
	}
	has := map[netip.Addr]bool{}
	for _, a := range addrs {
		ip, _ := netip.AddrFromSlice(a.(*net.IPNet).IP)
		has[ip.Unmap()] = true
	}
	for i, e := range got {
		if !has[e.addr.WithZone("")] {
			t.Errorf("GID %d (%v) is not an address of %s", i, e.addr, lo.Name)
		}
		if i > 0 && gidRank(e.addr) < gidRank(got[i-1].addr) {
			t.Errorf("GID %d (%v) comes after %v", i, e.addr, got[i-1].addr)
		}
	}
}

func TestGIDsBadInput(t *testing.T) {
	tests := []struct {
		name   string
		addrs  []netip.Addr
		ifname string
		want   string
	}{
		{"nothing", nil, "", "neither an address nor an interface"},
		{"both", []netip.Addr{netip.MustParseAddr("127.0.0.1")}, "lo", "give one"},
		{"no such interface", nil, "nosuch0", `interface "nosuch0"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := resolveGIDs(tt.addrs, tt.ifname)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("got %v, want it to say %q", err, tt.want)
			}
		})
	}
}

// An address without an interface (local by a route only) is not refused
// here; its link counts as Ethernet.
func TestGIDsUnknownInterface(t *testing.T) {
	got, err := resolveGIDs([]netip.Addr{netip.MustParseAddr("203.0.113.9")}, "")
	if err != nil {
		t.Fatal(err)
	}
	if got[0].linkMTU != unknownLinkMTU || got[0].ifindex != 0 {
		t.Errorf("got %+v", got[0])
	}
}

// The active MTU is the largest of 256..4096 not above link MTU - 80.
func TestActiveMTU(t *testing.T) {
	tests := []struct {
		link int
		want bth.MTU
	}{
		{68, bth.MTU256},
		{335, bth.MTU256},
		{336, bth.MTU256},
		{591, bth.MTU256},
		{592, bth.MTU512},
		{1103, bth.MTU512},
		{1104, bth.MTU1024},
		{1500, bth.MTU1024},
		{2127, bth.MTU1024},
		{2128, bth.MTU2048},
		{4175, bth.MTU2048},
		{4176, bth.MTU4096},
		{9000, bth.MTU4096},
		{65536, bth.MTU4096},
	}
	for _, tt := range tests {
		if got := activeMTU(tt.link); got != tt.want {
			t.Errorf("link MTU %d: active MTU %v, want %v", tt.link, got, tt.want)
		}
	}
}
