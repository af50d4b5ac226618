package udp4791

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// needRaw skips a test where packet sockets are not to be had.
func needRaw(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("packet sockets need CAP_NET_RAW")
	}
}

func mustOpenNet(t testing.TB, cfg Config) Net {
	t.Helper()
	n, err := OpenNet(cfg)
	if err != nil {
		t.Fatalf("open %v on %v: %v", cfg.Addrs, cfg.Backend, err)
	}
	t.Cleanup(func() { n.Close() })
	return n
}

// packetPair is an adapter on packet sockets and a peer on UDP sockets.
func packetPair(t testing.TB, family string, workers int) (n Net, peer *Group, addrs []netip.Addr) {
	t.Helper()
	needRaw(t)
	addrs = familyAddrs(t, family)
	n = mustOpenNet(t, Config{Addrs: addrs[:1], Workers: workers, Backend: BackendPacket})
	return n, mustOpen(t, Config{Addrs: addrs[1:]}), addrs
}

// A packet socket shows the identification, TOS and TTL, and steers as the UDP
// sockets do.
func TestPacketReceives(t *testing.T) {
	for _, family := range []string{"ipv4", "ipv6"} {
		t.Run(family, func(t *testing.T) {
			n, peer, addrs := packetPair(t, family, 3)
			f, port := mustFlow(t, peer.Endpoint(0), addrs[1], 0, 0)
			for qpn := range uint32(8) {
				want := bth(qpn, "hello")
				mustSend(t, peer.Endpoint(0), SendSlot{Flow: f, Dst: addrs[0], TOS: 0x42, TTL: 9, Buf: want})
				got := collect(t, n.Queue(int(qpn%3)), 1)[0]
				m := RecvMeta{Src: netip.AddrPortFrom(addrs[1], port), Dst: addrs[0], TOS: 0x42, TTL: 9, IDKnown: family == "ipv4"}
				if got.Buf != string(want) || got.Meta != m {
					t.Errorf("QPN %d: got %q %+v, want %q %+v", qpn, got.Buf, got.Meta, want, m)
				}
			}
			mustSend(t, peer.Endpoint(0), SendSlot{Flow: f, Dst: addrs[0], Buf: []byte("short")})
			if got := collect(t, n.Queue(0), 1)[0]; got.Buf != "short" {
				t.Errorf("too short for a BTH: got %q", got.Buf)
			}
			for w := range 3 {
				expectNone(t, n.Queue(w))
			}
		})
	}
}

// What the sender's kernel did not have to cut comes in one piece, and says how
// it would have been cut.
func TestPacketSegments(t *testing.T) {
	n, peer, addrs := packetPair(t, "ipv4", 2)
	if !n.Merges() || !peer.Segments() {
		t.Skip("this kernel has no segmentation offload, or does not tell of it")
	}
	f, _ := mustFlow(t, peer.Endpoint(0), addrs[1], 1, 0)
	buf := bytes.Repeat(bth(1, "0123456789012345678901234567890123456789012345678901"), 50)
	mustSend(t, peer.Endpoint(0), SendSlot{Flow: f, Dst: addrs[0], Buf: buf, Segment: 64})
	if !pollFDs(t, n.Queue(1).FDs(), unix.POLLIN) {
		t.Fatal("nothing came")
	}
	slots, err := n.Queue(1).ReadBatch()
	if err != nil || len(slots) != 1 || slots[0].Segment != 64 || !bytes.Equal(slots[0].Buf, buf) || !slots[0].Meta.IDKnown || slots[0].Meta.ID != 0 {
		t.Fatalf("got %d slots, %v: %+v", len(slots), err, slots)
	}
}

// A second adapter is refused, and what comes to the port is not answered.
func TestPacketHoldsThePort(t *testing.T) {
	_, peer, addrs := packetPair(t, "ipv4", 1)
	var busy *BusyError
	if _, err := Open(Config{Addrs: addrs[:1]}); !errors.As(err, &busy) {
		t.Errorf("a second adapter: got %v, want a *BusyError", err)
	}
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(addrs[0], Port)))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for range 2 { // an ICMP would be the second one's error
		if _, err := c.Write([]byte("to be dropped")); err != nil {
			t.Errorf("answered: %v", err)
		}
	}
	_ = peer
}

