package nic

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/transport"
	"github.com/softroce/softroce/pkg/udp4791"
)

var (
	toPeer4  = &route{dst: peer4, numbered: true, segments: true}
	toOther4 = &route{dst: netip.MustParseAddr("192.0.2.77"), numbered: true, segments: true}
	toPeer6  = &route{dst: peer6, segments: true}
	noCut4   = &route{dst: peer4, numbered: true}
)

// A part is a packet of n bytes of a queue pair, and what is not as the others'.
type part struct {
	n     int
	q     *qp
	qpn   bth.QPN
	flow  int32
	label uint32
	tos   uint8
	ttl   uint8
}

func newBatcher(segments bool) *batcher {
	b := &batcher{}
	b.init(segments)
	return b
}

// put builds a packet with a right ICRC for identification 0.
func (b *batcher) put(p part) {
	h := bth.BTHFields{Opcode: bth.RCWriteMiddle, PKey: bth.DefaultPKey, DestQP: p.qpn, PSN: bth.PSN(len(b.packets))}
	raw := h.Append(b.room()[:0])
	for len(raw) < p.n-bth.ICRCLen {
		raw = append(raw, byte(len(raw)*len(b.packets)))
	}
	raw = bth.AppendICRC(raw, icrcOf(p.q.route.dst, raw, 0))
	path := transport.Path{Flow: p.flow, FlowLabel: p.label, TrafficClass: p.tos, HopLimit: p.ttl, SrcPort: 0xC123}
	b.add(p.q, len(raw), &transport.Transmit{Path: &path, Opcode: h.Opcode, PSN: h.PSN})
}

func icrcOf(dst netip.Addr, raw []byte, id uint16) uint32 {
	src := host4
	if !dst.Is4() {
		src = host6
	}
	net := bth.NetHeader{Src: bth.GIDFromAddr(src), Dst: bth.GIDFromAddr(dst), SrcPort: 0xC123, DstPort: udp4791.Port, ID: id}
	return bth.ICRC(net.Seed(len(raw)+bth.ICRCLen), raw)
}

// checkRuns checks that each packet of what is to be sent lies in its run where
// it belongs, whole, and with the ICRC of its place.
func checkRuns(t *testing.T, b *batcher) {
	t.Helper()
	i := b.sent
	for r, s := range b.runs {
		buf, segment := s.Buf, s.Segment
		if segment == 0 {
			segment = len(buf)
		}
		if n := (len(buf) + segment - 1) / segment; n != b.lens[r] || n > udp4791.MaxSegments || len(buf) > udp4791.MaxSegmented {
			t.Errorf("run %d: %d bytes by %d, said to be %d packets", r, len(buf), segment, b.lens[r])
		}
		for k := 0; len(buf) > 0; k++ {
			p := &b.packets[i]
			raw := buf[:min(segment, len(buf))]
			id := uint16(k)
			if !p.route.numbered {
				id = 0
			}
			if !bytes.Equal(raw, b.bytes(p)) || s.Dst != p.route.dst || s.TOS != p.tos || s.TTL != p.ttl || s.FlowLabel != p.label || s.Flow != p.flow {
				t.Fatalf("run %d, packet %d of it: %d bytes to %v, not those of packet %d", r, k, len(raw), s.Dst, i)
			}
			end := len(raw) - bth.ICRCLen
			got, want := binary.LittleEndian.Uint32(raw[end:]), icrcOf(s.Dst, raw[:end], id)
			if got != want || p.id != id {
				t.Errorf("run %d, packet %d of it: ICRC %08x, want %08x; identification %d, want %d", r, k, got, want, p.id, id)
			}
			buf = buf[len(raw):]
			i++
		}
	}
	if i != len(b.packets) {
		t.Errorf("the runs hold packets up to %d, want all %d", i, len(b.packets))
	}
}

// many are n equal parts.
func many(n int, p part) []part { return slices.Repeat([]part{p}, n) }

