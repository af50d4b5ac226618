package udp4791

import (
	"errors"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/testaddr"
	"github.com/softroce/softroce/internal/testnet"
)

// testGroup is an IPv4 group that no other test uses: it is made of an address
// that the test has for itself.
func testGroup(own netip.Addr) netip.Addr {
	b := own.As4()
	return netip.AddrFrom4([4]byte{239, b[1], b[2], b[3]})
}

func mustJoin(t testing.TB, g *Group, e *Endpoint, group netip.Addr) *Multicast {
	t.Helper()
	m, err := g.OpenMulticast(group)
	if err != nil {
		t.Fatalf("join %v: %v", group, err)
	}
	t.Cleanup(func() { m.Close() })
	e.Listen(m)
	return m
}

// received reads what waits: loopback and veth deliver within the send call.
func received(t testing.TB, e *Endpoint) (out []datagram) {
	t.Helper()
	for {
		slots, err := e.ReadBatch()
		if err != nil {
			t.Fatal(err)
		}
		if len(slots) == 0 {
			return out
		}
		for _, s := range slots {
			n := s.Segment
			if n == 0 {
				n = len(s.Buf)
			}
			for buf := s.Buf; len(buf) > 0; buf = buf[min(n, len(buf)):] {
				out = append(out, datagram{string(buf[:min(n, len(buf))]), s.Meta})
			}
		}
	}
}

// A group on the loopback device: the joined get one copy each, the sender one
// of its own when it joined, nobody any of a group not joined or left.
func TestMulticastLoopback(t *testing.T) {
	a, b := pair(t, "ipv4")
	ea, eb := a.Endpoint(0), b.Endpoint(0)
	group := testGroup(a.Addrs()[0])
	other := testGroup(b.Addrs()[0])
	flow, port := mustFlow(t, ea, a.Addrs()[0], 7, 0)
	send := func(to netip.Addr, text string) {
		t.Helper()
		mustSend(t, ea, SendSlot{Flow: flow, Dst: to, Buf: bth(0xFFFFFF, text)})
	}
	expect := func(e *Endpoint, texts ...string) {
		t.Helper()
		got := received(t, e)
		if len(got) != len(texts) {
			t.Fatalf("%d datagrams, want %d: %v", len(got), len(texts), got)
		}
		for i, d := range got {
			if d.Buf != string(bth(0xFFFFFF, texts[i])) || d.Meta.Dst != group || d.Meta.Src != netip.AddrPortFrom(a.Addrs()[0], port) || d.Meta.TTL != DefaultTTL {
				t.Errorf("datagram %d: %q, %+v", i, d.Buf, d.Meta)
			}
		}
	}
	send(group, "nobody joined")
	expect(ea)
	expect(eb)

	mb := mustJoin(t, b, eb, group)
	send(group, "one")
	expect(ea)
	expect(eb, "one")

	mustJoin(t, a, ea, group)
	mustJoin(t, a, ea, other)
	send(group, "both")
	expect(ea, "both")
	expect(eb, "both")
	send(other, "for a only")
	if got := received(t, ea); len(got) != 1 || got[0].Meta.Dst != other {
		t.Errorf("of the other group: %v", got)
	}
	expect(eb)

	eb.Unlisten(mb)
	if err := mb.Close(); err != nil {
		t.Fatal(err)
	}
	send(group, "after leaving")
	expect(ea, "after leaving")
	expect(eb)
	if err := mb.Close(); err != nil {
		t.Errorf("second close: %v", err)
	}
}

// Segmented sends to a group come whole, in order.
func TestMulticastSegments(t *testing.T) {
	a, b := pair(t, "ipv4")
	if !a.Segments() {
		t.Skip("this kernel has no UDP segmentation")
	}
	group := testGroup(a.Addrs()[0])
	mustJoin(t, b, b.Endpoint(0), group)
	flow, _ := mustFlow(t, a.Endpoint(0), a.Addrs()[0], 7, 0)
	var buf []byte
	for i := range 5 {
		buf = append(buf, bth(0xFFFFFF, string(rune('a'+i)))...)
	}
	mustSend(t, a.Endpoint(0), SendSlot{Flow: flow, Dst: group, Buf: buf, Segment: 13})
	got := received(t, b.Endpoint(0))
	if len(got) != 5 || got[4].Buf != string(bth(0xFFFFFF, "e")) {
		t.Errorf("got %v", got)
	}
}

