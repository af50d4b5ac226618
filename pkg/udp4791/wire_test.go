package udp4791

import (
	"encoding/binary"
	"net"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/testnet"
)

// sniffer is a packet socket on a host's end of the link. It sees IP packets
// as they arrive.
type sniffer struct{ fd int }

// htons turns a protocol number into network order for the packet socket.
func htons(v uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, v))
}

func newSniffer(t *testing.T, h *testnet.Host) *sniffer {
	t.Helper()
	s := &sniffer{-1}
	if err := h.Do(func() error {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, int(htons(unix.ETH_P_ALL)))
		if err != nil {
			return err
		}
		s.fd = fd
		ifi, err := net.InterfaceByName(testnet.Iface)
		if err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: htons(unix.ETH_P_ALL), Ifindex: ifi.Index})
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(s.fd) })
	return s
}

// roce returns the next n IP packets to UDP port 4791 of dst.
func (s *sniffer) roce(t *testing.T, dst netip.Addr, n int) [][]byte {
	t.Helper()
	var out [][]byte
	for len(out) < n {
		if !pollFDs(t, []int{s.fd}, unix.POLLIN) {
			t.Fatalf("%d of %d packets seen", len(out), n)
		}
		buf := make([]byte, 70000)
		k, _, err := unix.Recvfrom(s.fd, buf, 0)
		if err != nil {
			t.Fatal(err)
		}
		if p := buf[:k]; isRoCE(p, dst) {
			out = append(out, p)
		}
	}
	return out
}

func isRoCE(p []byte, dst netip.Addr) bool {
	if dst.Is4() {
		return len(p) >= 28 && p[0] == 0x45 && p[9] == unix.IPPROTO_UDP &&
			[4]byte(p[16:20]) == dst.As4() && binary.BigEndian.Uint16(p[22:]) == Port
	}
	return len(p) >= 48 && p[0]>>4 == 6 && p[6] == unix.IPPROTO_UDP &&
		[16]byte(p[24:40]) == dst.As16() && binary.BigEndian.Uint16(p[42:]) == Port
}