// What shares a send: neighbours of equal length that have all but their bytes
// and queue pairs in common; only the last may be shorter.
func TestRuns(t *testing.T) {
	q, q2 := &qp{connection: connection{route: toPeer4}}, &qp{connection: connection{route: toPeer4}}
	other, six, uncut := &qp{connection: connection{route: toOther4}}, &qp{connection: connection{route: toPeer6}}, &qp{connection: connection{route: noCut4}}
	p := part{n: 100, q: q, qpn: 0x10}
	with := func(change func(*part)) part {
		c := p
		change(&c)
		return c
	}
	for _, c := range []struct {
		name  string
		parts []part
		want  []int // packets of each run
	}{
		{"one", many(1, p), []int{1}},
		{"equal ones", many(5, p), []int{5}},
		{"a shorter one ends it", []part{p, p, with(func(c *part) { c.n = 40 }), p, p}, []int{3, 2}},
		{"two shorter ones of equal length", []part{p, with(func(c *part) { c.n = 40 }), with(func(c *part) { c.n = 40 })}, []int{2, 1}},
		{"a longer one begins the next", []part{with(func(c *part) { c.n = 40 }), p, p}, []int{1, 2}},
		{"First is longer, then Middle and Last", []part{with(func(c *part) { c.n = 116 }), p, p, with(func(c *part) { c.n = 20 })}, []int{2, 2}},
		{"another queue pair of the same key", []part{p, with(func(c *part) { c.q, c.qpn = q2, 0x18 }), p}, []int{3}},
		{"another key", []part{p, with(func(c *part) { c.qpn = 0x11 }), p}, []int{1, 1, 1}},
		{"another destination", []part{p, with(func(c *part) { c.q = other }), p}, []int{1, 1, 1}},
		{"another flow", []part{p, with(func(c *part) { c.flow = 9 }), p}, []int{1, 1, 1}},
		{"another traffic class", []part{p, with(func(c *part) { c.tos = 2 }), p}, []int{1, 1, 1}},
		{"another hop limit", []part{p, with(func(c *part) { c.ttl = 2 }), p}, []int{1, 1, 1}},
		{"another flow label", []part{p, with(func(c *part) { c.label = 2 }), p}, []int{1, 1, 1}},
		{"most segments and one", many(udp4791.MaxSegments+1, p), []int{udp4791.MaxSegments, 1}},
		{"most bytes", many(32, part{n: 4112, q: q}), []int{15, 15, 2}},
		{"most bytes, and the last would be over", append(many(15, part{n: 4112, q: q}), part{n: 4112 - 16, q: q}), []int{15, 1}},
		{"most bytes, and the last just fits", append(many(15, part{n: 4112, q: q}), part{n: udp4791.MaxSegmented - 15*4112, q: q}), []int{16}},
		{"most bytes, and the last is one too long", append(many(15, part{n: 4112, q: q}), part{n: udp4791.MaxSegmented - 15*4112 + 1, q: q}), []int{15, 1}},
		{"IPv6", many(7, part{n: 100, q: six}), []int{7}},
		{"a route that does not cut", many(3, part{n: 100, q: uncut}), []int{1, 1, 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBatcher(true)
			for _, p := range c.parts {
				b.put(p)
			}
			b.group()
			if !slices.Equal(b.lens, c.want) {
				t.Errorf("runs of %v packets, want %v", b.lens, c.want)
			}
			checkRuns(t, b)
		})
	}
	t.Run("a kernel that does not cut", func(t *testing.T) {
		b := newBatcher(false)
		for _, p := range many(4, p) {
			b.put(p)
		}
		b.group()
		if !slices.Equal(b.lens, []int{1, 1, 1, 1}) {
			t.Errorf("runs of %v packets, want each for itself", b.lens)
		}
		checkRuns(t, b)
	})
}

// What a full socket refused is grouped anew: from another first packet, or
// singly, or with packets that came later. Each has the ICRC of its new place,
// as often as that changes.
func TestRegrouping(t *testing.T) {
	r := *toPeer4
	q := &qp{connection: connection{route: &r}}
	b := newBatcher(true)
	for range 9 {
		b.put(part{n: 100, q: q})
	}
	steps := []struct {
		name string
		do   func()
		want []int
	}{
		{"nine", func() {}, []int{9}},
		{"again", func() {}, []int{9}},
		{"three of them are gone", func() { b.sent = 3 }, []int{6}},
		{"two more come", func() { b.put(part{n: 100, q: q}); b.put(part{n: 60, q: q}) }, []int{8}},
		{"segmentation is off", func() { r.segments = false }, []int{1, 1, 1, 1, 1, 1, 1, 1}},
		{"one is gone", func() { b.sent++ }, []int{1, 1, 1, 1, 1, 1, 1}},
		{"segmentation is on", func() { r.segments = true }, []int{7}},
	}
	for _, s := range steps {
		s.do()
		b.group()
		if !slices.Equal(b.lens, s.want) {
			t.Errorf("%s: runs of %v packets, want %v", s.name, b.lens, s.want)
		}
		checkRuns(t, b)
	}
	b.reset()
	if b.group(); len(b.runs) != 0 || b.used != 0 || b.blocked() {
		t.Errorf("after a reset: %d runs, %d bytes", len(b.runs), b.used)
	}
	b.put(part{n: 100, q: q})
	b.group()
	checkRuns(t, b)
}

