package udp4791

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/softroce/softroce/internal/testnet"
)

// segmentsOnTheWire sends slots, the last of them twice, from host a, whose
// device cuts nothing, and returns the packets that come to host b and the
// datagrams they are to be.
func segmentsOnTheWire(t *testing.T, src, dst netip.Addr, a, b *testnet.Host, slots []SendSlot) (got [][]byte, want []SendSlot, index []int) {
	t.Helper()
	a.SetFeature(t, testnet.CutsUDP, false)
	s := newSniffer(t, b)
	if err := b.Do(func() error {
		mustOpen(t, Config{Addrs: []netip.Addr{dst}}) // so that no ICMP answers
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	a.Enter(t)
	g := mustOpen(t, Config{Addrs: []netip.Addr{src}})
	needSegments(t, g)
	e := g.Endpoint(0)
	f, _ := mustFlow(t, e, src, 0, 0)
	for i := range slots {
		slots[i].Flow, slots[i].Dst = f, dst
		size := slots[i].Segment
		if size == 0 {
			size = len(slots[i].Buf)
		}
		for k, p := range cut(slots[i].Buf, size) {
			w := slots[i]
			w.Buf = []byte(p)
			want, index = append(want, w), append(index, k)
		}
	}
	mustSend(t, e, slots...)
	return s.roce(t, dst, len(want)), want, index
}

func segmentSlots() []SendSlot {
	return []SendSlot{
		{Buf: seq(0)},
		{Buf: pattern(2500), Segment: 1000},
		{Buf: pattern(2000), Segment: 1000, TOS: 0x62, TTL: 9, FlowLabel: 0x12345},
		{Buf: pattern(64 * 300), Segment: 300, FlowLabel: 0xABCDE},
		{Buf: seq(1)},
		{Buf: pattern(20000), Segment: 1400, TOS: 1},
	}
}

// On the wire the datagrams of a segmented send have the identifications 0, 1, 2
// and so on, those of the next send again, and a single one has 0: what the ICRC
// of each has to be made for (Annex A17.3.3).
func TestIdentificationsOfSegments(t *testing.T) {
	a, b := testnet.Pair(t, 1500)
	got, want, index := segmentsOnTheWire(t, a.Addr4, b.Addr4, a, b, segmentSlots())
	for i, p := range got {
		if id := binary.BigEndian.Uint16(p[4:]); int(id) != index[i] {
			t.Errorf("packet %d: identification %d, want %d, its place in the send", i, id, index[i])
		}
		if frag := binary.BigEndian.Uint16(p[6:]); frag != 0x4000 {
			t.Errorf("packet %d: flags and offset %#04x, want DF alone", i, frag)
		}
		if p[1] != want[i].TOS || p[8] != wireTTL(want[i]) {
			t.Errorf("packet %d: TOS %#x TTL %d, want %#x %d", i, p[1], p[8], want[i].TOS, wireTTL(want[i]))
		}
		if string(p[28:]) != string(want[i].Buf) {
			t.Errorf("packet %d: payload of %d bytes differs from the %d sent", i, len(p)-28, len(want[i].Buf))
		}
	}
}

// Each datagram of a segmented send has the traffic class, flow label and hop
// limit that were asked for.
func TestIPv6HeadersOfSegments(t *testing.T) {
	a, b := testnet.Pair(t, 1500)
	if !a.Addr6.IsValid() {
		t.Skip("this kernel has no IPv6")
	}
	got, want, _ := segmentsOnTheWire(t, a.Addr6, b.Addr6, a, b, segmentSlots())
	for i, p := range got {
		word := uint32(6)<<28 | uint32(want[i].TOS)<<20 | want[i].FlowLabel
		if w := binary.BigEndian.Uint32(p); w != word || p[7] != wireTTL(want[i]) {
			t.Errorf("packet %d: first word %08x, hop limit %d; want %08x %d", i, w, p[7], word, wireTTL(want[i]))
		}
		if string(p[48:]) != string(want[i].Buf) {
			t.Errorf("packet %d: payload of %d bytes differs from the %d sent", i, len(p)-48, len(want[i].Buf))
		}
	}
}

// A device that takes a send in one piece passes it on so, and a receiver
// without offload has its datagrams all the same; where the receiving host
// merges what came in pieces, they are as they were sent.
func TestSegmentsOverALink(t *testing.T) {
	for _, c := range []struct {
		name         string
		cuts, merges bool
		offload      Offload
	}{
		{"in one piece to a plain socket", true, false, OffloadOff},
		{"in one piece to a merging one", true, false, OffloadAuto},
		{"in pieces to a plain socket", false, false, OffloadOff},
		{"in pieces to a merging one", false, false, OffloadAuto},
		{"in pieces, merged by the host", false, true, OffloadAuto},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := testnet.Pair(t, 1500)
			a.SetFeature(t, testnet.CutsUDP, c.cuts)
			b.SetFeature(t, testnet.MergesUDP, c.merges)
			var gb *Group
			if err := b.Do(func() error {
				gb = mustOpen(t, Config{Addrs: []netip.Addr{b.Addr4}, Offload: c.offload})
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			a.Enter(t)
			ga := mustOpen(t, Config{Addrs: []netip.Addr{a.Addr4}})
			needSegments(t, ga)
			f, port := mustFlow(t, ga.Endpoint(0), a.Addr4, 0, 0)
			meta := RecvMeta{Src: netip.AddrPortFrom(a.Addr4, port), Dst: b.Addr4, TTL: DefaultTTL}
			most := 0
			for i := range 20 {
				buf := pattern(20000 + i)
				mustSend(t, ga.Endpoint(0), SendSlot{Flow: f, Dst: b.Addr4, Buf: buf, Segment: 1400})
				pieces, merged := receiveAll(t, gb.Endpoint(0), 15, meta)
				if most = max(most, merged); !slicesEqual(pieces, cut(buf, 1400)) {
					t.Fatalf("send %d: %d datagrams that differ from those sent", i, len(pieces))
				}
			}
			t.Logf("at most %d of 15 datagrams came in one buffer", most)
			if c.cuts && gb.Merges() && most != 15 {
				t.Errorf("at most %d of 15 datagrams came in one buffer, want all", most)
			}
		})
	}
}