// onTheWire opens an endpoint on host a, sends slots from it and returns the
// packets that host b's end of the link sees.
func onTheWire(t *testing.T, src, dst netip.Addr, a, b *testnet.Host, ports []uint16, slots []SendSlot) [][]byte {
	t.Helper()
	s := newSniffer(t, b)
	var ea *Endpoint
	if err := b.Do(func() error {
		mustOpen(t, Config{Addrs: []netip.Addr{dst}}) // so that no ICMP answers
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	a.Enter(t)
	ea = mustOpen(t, Config{Addrs: []netip.Addr{src}}).Endpoint(0)
	var all []SendSlot
	for _, port := range ports {
		f, got := mustFlow(t, ea, src, 0, port)
		if got != port {
			t.Fatalf("source port %#x, want %#x", got, port)
		}
		for _, sl := range slots {
			sl.Flow, sl.Dst = f, dst
			all = append(all, sl)
		}
	}
	// One by one and as a batch: the identification must not count either way.
	for i := range all {
		mustSend(t, ea, all[i])
	}
	mustSend(t, ea, all...)
	return s.roce(t, dst, 2*len(all))
}

var wireSlots = []SendSlot{
	{Buf: bth(0, "first")},
	{Buf: bth(0, "second"), TOS: 0x62},
	{Buf: bth(0, "third"), TTL: 7},
	{Buf: append(bth(0, "fourth"), make([]byte, 4096)...), TOS: 1, TTL: 255},
	{Buf: bth(0, "fifth"), FlowLabel: 0xABCDE},
	{Buf: bth(0, "sixth"), FlowLabel: 0x12345, TOS: 0xFF, TTL: 2},
	{Buf: bth(0, "20 bits of a label count"), FlowLabel: 0xFFF54321, TOS: 1},
}

func wireTTL(s SendSlot) uint8 {
	if s.TTL == 0 {
		return DefaultTTL
	}
	return s.TTL
}

// On the wire: identification 0, don't-fragment, no options; type of service and
// TTL as asked (Annex A17.3.2).
func TestIPv4HeaderOnTheWire(t *testing.T) {
	a, b := testnet.Pair(t, 4300)
	ports := []uint16{0xC001, Port} // a send socket and the fallback
	for i, p := range onTheWire(t, a.Addr4, b.Addr4, a, b, ports, wireSlots) {
		want := wireSlots[i%len(wireSlots)]
		port := ports[i/len(wireSlots)%len(ports)]
		if id := binary.BigEndian.Uint16(p[4:]); id != 0 {
			t.Errorf("packet %d: identification %d, want 0", i, id)
		}
		if frag := binary.BigEndian.Uint16(p[6:]); frag != 0x4000 {
			t.Errorf("packet %d: flags and offset %#04x, want DF alone", i, frag)
		}
		if p[1] != want.TOS || p[8] != wireTTL(want) {
			t.Errorf("packet %d: TOS %#x TTL %d, want %#x %d", i, p[1], p[8], want.TOS, wireTTL(want))
		}
		if got := binary.BigEndian.Uint16(p[20:]); got != port {
			t.Errorf("packet %d: source port %#x, want %#x", i, got, port)
		}
		if string(p[28:]) != string(want.Buf) {
			t.Errorf("packet %d: payload of %d bytes, want %d", i, len(p)-28, len(want.Buf))
		}
	}
}

// The same for IPv6: traffic class, flow label (0 when none is asked for),
// hop limit, no extension header.
func TestIPv6HeaderOnTheWire(t *testing.T) {
	a, b := testnet.Pair(t, 4300)
	if !a.Addr6.IsValid() {
		t.Skip("this kernel has no IPv6")
	}
	ports := []uint16{0xC001, Port}
	for i, p := range onTheWire(t, a.Addr6, b.Addr6, a, b, ports, wireSlots) {
		want := wireSlots[i%len(wireSlots)]
		port := ports[i/len(wireSlots)%len(ports)]
		word := uint32(6)<<28 | uint32(want.TOS)<<20 | want.FlowLabel&0xFFFFF
		if got := binary.BigEndian.Uint32(p); got != word {
			t.Errorf("packet %d: first word %08x, want %08x", i, got, word)
		}
		if p[7] != wireTTL(want) {
			t.Errorf("packet %d: hop limit %d, want %d", i, p[7], wireTTL(want))
		}
		if got := binary.BigEndian.Uint16(p[40:]); got != port {
			t.Errorf("packet %d: source port %#x, want %#x", i, got, port)
		}
		if string(p[48:]) != string(want.Buf) {
			t.Errorf("packet %d: payload of %d bytes, want %d", i, len(p)-48, len(want.Buf))
		}
	}
}

// When another program of the host holds a flow label exclusively, the kernel
// wants a lease for every label. Then we send without one.
func TestFlowLabelsUnderExclusiveLease(t *testing.T) {
	a, b := testnet.Pair(t, 0)
	if !a.Addr6.IsValid() {
		t.Skip("this kernel has no IPv6")
	}
	var eb *Endpoint
	if err := b.Do(func() error {
		eb = mustOpen(t, Config{Addrs: []netip.Addr{b.Addr6}}).Endpoint(0)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	a.Enter(t)
	holdFlowLabel(t, b.Addr6)
	ea := mustOpen(t, Config{Addrs: []netip.Addr{a.Addr6}}).Endpoint(0)
	f, _ := mustFlow(t, ea, a.Addr6, 0, 0)
	slots := []SendSlot{{Flow: f, Dst: b.Addr6, Buf: seq(0)}, {Flow: f, Dst: b.Addr6, Buf: seq(1), FlowLabel: 5}, {Flow: f, Dst: b.Addr6, Buf: seq(2), FlowLabel: 6}}
	mustSend(t, ea, slots...)
	if !ea.lookup(f).noLabel {
		t.Error("the kernel took a label without a lease: this test did not test the way without")
	}
	for i, d := range collect(t, eb, 3) {
		if d.Buf != string(seq(i)) {
			t.Errorf("datagram %d is %q", i, d.Buf)
		}
	}
}

// holdFlowLabel takes flow label 77 exclusively (struct in6_flowlabel_req of
// linux/in6.h: destination, label, action, share, flags, expiry, linger).
func holdFlowLabel(t *testing.T, dst netip.Addr) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	const get, create, excl, shareExcl = 0, 1, 2, 1
	d := dst.As16()
	req := append([]byte(nil), d[:]...)
	req = binary.BigEndian.AppendUint32(req, 77)
	req = append(req, get, shareExcl)
	req = binary.NativeEndian.AppendUint16(req, create|excl)
	req = append(req, make([]byte, 8)...)
	if err := unix.SetsockoptString(fd, unix.IPPROTO_IPV6, 32 /* IPV6_FLOWLABEL_MGR */, string(req)); err != nil {
		t.Skipf("this kernel has no flow label manager: %v", err)
	}
}
