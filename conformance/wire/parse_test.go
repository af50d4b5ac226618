package wire

import (
	"errors"
	"net/netip"
	"path/filepath"
	"testing"

	"github.com/softroce/softroce/pkg/bth"
)

// deliveries are packets that a host delivers, and others.
var deliveries = []struct {
	name string
	set  func(*Packet)
	want error
	v6   bool // the same with IPv6
}{
	{"right", func(*Packet) {}, nil, true},
	{"UDP sum", func(p *Packet) { p.UDPSum = SumRight }, nil, true},
	{"wrong UDP sum", func(p *Packet) { p.UDPSum = SumWrong }, errUDPSum, true},
	{"wrong IP sum", func(p *Packet) { p.BadIPSum = true }, errIPSum, false},
	{"port", func(p *Packet) { p.DstPort = 4792 }, errNotPort, true},
	{"source port alone", func(p *Packet) { p.DstPort, p.SrcPort = 4792, Port }, errNotPort, true},
	{"options", func(p *Packet) { p.Options = []byte{1, 1, 1, 0} }, nil, false},
	{"first fragment", func(p *Packet) { p.FragSet, p.Frag = true, 0x2000 }, bth.ErrIPFragment, false},
	{"later fragment", func(p *Packet) { p.FragSet, p.Frag = true, 0x0010 }, bth.ErrIPFragment, false},
	{"may be cut", func(p *Packet) { p.FragSet = true }, nil, false},
	{"IP length more", func(p *Packet) { p.IPLen = 1 }, bth.ErrIPHeader, true},
	{"IP length less", func(p *Packet) { p.IPLen = -1 }, bth.ErrUDPLength, true},
	{"UDP length more", func(p *Packet) { p.UDPLen = 1 }, bth.ErrUDPLength, true},
	{"UDP length less", func(p *Packet) { p.UDPLen = -4 }, nil, true},
	{"UDP length less, with a checksum of that", func(p *Packet) { p.UDPLen, p.UDPSum = -4, SumRight }, nil, true},
	{"UDP length far too small", func(p *Packet) { p.UDPLen = -44 }, bth.ErrUDPLength, true},
	{"header length", func(p *Packet) { p.Late = func(ip []byte) { ip[0] = 0x44 } }, bth.ErrIPHeader, false},
	{"version", func(p *Packet) { p.Late = func(ip []byte) { ip[0] = 0x55 } }, bth.ErrIPHeader, true},
	{"wrong ICRC", func(p *Packet) { p.ICRC = func(uint32) []byte { return make([]byte, 4) } }, nil, true},
	{"junk", func(p *Packet) { p.Roce = []byte{1} }, nil, true},
}

// A host delivers what is right, and says what is not.
func TestDeliverable(t *testing.T) {
	for _, c := range deliveries {
		for _, a := range [][2]netip.Addr{pair4, pair6} {
			if a[0].Is6() && !c.v6 {
				continue
			}
			p := write(8)
			c.set(p)
			if got := ParseIP(Build(p, a[0], a[1])).Deliverable(); !errors.Is(got, c.want) || (got == nil) != (c.want == nil) {
				t.Errorf("%s from %v: %v, want %v", c.name, a[0], got, c.want)
			}
		}
	}
}

// A right checksum that comes out as zero goes as all ones: zero would say that there is none.
func TestChecksumIsNeverZero(t *testing.T) {
	for _, a := range [][2]netip.Addr{pair4, pair6} {
		p := write(8)
		p.UDPSum = SumRight
		got := ParseIP(Build(p, a[0], a[1])).UDPSum
		p = write(8)
		p.UDPSum = SumRight
		p.ICRC = func(right uint32) []byte { // as much more as makes the sum zero
			b := bth.AppendICRC(nil, right)
			return be.AppendUint16(b[:2], uint16(sum(uint32(got), b[2:])))
		}
		if got := ParseIP(Build(p, a[0], a[1])); got.UDPSum != 0xFFFF || got.Deliverable() != nil {
			t.Errorf("checksum %#04x, deliverable: %v", got.UDPSum, got.Deliverable())
		}
	}
}

