package udp4791

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/testnet"
)

// tunAddrs are the addresses of the n-th TUN link.
func tunAddrs(n int, family string) []netip.Addr {
	if family == "ipv6" {
		return []netip.Addr{netip.MustParseAddr(fmt.Sprintf("fd5c:%d::2", 4800+n))}
	}
	return []netip.Addr{netip.MustParseAddr(fmt.Sprintf("10.99.%d.2", n))}
}

// Addresses of the host that are routed, as 127.0.0.1 and ::1 are not.
var host4, host6 = netip.MustParseAddr("198.18.4.1"), netip.MustParseAddr("fd5c:4790::1")

// tunHost moves the test to a network namespace that forwards.
func tunHost(t testing.TB, family string) {
	t.Helper()
	h := testnet.One(t)
	if family == "ipv6" && !h.Addr6.IsValid() {
		t.Skip("this kernel has no IPv6")
	}
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		t.Skipf("no TUN links here: %v", err)
	}
	h.AddLoopback(t, host4)
	if h.Addr6.IsValid() {
		h.AddLoopback(t, host6)
	}
	h.Enter(t)
	for _, name := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
		_ = os.WriteFile("/proc/sys/net/"+name, []byte("1"), 0) // IPv6 may be missing
	}
}

// tunLink makes a link's host side: up, with a route to the addresses.
func tunLink(t testing.TB, name string, mtu int, addrs ...netip.Addr) netlink.Link {
	t.Helper()
	link, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(netlink.LinkSetMTU(link, mtu), netlink.LinkSetUp(link)); err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		dst := &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
		if err := netlink.RouteReplace(&netlink.Route{LinkIndex: link.Attrs().Index, Scope: netlink.SCOPE_LINK, Dst: dst}); err != nil {
			t.Fatal(err)
		}
	}
	return link
}

// openTUNNet opens the n-th link as an adapter would.
func openTUNNet(t testing.TB, n int, family string, cfg Config) Net {
	t.Helper()
	cfg.Addrs, cfg.Backend, cfg.TUN = tunAddrs(n, family), BackendTUN, fmt.Sprintf("tun%d", n)
	net := mustOpenNet(t, cfg)
	tunLink(t, cfg.TUN, 9000, cfg.Addrs...)
	if err := net.Recover(); err != nil { // for the MTU
		t.Fatal(err)
	}
	return net
}

