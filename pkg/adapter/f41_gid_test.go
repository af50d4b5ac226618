package adapter_test

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/testaddr"
	"github.com/softroce/softroce/internal/testmatrix"
	"github.com/softroce/softroce/internal/testnet"
	"github.com/softroce/softroce/pkg/adapter"
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/verbs"
)

// Field case F41: the GID table holds the addresses that were given, in their
// order, and a connection works over each index.
func TestF41EachGIDIndex(t *testing.T) {
	addrs := [2][]netip.Addr{testaddr.Take(t, 3), testaddr.Take(t, 3)}
	var hosts [2]*host
	for i := range hosts {
		hosts[i] = start(t, on(addrs[i]...))
	}
	for index := range 3 {
		overIndex(t, hosts[0], hosts[1], uint8(index), uint8(2-index))
	}
	table, err := hosts[0].open(t, shape{}).dev.GIDTable()
	must(t, err)
	for i, e := range table {
		if int(e.Index) != i || e.GID.Addr() != addrs[0][i] {
			t.Errorf("GID %d is %v, want %v", e.Index, e.GID, addrs[0][i])
		}
	}
}

// overIndex connects two new programs over an index of each table.
func overIndex(t *testing.T, x, y *host, i, j uint8) {
	t.Helper()
	a, b := x.open(t, shape{}), y.open(t, shape{})
	var err error
	a.gid, err = a.dev.QueryGID(int(i))
	must(t, err)
	b.gid, err = b.dev.QueryGID(int(j))
	must(t, err)
	a.connectTo(b.peer(), verbs.RCConfig{SGIDIndex: i})
	b.connectTo(a.peer(), verbs.RCConfig{SGIDIndex: j})
	alive(a, b)
	alive(b, a)
	if got := y.stats(t, b.qp.Num()).Peer; got != a.gid.Addr() {
		t.Errorf("the peer over index %d is %v, want %v", i, got, a.gid.Addr())
	}
}

// Field case F41 on an interface: its addresses, IPv4 first, the same after a
// restart; each works with an equal one of the peer; an address that was
// removed is not in the next table; nothing is invented.
func TestF41Interface(t *testing.T) {
	x, y := testnet.Pair(t, 0)
	want := func(h *testnet.Host) []netip.Addr {
		if h.Addr6.IsValid() {
			return []netip.Addr{h.Addr4, h.Addr6}
		}
		return []netip.Addr{h.Addr4}
	}
	byInterface := func(c *adapter.Config) { c.Interface = testnet.Iface }
	run := func(h *testnet.Host) (r *host) {
		t.Helper()
		must(t, h.Do(func() (err error) {
			r, err = tryStart(t, byInterface)
			return err
		}))
		return r
	}
	a, b := run(x), run(y)
	for i, h := range []*testnet.Host{x, y} {
		got := plain([]*host{a, b}[i].Addrs())
		// The kernel adds a link-local address of its own.
		got = slices.DeleteFunc(got, netip.Addr.IsLinkLocalUnicast)
		if !slices.Equal(got, want(h)) {
			t.Errorf("the table of %s is %v, want %v", h.Name, got, want(h))
		}
	}
	for i := range want(x) {
		overIndex(t, a, b, uint8(i), uint8(i))
	}
	first := a.Addrs()
	must(t, a.Close())
	a = run(x)
	if !slices.Equal(a.Addrs(), first) {
		t.Errorf("after a restart the table is %v, was %v", a.Addrs(), first)
	}
	must(t, a.Close())
	must(t, b.Close())

	// Without its IPv4 address.
	must(t, x.Do(func() error {
		link, err := netlink.LinkByName(testnet.Iface)
		if err != nil {
			return err
		}
		return netlink.AddrDel(link, &netlink.Addr{IPNet: &net.IPNet{IP: x.Addr4.AsSlice(), Mask: net.CIDRMask(24, 32)}})
	}))
	must(t, x.Do(func() error {
		_, err := tryStart(t, on(x.Addr4))
		wantWords(t, err, x.Addr4.String(), "address")
		return nil
	}))
	if len(want(x)) == 1 {
		must(t, x.Do(func() error {
			_, err := tryStart(t, byInterface)
			wantWords(t, err, testnet.Iface, "no address")
			return nil
		}))
		return
	}
	a = run(x)
	if slices.Contains(a.Addrs(), x.Addr4) || a.Addrs()[0] != x.Addr6 {
		t.Errorf("the table without the removed address is %v", a.Addrs())
	}
	must(t, a.Close())
}

// plain drops zones.
func plain(addrs []netip.Addr) []netip.Addr {
	out := make([]netip.Addr, len(addrs))
	for i, a := range addrs {
		out[i] = a.WithZone("")
	}
	return out
}

// wantWords checks that an error is there and has all the words.
func wantWords(t *testing.T, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("no error, want one with %q", words)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("the error %q does not say %q", err, w)
		}
	}
}

