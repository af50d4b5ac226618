package wire

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/softroce/softroce/pkg/bth"
)

// readPcap returns the IP packets of a pcap file of Ethernet frames or raw IP.
func readPcap(t testing.TB, path string) (out [][]byte) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	le := binary.LittleEndian
	link := map[uint32]int{1: 14, 101: 0, 113: 16}
	skip, ok := link[le.Uint32(b[20:])]
	if !ok {
		t.Fatalf("%s: link type %d", path, le.Uint32(b[20:]))
	}
	for b = b[24:]; len(b) > 0; {
		n := int(le.Uint32(b[8:]))
		out = append(out, b[16+skip:16+n])
		b = b[16+n:]
	}
	return out
}

// What kernel rxe sent parses with a right ICRC, and Build makes the same bytes from what the parse says.
func TestBuildAndParseKernelPackets(t *testing.T) {
	files, _ := filepath.Glob("../../pkg/bth/testdata/captures/*.pcap")
	n := 0
	for _, file := range files {
		for i, ip := range readPcap(t, file) {
			f := ParseIP(ip)
			if f.Err != nil || f.NotUDP || !f.ICRCOK {
				t.Errorf("%s, packet %d: err %v, not UDP %v, ICRC right %v", file, i+1, f.Err, f.NotUDP, f.ICRCOK)
				continue
			}
			if err := f.Deliverable(); err != nil {
				t.Errorf("%s, packet %d: a host would not deliver it: %v", file, i+1, err)
			}
			p := &Packet{
				Headers: f.RoCE.Headers(), Payload: f.RoCE.Payload, Pad: f.RoCE.PadBytes(),
				TOS: f.TOS, TTL: f.TTL, ID: f.ID, Frag: f.Frag, FragSet: true, SrcPort: f.SrcPort,
			}
			if f.Src.Is6() {
				p.FlowLabel = be.Uint32(f.IP) & 0xFFFFF
			}
			if f.UDPSum != 0 {
				p.UDPSum = SumRight
			}
			if got := Build(p, f.Src, f.Dst); !bytes.Equal(got, f.IP) {
				t.Errorf("%s, packet %d:\n got % x\nwant % x", file, i+1, got, f.IP)
			}
			n++
		}
	}
	if n < 1000 {
		t.Errorf("%d packets read, want more than 1000", n)
	}
}

func write(n int) *Packet {
	return &Packet{
		Headers: bth.Headers{
			BTH:  bth.BTHFields{Opcode: bth.RCWriteOnly, PKey: bth.DefaultPKey, DestQP: 0x11, PSN: 7, AckReq: true},
			RETH: bth.RETHFields{VA: 0x1000, RKey: 0x77, Length: uint32(n)},
		},
		Payload: bytes.Repeat([]byte{0xA5}, n),
	}
}

// over sends a packet over a pair and returns what arrives.
func over(t *testing.T, a, b Link, p *Packet) *Frame {
	t.Helper()
	if err := a.Send(p); err != nil {
		t.Fatal(err)
	}
	f, ok, err := b.Receive(time.Now().Add(limit))
	if !ok || err != nil {
		t.Fatalf("receive: %v, %v", ok, err)
	}
	return f
}

// facts of a frame that a knob may change.
type seen struct {
	src, dst         netip.Addr
	tos, ttl         uint8
	id, frag         uint16
	flow             uint32
	ipLen, udpLen    int // beyond what is there
	sport, dport     uint16
	udpSum           UDPSum
	ipSum, icrc, udp bool
	options          string
	tagged           bool
	vlan             uint16
	extra            string
	roce             string // BTH to pad
	pads             int
	tail             int // bytes after the pad
}

