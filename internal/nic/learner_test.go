package nic

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/udp4791"
)

var (
	peer4 = netip.MustParseAddr("192.0.2.1")
	host4 = netip.MustParseAddr("192.0.2.2")
	peer6 = netip.MustParseAddr("2001:db8::1")
	host6 = netip.MustParseAddr("2001:db8::2")
)

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
	return l.check(m, &p, bth.GIDFromAddr(m.Dst))
}

// Identification 0, a forward window of 1,024 after the last proven one, and
// the index in a receive buffer are accepted; others start the learning anew.
func TestLearner(t *testing.T) {
	var l learner
	l.init(false)
	for _, tc := range []struct {
		name      string
		id        uint16
		seg       int
		relearned bool
	}{
		{"zero needs no learning", 0, 0, false},
		{"the first of a counting peer", 5000, 0, true},
		{"the next", 5001, 0, false},
		{"a jump within the window", 5001 + 1024, 0, false},
		{"a jump beyond it", 5001 + 1024 + 1025, 0, true},
		{"backwards", 7000, 0, true},
		{"zero again", 0, 0, false},
		{"still learned", 7001, 0, false},
		{"near the end", 65530, 0, true},
		{"over the end of 16 bits", 3, 0, false},
		{"the index in a receive buffer", 40, 40, false},
		{"which teaches nothing", 4, 0, false},
	} {
		b, m := sentPacket(peer4, host4, tc.id, 33)
		m.SegIndex = tc.seg
		v := checkOne(t, &l, b, &m)
		if !v.ok || v.relearned != tc.relearned || v.id != tc.id || !v.idKnown {
			t.Errorf("%s: identification %d: got %+v, want relearned %v", tc.name, tc.id, v, tc.relearned)
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
// one in 65,536 is explained by some identification; from a peer that uses 0,
// each of those is counted as learned anew.
func TestLearnerStrength(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	var l learner
	l.init(false)
	const n = 400_000
	accepted, relearned := 0, 0
	b, m := sentPacket(peer4, host4, 0, 64)
	for range n {
		bad := append([]byte(nil), b...)
		at := rng.IntN(len(bad)-12) + 12
		bad[at] ^= byte(1 + rng.IntN(255))
		bad[12+rng.IntN(len(bad)-12)] ^= byte(rng.IntN(256))
		v := checkOne(t, &l, bad, &m)
		if v.ok && string(bad) != string(b) {
			accepted++
			if v.relearned {
				relearned++
			}
		}
	}
	// The mean is n/65536, some 6; 40 is out of reach for chance.
	if accepted > 40 {
		t.Errorf("%d of %d corrupted packets accepted, want about %d", accepted, n, n/65536)
	}
	t.Logf("%d of %d corrupted packets accepted, %d of them counted as learned anew", accepted, n, relearned)
}

func TestLearnerForgets(t *testing.T) {
	var l learner
	l.init(false)
	for i := range maxPeers + 100 {
		src := netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)})
		b, m := sentPacket(src, host4, 9, 4)
		checkOne(t, &l, b, &m)
	}
	if len(l.last) > maxPeers {
		t.Errorf("peers remembered: got %d, limit %d", len(l.last), maxPeers)
	}
}
