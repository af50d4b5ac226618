package wire

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/testnet"
	"github.com/softroce/softroce/pkg/bth"
)

// limit ends a test that hangs.
const limit = 10 * time.Second

// open opens a link in a host's namespace.
func open(t *testing.T, h *testnet.Host, cfg Config) Link {
	t.Helper()
	var l Link
	err := h.Do(func() (err error) {
		l, err = Open(cfg)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// udpAt is a UDP socket at port 4791 of a host: the target.
func udpAt(t *testing.T, h *testnet.Host, a netip.Addr) *net.UDPConn {
	t.Helper()
	var c *net.UDPConn
	err := h.Do(func() (err error) {
		c, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(a, Port)))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(limit)); err != nil {
		t.Fatal(err)
	}
	return c
}

// sysctl allows something on the host's loopback device.
func sysctl(t *testing.T, h *testnet.Host, name string) {
	t.Helper()
	err := h.Do(func() error {
		return os.WriteFile("/proc/sys/net/ipv4/conf/lo/"+name, []byte("1"), 0)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// place is a link and a UDP socket at its other end.
type place struct {
	link Link
	udp  *net.UDPConn
	far  *testnet.Host
}

func places(t *testing.T, f func(t *testing.T, p place)) {
	t.Helper()
	for _, name := range []string{"veth4", "veth6", "linklocal", "loopback4", "loopback6", "own4"} {
		t.Run(name, func(t *testing.T) { f(t, placeNamed(t, name)) })
	}
}

func placeNamed(t *testing.T, name string) place {
	t.Helper()
	switch name {
	case "loopback4", "loopback6":
		h := testnet.One(t)
		local, remote := netip.MustParseAddr("127.0.0.2"), netip.MustParseAddr("127.0.0.3")
		if name == "loopback6" {
			local, remote = netip.MustParseAddr("fd00::2"), h.Addr6
			h.AddLoopback(t, local)
		} else {
			sysctl(t, h, "route_localnet")
		}
		udp := udpAt(t, h, remote)
		return place{open(t, h, Config{Local: local, Remote: remote}), udp, h}
	}
	a, b := testnet.Pair(t, 0)
	if name == "own4" { // two of a host's own addresses
		local := netip.MustParseAddr("198.18.77.5")
		a.AddLoopback(t, local)
		sysctl(t, a, "accept_local")
		udp := udpAt(t, a, a.Addr4)
		return place{open(t, a, Config{Local: local, Remote: a.Addr4}), udp, a}
	}
	local, remote := a.Addr4, b.Addr4
	if name != "veth4" {
		local, remote = a.Addr6, b.Addr6
	}
	if name == "linklocal" {
		local, remote = linkLocal(t, a, "fe80::a"), linkLocal(t, b, "fe80::b")
	}
	udp := udpAt(t, b, remote)
	return place{open(t, a, Config{Local: local, Remote: remote}), udp, b}
}

// linkLocal gives the host a link-local address that can be used at once.
func linkLocal(t *testing.T, h *testnet.Host, a string) netip.Addr {
	t.Helper()
	addr := netip.MustParseAddr(a)
	err := h.Do(func() error {
		link, err := netlink.LinkByName(testnet.Iface)
		if err != nil {
			return err
		}
		return netlink.AddrAdd(link, &netlink.Addr{
			IPNet: &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(64, 128)}, Flags: unix.IFA_F_NODAD,
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	return addr.WithZone(testnet.Iface)
}

func receive(t *testing.T, l Link) *Frame {
	t.Helper()
	f, ok, err := l.Receive(time.Now().Add(limit))
	if err != nil || !ok {
		t.Fatalf("receive: %v, %v", ok, err)
	}
	return f
}

// A packet arrives at a UDP socket, and what that sends arrives at the link, once each.
func TestThereAndBack(t *testing.T) {
	places(t, func(t *testing.T, p place) {
		var record []*Frame
		p.link.Record(func(f *Frame) { record = append(record, f) })
		sent := write(100)
		if p.link.Remote().Is6() {
			sent.UDPSum = SumRight // a socket does not take none
		}
		if err := p.link.Send(sent); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 9000)
		n, from, err := p.udp.ReadFromUDPAddrPort(b)
		if err != nil {
			t.Fatal(err)
		}
		if want := sent.roce(); string(b[:n-4]) != string(want) || from.Addr().Unmap() != p.link.Local() || from.Port() != firstPort {
			t.Errorf("got % x from %v, want % x from %v", b[:n], from, want, p.link.Local())
		}
		for range 2 {
			if _, err := p.udp.WriteToUDPAddrPort(b[:n], netip.AddrPortFrom(p.link.Local(), Port)); err != nil {
				t.Fatal(err)
			}
			f := receive(t, p.link)
			if string(f.Roce) != string(b[:n]) || f.Src != p.link.Remote() || f.Dst != p.link.Local() || f.Deliverable() != nil {
				t.Errorf("got %+v", f)
			}
		}
		if f, ok, err := p.link.Receive(time.Now()); ok || err != nil {
			t.Errorf("got %+v, %v, want nothing more", f, err)
		}
		if len(record) != 3 || record[0].Dir != Sent || record[1].Dir != Received || record[2].Dir != Received {
			t.Errorf("recorded %d frames, want one sent and two received", len(record))
		}
	})
}

// What comes before a packet is sent is recorded before it, and goes to whoever records then.
func TestRecordIsInOrder(t *testing.T) {
	a, b := testnet.Pair(t, 0)
	l, far := open(t, a, Config{Remote: b.Addr4}), open(t, b, Config{Remote: a.Addr4})
	var first, second []string
	add := func(to *[]string) func(*Frame) {
		return func(f *Frame) { *to = append(*to, fmt.Sprint(f.Dir, uint32(f.RoCE.BTH().PSN()))) }
	}
	l.Record(add(&first))
	arrive := func(psn bth.PSN) {
		p := write(8)
		p.BTH.PSN = psn
		if err := far.Send(p); err != nil {
			t.Fatal(err)
		}
		awaitFrame(t, l)
	}
	arrive(1)
	if err := l.Send(write(8)); err != nil {
		t.Fatal(err)
	}
	arrive(2)
	l.Record(add(&second))
	arrive(3)
	l.Record(nil)
	arrive(4)
	for range 4 {
		receive(t, l)
	}
	if got, want := fmt.Sprint(first, second), fmt.Sprint([]string{"1 1", "0 7", "1 2"}, []string{"1 3"}); got != want {
		t.Errorf("recorded %v, want %v", got, want)
	}
}

// awaitFrame waits until the link's socket has a frame.
func awaitFrame(t *testing.T, l Link) {
	t.Helper()
	w := l.(*wired)
	if err := w.file.SetReadDeadline(time.Now().Add(limit)); err != nil {
		t.Fatal(err)
	}
	err := w.raw.Read(func(fd uintptr) bool {
		_, _, err := unix.Recvfrom(int(fd), nil, unix.MSG_PEEK|unix.MSG_DONTWAIT)
		return !errors.Is(err, unix.EAGAIN)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Every knob does on a wire what it does in memory.
func TestEachKnobOnAWire(t *testing.T) {
	a, b := testnet.Pair(t, 0)
	turnKnobs(t, open(t, a, Config{Remote: b.Addr4}), open(t, b, Config{Remote: a.Addr4}), "4", true)
	turnKnobs(t, open(t, a, Config{Remote: b.Addr6}), open(t, b, Config{Remote: a.Addr6}), "6", true)
}

// What the socket could not hold is told once; what it held comes, and what comes later.
func TestFlood(t *testing.T) {
	a, b := testnet.Pair(t, 0)
	udp := udpAt(t, b, b.Addr4)
	const n = 5000
	flood := func() {
		for range n {
			if _, err := udp.WriteToUDPAddrPort(make([]byte, 1024), netip.AddrPortFrom(a.Addr4, Port)); err != nil {
				t.Fatal(err)
			}
		}
	}
	small := open(t, a, Config{Remote: b.Addr4, Buffer: 1 << 16})
	flood()
	if _, _, err := small.Receive(time.Now().Add(limit)); !errors.Is(err, ErrDropped) {
		t.Fatalf("got %v, want %v", err, ErrDropped)
	}
	got := 0
	for ok := true; ok; got++ {
		var err error
		if _, ok, err = small.Receive(time.Now()); err != nil {
			t.Fatalf("after %d frames: %v", got, err)
		}
	}
	if got < 2 || got > n/2 {
		t.Errorf("%d frames of %d", got, n)
	}
	if err := small.Close(); err != nil {
		t.Fatal(err)
	}
	large := open(t, a, Config{Remote: b.Addr4})
	flood()
	for range n {
		receive(t, large)
	}
}

// A target behind a router is sent to by the router's address.
func TestByARouter(t *testing.T) {
	for _, c := range []struct{ target, net string }{{"203.0.113.1", "203.0.113.0/24"}, {"fd99::1", "fd99::/64"}} {
		a, b := testnet.Pair(t, 0)
		target, router := netip.MustParseAddr(c.target), b.Addr4
		if target.Is6() {
			router = b.Addr6
		}
		b.AddLoopback(t, target)
		err := a.Do(func() error {
			link, err := netlink.LinkByName(testnet.Iface)
			if err != nil {
				return err
			}
			_, to, err := net.ParseCIDR(c.net)
			if err != nil {
				return err
			}
			return netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: to, Gw: router.AsSlice()})
		})
		if err != nil {
			t.Fatal(err)
		}
		udp, l := udpAt(t, b, target), open(t, a, Config{Remote: target})
		p := write(8)
		p.UDPSum = SumRight
		if err := l.Send(p); err != nil {
			t.Fatal(err)
		}
		if _, _, err := udp.ReadFromUDPAddrPort(make([]byte, 100)); err != nil {
			t.Errorf("%v: %v", target, err)
		}
	}
}

// Packets to a group go to the group's Ethernet address.
func TestMACOfAGroup(t *testing.T) {
	w := way{mac: net.HardwareAddr{2, 0, 0, 0, 0, 1}}
	for dst, want := range map[string]string{
		"192.0.2.9": "02:00:00:00:00:01", "239.129.2.3": "01:00:5e:01:02:03", "240.0.0.1": "02:00:00:00:00:01",
		"2001:db8::9": "02:00:00:00:00:01", "ff0e::1:2:3": "33:33:00:02:00:03",
	} {
		to := netip.MustParseAddr(dst)
		from := pair4[0]
		if to.Is6() {
			from = pair6[0]
		}
		if got := w.macFor(Build(write(1), from, to)).String(); got != want {
			t.Errorf("%s: %s, want %s", dst, got, want)
		}
	}
	if got := w.macFor(nil).String(); got != "02:00:00:00:00:01" {
		t.Errorf("nothing: %s", got)
	}
}

// Raw bytes go out as they are; what is too large does not go out.
func TestSendRaw(t *testing.T) {
	a, b := testnet.Pair(t, 0)
	l, far := open(t, a, Config{Remote: b.Addr4}), open(t, b, Config{Remote: a.Addr4})
	m, n := Pair()
	for _, ends := range [][2]Link{{l, far}, {m, n}} {
		ip := Build(write(8), ends[0].Local(), ends[0].Remote())
		ip[len(ip)-1] ^= 1
		want := string(ip)
		if err := ends[0].SendRaw(ip); err != nil {
			t.Fatal(err)
		}
		ip[0] = 0
		if f := receive(t, ends[1]); string(f.IP) != want || f.ICRCOK || f.Tagged {
			t.Errorf("got %+v", f)
		}
		ends[0].Record(func(f *Frame) { t.Errorf("recorded %+v", f) })
		if err := ends[0].Send(write(ends[0].MTU())); err == nil {
			t.Errorf("a packet larger than the MTU of %d was sent", ends[0].MTU())
		}
	}
}

// Later fragments are received, as what they are.
func TestFragmentsAreReceived(t *testing.T) {
	a, b := testnet.Pair(t, 0)
	l, udp := open(t, a, Config{Remote: b.Addr4}), udpAt(t, b, b.Addr4)
	defer InOrder()()
	if _, err := udp.WriteToUDPAddrPort(make([]byte, 3000), netip.AddrPortFrom(a.Addr4, Port)); err != nil {
		t.Fatal(err)
	}
	for i, off := range []uint16{0, 185, 370} {
		f := receive(t, l)
		if f.NotUDP != (i > 0) || f.Frag&0x1FFF != off || !errors.Is(f.Err, bth.ErrIPFragment) {
			t.Errorf("fragment %d: %+v", i, f)
		}
	}
}
