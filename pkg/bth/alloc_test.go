package bth

import (
	"testing"
)

// sink keeps the compiler from leaving out what a test or benchmark computes.
var sink uint32

// TestNoAllocation: nothing on the way of a packet allocates.
func TestNoAllocation(t *testing.T) {
	roce := vectors[5].roce(t) // RC WRITE Only
	ack := vectors[4].roce(t)
	big := make([]byte, 4096+32)
	copy(big, roce)
	dst := make([]byte, 8192)
	ip := unhex(t, vectors[3].packet)
	net := vectors[3].net
	var p Packet
	var h Headers
	PatchICRC(0, 0, 1, len(big)) // makes the tables of this length
	for name, f := range map[string]func(){
		"Parse":          func() { _ = p.Parse(roce); sink += p.RETH().RKey() + p.BTH().Fields().PSN.hash() },
		"Headers":        func() { _ = p.Parse(roce); h = p.Headers() },
		"Append":         func() { sink += uint32(len(AppendICRC(AppendPad(h.Append(dst[:0]), 5), 1))) },
		"Seed":           func() { sink += net.Seed(4128) },
		"ICRC":           func() { sink += ICRC(net.Seed(len(big)), big[:len(big)-4]) },
		"ICRC of an ACK": func() { sink += ICRC(net.Seed(len(ack)), ack[:len(ack)-4]) },
		"CopyICRC":       func() { sink += CopyICRC(1, dst, big) },
		"PatchICRC":      func() { sink += PatchICRC(sink, 0, 7, len(big)) },
		"PatchICRC, odd": func() { sink += PatchICRC(sink, 0, 7, 41) },
		"SolveID":        func() { id, _ := SolveID(sink, 1, len(big)); sink += uint32(id) },
		"ICRCOfIPPacket": func() { w, _, _ := ICRCOfIPPacket(ip); sink += w },
		"String":         func() { sink += uint32(len(p.Opcode.String())) },
	} {
		if n := testing.AllocsPerRun(200, f); n != 0 {
			t.Errorf("%s: %v allocations a run", name, n)
		}
	}
}

func (p PSN) hash() uint32 { return uint32(p) }

func BenchmarkParse(b *testing.B) {
	roce := vectors[5].roce(b)
	var p Packet
	b.ReportAllocs()
	for b.Loop() {
		if p.Parse(roce) != nil {
			b.Fatal("refused")
		}
		sink += p.RETH().RKey()
	}
}

func BenchmarkAppend(b *testing.B) {
	var p Packet
	if err := p.Parse(vectors[5].roce(b)); err != nil {
		b.Fatal(err)
	}
	h := p.Headers()
	buf := make([]byte, 0, 64)
	b.ReportAllocs()
	for b.Loop() {
		buf = h.BTH.Append(buf[:0])
		buf = h.RETH.Append(buf)
	}
}

func BenchmarkICRC(b *testing.B) {
	net := vectors[3].net
	for _, c := range []struct {
		name string
		n    int
	}{{"ACK", 16}, {"64", 64 + 12}, {"1024", 1024 + 12}, {"4096", 4096 + 12}} {
		roce := make([]byte, c.n)
		b.Run(c.name, func(b *testing.B) {
			b.SetBytes(int64(c.n))
			for b.Loop() {
				sink += ICRC(net.Seed(c.n+ICRCLen), roce)
			}
		})
	}
}

func BenchmarkSeed(b *testing.B) {
	net := vectors[3].net
	for b.Loop() {
		sink += net.Seed(4128)
	}
}

func BenchmarkCopyICRC(b *testing.B) {
	src, dst := make([]byte, 4096), make([]byte, 4096)
	b.SetBytes(4096)
	for b.Loop() {
		sink += CopyICRC(sink, dst, src)
	}
}

func BenchmarkPatchICRC(b *testing.B) {
	for b.Loop() {
		sink = PatchICRC(sink, 0, uint16(sink), 4128)
	}
}

func BenchmarkSolveID(b *testing.B) {
	for b.Loop() {
		id, _ := SolveID(sink, 1, 4128)
		sink += uint32(id) + 1
	}
}