// The address of an adapter comes and goes.
func TestPacketLateAddress(t *testing.T) {
	n, peer, addrs := packetPair(t, "ipv4", 2)
	late := familyAddrs(t, "ipv4")[0]
	f, _ := mustFlow(t, peer.Endpoint(0), addrs[1], 1, 0)
	send := func() { mustSend(t, peer.Endpoint(0), SendSlot{Flow: f, Dst: late, Buf: bth(1, "late")}) }
	send()
	l, err := n.OpenAddr(late)
	if err != nil {
		t.Fatal(err)
	}
	for w := range 2 {
		n.Queue(w).Adopt(l)
	}
	l.Close()
	expectNone(t, n.Queue(1))
	send()
	if got := collect(t, n.Queue(1), 1)[0]; got.Meta.Dst != late {
		t.Errorf("got %v", got.Meta.Dst)
	}
	for w := range 2 {
		n.Queue(w).Drop(late)
	}
	n.CloseAddr(late)
	send()
	expectNone(t, n.Queue(1))
}

// ipBytes is a packet to port 4791, with the header changed, whose checksums are
// right unless sums says otherwise.
func ipBytes(src, dst netip.Addr, payload []byte, change func(ip []byte) []byte, sums bool) []byte {
	be := binary.BigEndian
	u := make([]byte, udpLen, udpLen+len(payload))
	be.PutUint16(u, 0xC123)
	be.PutUint16(u[2:], Port)
	be.PutUint16(u[4:], uint16(udpLen+len(payload)))
	u = append(u, payload...)
	be.PutUint16(u[udpSumAt:], ^foldSum(addSum(pseudoSum(src, dst, protoUDP, len(u)), u)))
	var p []byte
	if dst.Is4() {
		p = make([]byte, ip4Len)
		p[0], p[8], p[9] = 0x45, 64, protoUDP
		be.PutUint16(p[2:], uint16(ip4Len+len(u)))
		be.PutUint16(p[4:], 0x1234)
		copy(p[12:], src.AsSlice())
		copy(p[16:], dst.AsSlice())
	} else {
		p = make([]byte, ip6Len)
		p[0], p[6], p[7] = 0x60, protoUDP, 64
		be.PutUint16(p[4:], uint16(len(u)))
		copy(p[8:], src.AsSlice())
		copy(p[24:], dst.AsSlice())
	}
	p = append(p, u...)
	if sums && dst.Is4() {
		be.PutUint16(p[10:], ^foldSum(addSum(0, p[:ip4Len])))
	}
	if change != nil {
		p = change(p)
	}
	if !sums && dst.Is4() {
		p[10], p[11] = 0, 0
		be.PutUint16(p[10:], ^foldSum(addSum(0, p[:int(p[0]&0xF)*4])))
	}
	return p
}

// faultRows are packets whose headers have a fault; resum says that the IPv4
// header checksum is made right after the change.
var faultRows = []struct {
	name   string
	v6     bool
	want   Fault
	resum  bool
	change func(ip []byte) []byte
}{
	{name: "good", want: FaultNone},
	{name: "good, IPv6", v6: true, want: FaultNone},
	{name: "padded as a short frame", want: FaultNone, change: func(ip []byte) []byte { return append(ip, 0, 0, 0) }},
	{name: "no UDP checksum", want: FaultNone, change: func(ip []byte) []byte { ip[26], ip[27] = 0, 0; return ip }},
	{name: "header checksum", want: FaultChecksum, change: func(ip []byte) []byte { ip[10] ^= 1; return ip }},
	{name: "UDP checksum", want: FaultUDPSum, change: func(ip []byte) []byte { ip[27] ^= 1; return ip }},
	{name: "UDP checksum, IPv6", v6: true, want: FaultUDPSum, change: func(ip []byte) []byte { ip[47] ^= 1; return ip }},
	{name: "total length above the packet's", want: FaultLength, resum: true, change: func(ip []byte) []byte { ip[3]++; return ip }},
	{name: "total length below the UDP header's", want: FaultLength, resum: true, change: func(ip []byte) []byte { ip[3]--; return ip }},
	{name: "UDP length", want: FaultLength, change: func(ip []byte) []byte { ip[25]--; return ip }},
	{name: "payload length, IPv6", v6: true, want: FaultLength, change: func(ip []byte) []byte { ip[5]++; return ip }},
	{name: "first fragment", want: FaultFragment, resum: true, change: func(ip []byte) []byte { ip[6] |= 0x20; return ip }},
	{name: "options", want: FaultOptions, resum: true, change: func(ip []byte) []byte {
		ip[0], ip[3] = 0x46, ip[3]+4
		return append(append(append([]byte{}, ip[:20]...), 1, 1, 1, 1), ip[20:]...)
	}},
	{name: "destination options, IPv6", v6: true, want: FaultOptions, change: func(ip []byte) []byte {
		ip[6], ip[5] = ext6Options, ip[5]+8
		return append(append(append([]byte{}, ip[:40]...), protoUDP, 0, 1, 4, 0, 0, 0, 0), ip[40:]...)
	}},
	{name: "fragment, IPv6", v6: true, want: FaultFragment, change: func(ip []byte) []byte {
		ip[6], ip[5] = ext6Fragment, ip[5]+8
		return append(append(append([]byte{}, ip[:40]...), protoUDP, 0, 0, 1, 0, 0, 0, 1), ip[40:]...)
	}},
}

