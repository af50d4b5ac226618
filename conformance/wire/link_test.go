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

// segmented sends data to a link in segments of size bytes and returns what the link receives.
func segmented(t *testing.T, p place, data []byte, size int) (frames []*Frame) {
	t.Helper()
	raw, err := p.udp.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var opt, discover error
	err = raw.Control(func(fd uintptr) {
		opt = unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_SEGMENT, size)
		if p.link.Local().Is4() {
			discover = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO)
		}
	})
	if opt != nil {
		t.Skipf("this kernel has no UDP_SEGMENT: %v", opt)
	}
	if err := errors.Join(err, discover); err != nil {
		t.Fatal(err)
	}
	if _, err := p.udp.WriteToUDPAddrPort(data, netip.AddrPortFrom(p.link.Local(), Port)); err != nil {
		t.Fatal(err)
	}
	for got := 0; got < len(data); {
		f := receive(t, p.link)
		got += len(f.Roce)
		frames = append(frames, f)
	}
	return frames
}

func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i / 7)
	}
	return b
}

// A send of several segments, which a virtual device passes on in one piece, arrives in its segments.
func TestSegmentedSendsAreCut(t *testing.T) {
	places(t, func(t *testing.T, p place) {
		const size = 1000
		data := pattern(60*size + 500)
		rest := data
		for i, f := range segmented(t, p, data, size) {
			want := rest[:min(size, len(rest))]
			rest = rest[len(want):]
			if err := f.Deliverable(); err != nil || string(f.Roce) != string(want) || len(f.Pad) != 0 || f.UDPSum == 0 {
				t.Errorf("segment %d: %d bytes, want %d, deliverable: %v, %+v", i, len(f.Roce), len(want), err, f)
			}
			if f.Src.Is4() && f.ID != uint16(i) {
				t.Errorf("segment %d: identification %d", i, f.ID)
			}
		}
	})
}

// A segmented send that this package cuts is the packets that the kernel makes of it where the sender's device cuts none.
func TestSegmentsAreTheKernels(t *testing.T) {
	for _, name := range []string{"veth4", "veth6"} {
		t.Run(name, func(t *testing.T) {
			p := placeNamed(t, name)
			for _, n := range []int{1, 1000, 1001, 64000} {
				data := pattern(n)
				p.far.SetFeature(t, testnet.CutsUDP, true)
				ours := segmented(t, p, data, 1000)
				p.far.SetFeature(t, testnet.CutsUDP, false)
				theirs := segmented(t, p, data, 1000)
				if len(ours) != len(theirs) {
					t.Fatalf("%d bytes: %d packets, the kernel makes %d", n, len(ours), len(theirs))
				}
				for i := range ours {
					if string(ours[i].IP) != string(theirs[i].IP) {
						t.Errorf("%d bytes, segment %d:\n  got % x\n want % x", n, i, ours[i].IP[:60], theirs[i].IP[:60])
					}
				}
			}
		})
	}
}