// The packets of a queue pair that is gone leave the batch: those around them
// are no longer one piece of memory, and so two runs.
func TestDroppedPacketsLeaveAHole(t *testing.T) {
	q, gone := &qp{connection: connection{route: toPeer4}}, &qp{connection: connection{route: toPeer4}}
	for _, c := range []struct {
		name  string
		order string // q's packets are x, the other's o
		sent  int
		want  []int
	}{
		{"in the middle", "xxooxxx", 0, []int{2, 3}},
		{"at the beginning", "ooxxx", 0, []int{3}},
		{"at the end", "xxxoo", 0, []int{3}},
		{"every other", "xoxoxo", 0, []int{1, 1, 1}},
		{"all", "ooo", 0, nil},
		{"behind what was sent", "xoxxoxx", 2, []int{2, 2}},
		{"what was sent stays", "oooxx", 3, []int{2}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBatcher(true)
			for _, o := range c.order {
				p := part{n: 100, q: q}
				if o == 'o' {
					p.q = gone
				}
				b.put(p)
			}
			b.sent, b.refused = c.sent, true
			b.group()
			if had := slices.ContainsFunc([]byte(c.order[c.sent:]), func(o byte) bool { return o == 'o' }); b.holds(gone) != had {
				t.Errorf("the batch holds packets of it: %v, want %v", b.holds(gone), had)
			}
			b.drop(gone)
			if b.holds(gone) {
				t.Error("the batch holds packets of a queue pair that was dropped")
			}
			b.group()
			if !slices.Equal(b.lens, c.want) {
				t.Errorf("runs of %v packets, want %v", b.lens, c.want)
			}
			checkRuns(t, b)
		})
	}
}

// A batch ends where the next packet may have no room, in packets or in bytes.
func TestBatchIsBounded(t *testing.T) {
	q := &qp{connection: connection{route: toPeer4}}
	for _, n := range []int{20, 1040, 4160} {
		t.Run(fmt.Sprint(n, " bytes"), func(t *testing.T) {
			b := newBatcher(true)
			count := 0
			for !b.full() {
				if len(b.room()) < transport.TransmitSpace {
					t.Fatalf("room of %d bytes, the engine wants %d", len(b.room()), transport.TransmitSpace)
				}
				b.put(part{n: n, q: q})
				count++
			}
			if want := min(batchPackets, batchBytes/n); count > want || count < want*9/10 {
				t.Errorf("%d packets of %d bytes, want about %d", count, n, want)
			}
			b.group()
			checkRuns(t, b)
		})
	}
}

// Grouping allocates nothing.
func TestGroupingDoesNotAllocate(t *testing.T) {
	q, q6 := &qp{connection: connection{route: toPeer4}}, &qp{connection: connection{route: toPeer6}}
	b := newBatcher(true)
	path := transport.Path{SrcPort: 0xC123}
	tx := transport.Transmit{Path: &path, Opcode: bth.RCWriteMiddle}
	n := testing.AllocsPerRun(50, func() {
		for i := 0; !b.full(); i++ {
			if i%100 < 70 {
				b.add(q, 1040, &tx)
			} else {
				b.add(q6, 80, &tx)
			}
		}
		b.group()
		b.sent = 5
		b.group()
		b.drop(q6)
		b.reset()
	})
	if n > 0 {
		t.Errorf("%v allocations a batch", n)
	}
}

// Middle packets that are built together join the run of the packet before them
// where they are as long, and begin one where they are not.
func TestMiddlesJoinRuns(t *testing.T) {
	for _, tc := range []struct {
		name  string
		first int // length of the packet before
		want  []int
	}{
		{"a SEND's First is as long", 1040, []int{1 + 61, 1}},
		{"a WRITE's First is longer, and takes one along", 1056, []int{2, 61}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var b batcher
			b.init(true)
			b.packets = append(b.packets, outgoing{n: tc.first, psn: 5, route: &route{segments: true, numbered: false}})
			b.used = tc.first
			b.last.add(tc.first)
			buf, most := b.middles(tc.first == 1040)
			if most > 64 || len(buf) > 65535 {
				t.Fatalf("room for %d packets, %d bytes", most, len(buf))
			}
			b.addMiddles(62, 1040, 6)
			b.group()
			if !slices.Equal(b.lens, tc.want) {
				t.Errorf("runs of %v packets, want %v", b.lens, tc.want)
			}
			for i := range b.packets {
				if p := &b.packets[i]; p.psn != bth.PSN(5+i) || i > 0 && p.at != tc.first+(i-1)*1040 {
					t.Errorf("packet %d: PSN %v at %d", i, p.psn, p.at)
				}
			}
		})
	}
}