// A link that was there takes packets as soon as it is open: the kernel, which
// notices the carrier a little later, drops none of the first.
func TestTUNCarriesFromTheStart(t *testing.T) {
	tunHost(t, "ipv4")
	for i := range 50 {
		addrs := tunAddrs(i, "ipv4")
		link := testnet.TUN(t, addrs)
		n, err := OpenNet(Config{Addrs: addrs, Backend: BackendTUN, TUN: link})
		if err != nil {
			t.Fatal(err)
		}
		r, err := askLink(link, unix.SIOCGIFFLAGS)
		if err != nil || r.Uint16()&unix.IFF_RUNNING == 0 {
			t.Errorf("the open link's flags: %#x, %v", r.Uint16(), err)
		}
		if err := n.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestTUNExchange(t *testing.T) {
	for _, family := range []string{"ipv4", "ipv6"} {
		for _, workers := range []int{1, 3} {
			t.Run(fmt.Sprintf("%s/%d", family, workers), func(t *testing.T) {
				tunHost(t, family)
				a, b := openTUNNet(t, 1, family, Config{Workers: workers}), openTUNNet(t, 2, family, Config{Workers: workers})
				from, to := tunAddrs(1, family)[0], tunAddrs(2, family)[0]
				f, port := mustFlow(t, a.Queue(0), from, 3, 0x1234)
				if port != 0x1234|FirstFlowPort {
					t.Errorf("source port %#x", port)
				}
				want := bth(3, "by the host's routes")
				mustSend(t, a.Queue(0), SendSlot{Flow: f, Dst: to, Buf: want, TOS: 0x20, TTL: 7})
				got := collectAny(t, b, 1)[0]
				m := RecvMeta{Src: netip.AddrPortFrom(from, port), Dst: to, TOS: 0x20, TTL: 6, IDKnown: family == "ipv4"}
				if got.Buf != string(want) || got.Meta != m {
					t.Errorf("got %q %+v, want %+v", got.Buf, got.Meta, m)
				}
				mustSend(t, a.Queue(workers-1), SendSlot{Flow: f, Dst: to, Buf: bytes.Repeat(want, 100), Segment: len(want)})
				total := 0
				for total < 100*len(want) {
					total += len(collectAny(t, b, 1)[0].Buf)
				}
			})
		}
	}
}

// collectAny reads n slots, whatever queue they come to.
func collectAny(t testing.TB, n Net, count int) (out []datagram) {
	t.Helper()
	var fds []int
	all := n.(*tunNet).queues
	for _, q := range all {
		fds = append(fds, q.FDs()...)
	}
	for len(out) < count {
		had := len(out)
		for _, q := range all {
			slots, err := q.ReadBatch()
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range slots {
				out = append(out, datagram{string(s.Buf), s.Meta})
			}
		}
		if len(out) == had && !pollFDs(t, fds, unix.POLLIN) {
			t.Fatalf("%d of %d came", had, count)
		}
	}
	return out
}

// Segments go through the host in one piece, both ways between a link and a UDP
// socket, and between two links.
func TestTUNSegments(t *testing.T) {
	tunHost(t, "ipv4")
	a, b := openTUNNet(t, 1, "ipv4", Config{}), openTUNNet(t, 2, "ipv4", Config{})
	if !a.Segments() {
		t.Skip("this kernel cuts no UDP on TUN links")
	}
	u := mustOpen(t, Config{Addrs: []netip.Addr{host4}})
	buf := bytes.Repeat(bth(0, "0123456789012345678901234567890123456789012345678901"), 40)
	pairs := []struct {
		name     string
		from, to Queue
		src, dst netip.Addr
	}{
		{"link to link", a.Queue(0), b.Queue(0), tunAddrs(1, "")[0], tunAddrs(2, "")[0]},
		{"link to socket", a.Queue(0), u.Queue(0), tunAddrs(1, "")[0], host4},
		{"socket to link", u.Queue(0), a.Queue(0), host4, tunAddrs(1, "")[0]},
	}
	for _, p := range pairs {
		f, _ := mustFlow(t, p.from, p.src, 0, 0)
		mustSend(t, p.from, SendSlot{Flow: f, Dst: p.dst, Buf: buf, Segment: 64})
		if !pollFDs(t, p.to.FDs(), unix.POLLIN) {
			t.Fatalf("%s: nothing came", p.name)
		}
		slots, err := p.to.ReadBatch()
		if err != nil || len(slots) != 1 || slots[0].Segment != 64 || !bytes.Equal(slots[0].Buf, buf) || slots[0].Meta.ID != 0 {
			t.Errorf("%s: %d slots, %v", p.name, len(slots), err)
		}
	}
}

// Whole IP headers are checked; echo requests are answered, and nothing else is.
func TestTUNSeesPackets(t *testing.T) {
	for _, family := range []string{"ipv4", "ipv6"} {
		t.Run(family, func(t *testing.T) {
			tunHost(t, family)
			n := openTUNNet(t, 1, family, Config{})
			dst, src := tunAddrs(1, family)[0], host4
			if family == "ipv6" {
				src = host6
			}
			ifi, err := net.InterfaceByName("tun1")
			if err != nil {
				t.Fatal(err)
			}
			fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(fd)
			to := &unix.SockaddrLinklayer{Ifindex: ifi.Index, Protocol: etherType(unix.AF_INET)}
			if family == "ipv6" {
				to.Protocol = etherType(unix.AF_INET6)
			}
			send := func(p []byte) {
				if err := unix.Sendto(fd, p, 0, to); err != nil {
					t.Fatal(err)
				}
			}
			for _, r := range faultRows {
				if r.v6 != (family == "ipv6") {
					continue
				}
				send(ipBytes(src, dst, bth(0, r.name), r.change, !r.resum))
				if got := collect(t, n.Queue(0), 1)[0]; got.Meta.Fault != r.want {
					t.Errorf("%s: got %+v, want %v", r.name, got.Meta, r.want)
				}
			}
			send([]byte{0x45, 0, 0})
			send(ipBytes(src, dst, []byte("to another port"), func(ip []byte) []byte { ip[len(ip)-21]--; return ip }, true))
			expectNone(t, n.Queue(0))
			ping(t, n.Queue(0), dst)
		})
	}
}

// ping has the kernel send an echo request, and waits for the answer.
func ping(t *testing.T, q Queue, dst netip.Addr) {
	t.Helper()
	family, proto, kind := unix.AF_INET, unix.IPPROTO_ICMP, byte(echoRequest)
	var sa unix.Sockaddr = &unix.SockaddrInet6{Addr: dst.As16()}
	if dst.Is4() {
		sa = &unix.SockaddrInet4{Addr: dst.As4()}
	} else {
		family, proto, kind = unix.AF_INET6, unix.IPPROTO_ICMPV6, echo6Request
	}
	fd, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, proto)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	m := []byte{kind, 0, 0, 0, 0x12, 0x34, 0, 1, 'h', 'e', 'l', 'l', 'o'}
	if dst.Is4() {
		binary.BigEndian.PutUint16(m[2:], ^foldSum(addSum(0, m)))
	}
	if err := unix.Sendto(fd, m, 0, sa); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 200)
	for pollFDs(t, append([]int{fd}, q.FDs()...), unix.POLLIN) {
		expectNone(t, q)
		n, _, err := unix.Recvfrom(fd, buf, unix.MSG_DONTWAIT)
		if err == unix.EAGAIN { // the link carries other things, too
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if got := buf[:n]; bytes.HasSuffix(got, m[4:]) {
			return
		}
	}
	t.Fatal("no echo reply came")
}

// A link that goes is an error once and ENETDOWN to whoever sends; when it is back
// the adapter goes on.
func TestTUNLinkGoes(t *testing.T) {
	tunHost(t, "ipv4")
	n := openTUNNet(t, 1, "ipv4", Config{Workers: 2})
	u := mustOpen(t, Config{Addrs: []netip.Addr{host4}})
	here, there := tunAddrs(1, "")[0], host4
	f, _ := mustFlow(t, n.Queue(0), here, 0, 0)
	slot := []SendSlot{{Flow: f, Dst: there, Buf: bth(0, "x")}}
	link := tunLink(t, "tun1", 9000)
	if err := netlink.LinkSetDown(link); err != nil {
		t.Fatal(err)
	}
	var refused *SendError
	if k, err := n.Queue(0).WriteBatch(slot); k != 0 || !errors.As(err, &refused) || refused.Errno != unix.ENETDOWN {
		t.Errorf("down: %d, %v", k, err)
	}
	tunLink(t, "tun1", 9000, here)
	mustSend(t, n.Queue(0), slot...)
	collect(t, u.Endpoint(0), 1)

	if err := netlink.LinkDel(link); err != nil {
		t.Fatal(err)
	}
	if !pollFDs(t, n.Queue(0).FDs(), unix.POLLIN) {
		t.Fatal("not woken")
	}
	if _, err := n.Queue(0).ReadBatch(); err == nil {
		t.Error("no error of a link that is gone")
	}
	expectNone(t, n.Queue(0))
	if k, err := n.Queue(0).WriteBatch(slot); k != 0 || !errors.As(err, &refused) || refused.Errno != unix.ENETDOWN {
		t.Errorf("gone: %d, %v", k, err)
	}
	if err := n.Recover(); err == nil {
		t.Error("recovered without a link")
	}
	if err := netlink.LinkAdd(&netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: "tun1"}, Mode: netlink.TUNTAP_MODE_TUN}); err != nil {
		t.Fatal(err)
	}
	if err := n.Recover(); err != nil {
		t.Fatal(err)
	}
	tunLink(t, "tun1", 9000, here)
	mustSend(t, n.Queue(0), slot...)
	collect(t, u.Endpoint(0), 1)
	fu, _ := mustFlow(t, u.Endpoint(0), there, 0, 0)
	mustSend(t, u.Endpoint(0), SendSlot{Flow: fu, Dst: here, Buf: bth(0, "back")})
	collectAny(t, n, 1)
}