// Field cases F41 and F43: addresses and attributes that cannot be. The error
// is EINVAL and names the field, the value and what there is.
func TestF41F43WrongAttributes(t *testing.T) {
	h := start(t, nil)
	gid := bth.GIDFromAddr(h.Addrs()[0])
	for _, c := range []struct {
		name  string
		spoil func(a *verbs.QPAttr, m *verbs.QPAttrMask)
		words []string
	}{
		{"no GRH", func(a *verbs.QPAttr, _ *verbs.QPAttrMask) { a.AH.IsGlobal = false }, []string{"is_global"}},
		{
			"wrong sgid_index", func(a *verbs.QPAttr, _ *verbs.QPAttrMask) { a.AH.SGIDIndex = 1 },
			[]string{"sgid_index", "1"},
		},
		{
			"far too high sgid_index", func(a *verbs.QPAttr, _ *verbs.QPAttrMask) { a.AH.SGIDIndex = 255 },
			[]string{"sgid_index", "255"},
		},
		{"no peer address", func(a *verbs.QPAttr, _ *verbs.QPAttrMask) { a.AH.DGID = verbs.GID{} }, []string{"dgid"}},
		{
			"another family", func(a *verbs.QPAttr, _ *verbs.QPAttrMask) { a.AH.DGID = bth.GIDFromAddr(netip.IPv6Loopback()) },
			[]string{"sgid_index 0", h.Addrs()[0].String(), "::1"},
		},
		{"wrong port", func(a *verbs.QPAttr, _ *verbs.QPAttrMask) { a.AH.PortNum = 2 }, []string{"port", "2"}},
		{"no MTU", func(a *verbs.QPAttr, _ *verbs.QPAttrMask) { a.PathMTU = 0 }, []string{"path_mtu", "0"}},
		{"MTU 6", func(a *verbs.QPAttr, _ *verbs.QPAttrMask) { a.PathMTU = 6 }, []string{"path_mtu", "6"}},
		{"RNR timer 32", func(a *verbs.QPAttr, _ *verbs.QPAttrMask) { a.MinRNRTimer = 32 }, []string{"min_rnr_timer", "32"}},
		{
			"no destination QPN", func(_ *verbs.QPAttr, m *verbs.QPAttrMask) { *m &^= verbs.QPDestQPNMask },
			[]string{"missing", "dest_qp_num"},
		},
		{
			"an attribute of RTS", func(_ *verbs.QPAttr, m *verbs.QPAttrMask) { *m |= verbs.QPRetryCntMask },
			[]string{"not allowed here", "retry_cnt"},
		},
		{
			"straight to RTS", func(a *verbs.QPAttr, m *verbs.QPAttrMask) { a.State = verbs.StateRTS },
			[]string{"INIT", "RTS"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := h.open(t, shape{})
			must(t, p.qp.ToInit(allAccess))
			attr := verbs.QPAttr{
				State: verbs.StateRTR, PathMTU: bth.MTU1024, DestQPN: 17, RQPSN: 1, MaxDestRDAtomic: 1, MinRNRTimer: 12,
				AH: verbs.AHAttr{DGID: gid, IsGlobal: true, PortNum: 1},
			}
			mask := verbs.QPStateMask | verbs.QPAVMask | verbs.QPPathMTUMask | verbs.QPDestQPNMask | verbs.QPRQPSNMask |
				verbs.QPMaxDestRDAtomicMask | verbs.QPMinRNRTimerMask
			good, goodMask := attr, mask
			c.spoil(&attr, &mask)
			err := p.qp.Modify(&attr, mask)
			if !errors.Is(err, unix.EINVAL) {
				t.Errorf("error %v, want EINVAL", err)
			}
			wantWords(t, err, append([]string{"modify QP"}, c.words...)...)
			// Nothing was changed, and what is right goes through.
			if q, err := p.qp.Query(); err != nil || q.State != verbs.StateInit {
				t.Errorf("state %v, %v; want INIT", q.State, err)
			}
			must(t, p.qp.Modify(&good, goodMask))
		})
	}
	p := h.open(t, shape{})
	_, err := p.dev.QueryGID(1)
	wantWords(t, err, "index 1", "the GID table has no such entry, it has 0 ("+h.Addrs()[0].String()+")")
}

// An address that this host does not have, or that is no adapter's, is refused
// with the address and the reason.
func TestF41AddressThatIsNotThere(t *testing.T) {
	testmatrix.SkipOn(t, "an adapter's addresses on a TUN link are those that the host has not", adapter.BackendTUN)
	for _, c := range []struct {
		addr  string
		words []string
	}{
		{"198.51.100.7", []string{"198.51.100.7", "address"}},
		{"2001:db8::7", []string{"2001:db8::7"}},
		{"0.0.0.0", []string{"0.0.0.0", "wildcard"}},
		{"224.0.0.1", []string{"224.0.0.1", "multicast"}},
		{"fe80::1", []string{"fe80::1", "zone"}},
	} {
		_, err := tryStart(t, on(netip.MustParseAddr(c.addr)))
		wantWords(t, err, c.words...)
	}
	_, err := tryStart(t, func(c *adapter.Config) { c.Interface = "nosuch0" })
	wantWords(t, err, "nosuch0", "interface")
}
