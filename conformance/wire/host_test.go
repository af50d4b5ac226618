package wire

import (
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

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
			defer InOrder()()
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