// Refusals say what to do.
func TestTUNRefusals(t *testing.T) {
	tunHost(t, "ipv4")
	if _, err := OpenNet(Config{Addrs: []netip.Addr{host4}, Backend: BackendTUN, TUN: "tun9"}); err == nil {
		t.Error("an address of the host was taken")
	}
	if _, err := OpenNet(Config{Addrs: tunAddrs(1, ""), Backend: BackendTUN}); err == nil {
		t.Error("no link's name, and opened")
	}
	if _, err := OpenNet(Config{Addrs: tunAddrs(1, ""), Backend: BackendTUN, TUN: "tun%d"}); err == nil || !strings.Contains(err.Error(), `"tun%d"`) {
		t.Errorf("a pattern, of which the kernel makes a link for each descriptor: %v", err)
	}
	if _, err := OpenNet(Config{Addrs: tunAddrs(1, ""), Backend: BackendTUN, TUN: "lo"}); !errors.Is(err, unix.EINVAL) {
		t.Errorf("lo: %v", err)
	}
	n := openTUNNet(t, 1, "ipv4", Config{})
	if _, err := OpenNet(Config{Addrs: tunAddrs(2, ""), Backend: BackendTUN, TUN: "tun1"}); !errors.Is(err, unix.EBUSY) {
		t.Errorf("a second adapter on a link: %v", err)
	}
	var busy *BusyError
	if _, err := OpenNet(Config{Addrs: tunAddrs(1, ""), Backend: BackendTUN, TUN: "tun2"}); !errors.As(err, &busy) {
		t.Errorf("a second adapter of an address: %v", err)
	}
	if _, err := n.OpenMulticast(netip.MustParseAddr("224.0.0.99")); !errors.Is(err, unix.EOPNOTSUPP) {
		t.Errorf("multicast: %v", err)
	}
	f, _ := mustFlow(t, n.Queue(0), tunAddrs(1, "")[0], 0, 0)
	var refused *SendError
	if _, err := n.Queue(0).WriteBatch([]SendSlot{{Flow: f, Dst: host4, Buf: make([]byte, 9000)}}); !errors.As(err, &refused) || refused.Errno != unix.EMSGSIZE {
		t.Errorf("longer than the MTU: %v", err)
	}
}

