package bth_test

import (
	"bytes"
	"testing"

	"github.com/softroce/softroce/pkg/bth"
)

// FuzzParse: parse, append, parse, equal; and no accessor panics.
func FuzzParse(f *testing.F) {
	seen := map[bth.Opcode]int{}
	for _, c := range readCaptures(f) {
		b := c.payload()
		if seen[bth.Opcode(b[0])]++; seen[bth.Opcode(b[0])] <= 3 {
			f.Add(b)
		}
	}
	for o := range 256 {
		f.Add(append([]byte{byte(o), 0x10}, make([]byte, 58)...))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var p, q bth.Packet
		before := bytes.Clone(b)
		if err := p.Parse(b); err != nil {
			if p.Info != nil || p.Payload != nil {
				t.Errorf("refused with %v, but Info %v, Payload % x", err, p.Info, p.Payload)
			}
			_ = p.BTH()
			return
		}
		again := rebuild(&p)
		if !bytes.Equal(again, b) || !bytes.Equal(before, b) {
			t.Fatalf("re-serialised to\n% x, want\n% x, input now\n% x", again, before, b)
		}
		if err := q.Parse(again); err != nil || q.Headers() != p.Headers() || q.ICRC() != p.ICRC() {
			t.Fatalf("parsed again: %v, %+v, want %+v", err, q.Headers(), p.Headers())
		}
	})
}

// FuzzICRC: the ICRC patched to any identification is the one computed for it,
// and the identification is solved; a flipped bit elsewhere is seen.
func FuzzICRC(f *testing.F) {
	for _, c := range readCaptures(f)[:40] {
		f.Add(c.payload(), uint16(c.number), uint16(0x8000), uint16(0))
	}
	f.Fuzz(func(t *testing.T, b []byte, id, newID, flip uint16) {
		if len(b) < bth.BTHLen || len(b) > 60000 {
			return
		}
		net := bth.NetHeader{
			Src: mapped([]byte{127, 0, 0, 1}), Dst: mapped([]byte{127, 0, 0, 2}), SrcPort: 0xC000, DstPort: 4791, ID: id,
		}
		n := len(b) + bth.ICRCLen
		v := bth.ICRC(net.Seed(n), b)
		net.ID = newID
		w := bth.ICRC(net.Seed(n), b)
		if got := bth.PatchICRC(v, id, newID, n); got != w {
			t.Fatalf("patched %#04x to %#04x: %08x, want %08x", id, newID, got, w)
		}
		net.ID = 0
		zero := bth.ICRC(net.Seed(n), b)
		if got, ok := bth.SolveID(v, zero, n); !ok || got != id {
			t.Fatalf("solved %#04x, %v, want %#04x", got, ok, id)
		}
		at := int(flip) % len(b)
		if at == 4 {
			return // masked
		}
		b[at] ^= 1 << (flip % 8)
		net.ID = id
		if bth.ICRC(net.Seed(n), b) == v {
			t.Fatalf("bit %d of byte %d is not covered", flip%8, at)
		}
		b[at] ^= 1 << (flip % 8)
	})
}

// FuzzIPPacket: no bytes make ICRCOfIPPacket panic or write.
func FuzzIPPacket(f *testing.F) {
	for _, c := range readCaptures(f)[:40] {
		f.Add(c.ip)
	}
	f.Fuzz(func(t *testing.T, ip []byte) {
		before := bytes.Clone(ip)
		_, _, _ = bth.ICRCOfIPPacket(ip)
		if !bytes.Equal(before, ip) {
			t.Fatalf("input changed to % x from % x", ip, before)
		}
	})
}
