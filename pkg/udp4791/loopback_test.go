package udp4791

import (
	"bytes"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/testaddr"
)

var families = []string{"ipv4", "ipv6"}

func TestDatagramsAndTheirIPFacts(t *testing.T) {
	for _, family := range families {
		t.Run(family, func(t *testing.T) {
			a, b := pair(t, family)
			ea, eb := a.Endpoint(0), b.Endpoint(0)
			src, dst := a.Addrs()[0], b.Addrs()[0]
			flow, port := mustFlow(t, ea, src, 3, 0xC123)
			for _, c := range []struct {
				name     string
				slot     SendSlot
				tos, ttl uint8
			}{
				{"defaults", SendSlot{Buf: bth(3, "x")}, 0, 64},
				{"empty", SendSlot{}, 0, 64},
				{"largest packet", SendSlot{Buf: bytes.Repeat([]byte{7}, BufferSize)}, 0, 64},
				{"traffic class with ECT(0)", SendSlot{TOS: 0x62, Buf: bth(3, "y")}, 0x62, 64},
				{"hop limit", SendSlot{TTL: 1, Buf: bth(3, "z")}, 0, 1},
				{"both", SendSlot{TOS: 0xFF, TTL: 255, Buf: bth(3, "z")}, 0xFF, 255},
				{"the default asked for", SendSlot{TTL: 64, Buf: bth(3, "z")}, 0, 64},
			} {
				t.Run(c.name, func(t *testing.T) {
					c.slot.Flow, c.slot.Dst = flow, dst
					mustSend(t, ea, c.slot)
					got := collect(t, eb, 1)[0]
					want := datagram{string(c.slot.Buf), RecvMeta{
						Src: netip.AddrPortFrom(src, port), Dst: dst, TOS: c.tos, TTL: c.ttl,
					}}
					if got != want {
						t.Errorf("got  %+v\nwant %+v", got, want)
					}
				})
			}
		})
	}
}

func TestLongDatagramIsMarkedTruncated(t *testing.T) {
	a, b := pair(t, "ipv4")
	flow, _ := mustFlow(t, a.Endpoint(0), a.Addrs()[0], 0, 0)
	long := bytes.Repeat([]byte("0123456789abcdef"), (BufferSize+16)/16)
	mustSend(t, a.Endpoint(0), SendSlot{Flow: flow, Dst: b.Addrs()[0], Buf: long},
		SendSlot{Flow: flow, Dst: b.Addrs()[0], Buf: []byte("next")})
	got := collect(t, b.Endpoint(0), 2)
	if !got[0].Meta.Truncated || got[0].Buf != string(long[:BufferSize]) {
		t.Errorf("long one: truncated %v, %d bytes; want true, %d", got[0].Meta.Truncated, len(got[0].Buf), BufferSize)
	}
	if got[1].Meta.Truncated || got[1].Buf != "next" {
		t.Errorf("next one: %+v", got[1])
	}
}

// More datagrams than a batch, from one call, come in order and unharmed,
// though slots and buffers are used again.
func TestManyDatagramsKeepTheirOrder(t *testing.T) {
	addrs := testaddr.Take(t, 2)
	a := mustOpen(t, Config{Addrs: addrs[:1], Batch: 7})
	b := mustOpen(t, Config{Addrs: addrs[1:], Batch: 5})
	flow, _ := mustFlow(t, a.Endpoint(0), addrs[0], 0, 0)
	slots := make([]SendSlot, 100)
	for i := range slots {
		// Every third one with control data, so that stale control data of
		// a reused header would show.
		slots[i] = SendSlot{Flow: flow, Dst: addrs[1], Buf: seq(i)}
		if i%3 == 0 {
			slots[i].TOS, slots[i].TTL = uint8(i), uint8(i+1)
		}
	}
	mustSend(t, a.Endpoint(0), slots...)
	for i, d := range collect(t, b.Endpoint(0), len(slots)) {
		ttl := slots[i].TTL
		if ttl == 0 {
			ttl = DefaultTTL
		}
		if d.Buf != string(seq(i)) || d.Meta.TOS != slots[i].TOS || d.Meta.TTL != ttl {
			t.Errorf("datagram %d: %q tos %#x ttl %d, want %q %#x %d", i, d.Buf, d.Meta.TOS, d.Meta.TTL, seq(i), slots[i].TOS, ttl)
		}
	}
	expectNone(t, b.Endpoint(0))
}

