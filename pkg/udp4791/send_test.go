package udp4791

import (
	"errors"
	"net"
	"net/netip"
	"runtime"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/testaddr"
	"github.com/softroce/softroce/internal/testnet"
)

func wantSendError(t *testing.T, e *Endpoint, slot SendSlot, want syscall.Errno) {
	t.Helper()
	n, err := e.WriteBatch([]SendSlot{slot})
	var se *SendError
	if n != 0 || !errors.As(err, &se) || se.Errno != want || !errors.Is(err, want) {
		t.Errorf("sent %d, %v; want 0 and %v", n, err, want)
	}
}

// A refusal belongs to one slot: what is before it is sent, what is behind it
// can be sent, wherever in the batch it stands.
func TestSendErrorBelongsToOneSlot(t *testing.T) {
	addrs := testaddr.Take(t, 2)
	a := mustOpen(t, Config{Addrs: addrs[:1], Batch: 4})
	b := mustOpen(t, Config{Addrs: addrs[1:]})
	ea, eb := a.Endpoint(0), b.Endpoint(0)
	f1, _ := mustFlow(t, ea, addrs[0], 1, 0)
	f2, _ := mustFlow(t, ea, addrs[0], 2, 0)
	closed, _ := mustFlow(t, ea, addrs[0], 3, 0)
	ea.CloseFlow(closed)
	for _, c := range []struct {
		name string
		bad  SendSlot
		want syscall.Errno
	}{
		{"longer than UDP allows", SendSlot{Flow: f1, Dst: addrs[1], Buf: make([]byte, 65508)}, unix.EMSGSIZE},
		{"broadcast", SendSlot{Flow: f1, Dst: netip.MustParseAddr("255.255.255.255")}, unix.EACCES},
		{"IPv6 peer of an IPv4 flow", SendSlot{Flow: f1, Dst: netip.IPv6Loopback()}, unix.EAFNOSUPPORT},
		{"no peer address", SendSlot{Flow: f1}, unix.EAFNOSUPPORT},
		{"closed flow", SendSlot{Flow: closed, Dst: addrs[1]}, unix.EBADF},
		{"no flow", SendSlot{Dst: addrs[1]}, unix.EBADF},
	} {
		for at := range 10 {
			slots := make([]SendSlot, 10)
			for i := range slots {
				slots[i] = SendSlot{Flow: f1, Dst: addrs[1], Buf: seq(i)}
				if i >= 6 {
					slots[i].Flow = f2
				}
			}
			slots[at] = c.bad
			n, err := ea.WriteBatch(slots)
			var se *SendError
			if n != at || !errors.As(err, &se) || se.Errno != c.want {
				t.Fatalf("%s at %d: sent %d, %v; want %d and %v", c.name, at, n, err, at, c.want)
			}
			mustSend(t, ea, slots[at+1:]...)
			got := collect(t, eb, 9)
			for i, k := 0, 0; i < 10; i++ {
				if i == at {
					continue
				}
				if got[k].Buf != string(seq(i)) {
					t.Errorf("%s at %d: datagram %d is %q, want %q", c.name, at, k, got[k].Buf, seq(i))
				}
				k++
			}
			expectNone(t, eb)
		}
	}
}

func TestIPv4MappedPeerIsIPv4(t *testing.T) {
	a, b := pair(t, "ipv4")
	f, _ := mustFlow(t, a.Endpoint(0), a.Addrs()[0], 0, 0)
	mustSend(t, a.Endpoint(0), SendSlot{Flow: f, Dst: netip.AddrFrom16(b.Addrs()[0].As16()), Buf: seq(1)})
	collect(t, b.Endpoint(0), 1)
}

// A peer whose port is closed answers with ICMP. An unconnected socket is not
// told (udp(7)): neither a send nor a receive of ours may fail for it.
func TestICMPErrorsLoseNothing(t *testing.T) {
	for _, family := range families {
		t.Run(family, func(t *testing.T) {
			addrs := familyAddrs(t, family)
			a := mustOpen(t, Config{Addrs: addrs[:1]})
			ea := a.Endpoint(0)
			own, _ := mustFlow(t, ea, addrs[0], 0, 0)
			recv, _ := mustFlow(t, ea, addrs[0], 0, Port)

			// A connected socket is told: there is ICMP here.
			c, err := net.Dial("udp", netip.AddrPortFrom(addrs[1], Port).String())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			_, _ = c.Write([]byte("x"))
			if _, err := c.Write([]byte("x")); !errors.Is(err, unix.ECONNREFUSED) {
				t.Fatalf("a connected socket got %v, want ECONNREFUSED: the test has no ICMP", err)
			}

			dead := make([]SendSlot, 8)
			for i := range dead {
				dead[i] = SendSlot{Flow: own, Dst: addrs[1], Buf: seq(i)}
				if i%2 == 1 {
					dead[i].Flow = recv
				}
			}
			for range 3 {
				mustSend(t, ea, dead...)
				expectNone(t, ea)
			}
			// The way back is whole, too.
			mustSend(t, ea, SendSlot{Flow: own, Dst: addrs[0], Buf: seq(9)})
			if got := collect(t, ea, 1)[0].Buf; got != string(seq(9)) {
				t.Errorf("got %q", got)
			}
		})
	}
}

