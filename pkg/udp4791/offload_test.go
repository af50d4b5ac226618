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

// needSegments skips where the kernel does not cut datagrams, needMerges where
// it does not merge them.
func needSegments(t testing.TB, g *Group) {
	t.Helper()
	if !g.Segments() {
		t.Skip("this kernel has no UDP_SEGMENT")
	}
}

func needMerges(t testing.TB, g *Group) {
	t.Helper()
	if !g.Merges() {
		t.Skip("this kernel has no UDP_GRO")
	}
}

func TestParseOffload(t *testing.T) {
	for _, o := range []Offload{OffloadAuto, OffloadOn, OffloadOff} {
		if got, err := ParseOffload(o.String()); err != nil || got != o {
			t.Errorf("%v is parsed as %v, %v", o, got, err)
		}
	}
	for _, s := range []string{"", "ON", "yes", "off ", "unknown"} {
		if got, err := ParseOffload(s); err == nil || !strings.Contains(err.Error(), "want auto, on or off") {
			t.Errorf("%q is parsed as %v, %v", s, got, err)
		}
	}
	if s := Offload(3).String(); s != "unknown" {
		t.Errorf("Offload(3) is %q", s)
	}
	if _, err := Open(Config{Addrs: testaddr.Take(t, 1), Offload: 3}); err == nil || !strings.Contains(err.Error(), "unknown offload 3") {
		t.Errorf("open with offload 3: %v", err)
	}
}

// What is asked for is what the sockets have: with offload off none of them
// merges, and an operator is told what that costs.
func TestOffloadIsWhatWasAskedFor(t *testing.T) {
	for _, c := range []struct {
		offload Offload
		on      bool
		note    string
	}{{OffloadAuto, true, ""}, {OffloadOn, true, ""}, {OffloadOff, false, "switched off"}} {
		t.Run(c.offload.String(), func(t *testing.T) {
			g, err := Open(Config{Addrs: testaddr.Take(t, 2), Workers: 2, RecvBuffer: 100000, SendBuffer: 100000, Offload: c.offload})
			if err != nil && c.offload == OffloadOn {
				t.Skipf("this kernel cannot: %v", err)
			} else if err != nil {
				t.Fatal(err)
			}
			defer g.Close()
			if c.on {
				needSegments(t, g)
				needMerges(t, g)
			}
			if g.Segments() != c.on || g.Merges() != c.on {
				t.Errorf("segments %v, merges %v; want %v", g.Segments(), g.Merges(), c.on)
			}
			for w := range g.Workers() {
				for _, fd := range g.Endpoint(w).FDs() {
					n, err := unix.GetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_GRO)
					if err != nil || n != 0 != c.on {
						t.Errorf("worker %d: UDP_GRO is %d, %v", w, n, err)
					}
				}
			}
			all := strings.Join(g.Notes(), "\n")
			if said := strings.Contains(all, "offload"); said != (c.note != "") || !strings.Contains(all, c.note) {
				t.Errorf("notes, want %q:\n%s", c.note, all)
			}
		})
	}
}

// A kernel that lacks one or both is named in a note; nothing is said where all
// is there.
func TestMissingOffloadIsNoted(t *testing.T) {
	for _, c := range []struct {
		segments, merges bool
		want             string
	}{
		{false, false, "no UDP segmentation and no receive offload"},
		{false, true, "no UDP segmentation offload"},
		{true, false, "no UDP receive offload"},
		{true, true, ""},
	} {
		g := &Group{segments: c.segments, merges: c.merges}
		if n := g.offloadNote(); !strings.Contains(n, c.want) || (n == "") != (c.want == "") {
			t.Errorf("segments %v, merges %v: %q, want %q", c.segments, c.merges, n, c.want)
		}
	}
}

// pattern is n bytes of a BTH to QPN 0 and content that differs from place to
// place.
func pattern(n int) []byte {
	b := bth(0, "")
	for i := len(b); i < n; i++ {
		b = append(b, byte(i*7+i>>8))
	}
	return b[:n]
}

// cut is how a segmented send arrives at a plain socket.
func cut(b []byte, segment int) (out []string) {
	for len(b) > 0 {
		n := min(segment, len(b))
		out = append(out, string(b[:n]))
		b = b[n:]
	}
	return out
}