// Of ICMP only errors are received, those that are about RoCEv2 or that do not say.
func TestICMPOfInterest(t *testing.T) {
	about := func(a [2]netip.Addr, src, dst uint16) []byte {
		p := write(0)
		p.SrcPort, p.DstPort = src, dst
		return Build(p, a[0], a[1])
	}
	for _, c := range []struct {
		name     string
		proto    uint8
		kind     uint8
		src, dst uint16
		cut      int
		want     bool
	}{
		{"unreachable", protoICMP, 3, 5000, Port, 28, true},
		{"unreachable, from the port", protoICMP, 3, Port, 5000, 28, true},
		{"time exceeded", protoICMP, 11, 5000, Port, 28, true},
		{"another program's", protoICMP, 3, 5000, 5001, 28, false},
		{"cut before the ports", protoICMP, 3, 5000, 5001, 23, true},
		{"about nothing", protoICMP, 3, 0, 0, 0, true},
		{"echo", protoICMP, 8, 5000, Port, 28, false},
		{"echo reply", protoICMP, 0, 5000, Port, 28, false},
		{"another protocol", 2, 3, 5000, Port, 28, false},
		{"unreachable 6", protoICMPv6, 1, 5000, Port, 48, true},
		{"another program's 6", protoICMPv6, 1, 5000, 5001, 48, false},
		{"cut before the ports 6", protoICMPv6, 1, 5000, 5001, 43, true},
		{"neighbour solicitation", protoICMPv6, 135, 5000, Port, 48, false},
	} {
		a, at := pair4, 9
		if c.proto == protoICMPv6 {
			a, at = pair6, 6
		}
		outer := about(a, 1, 2)
		hdr := headerLen(outer)
		inner := about(a, c.src, c.dst)
		outer[at] = c.proto
		msg := append(append(outer[:hdr:hdr], c.kind, 0, 0, 0, 0, 0, 0, 0), inner[:c.cut]...)
		if c.proto == protoICMPv6 {
			be.PutUint16(msg[4:], uint16(len(msg)-hdr))
		} else {
			be.PutUint16(msg[2:], uint16(len(msg)))
		}
		if f := ParseIP(msg); f.isError() != c.want || !f.NotUDP {
			t.Errorf("%s: %v, want %v", c.name, f.isError(), c.want)
		}
	}
}

// A checksum that was left to the device is made even where what stands in its place is zero; one that is not there stays so.
func TestChecksumOfSegments(t *testing.T) {
	for _, partial := range []bool{false, true} {
		ip := Build(write(64), pair4[0], pair4[1])
		for _, size := range []int{0, 32} {
			for _, seg := range whole(offload{partial, size}, append([]byte(nil), ip...)) {
				f := ParseIP(seg)
				if f.Deliverable() != nil || (f.UDPSum != 0) != partial {
					t.Errorf("partial %v, segments of %d: checksum %#04x, %v", partial, size, f.UDPSum, f.Deliverable())
				}
			}
		}
	}
}

// No bytes make the parser panic, and no two of its answers disagree.
func FuzzParseIP(f *testing.F) {
	files, _ := filepath.Glob("../../pkg/bth/testdata/captures/rc_*.pcap")
	for _, file := range files {
		for _, ip := range readPcap(f, file)[:2] {
			f.Add(ip)
		}
	}
	p := write(9)
	p.Options = []byte{1, 1, 1, 0}
	f.Add(Build(p, pair4[0], pair4[1]))
	f.Add([]byte{0x45, 0, 0, 36, 0, 0, 0, 0, 64, 1, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 3, 3, 0, 0, 0, 0, 0, 0, 0x40, 0, 0, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, ip []byte) {
		got := ParseIP(ip)
		deliverable := got.Deliverable()
		if len(got.IP)+len(got.Pad) != len(ip) {
			t.Errorf("%d bytes and %d more of %d", len(got.IP), len(got.Pad), len(ip))
		}
		if deliverable == nil && (got.NotUDP || got.DstPort != Port) {
			t.Errorf("deliverable: %+v", got)
		}
		if want, has, err := bth.ICRCOfIPPacket(ip); err == nil && got.Err == nil && got.ICRCOK != (want == has) {
			t.Errorf("ICRC right: %v, bth has %08x and %08x", got.ICRCOK, want, has)
		}
		if got.Src.IsValid() {
			got.isError()
		}
		whole(offload{true, 16}, append([]byte(nil), ip...))
		guessSize(ip)
	})
}