// An endpoint of an adapter with several addresses reads from all of them,
// says which it was, and is fair: a full queue on one does not starve another.
func TestEndpointReadsAllItsAddresses(t *testing.T) {
	addrs := testaddr.Take(t, 4)
	a := mustOpen(t, Config{Addrs: addrs[:1]})
	b := mustOpen(t, Config{Addrs: addrs[1:], Batch: 4})
	ea, eb := a.Endpoint(0), b.Endpoint(0)
	if got := len(eb.FDs()); got != 3 {
		t.Fatalf("%d descriptors to poll, want one per address", got)
	}
	flow, _ := mustFlow(t, ea, addrs[0], 0, 0)
	for range 40 {
		mustSend(t, ea, SendSlot{Flow: flow, Dst: addrs[1], Buf: bth(0, "busy")})
	}
	mustSend(t, ea, SendSlot{Flow: flow, Dst: addrs[3], Buf: bth(0, "other")})
	seen := false
	for range len(eb.FDs()) { // one round
		slots, err := eb.ReadBatch()
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range slots {
			if bytes.HasSuffix(s.Buf, []byte("other")) {
				seen = true
				if s.Meta.Dst != addrs[3] {
					t.Errorf("came to %v, reported %v", addrs[3], s.Meta.Dst)
				}
			} else if s.Meta.Dst != addrs[1] {
				t.Errorf("came to %v, reported %v", addrs[1], s.Meta.Dst)
			}
		}
	}
	if !seen {
		t.Error("the busy address starved the other one for a whole round")
	}
}

// One header serves both families in turn: what a short address leaves behind
// must not cut the next, longer one.
func TestEndpointOfBothFamilies(t *testing.T) {
	v6 := needIPv6(t)
	v4 := []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.2")}
	a := mustOpen(t, Config{Addrs: []netip.Addr{v4[0], v6[0]}})
	b := mustOpen(t, Config{Addrs: []netip.Addr{v4[1], v6[1]}, Batch: 1})
	ea, eb := a.Endpoint(0), b.Endpoint(0)
	f4, p4 := mustFlow(t, ea, v4[0], 0, 0)
	f6, p6 := mustFlow(t, ea, v6[0], 0, 0)
	for i := range 4 {
		mustSend(t, ea, SendSlot{Flow: f4, Dst: v4[1], TOS: 4, Buf: seq(i)})
		want := datagram{string(seq(i)), RecvMeta{Src: netip.AddrPortFrom(v4[0], p4), Dst: v4[1], TOS: 4, TTL: 64}}
		if got := collect(t, eb, 1)[0]; got != want {
			t.Errorf("IPv4 %d: got  %+v\nwant %+v", i, got, want)
		}
		mustSend(t, ea, SendSlot{Flow: f6, Dst: v6[1], TOS: 6, Buf: seq(i)})
		want = datagram{string(seq(i)), RecvMeta{Src: netip.AddrPortFrom(v6[0], p6), Dst: v6[1], TOS: 6, TTL: 64}}
		if got := collect(t, eb, 1)[0]; got != want {
			t.Errorf("IPv6 %d: got  %+v\nwant %+v", i, got, want)
		}
	}
	wantSendError(t, ea, SendSlot{Flow: f6, Dst: v4[1]}, unix.EAFNOSUPPORT)
	wantSendError(t, ea, SendSlot{Flow: f4, Dst: v6[1]}, unix.EAFNOSUPPORT)
	expectNone(t, eb)
}