var segmentedSends = []struct {
	name          string
	size, segment int
	tos, ttl      uint8
	label         uint32
	together      int // datagrams
}{
	{name: "two", size: 200, segment: 100, together: 2},
	{name: "two of the largest packet", size: 2 * BufferSize, segment: BufferSize, together: 2},
	{name: "the last shorter", size: 2500, segment: 1040, together: 3},
	{name: "the last of one byte", size: 2*1040 + 1, segment: 1040, together: 3},
	{name: "most segments", size: MaxSegments * 60, segment: 60, together: MaxSegments},
	{name: "most segments, the last shorter", size: MaxSegments*60 - 59, segment: 60, together: MaxSegments},
	{name: "most bytes", size: MaxSegmented, segment: 4112, together: 16},
	{name: "most of both", size: MaxSegmented, segment: 1024, together: MaxSegments},
	{name: "more than a device takes", size: 65507, segment: 1024, together: 64},
	{name: "one of them", size: 1000, segment: 2000, together: 1},
	{name: "exactly one of them", size: 1000, segment: 1000, together: 1},
	{name: "traffic class", size: 3000, segment: 1000, tos: 0x62, together: 3},
	{name: "traffic class and hop limit", size: 3000, segment: 1000, tos: 0xFF, ttl: 7, together: 3},
	{name: "flow label, IPv6 alone", size: 3000, segment: 1000, label: 0xABCDE, tos: 3, ttl: 255, together: 3},
}

