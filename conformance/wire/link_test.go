package wire

import (
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/testnet"
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

func sysctl(t *testing.T, h *testnet.Host, names string) {
	t.Helper()
	err := h.Do(func() error {
		for _, n := range strings.Fields(names) {
			if err := os.WriteFile("/proc/sys/net/ipv4/conf/lo/"+n, []byte("1"), 0); err != nil {
				return err
			}
		}
		return nil
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
	for _, name := range []string{"veth4", "veth6", "linklocal", "loopback4", "loopback6"} {
		t.Run(name, func(t *testing.T) { f(t, placeNamed(t, name)) })
	}
}

func placeNamed(t *testing.T, name string) place {
	t.Helper()
	switch name {
	case "loopback4", "loopback6":
		h := testnet.One(t)
		sysctl(t, h, "route_localnet")
		local, remote := netip.MustParseAddr("127.0.0.2"), netip.MustParseAddr("127.0.0.3")
		if name == "loopback6" {
			local, remote = netip.MustParseAddr("fd00::2"), h.Addr6
			h.AddLoopback(t, local)
		}
		udp := udpAt(t, h, remote)
		return place{open(t, h, Config{Local: local, Remote: remote}), udp, h}
	}
	a, b := testnet.Pair(t, 0)
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

// A send of several segments, which a virtual device passes on in one piece, arrives as the packets that the kernel makes of it.
func TestSegmentedSendsAreCut(t *testing.T) {
	places(t, func(t *testing.T, p place) {
		raw, err := p.udp.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		first := 0
		const size, last = 1000, 500
		const whole = 60*size + last
		var opt error
		if err := raw.Control(func(fd uintptr) {
			opt = unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_SEGMENT, size)
		}); err != nil || opt != nil {
			t.Skipf("this kernel has no UDP_SEGMENT: %v %v", err, opt)
		}
		data := make([]byte, whole)
		for i := range data {
			data[i] = byte(i / 7)
		}
		if _, err := p.udp.WriteToUDPAddrPort(data, netip.AddrPortFrom(p.link.Local(), Port)); err != nil {
			t.Fatal(err)
		}
		var got []byte
		for i := 0; len(got) < whole; i++ {
			f := receive(t, p.link)
			want := min(size, whole-len(got))
			if err := f.Deliverable(); err != nil || len(f.Roce) != want || len(f.Pad) != 0 || f.UDPSum == 0 {
				t.Fatalf("segment %d: %d bytes, want %d, deliverable: %v, %+v", i, len(f.Roce), want, err, f)
			}
			if i == 0 {
				first = int(f.ID)
			} else if f.Src.Is4() && f.ID != uint16(first+i) {
				t.Errorf("segment %d: identification %d, of the first %d", i, f.ID, first)
			}
			got = append(got, f.Roce...)
		}
		if string(got) != string(data) {
			t.Error("the segments are not what was sent")
		}
	})
}