func TestMulticastRefused(t *testing.T) {
	a, _ := pair(t, "ipv4")
	var ae *AddrError
	for _, group := range []string{"10.0.0.1", "ff0e::1", "223.255.255.255"} {
		if _, err := a.OpenMulticast(netip.MustParseAddr(group)); !errors.As(err, &ae) {
			t.Errorf("%s: %v, want an AddrError", group, err)
		}
	}
	if _, err := a.OpenMulticast(netip.Addr{}); !errors.As(err, &ae) {
		t.Errorf("no address: %v, want an AddrError", err)
	}
}

// Between two hosts, by IPv4 and IPv6; a thread of another network does not
// join there.
func TestMulticastBetweenHosts(t *testing.T) {
	ha, hb := testnet.Pair(t, 0)
	for _, row := range []struct {
		name, group string
		addr        func(*testnet.Host) netip.Addr
	}{
		{"ipv4", "239.77.0.1", func(h *testnet.Host) netip.Addr { return h.Addr4 }},
		{"ipv6", "ff1e::77:1", func(h *testnet.Host) netip.Addr { return h.Addr6 }},
		{"ipv6 of the link", "ff12::77:2", func(h *testnet.Host) netip.Addr { return h.Addr6 }},
	} {
		if !row.addr(ha).IsValid() {
			t.Logf("%s: this kernel has no IPv6", row.name)
			continue
		}
		// No subtest: it would run on another goroutine and thread.
		multicastAcross(t, ha, hb, row.addr(ha), row.addr(hb), netip.MustParseAddr(row.group))
	}
}

func multicastAcross(t *testing.T, ha, hb *testnet.Host, a, b, group netip.Addr) {
	t.Helper()
	var ga, gb *Group
	var m *Multicast
	var flow FlowID
	in := func(h *testnet.Host, f func() error) {
		t.Helper()
		if err := h.Do(f); err != nil {
			t.Fatalf("%v: %v", group, err)
		}
	}
	in(ha, func() (err error) {
		if ga, err = Open(Config{Addrs: []netip.Addr{a}}); err == nil {
			flow, _, err = ga.Endpoint(0).OpenFlow(a, 7, 0)
		}
		return err
	})
	defer ga.Close()
	in(hb, func() (err error) {
		if gb, err = Open(Config{Addrs: []netip.Addr{b}}); err == nil {
			m, err = gb.OpenMulticast(group)
		}
		return err
	})
	defer gb.Close()
	defer m.Close()
	eb := gb.Endpoint(0)
	eb.Listen(m)
	if _, err := gb.OpenMulticast(group); !errors.Is(err, unix.EXDEV) {
		t.Errorf("%v: join from another namespace: %v, want EXDEV", group, err)
	}
	mustSend(t, ga.Endpoint(0), SendSlot{Flow: flow, Dst: group, TTL: 5, Buf: bth(0xFFFFFF, "far")})
	if !pollFDs(t, []int{m.FD()}, unix.POLLIN) {
		t.Fatalf("%v: nothing came", group)
	}
	got := received(t, eb)
	if len(got) != 1 || got[0].Meta.Dst != group || got[0].Meta.Src.Addr() != a || got[0].Meta.TTL != 5 {
		t.Errorf("%v: got %v", group, got)
	}
	expectNone(t, ga.Endpoint(0))
}