// A segmented send arrives as its datagrams at a socket without offload, and in
// one piece with their length where the kernel merges. Either way the IP facts
// are those of a single datagram.
func TestSegmentedSendArrives(t *testing.T) {
	for _, family := range families {
		t.Run(family, func(t *testing.T) {
			addrs := familyAddrs(t, family)
			a := mustOpen(t, Config{Addrs: addrs[:1]})
			needSegments(t, a)
			for _, offload := range []Offload{OffloadOff, OffloadAuto} {
				b := mustOpen(t, Config{Addrs: addrs[1:], Offload: offload})
				f, port := mustFlow(t, a.Endpoint(0), addrs[0], 0, 0)
				for _, c := range segmentedSends {
					buf := pattern(c.size)
					mustSend(t, a.Endpoint(0), SendSlot{
						Flow: f, Dst: addrs[1], Buf: buf, Segment: c.segment, TOS: c.tos, TTL: c.ttl, FlowLabel: c.label,
					})
					meta := RecvMeta{Src: netip.AddrPortFrom(addrs[0], port), Dst: addrs[1], TOS: c.tos, TTL: wireTTL(SendSlot{TTL: c.ttl})}
					want := cut(buf, c.segment)
					if len(want) != c.together {
						t.Fatalf("%s: the table says %d datagrams, %d are sent", c.name, c.together, len(want))
					}
					pieces, merged := receiveAll(t, b.Endpoint(0), len(want), meta)
					if !slicesEqual(pieces, want) {
						t.Errorf("%s, offload %v: %d datagrams that differ from the %d sent", c.name, offload, len(pieces), len(want))
					}
					if b.Merges() && len(want) > 1 && c.size <= MaxSegmented && merged != len(want) {
						t.Errorf("%s: %d datagrams came in the largest buffer, want all %d", c.name, merged, len(want))
					}
					if !b.Merges() && merged != 0 {
						t.Errorf("%s: without offload %d datagrams came in one buffer", c.name, merged)
					}
				}
				expectNone(t, b.Endpoint(0))
				if err := b.Close(); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

func slicesEqual(a, b []string) bool {
	return strings.Join(a, "|") == strings.Join(b, "|") && len(a) == len(b)
}

// receiveAll reads n datagrams, checks the facts of each buffer, and says how
// many were in the largest merged one.
func receiveAll(t *testing.T, e *Endpoint, n int, want RecvMeta) (pieces []string, merged int) {
	t.Helper()
	for len(pieces) < n {
		slots, err := e.ReadBatch()
		if err != nil {
			t.Fatal(err)
		}
		if len(slots) == 0 && !pollFDs(t, e.FDs(), unix.POLLIN) {
			t.Fatalf("%d of %d datagrams came", len(pieces), n)
		}
		for _, s := range slots {
			if s.Meta != want {
				t.Errorf("got  %+v\nwant %+v", s.Meta, want)
			}
			if s.Segment == 0 {
				pieces = append(pieces, string(s.Buf))
				continue
			}
			if s.Segment < 0 || s.Segment >= len(s.Buf) {
				t.Fatalf("segments of %d bytes in a buffer of %d", s.Segment, len(s.Buf))
			}
			got := cut(s.Buf, s.Segment)
			pieces, merged = append(pieces, got...), max(merged, len(got))
		}
	}
	return pieces, merged
}

// Segmented and single slots of one call keep their order, and what one header
// carried does not show in the next one that uses it.
func TestSegmentedAndSingleInOneBatch(t *testing.T) {
	addrs := testaddr.Take(t, 2)
	a := mustOpen(t, Config{Addrs: addrs[:1], Batch: 3})
	b := mustOpen(t, Config{Addrs: addrs[1:], Offload: OffloadOff})
	needSegments(t, a)
	f, _ := mustFlow(t, a.Endpoint(0), addrs[0], 0, 0)
	var slots []SendSlot
	var want []string
	for i := range 40 {
		s := SendSlot{Flow: f, Dst: addrs[1], Buf: append(seq(i), pattern(300)...)}
		if i%2 == 0 {
			s.Segment = 100 + i
		}
		if i%5 == 0 {
			s.TOS, s.TTL = uint8(i), uint8(100+i)
		}
		size := s.Segment
		if size == 0 {
			size = len(s.Buf)
		}
		slots, want = append(slots, s), append(want, cut(s.Buf, size)...)
	}
	mustSend(t, a.Endpoint(0), slots...)
	for i, d := range collect(t, b.Endpoint(0), len(want)) {
		if d.Buf != want[i] {
			t.Fatalf("datagram %d has %d bytes, %q, want %d", i, len(d.Buf), d.Buf[:20], len(want[i]))
		}
	}
	expectNone(t, b.Endpoint(0))
}

// A segment longer than any packet is cut and marked, as a datagram of its own
// would be, and does not spoil the next one.
func TestLongSegmentsAreMarkedTruncated(t *testing.T) {
	addrs := testaddr.Take(t, 2)
	a := mustOpen(t, Config{Addrs: addrs[:1]})
	needSegments(t, a)
	for _, offload := range []Offload{OffloadOff, OffloadAuto} {
		b := mustOpen(t, Config{Addrs: addrs[1:], Offload: offload})
		f, _ := mustFlow(t, a.Endpoint(0), addrs[0], 0, 0)
		long := pattern(3*BufferSize + 3)
		slot := SendSlot{Flow: f, Dst: addrs[1], Buf: long, Segment: BufferSize + 1}
		mustSend(t, a.Endpoint(0), slot, SendSlot{Flow: f, Dst: addrs[1], Buf: []byte("next")})
		n := 4 // what comes: three of their own, or one for all
		if b.Merges() {
			n = 2
		}
		got := collect(t, b.Endpoint(0), n)
		for i, d := range got[:n-1] {
			want := long[i*(BufferSize+1):][:BufferSize]
			if !d.Meta.Truncated || d.Buf != string(want) {
				t.Errorf("offload %v: piece %d: truncated %v, %d bytes, want %d", offload, i, d.Meta.Truncated, len(d.Buf), BufferSize)
			}
		}
		if d := got[n-1]; d.Meta.Truncated || d.Buf != "next" {
			t.Errorf("offload %v: next one: %+v", offload, d)
		}
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// What the kernel refuses about a segmented send is that slot's alone, and the
// errno is one of those for which its datagrams are to be tried singly.
func TestSegmentedSendRefused(t *testing.T) {
	addrs := testaddr.Take(t, 2)
	a := mustOpen(t, Config{Addrs: addrs[:1]})
	needSegments(t, a)
	b := mustOpen(t, Config{Addrs: addrs[1:], Offload: OffloadOff})
	ea := a.Endpoint(0)
	f, _ := mustFlow(t, ea, addrs[0], 0, 0)
	// The kernel cuts nothing for a socket that sends no checksum.
	if err := unix.SetsockoptInt(ea.WriteFD(f), unix.SOL_SOCKET, unix.SO_NO_CHECK, 1); err != nil {
		t.Fatal(err)
	}
	slots := []SendSlot{
		{Flow: f, Dst: addrs[1], Buf: seq(0)},
		{Flow: f, Dst: addrs[1], Buf: pattern(300), Segment: 100},
		{Flow: f, Dst: addrs[1], Buf: seq(2)},
	}
	n, err := ea.WriteBatch(slots)
	var se *SendError
	if n != 1 || !errors.As(err, &se) || se.Errno != unix.EINVAL && se.Errno != unix.EIO && se.Errno != unix.EMSGSIZE {
		t.Fatalf("%d sent, %v; want 1 and EINVAL, EIO or EMSGSIZE", n, err)
	}
	mustSend(t, ea, slots[2:]...)
	for i, d := range collect(t, b.Endpoint(0), 2) {
		if d.Buf != string(seq(2*i)) {
			t.Errorf("datagram %d is %q", i, d.Buf)
		}
	}
	expectNone(t, b.Endpoint(0))
}

// Sending and receiving in segments allocates nothing.
func TestSegmentsDoNotAllocate(t *testing.T) {
	a, b := pair(t, "ipv4")
	needSegments(t, a)
	ea, eb := a.Endpoint(0), b.Endpoint(0)
	f, _ := mustFlow(t, ea, a.Addrs()[0], 0, 0)
	slots := []SendSlot{
		{Flow: f, Dst: b.Addrs()[0], Buf: bytes.Repeat([]byte{1}, 8192), Segment: 1024, TOS: 2},
		{Flow: f, Dst: b.Addrs()[0], Buf: []byte("an acknowledgement")},
	}
	n := testing.AllocsPerRun(200, func() {
		if n, err := ea.WriteBatch(slots); n != 2 || err != nil {
			t.Fatalf("%d sent, %v", n, err)
		}
		for got := 0; got < 8192+len(slots[1].Buf); {
			in, err := eb.ReadBatch()
			if err != nil {
				t.Fatal(err)
			}
			for i := range in {
				got += len(in[i].Buf)
			}
		}
	})
	if n > 0 {
		t.Errorf("%v allocations for each round", n)
	}
}