// RoCEv2 peers may send without a UDP checksum; the ICRC protects.
func TestZeroUDPChecksumIsAccepted(t *testing.T) {
	for _, family := range families {
		t.Run(family, func(t *testing.T) {
			addrs := familyAddrs(t, family)
			g := mustOpen(t, Config{Addrs: addrs[1:]})
			l := local{addr: addrs[0]}
			fd, err := newSocket(l, nil, new([]string))
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(fd)
			level, opt := unix.SOL_SOCKET, unix.SO_NO_CHECK
			if family == "ipv6" {
				level, opt = unix.IPPROTO_UDP, 101 // UDP_NO_CHECK6_TX
			}
			if err := unix.SetsockoptInt(fd, level, opt, 1); err != nil {
				t.Fatal(err)
			}
			if err := unix.Sendto(fd, []byte("no checksum"), 0, local{addr: addrs[1]}.sockaddr(Port)); err != nil {
				t.Fatal(err)
			}
			if got := collect(t, g.Endpoint(0), 1)[0]; got.Buf != "no checksum" {
				t.Errorf("got %q", got.Buf)
			}
		})
	}
}

func TestConfigIsChecked(t *testing.T) {
	ok := netip.MustParseAddr("127.0.0.1")
	for _, c := range []struct {
		name string
		cfg  Config
		want string // part of the error
	}{
		{"no address", Config{}, "no local address"},
		{"zero address", Config{Addrs: []netip.Addr{{}}}, "not an address"},
		{"wildcard", Config{Addrs: []netip.Addr{netip.IPv4Unspecified()}}, "wildcard"},
		{"multicast", Config{Addrs: []netip.Addr{netip.MustParseAddr("ff02::1")}}, "multicast"},
		{"link-local without zone", Config{Addrs: []netip.Addr{netip.MustParseAddr("fe80::1")}}, "write fe80::1%INTERFACE"},
		{"twice, once IPv4-mapped", Config{Addrs: []netip.Addr{ok, netip.MustParseAddr("::ffff:127.0.0.1")}}, "given twice"},
		{"too many workers", Config{Addrs: []netip.Addr{ok}, Workers: 9}, "9 workers, want 1 to 8"},
		{"negative workers", Config{Addrs: []netip.Addr{ok}, Workers: -1}, "-1 workers"},
		{"batch", Config{Addrs: []netip.Addr{ok}, Batch: 1025}, "1 to 1024"},
		{"buffer", Config{Addrs: []netip.Addr{ok}, RecvBuffer: -1}, "negative buffer"},
		{"unknown zone", Config{Addrs: []netip.Addr{netip.MustParseAddr("fe80::1%nosuchif0")}}, "interface that this host does not have"},
		{"another host's", Config{Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.77")}}, "not an address of this host"},
	} {
		t.Run(c.name, func(t *testing.T) {
			g, err := Open(c.cfg)
			if err == nil {
				g.Close()
				t.Fatalf("opened, want an error with %q", c.want)
			}
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %q, want it to contain %q", err, c.want)
			}
		})
	}
}

func TestClosedGroupAnswersErrClosed(t *testing.T) {
	g := mustOpen(t, Config{Addrs: testaddr.Take(t, 1)})
	e := g.Endpoint(0)
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
	if err := g.Close(); err != nil {
		t.Errorf("second close: %v", err)
	}
	if _, err := e.ReadBatch(); !errors.Is(err, ErrClosed) {
		t.Errorf("ReadBatch: %v", err)
	}
	if _, err := e.WriteBatch(make([]SendSlot, 1)); !errors.Is(err, ErrClosed) {
		t.Errorf("WriteBatch: %v", err)
	}
	if _, _, err := e.OpenFlow(g.Addrs()[0], 0, 0); !errors.Is(err, ErrClosed) {
		t.Errorf("OpenFlow: %v", err)
	}
}