func look(f *Frame, body int) (s seen) {
	s = seen{src: f.Src, dst: f.Dst, tos: f.TOS, ttl: f.TTL, id: f.ID, frag: f.Frag, sport: f.SrcPort, dport: f.DstPort}
	all := append(append([]byte(nil), f.IP...), f.Pad...)
	hdr := 40
	if f.Src.Is4() {
		hdr = int(all[0]&0xF) * 4
		s.options = string(all[20:hdr])
		s.ipSum = ipSum(all[:hdr]) == be.Uint16(all[10:])
	} else {
		s.flow = be.Uint32(all) & 0xFFFFF
		s.ipSum = true
	}
	s.tagged, s.vlan, s.extra = f.Tagged, f.VLAN, string(f.Pad)
	s.ipLen, s.udpLen = f.IPLen, int(f.UDPLen)
	switch f.UDPSum {
	case 0:
		s.udpSum = SumZero
	case udpSum(all[:len(f.IP)], hdr):
		s.udpSum = SumRight
	default:
		s.udpSum = SumWrong
	}
	s.icrc, s.udp = f.ICRCOK, !f.NotUDP
	rest := all[hdr+8:]
	s.roce = string(rest[:min(body, len(rest))])
	s.pads = f.RoCE.Pad
	s.tail = len(rest) - min(body, len(rest))
	return s
}

// Each knob changes what it says, and nothing else.
func TestEachKnobIsSeenAlone(t *testing.T) {
	for _, version := range []string{"4", "6"} {
		a, b := Pair()
		if version == "6" {
			a, b = Pair6()
		}
		turnKnobs(t, a, b, version, false)
	}
}

