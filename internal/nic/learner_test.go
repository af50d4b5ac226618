package nic

import (
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/udp4791"
)

var (
	peer4 = netip.MustParseAddr("192.0.2.1")
	host4 = netip.MustParseAddr("192.0.2.2")
	peer6 = netip.MustParseAddr("2001:db8::1")
	host6 = netip.MustParseAddr("2001:db8::2")
)

// clock is the tests' time.
var clock = time.Unix(1000, 0)

// sentPacket is a SEND Only of n bytes from src to dst with identification id.
func sentPacket(src, dst netip.Addr, id uint16, n int) ([]byte, udp4791.RecvMeta) {
	h := bth.BTHFields{Opcode: bth.RCSendOnly, PKey: bth.DefaultPKey, DestQP: 0x11, PSN: 7}
	h.Pad = uint8(-n & 3)
	b := h.Append(nil)
	for i := range n {
		b = append(b, byte(i))
	}
	b = bth.AppendPad(b, n)
	net := bth.NetHeader{Src: bth.GIDFromAddr(src), Dst: bth.GIDFromAddr(dst), SrcPort: 0xC123, DstPort: udp4791.Port, ID: id}
	b = bth.AppendICRC(b, bth.ICRC(net.Seed(len(b)+4), b))
	return b, udp4791.RecvMeta{Src: netip.AddrPortFrom(src, 0xC123), Dst: dst}
}

func checkOne(t *testing.T, l *learner, b []byte, m *udp4791.RecvMeta) icrcVerdict {
	t.Helper()
	var p bth.Packet
	if err := p.Parse(b); err != nil {
		t.Fatalf("parse: %v", err)
	}
	return l.check(clock, m, &p)
}

// Identification 0, a window around the last proven one, and the index in a
// receive buffer are accepted; others start the learning anew.
func TestLearner(t *testing.T) {
	var l learner
	l.init(false)
	for _, tc := range []struct {
		name      string
		id        uint16
		seg       int
		pause     time.Duration
		relearned bool
	}{
		{"zero needs no learning", 0, 0, 0, false},
		{"the first of a counting peer", 5000, 0, 0, true},
		{"the next", 5001, 0, 0, false},
		{"a jump within the window", 5001 + 1024, 0, 0, false},
		{"a jump beyond it", 6025 + 1025, 0, 0, true},
		{"one after a pause", 7050 + 1024 + 3000, 0, 3 * time.Second, false},
		{"doubled", 11074, 0, 0, false},
		{"overtaken", 11074 - 255, 0, 0, false},
		{"far behind", 11074 - 256, 0, 0, true},
		{"zero again", 0, 0, 0, false},
		{"near the end", 65530, 0, 0, true},
		{"over the end of 16 bits", 3, 0, 0, false},
		{"the index in a receive buffer", 4000, 4000, 0, false},
		{"which teaches nothing", 4, 0, 0, false},
	} {
		clock = clock.Add(tc.pause)
		b, m := sentPacket(peer4, host4, tc.id, 33)
		m.SegIndex = tc.seg
		v := checkOne(t, &l, b, &m)
		if !v.ok || v.relearned != tc.relearned || v.id != tc.id || !v.idKnown {
			t.Errorf("%s: identification %d: got %+v, want relearned %v", tc.name, tc.id, v, tc.relearned)
		}
	}
}

// A peer whose numbering is proven is not believed an outlier, until a second
// one continues it: then it numbers anew.
func TestLearnerDoubts(t *testing.T) {
	for name, first := range map[string]uint16{"a peer that sends 0": 0, "a peer that counts": 300} {
		var l learner
		l.init(false)
		see := func(id uint16) icrcVerdict {
			b, m := sentPacket(peer4, host4, id, 12)
			return checkOne(t, &l, b, &m)
		}
		for i := range uint16(provenAt + 1) {
			id := first
			if id != 0 {
				id += i
			}
			if v := see(id); !v.ok {
				t.Fatalf("%s: packet %d refused", name, i)
			}
		}
		for _, tc := range []struct {
			id            uint16
			ok, relearned bool
		}{
			{40000, false, false}, {20000, false, false}, {60000, false, false}, {60007, true, true}, {60008, true, false},
		} {
			if v := see(tc.id); v.ok != tc.ok || v.relearned != tc.relearned {
				t.Errorf("%s: identification %d: got %+v, want %+v", name, tc.id, v, tc)
			}
		}
	}
}