// F14: a send that the kernel refuses for now is a wait, not a loss. While a
// neighbour's address is not resolved the kernel keeps what we send, charged
// to the send buffer, until the buffer is full.
func TestF14FullSendBufferIsAWait(t *testing.T) {
	ha, hb := testnet.Pair(t, 4200)
	if err := hb.Do(noARP); err != nil {
		t.Fatal(err)
	}
	var a, b *Group
	if err := hb.Do(func() error {
		b = mustOpen(t, Config{Addrs: []netip.Addr{hb.Addr4}})
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	ha.Enter(t)
	a = mustOpen(t, Config{Addrs: []netip.Addr{ha.Addr4}, SendBuffer: 32 << 10})
	ea, eb := a.Endpoint(0), b.Endpoint(0)
	f, _ := mustFlow(t, ea, ha.Addr4, 0, 0)
	slots := make([]SendSlot, 40)
	for i := range slots {
		slots[i] = SendSlot{Flow: f, Dst: hb.Addr4, Buf: append(seq(i), make([]byte, 4000)...)}
	}
	n, err := ea.WriteBatch(slots)
	if !errors.Is(err, ErrWouldBlock) || n == 0 || n == len(slots) {
		t.Fatalf("sent %d of %d, %v; want some and ErrWouldBlock", n, len(slots), err)
	}
	if k, err := ea.WriteBatch(slots[n:]); k != 0 || !errors.Is(err, ErrWouldBlock) {
		t.Errorf("at once again: sent %d, %v; want 0 and ErrWouldBlock", k, err)
	}
	expectNone(t, eb)
	resolveByHand(t, ha, hb)
	for n < len(slots) {
		if !pollFDs(t, []int{ea.WriteFD(f)}, unix.POLLOUT) {
			t.Fatalf("the socket did not become writable; %d of %d sent", n, len(slots))
		}
		k, err := ea.WriteBatch(slots[n:])
		if err != nil && !errors.Is(err, ErrWouldBlock) {
			t.Fatal(err)
		}
		n += k
	}
	for i, d := range collect(t, eb, len(slots)) {
		if d.Buf != string(slots[i].Buf) {
			t.Errorf("datagram %d is %q…, want %q…", i, d.Buf[:16], slots[i].Buf[:16])
		}
	}
}

// noARP silences the host's address resolution.
func noARP() error {
	link, err := netlink.LinkByName(testnet.Iface)
	if err != nil {
		return err
	}
	return netlink.LinkSetARPOff(link)
}

// resolveByHand tells host a, whose namespace the thread is in, the link
// address of host b.
func resolveByHand(t *testing.T, a, b *testnet.Host) {
	t.Helper()
	var mac net.HardwareAddr
	if err := b.Do(func() error {
		link, err := netlink.LinkByName(testnet.Iface)
		if err == nil {
			mac = link.Attrs().HardwareAddr
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if err := a.Do(func() error {
		link, err := netlink.LinkByName(testnet.Iface)
		if err != nil {
			return err
		}
		return netlink.NeighSet(&netlink.Neigh{
			LinkIndex: link.Attrs().Index, IP: b.Addr4.AsSlice(),
			HardwareAddr: mac, State: netlink.NUD_PERMANENT,
		})
	}); err != nil {
		t.Fatal(err)
	}
}

// PROBE: what the routing table or a forged ICMP says of the path MTU does
// not count, the link's own MTU does, and nothing is fragmented.
func TestPathMTUDoesNotMatterTheLinksDoes(t *testing.T) {
	for _, family := range families {
		t.Run(family, func(t *testing.T) {
			const mtu = 1500
			ha, hb := testnet.Pair(t, mtu)
			src, dst, header := ha.Addr4, hb.Addr4, 28
			if family == "ipv6" {
				src, dst, header = ha.Addr6, hb.Addr6, 48
			}
			if !src.IsValid() {
				t.Skip("this kernel has no IPv6")
			}
			var b *Group
			if err := hb.Do(func() error { b = mustOpen(t, Config{Addrs: []netip.Addr{dst}}); return nil }); err != nil {
				t.Fatal(err)
			}
			ha.Enter(t)
			lowerRouteMTU(t, dst, 1300)
			a := mustOpen(t, Config{Addrs: []netip.Addr{src}})
			ea := a.Endpoint(0)
			for _, port := range []uint16{0, Port} {
				f, _ := mustFlow(t, ea, src, 0, port)
				full := append(seq(1), make([]byte, mtu-header)...)[:mtu-header]
				mustSend(t, ea, SendSlot{Flow: f, Dst: dst, Buf: full})
				if got := collect(t, b.Endpoint(0), 1)[0].Buf; got != string(full) {
					t.Errorf("got %d bytes, want %d", len(got), len(full))
				}
				wantSendError(t, ea, SendSlot{Flow: f, Dst: dst, Buf: append(full, 0)}, unix.EMSGSIZE)
			}
			expectNone(t, b.Endpoint(0))
		})
	}
}

// lowerRouteMTU adds a host route with an MTU in the thread's namespace and
// shows that a plain socket would heed it.
func lowerRouteMTU(t *testing.T, dst netip.Addr, mtu int) {
	t.Helper()
	link, err := netlink.LinkByName(testnet.Iface)
	if err != nil {
		t.Fatal(err)
	}
	r := &netlink.Route{
		LinkIndex: link.Attrs().Index, MTU: mtu,
		Dst: &net.IPNet{IP: dst.AsSlice(), Mask: net.CIDRMask(dst.BitLen(), dst.BitLen())},
	}
	if err := netlink.RouteReplace(r); err != nil {
		t.Fatal(err)
	}
	l := local{addr: dst}
	fd, err := unix.Socket(l.family(), unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	level, opt, do := unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO
	if dst.Is6() {
		level, opt, do = unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO
	}
	if err := unix.SetsockoptInt(fd, level, opt, do); err != nil {
		t.Fatal(err)
	}
	if err := unix.Sendto(fd, make([]byte, mtu), 0, l.sockaddr(Port)); err != unix.EMSGSIZE {
		t.Fatalf("a socket that heeds the path MTU sent %d bytes: %v; the test's route does not work", mtu, err)
	}
}

func TestDataPathDoesNotAllocate(t *testing.T) {
	for _, family := range families {
		t.Run(family, func(t *testing.T) {
			a, b := pair(t, family)
			ea, eb := a.Endpoint(0), b.Endpoint(0)
			dst := b.Addrs()[0]
			f1, _ := mustFlow(t, ea, a.Addrs()[0], 0, 0)
			f2, _ := mustFlow(t, ea, a.Addrs()[0], 1, 0)
			slots := make([]SendSlot, 48)
			for i := range slots {
				slots[i] = SendSlot{Flow: f1, Dst: dst, Buf: seq(i)}
				if i >= 20 {
					slots[i].Flow, slots[i].TOS, slots[i].TTL, slots[i].FlowLabel = f2, 2, 3, 4
				}
			}
			slots[30].Flow = 0 // refused
			bytes := 0
			n := testing.AllocsPerRun(100, func() {
				k, err := ea.WriteBatch(slots)
				if k != 30 || !errors.Is(err, unix.EBADF) {
					t.Errorf("sent %d, %v; want 30 and a refusal", k, err)
				}
				if k, err := ea.WriteBatch(slots[31:]); k != 17 || err != nil {
					t.Errorf("sent %d, %v; want 17", k, err)
				}
				for got := 0; got < 47; {
					in, err := eb.ReadBatch()
					if err != nil || len(in) == 0 {
						t.Errorf("read %d, %v", len(in), err)
						return
					}
					got += len(in)
					for i := range in {
						bytes += len(in[i].Buf) + int(in[i].Meta.Src.Port())
					}
				}
				if in, err := eb.ReadBatch(); err != nil || len(in) != 0 {
					t.Errorf("read %d more, %v", len(in), err)
				}
			})
			if n != 0 {
				t.Errorf("%v allocations in a turn of 47 datagrams, want 0", n)
			}
		})
	}
}

// WriteBatch promises to hold no buffer after the call: the caller may unmap
// it, and the collector would trip over a pointer into reused space.
func TestWriteBatchForgetsTheBuffers(t *testing.T) {
	a, b := pair(t, "ipv4")
	ea := a.Endpoint(0)
	f, _ := mustFlow(t, ea, a.Addrs()[0], 0, 0)
	slots := []SendSlot{{Flow: f, Dst: b.Addrs()[0], Buf: seq(0)}, {Flow: f, Dst: netip.IPv6Loopback(), Buf: seq(1)}, {Flow: f, Dst: b.Addrs()[0], Buf: make([]byte, 70000)}}
	_, _ = ea.WriteBatch(slots)
	_, _ = ea.WriteBatch(slots[2:])
	for i := range ea.tx.iovs {
		if ea.tx.iovs[i].Base != nil {
			t.Errorf("entry %d still points to a buffer", i)
		}
	}
	runtime.KeepAlive(slots)
}