// Where the kernel does not tell how a segmented send is cut, the ICRC does.
func TestSegmentsAreGuessed(t *testing.T) {
	for _, name := range []string{"veth4", "veth6"} {
		t.Run(name, func(t *testing.T) {
			a, b := testnet.Pair(t, 0)
			local, remote := a.Addr4, b.Addr4
			if name == "veth6" {
				local, remote = a.Addr6, b.Addr6
			}
			p := place{open(t, a, Config{Local: local, Remote: remote, guess: true}), udpAt(t, b, remote), b}
			for _, size := range []int{1024, 256, 500} {
				var data []byte
				for i := range 9 {
					w := write(size)
					w.ID, w.SrcPort, w.BTH.PSN = uint16(i), Port, bth.PSN(i)
					ip := Build(w, remote, local)
					data = append(data, ip[headerLen(ip)+udpLen:]...)
				}
				for i, f := range segmented(t, p, data, len(data)/9) {
					if f.Err != nil || !f.ICRCOK || f.Deliverable() != nil || f.RoCE.BTH().PSN() != bth.PSN(i) || len(f.RoCE.Payload) != size {
						t.Errorf("segment %d: %v, %v, %+v", i, f.Err, f.Deliverable(), f)
					}
				}
			}
			send(t, p.dial(t, netip.AddrPortFrom(remote, 0), netip.AddrPortFrom(local, Port)), "small")
			if f := receive(t, p.link); string(f.Roce) != "small" || f.Deliverable() != nil {
				t.Errorf("got %+v", f)
			}
			if err := p.link.Send(write(8)); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestKernelRelease(t *testing.T) {
	for release, want := range map[string]bool{
		"6.2.0": true, "6.1.99-x": false, "5.15.0-91-generic": false, "6.18.44": true, "7.0": true, "6.2-rc1": true, "10.1": true, "6": false,
	} {
		if got := atLeast(release, 6, 2); got != want {
			t.Errorf("%s: %v, want %v", release, got, want)
		}
	}
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

// dial makes a UDP socket of the far host from one address and port to another.
func (p place) dial(t *testing.T, from, to netip.AddrPort) *net.UDPConn {
	t.Helper()
	var c *net.UDPConn
	err := p.far.Do(func() (err error) {
		c, err = net.DialUDP("udp", net.UDPAddrFromAddrPort(from), net.UDPAddrFromAddrPort(to))
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

func send(t *testing.T, c *net.UDPConn, what string) {
	t.Helper()
	if _, err := c.Write([]byte(what)); err != nil {
		t.Fatal(err)
	}
}

// The host does not answer the target's packets with ICMP errors, as it does for a port that nobody has.
func TestHostStaysSilent(t *testing.T) {
	places(t, func(t *testing.T, p place) {
		at := func(port uint16) netip.AddrPort { return netip.AddrPortFrom(p.link.Local(), port) }
		from := netip.AddrPortFrom(p.link.Remote(), 0)
		roce, other := p.dial(t, from, at(Port)), p.dial(t, from, at(Port+1))
		for range 5 {
			send(t, roce, "to a port that is held")
			receive(t, p.link)
		}
		held := int(p.link.(*wired).port.Fd())
		if n, _, err := unix.Recvfrom(held, make([]byte, 100), unix.MSG_DONTWAIT); !errors.Is(err, unix.EAGAIN) {
			t.Errorf("the tester's port took %d bytes, %v", n, err)
		}
		send(t, other, "to one that is not")
		if _, err := other.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNREFUSED) {
			t.Fatalf("a port that nobody has: %v, want it to be refused", err)
		}
		raw, err := roce.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		if err := raw.Control(func(fd uintptr) {
			if e, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR); e != 0 || err != nil {
				t.Errorf("the tester's port: error %v, %v", unix.Errno(e), err)
			}
		}); err != nil {
			t.Fatal(err)
		}
	})
}

// A link receives what concerns it and nothing else.
func TestStrangersAreNotReceived(t *testing.T) {
	places(t, func(t *testing.T, p place) {
		local, remote := p.link.Local(), p.link.Remote()
		at := netip.AddrPortFrom
		send(t, p.dial(t, at(remote, 0), at(local, 5000)), "to another port")
		if !remote.IsLinkLocalUnicast() {
			third := netip.MustParseAddr("198.18.99.9")
			if local.Is6() {
				third = netip.MustParseAddr("fd00::99")
			}
			p.far.AddLoopback(t, third)
			stranger := p.dial(t, at(third, 0), at(local, Port))
			send(t, stranger, "from somebody else")
			if f := receive(t, p.link); f.Src != third {
				t.Errorf("got %+v, want the packet from %v", f, third)
			}
		}
		send(t, p.dial(t, at(remote, 0), at(local, Port)), "RoCE")
		if f := receive(t, p.link); string(f.Roce) != "RoCE" {
			t.Errorf("got %+v", f)
		}
	})
}

// A host delivers what Deliverable says and nothing else.
func TestHostAgreesWithDeliverable(t *testing.T) {
	for _, name := range []string{"veth4", "veth6"} {
		t.Run(name, func(t *testing.T) {
			p := placeNamed(t, name)
			v6 := p.link.Local().Is6()
			if v6 {
				acceptNoChecksum(t, p.udp)
			}
			b := make([]byte, 9000)
			for _, c := range deliveries {
				if v6 && !c.v6 {
					continue
				}
				w := write(8)
				c.set(w)
				if err := p.link.Send(w); err != nil {
					t.Fatal(err)
				}
				next := &Packet{Roce: []byte("the next")}
				if err := p.link.Send(next); err != nil {
					t.Fatal(err)
				}
				last := payload(next, p.link)
				want := last
				if c.want == nil {
					want = payload(w, p.link)
				}
				n, err := p.udp.Read(b)
				if err != nil {
					t.Fatal(err)
				}
				if got := string(b[:n]); got != want {
					t.Errorf("%s: the host delivered % x, want % x", c.name, got, want)
				}
				for string(b[:n]) != last {
					if n, err = p.udp.Read(b); err != nil {
						t.Fatal(err)
					}
				}
			}
		})
	}
}

// payload is the UDP payload of a packet that a link sends.
func payload(p *Packet, l Link) string { return string(ParseIP(Build(p, l.Local(), l.Remote())).Roce) }

// acceptNoChecksum makes a socket take IPv6 datagrams without a checksum, as RoCEv2's do.
func acceptNoChecksum(t *testing.T, c *net.UDPConn) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var opt error
	err = raw.Control(func(fd uintptr) { opt = unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_NO_CHECK6_RX, 1) })
	if err := errors.Join(err, opt); err != nil {
		t.Fatal(err)
	}
}

// What is not received does not even reach the link's socket.
func TestFilterIsTheKernels(t *testing.T) {
	places(t, func(t *testing.T, p place) {
		at := netip.AddrPortFrom
		local, remote := p.link.Local(), p.link.Remote()
		send(t, p.dial(t, at(remote, 0), at(local, 5000)), "to another port")
		send(t, p.dial(t, at(remote, 0), at(local, Port)), "RoCE")
		awaitFrame(t, p.link)
		err := p.link.(*wired).raw.Control(func(fd uintptr) {
			stats, err := unix.GetsockoptTpacketStats(int(fd), unix.SOL_PACKET, unix.PACKET_STATISTICS)
			if err != nil || stats.Packets != 1 {
				t.Errorf("%d packets for the socket, %v", stats.Packets, err)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := p.link.Send(write(8)); err != nil {
			t.Fatal(err)
		}
		receive(t, p.link)
	})
}

// An ICMP error about the tester's packet is received, one about another program's is not.
func TestICMPErrorsAreReceived(t *testing.T) {
	places(t, func(t *testing.T, p place) {
		for _, src := range []uint16{5000, Port} {
			wrong := write(8)
			wrong.SrcPort, wrong.DstPort = src, 4700
			if p.link.Local().Is6() {
				wrong.UDPSum = SumRight
			}
			if err := p.link.Send(wrong); err != nil {
				t.Fatal(err)
			}
		}
		f := receive(t, p.link)
		if !f.NotUDP || f.Src != p.link.Remote() || !f.isError() {
			t.Errorf("got %+v, want an ICMP error", f)
		}
		if f, ok, err := p.link.Receive(time.Now()); ok || err != nil {
			t.Errorf("got %+v, %v, want nothing more", f, err)
		}
	})
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