// A way is one that the kernel's routes have, from the address that is asked
// for.
func TestReachable(t *testing.T) {
	h, _ := testnet.Pair(t, 0)
	lo := testaddr.Take(t, 1)[0]
	var g *Group
	var errs []error
	rows := []struct {
		from, to string
		want     error
	}{
		{h.Addr4.String(), "198.18.77.2", nil},
		{h.Addr4.String(), "239.1.2.3", nil},
		{h.Addr4.String(), h.Addr4.String(), nil},
		{h.Addr4.String(), "192.0.2.1", unix.ENETUNREACH},
		{lo.String(), "127.9.9.9", nil},
		{lo.String(), "198.18.77.2", unix.EINVAL},
	}
	if h.Addr6.IsValid() {
		rows = append(rows, []struct {
			from, to string
			want     error
		}{
			{h.Addr6.String(), "fd5c:4791::2", nil},
			{h.Addr6.String(), "ff1e::1", nil},
			{h.Addr6.String(), "ff02::1", nil},
			{h.Addr6.String(), "2001:db8::1", unix.ENETUNREACH},
			{h.Addr6.String(), "198.18.77.2", unix.EAFNOSUPPORT},
		}...)
	}
	addrs := []netip.Addr{h.Addr4, lo}
	if h.Addr6.IsValid() {
		addrs = append(addrs, h.Addr6)
	}
	err := h.Do(func() (err error) {
		if g, err = Open(Config{Addrs: addrs}); err != nil {
			return err
		}
		for _, row := range rows {
			errs = append(errs, g.Reachable(netip.MustParseAddr(row.from), netip.MustParseAddr(row.to)))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	for i, row := range rows {
		if !errors.Is(errs[i], row.want) {
			t.Errorf("from %s to %s: %v, want %v", row.from, row.to, errs[i], row.want)
		}
	}
	if err := g.Reachable(h.Addr4, netip.MustParseAddr("192.0.2.1")); err != nil {
		t.Errorf("from another namespace: %v, want no answer", err)
	}
	var ae *AddrError
	if err := g.Reachable(netip.MustParseAddr("192.0.2.9"), h.Addr4); !errors.As(err, &ae) {
		t.Errorf("from a stranger's address: %v, want an AddrError", err)
	}
}

// One read looks at a few groups only; all have their turn.
func TestMulticastManyGroups(t *testing.T) {
	a, _ := pair(t, "ipv4")
	e := a.Endpoint(0)
	flow, _ := mustFlow(t, e, a.Addrs()[0], 7, 0)
	const n = 5*groupsPerRead + 3
	b := a.Addrs()[0].As4()
	want := map[netip.Addr]bool{}
	for i := range n {
		group := netip.AddrFrom4([4]byte{byte(224 + 1 + i%14), b[1] ^ byte(i/14), b[2], b[3]})
		mustJoin(t, a, e, group)
		mustSend(t, e, SendSlot{Flow: flow, Dst: group, Buf: bth(0xFFFFFF, "x")})
		want[group] = true
	}
	if len(want) != n {
		t.Fatalf("%d groups, want %d", len(want), n)
	}
	for reads := 0; len(want) > 0; reads++ {
		slots, err := e.ReadBatch()
		if err != nil || reads > n || len(slots) > groupsPerRead {
			t.Fatalf("after %d reads %d groups are silent; the last gave %d, %v", reads, len(want), len(slots), err)
		}
		for _, s := range slots {
			if !want[s.Meta.Dst] {
				t.Errorf("a second one, or a stranger, from %v", s.Meta.Dst)
			}
			delete(want, s.Meta.Dst)
		}
	}
}

// All groups are left between two reads, wherever the round over the sockets
// was.
func TestMulticastLeftAtOnce(t *testing.T) {
	g := mustOpen(t, Config{Addrs: familyAddrs(t, "ipv4")})
	e := g.Endpoint(0)
	own := testGroup(g.Addrs()[0]).As4()
	for reads := range len(e.recv) + 2*groupsPerRead {
		var joined []*Multicast
		for i := range byte(groupsPerRead) {
			joined = append(joined, mustJoin(t, g, e, netip.AddrFrom4([4]byte{239, own[1], own[2] ^ i, own[3]})))
		}
		for range reads {
			received(t, e)
		}
		for _, m := range joined {
			e.Unlisten(m)
			m.Close()
		}
		received(t, e)
	}
}