// turnKnobs sends a packet for each knob from a to b. A wire is one between hosts, whose links do not receive all.
func turnKnobs(t *testing.T, a, b Link, version string, wire bool) {
	t.Helper()
	const n = 6 // payload; 2 bytes of pad
	body := bth.BTHLen + bth.RETHLen + 8
	other4, other6 := netip.MustParseAddr("192.0.2.77"), netip.MustParseAddr("2001:db8::77")
	lens := func(d int) func(*seen) { return func(s *seen) { s.ipLen += d; s.udpLen += d; s.tail += d } }
	knobs := []struct {
		name     string
		set      func(*Packet)
		want     func(*seen)
		v4, v6   bool
		moreBody int
	}{
		{"none", func(*Packet) {}, func(*seen) {}, true, true, 0},
		{"source 4", func(p *Packet) { p.Src = other4 }, func(s *seen) { s.src = other4 }, true, false, 0},
		{"destination 4", func(p *Packet) { p.Dst = other4 }, func(s *seen) { s.dst = other4 }, true, false, 0},
		{"source 6", func(p *Packet) { p.Src = other6 }, func(s *seen) { s.src = other6 }, false, true, 0},
		{"destination 6", func(p *Packet) { p.Dst = other6 }, func(s *seen) { s.dst = other6 }, false, true, 0},
		{"TOS", func(p *Packet) { p.TOS = 0xB9 }, func(s *seen) { s.tos = 0xB9 }, true, true, 0},
		{"TTL", func(p *Packet) { p.TTL = 3 }, func(s *seen) { s.ttl = 3 }, true, true, 0},
		{"ID", func(p *Packet) { p.ID = 0x1234 }, func(s *seen) { s.id = 0x1234 }, true, false, 0},
		{"frag", func(p *Packet) { p.FragSet = true }, func(s *seen) { s.frag = 0 }, true, false, 0},
		{"options", func(p *Packet) { p.Options = []byte{1, 1, 1, 0} }, func(s *seen) { s.options, s.ipLen = "\x01\x01\x01\x00", s.ipLen+4 }, true, false, 0},
		{"flow", func(p *Packet) { p.FlowLabel = 0x54321 }, func(s *seen) { s.flow = 0x54321 }, false, true, 0},
		{"bad IP sum", func(p *Packet) { p.BadIPSum = true }, func(s *seen) { s.ipSum = false }, true, false, 0},
		{"source port", func(p *Packet) { p.SrcPort = 0xD001 }, func(s *seen) { s.sport = 0xD001 }, true, true, 0},
		{"source port 0", func(p *Packet) { p.SrcPortZero = true }, func(s *seen) { s.sport = 0 }, true, true, 0},
		{"port", func(p *Packet) { p.DstPort = 4792 }, func(s *seen) { s.dport, s.udp = 4792, false }, true, true, 0},
		{"UDP length less", func(p *Packet) { p.UDPLen = -4 }, func(s *seen) { s.udpLen -= 4; s.icrc = false }, true, true, 0},
		{"UDP length more", func(p *Packet) { p.UDPLen = 4 }, func(s *seen) { s.udpLen += 4 }, true, true, 0},
		{"UDP sum right", func(p *Packet) { p.UDPSum = SumRight }, func(s *seen) { s.udpSum = SumRight }, true, true, 0},
		{"UDP sum wrong", func(p *Packet) { p.UDPSum = SumWrong }, func(s *seen) { s.udpSum = SumWrong }, true, true, 0},
		{"IP length more", func(p *Packet) { p.IPLen = 4 }, func(s *seen) { s.ipLen += 4 }, true, true, 0},
		{"VLAN", func(p *Packet) { p.VLAN = 0x6005 }, func(s *seen) { s.tagged, s.vlan = true, 0x6005 }, true, true, 0},
		{"tag", func(p *Packet) { p.Tagged = true }, func(s *seen) { s.tagged = true }, true, true, 0},
		{"extra", func(p *Packet) { p.Extra = []byte("xy") }, func(s *seen) { s.extra = "xy"; s.tail += 2 }, true, true, 0},
		{"ICRC wrong", func(p *Packet) { p.ICRC = func(r uint32) []byte { return bth.AppendICRC(nil, ^r) } }, func(s *seen) { s.icrc = false }, true, true, 0},
		{"ICRC none", func(p *Packet) { p.ICRC = func(uint32) []byte { return nil } }, func(s *seen) { lens(-4)(s); s.icrc = false }, true, true, 0},
		{"late", func(p *Packet) { p.Late = func(ip []byte) { ip[len(ip)-1] ^= 1 } }, func(s *seen) { s.icrc = false }, true, true, 0},
		{"pad bytes", func(p *Packet) { p.Pad, p.BTH.Pad = []byte{9, 8}, 2 }, func(s *seen) { s.roce = s.roce[:len(s.roce)-2] + "\x09\x08" }, true, true, 0},
		{"pad count", func(p *Packet) { p.Pad = []byte{0, 0} }, func(s *seen) { s.pads = 0; s.roce = s.roce[:1] + string(s.roce[1]&^0x30) + s.roce[2:] }, true, true, 0},
		{"pad none", func(p *Packet) { p.Pad, p.BTH.Pad = []byte{}, 2 }, func(s *seen) { lens(-2)(s); s.tail += 2; s.roce = s.roce[:len(s.roce)-2] }, true, true, -2},
		{"RoCE", func(p *Packet) { p.Roce = []byte("abc") }, func(s *seen) { lens(3 - body)(s); s.tail = 4; s.roce, s.pads = "abc", 0 }, true, true, 3 - body},
	}
	for _, k := range knobs {
		if version == "4" && !k.v4 || version == "6" && !k.v6 || wire && k.name == "port" {
			continue
		}
		t.Run(k.name+" IPv"+version, func(t *testing.T) {
			want := look(over(t, a, b, write(n)), body)
			k.want(&want)
			p := write(n)
			k.set(p)
			if got := look(over(t, a, b, p), body+k.moreBody); got != want {
				t.Errorf("\n got %+v\nwant %+v", got, want)
			}
		})
	}
}

// The ICRC that Build asks for agrees with bth's own for the packets that bth knows.
func TestICRCAgreesWithBTH(t *testing.T) {
	for n := range 9 {
		for _, addrs := range [][2]netip.Addr{pair4, pair6} {
			p := write(n)
			p.ID, p.TOS, p.TTL, p.BTH.FECN = 77, 3, 9, true
			var right uint32
			p.ICRC = func(r uint32) []byte { right = r; return bth.AppendICRC(nil, r) }
			ip := Build(p, addrs[0], addrs[1])
			if want, got, err := bth.ICRCOfIPPacket(ip); err != nil || want != got || want != right {
				t.Errorf("payload of %d bytes from %v: ICRC %08x, in the packet %08x, want %08x, %v", n, addrs[0], right, got, want, err)
			}
		}
	}
}