// Sending and receiving on a TUN link allocates nothing.
func TestTUNDoesNotAllocate(t *testing.T) {
	tunHost(t, "ipv4")
	a, b := openTUNNet(t, 1, "ipv4", Config{}), openTUNNet(t, 2, "ipv4", Config{})
	f, _ := mustFlow(t, a.Queue(0), tunAddrs(1, "")[0], 0, 0)
	slots := []SendSlot{{Flow: f, Dst: tunAddrs(2, "")[0], Buf: bth(0, "x")}}
	got := 0
	if avg := testing.AllocsPerRun(200, func() {
		if _, err := a.Queue(0).WriteBatch(slots); err != nil {
			t.Fatal(err)
		}
		s, err := b.Queue(0).ReadBatch()
		if err != nil {
			t.Fatal(err)
		}
		got += len(s)
	}); avg != 0 {
		t.Errorf("%v allocations a packet", avg)
	}
	if got == 0 {
		t.Error("nothing came")
	}
}

// A link that another program has open without a header before each packet cannot be
// used, and one whose descriptors are all ours has the header.
func TestTUNLinkOfAnother(t *testing.T) {
	tunHost(t, "ipv4")
	other, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	r, err := unix.NewIfreq("tun1")
	if err != nil {
		t.Fatal(err)
	}
	r.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI | unix.IFF_MULTI_QUEUE)
	if err := unix.IoctlIfreq(other, unix.TUNSETIFF, r); err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetInt(other, unix.TUNSETPERSIST, 1); err != nil {
		t.Fatal(err)
	}
	cfg := Config{Addrs: tunAddrs(1, "ipv4"), Backend: BackendTUN, TUN: "tun1", Workers: 2}
	if n, err := OpenNet(cfg); !errors.Is(err, errPlainLink) {
		t.Errorf("beside another program: %v", err)
		if err == nil {
			_ = n.Close()
		}
	}
	unix.Close(other) // "ip tuntap add" is through
	mustOpenNet(t, cfg)
}

// One adapter has a link: another one, which the kernel would let in, is told whose
// it is.
func TestTUNLinkHasOneAdapter(t *testing.T) {
	tunHost(t, "ipv4")
	n := openTUNNet(t, 1, "ipv4", Config{Workers: 2})
	_, err := OpenNet(Config{Addrs: tunAddrs(2, ""), Backend: BackendTUN, TUN: "tun1", Workers: 2})
	if !errors.Is(err, unix.EBUSY) || !strings.Contains(err.Error(), fmt.Sprintf("pid %d", os.Getpid())) {
		t.Errorf("a second adapter on the link: %v", err)
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	mustOpenNet(t, Config{Addrs: tunAddrs(2, ""), Backend: BackendTUN, TUN: "tun1", Workers: 2})
}

// A link that goes while it is taken over is not made anew.
func TestTUNRecoverMakesNoLink(t *testing.T) {
	tunHost(t, "ipv4")
	n := openTUNNet(t, 1, "ipv4", Config{Workers: 2}).(*tunNet)
	link := tunLink(t, "tun1", 9000)
	if err := netlink.LinkDel(link); err != nil {
		t.Fatal(err)
	}
	n.mu.Lock()
	err := n.attach(link.Attrs().Index)
	n.mu.Unlock()
	if !errors.Is(err, unix.ENODEV) || linkIndex("tun1") != 0 {
		t.Errorf("%v; the link has index %d", err, linkIndex("tun1"))
	}
}