func TestFaults(t *testing.T) {
	for _, r := range faultRows {
		t.Run(r.name, func(t *testing.T) {
			src, dst := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
			if r.v6 {
				src, dst = netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2")
			}
			var ip ipPacket
			payload := bth(0, "payload")
			if !ip.parse(ipBytes(src, dst, payload, r.change, !r.resum)) {
				t.Fatal("not taken for an IP packet")
			}
			port, ok := ip.roce(false)
			if !ok || port != 0xC123 || ip.fault != r.want {
				t.Errorf("got port %#x, %v, fault %v; want %v", port, ok, ip.fault, r.want)
			}
			if r.want == FaultNone && !bytes.Equal(ip.body, payload) {
				t.Errorf("payload: got %q", ip.body)
			}
		})
	}
}

// Each fault comes through the packet sockets' filter, to be counted.
func TestPacketFaults(t *testing.T) {
	for _, family := range []string{"ipv4", "ipv6"} {
		t.Run(family, func(t *testing.T) {
			n, _, addrs := packetPair(t, family, 2)
			fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(fd)
			lo, err := net.InterfaceByName("lo")
			if err != nil {
				t.Fatal(err)
			}
			to := &unix.SockaddrLinklayer{Ifindex: lo.Index, Protocol: etherType(unix.AF_INET), Halen: 6}
			frame := make([]byte, 14)
			binary.BigEndian.PutUint16(frame[12:], unix.ETH_P_IP)
			if family == "ipv6" {
				to.Protocol = etherType(unix.AF_INET6)
				binary.BigEndian.PutUint16(frame[12:], unix.ETH_P_IPV6)
			}
			for _, r := range faultRows {
				if r.v6 != (family == "ipv6") {
					continue
				}
				ip := ipBytes(addrs[1], addrs[0], bth(0, r.name), r.change, !r.resum)
				if err := unix.Sendto(fd, append(frame[:14:14], ip...), 0, to); err != nil {
					t.Fatalf("%s: %v", r.name, err)
				}
				got := collect(t, n.Queue(0), 1)[0]
				if got.Meta.Fault != r.want || r.want == FaultNone && !r.v6 && (!got.Meta.IDKnown || got.Meta.ID != 0x1234) {
					t.Errorf("%s: got %+v, want %v", r.name, got.Meta, r.want)
				}
			}
			expectNone(t, n.Queue(1))
		})
	}
}

// Receiving on packet sockets allocates nothing.
func TestPacketReceiveDoesNotAllocate(t *testing.T) {
	n, peer, addrs := packetPair(t, "ipv4", 1)
	f, _ := mustFlow(t, peer.Endpoint(0), addrs[1], 0, 0)
	slots := []SendSlot{{Flow: f, Dst: addrs[0], Buf: bth(0, "x")}}
	q := n.Queue(0)
	got := 0
	if avg := testing.AllocsPerRun(200, func() {
		if _, err := peer.Endpoint(0).WriteBatch(slots); err != nil {
			t.Fatal(err)
		}
		s, err := q.ReadBatch()
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