func TestLearnerStrict(t *testing.T) {
	var l learner
	l.init(true)
	for id, want := range map[uint16]bool{0: true, 1: false, 5000: false} {
		b, m := sentPacket(peer4, host4, id, 8)
		if v := checkOne(t, &l, b, &m); v.ok != want {
			t.Errorf("strict, identification %d: got %v, want %v", id, v.ok, want)
		}
	}
}

// A known identification and IPv6 get all 32 bits checked.
func TestLearnerFullCheck(t *testing.T) {
	var l learner
	l.init(false)
	b, m := sentPacket(peer4, host4, 77, 8)
	m.ID, m.IDKnown = 77, true
	if v := checkOne(t, &l, b, &m); !v.ok || v.relearned {
		t.Errorf("known identification: got %+v", v)
	}
	m.ID = 78
	if v := checkOne(t, &l, b, &m); v.ok {
		t.Error("a wrong known identification was explained away")
	}
	b6, m6 := sentPacket(peer6, host6, 0, 8)
	if v := checkOne(t, &l, b6, &m6); !v.ok {
		t.Error("a right IPv6 packet was refused")
	}
	for bit := range 32 {
		bad := append([]byte(nil), b6...)
		bad[len(bad)-1-bit/8] ^= 1 << (bit % 8)
		if v := checkOne(t, &l, bad, &m6); v.ok {
			t.Errorf("IPv6 with bit %d of the ICRC turned was accepted", bit)
		}
	}
}

// What a hidden identification costs: of packets corrupted at random, about
// one in 65,536 is explained by some identification and accepted before the
// peer's numbering is proven, and about one in 2^22 after.
func TestLearnerStrength(t *testing.T) {
	for _, tc := range []struct {
		name  string
		prove bool
		most  int // out of reach for chance
	}{
		{"not proven: mean 6", false, 40},
		{"proven: mean 0.1", true, 4},
	} {
		const n = 400_000
		rng := rand.New(rand.NewPCG(3, 4))
		var l learner
		l.init(false)
		b, m := sentPacket(peer4, host4, 0, 64)
		for i := 0; tc.prove && i < provenAt; i++ {
			checkOne(t, &l, b, &m)
		}
		accepted := 0
		bad := make([]byte, len(b))
		for range n {
			copy(bad, b)
			bad[12+rng.IntN(len(bad)-12)] ^= byte(1 + rng.IntN(255))
			bad[12+rng.IntN(len(bad)-12)] ^= byte(rng.IntN(256))
			if v := checkOne(t, &l, bad, &m); v.ok && string(bad) != string(b) {
				accepted++
			}
		}
		if accepted > tc.most {
			t.Errorf("%s: %d of %d corrupted packets accepted, want at most %d", tc.name, accepted, n, tc.most)
		}
		t.Logf("%s: %d of %d corrupted packets accepted", tc.name, accepted, n)
	}
}

func TestLearnerForgets(t *testing.T) {
	var l learner
	l.init(false)
	for i := range maxPeers + 100 {
		src := netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)})
		b, m := sentPacket(src, host4, 9, 4)
		checkOne(t, &l, b, &m)
	}
	if len(l.peers) > maxPeers {
		t.Errorf("peers remembered: got %d, limit %d", len(l.peers), maxPeers)
	}
}

// A host numbers what it sends to a multicast group apart from the rest: the two
// rows do not disturb each other, however far apart they are.
func TestLearnerTellsGroupsApart(t *testing.T) {
	var l learner
	l.init(false)
	group := netip.MustParseAddr("239.1.2.3")
	relearned := 0
	for i := range uint16(3 * provenAt) {
		for dst, first := range map[netip.Addr]uint16{host4: 1000, group: 40000} {
			b, m := sentPacket(peer4, dst, first+i, 20)
			v := checkOne(t, &l, b, &m)
			if !v.ok || v.id != first+i {
				t.Fatalf("packet %d to %v: %+v", i, dst, v)
			}
			if v.relearned {
				relearned++
			}
		}
	}
	if relearned != 2 {
		t.Errorf("learned anew %d times, want once for each way", relearned)
	}
}
