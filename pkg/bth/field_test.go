package bth

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"
)

// bitwiseICRC is the invariant CRC by its definition: the covered bytes laid out
// with ones where Annex A17 puts them, divided bit by bit. It shares nothing with
// the code under test.
func bitwiseICRC(src, dst GID, sport, id uint16, roce []byte) uint32 {
	b := bytes.Repeat([]byte{0xFF}, 8)
	u16 := func(v int) { b = append(b, byte(v>>8), byte(v)) }
	if src.Is4() {
		b = append(b, 0x45, 0xFF)
		u16(20 + 8 + len(roce) + 4)
		u16(int(id))
		b = append(b, 0x40, 0x00, 0xFF, 17, 0xFF, 0xFF)
		b = append(append(b, src[12:]...), dst[12:]...)
	} else {
		b = append(b, 0x6F, 0xFF, 0xFF, 0xFF)
		u16(8 + len(roce) + 4)
		b = append(b, 17, 0xFF)
		b = append(append(b, src[:]...), dst[:]...)
	}
	u16(int(sport))
	u16(4791)
	u16(8 + len(roce) + 4)
	b = append(b, 0xFF, 0xFF)
	b = append(append(append(b, roce[:4]...), 0xFF), roce[5:]...)
	crc := ^uint32(0)
	for _, c := range b {
		for bit := range 8 {
			carry := crc&1 != uint32(c)>>bit&1
			crc >>= 1
			if carry {
				crc ^= 0xEDB88320
			}
		}
	}
	return ^crc
}

// build makes a packet as an adapter does.
func build(h *Headers, payload []byte, net *NetHeader) []byte {
	h.BTH.Pad = PadLen(len(payload))
	b := h.Append(nil)
	b = append(b, payload...)
	b = AppendPad(b, len(payload))
	return AppendICRC(b, ICRC(net.Seed(len(b)+ICRCLen), b))
}

// TestF1_PadAndICRC: WRITE and SEND of every length 1..70 and PMTU-3..PMTU+3, over
// IPv4 and IPv6. PadCnt is -len modulo 4, pad bytes are 0 and in the ICRC.
func TestF1_PadAndICRC(t *testing.T) {
	nets := []NetHeader{
		{gid("127.0.0.1"), gid("127.0.0.2"), 0xC123, 4791, 0},
		{gid("127.0.0.1"), gid("127.0.0.2"), 0xC123, 4791, 0xBEEF},
		{gid("fd77::11"), gid("fd77::12"), 0xFFFF, 4791, 0},
	}
	packets := 0
	for _, pmtu := range []int{256, 1024, 4096} {
		lengths := []int{pmtu - 3, pmtu - 2, pmtu - 1, pmtu, pmtu + 1, pmtu + 2, pmtu + 3, 0}
		for n := 1; n <= 70; n++ {
			lengths = append(lengths, n)
		}
		for _, n := range lengths {
			for _, o := range []Opcode{RCSendOnly, RCWriteOnly, RCReadResponseOnly, UCSendOnlyImmediate, UDSendOnly} {
				for _, net := range nets {
					checkF1(t, o, n, net)
					packets++
				}
			}
		}
	}
	t.Logf("%d packets", packets)
}

func checkF1(t *testing.T, o Opcode, n int, net NetHeader) {
	t.Helper()
	payload := make([]byte, n)
	for i := range payload {
		payload[i] = byte(i*7 + n)
	}
	h := Headers{BTH: BTHFields{Opcode: o, MigReq: true, PKey: DefaultPKey, DestQP: 0x11, PSN: 0xABCDEF}}
	h.RETH = RETHFields{VA: 0x7F0000001000, RKey: 0x123, Length: uint32(n)}
	b := build(&h, payload, &net)
	var p Packet
	if err := p.Parse(b); err != nil {
		t.Fatalf("%v of %d: %v, packet % x", o, n, err, b)
	}
	if p.Pad != (4-n%4)%4 || len(b)%4 != 0 || !p.Aligned() || !bytes.Equal(p.PadBytes(), make([]byte, p.Pad)) {
		t.Errorf("%v of %d: pad %d (% x), packet of %d bytes", o, n, p.Pad, p.PadBytes(), len(b))
	}
	if !bytes.Equal(p.Payload, payload) {
		t.Errorf("%v of %d: payload % x, want % x", o, n, p.Payload, payload)
	}
	if want := bitwiseICRC(net.Src, net.Dst, net.SrcPort, net.ID, b[:len(b)-4]); p.ICRC() != want {
		t.Errorf("%v of %d: ICRC %08x, want %08x", o, n, p.ICRC(), want)
	}
	if p.Pad > 0 {
		b[len(b)-5] ^= 1 // the last pad byte
		if ICRC(net.Seed(len(b)), p.Covered()) == p.ICRC() {
			t.Errorf("%v of %d: the ICRC does not cover the pad", o, n)
		}
	}
}

// touch calls every accessor of a packet, whatever Parse said of it.
func touch(p *Packet) {
	if h := p.BTH(); h != nil {
		_ = h.Fields()
	}
	_, _, _ = p.ImmDt(), p.CNPReserved(), p.Opcode.String()
	_, _, _, _, _, _ = p.RDETH(), p.DETH(), p.XRCETH(), p.FETH(), p.RETH(), p.AtomicETH()
	_, _, _ = p.AETH(), p.AtomicAckETH(), p.IETH()
	if p.Info != nil {
		_ = p.Headers()
		_, _, _, _ = p.PadBytes(), p.Covered(), p.ICRC(), p.Aligned()
	}
}

// TestF2_EveryOpcodeEveryLength: one 48-byte payload with opcode 0xFF and the
// multicast QPN; then all 256 opcodes, lengths 0..100 and pad counts. Each is
// refused for one reason or parses within its bytes, and a good packet parses
// after it.
func TestF2_EveryOpcodeEveryLength(t *testing.T) {
	b := make([]byte, 48)
	b[0] = 0xFF
	b[5], b[6], b[7] = 0xFF, 0xFF, 0xFF
	var p Packet
	if err := p.Parse(b); !errors.Is(err, ErrReserved) {
		t.Fatalf("opcode 0xff: got %v, want %v", err, ErrReserved)
	}
	good := unhex(t, "0430ffff 00000012 80000100 68656c6c6f 000000 916c50f3")
	counts := map[error]int{}
	for o := range 256 {
		for n := range 101 {
			for flags := range 256 {
				if flags&0x0F > 1 { // versions 0 and 1, every pad, SE and M
					continue
				}
				b := make([]byte, n)
				if n > 1 {
					b[0], b[1] = byte(o), byte(flags)
				}
				err := p.Parse(b)
				counts[err]++
				touch(&p)
				if want := expectParse(b); !errors.Is(err, want) {
					t.Fatalf("opcode %#02x flags %#02x length %d: got %v, want %v", o, flags, n, err, want)
				}
			}
		}
		if err := p.Parse(good); err != nil || string(p.Payload) != "hello" {
			t.Fatalf("a good packet after opcode %#02x: %v, payload %q", o, err, p.Payload)
		}
	}
	t.Logf("by reason: %v", counts)
}

// expectParse says by the rules of IBTA Vol 1 §9.6 what Parse must say of b.
func expectParse(b []byte) error {
	if len(b) < 16 {
		return ErrShort
	}
	if b[1]&0x0F != 0 {
		return ErrVersion
	}
	for _, r := range specTable {
		if Opcode(b[0]) < r.first || Opcode(b[0]) > r.last {
			continue
		}
		switch pad := int(b[1] >> 4 & 3); {
		case len(b) < r.total:
			return ErrShort
		case len(b) < r.total+pad:
			return ErrPad
		}
		return nil
	}
	return ErrReserved
}

// TestF3_PadExceedsPayload: headers, pad and ICRC are required before a payload
// length is computed, so that it never is negative.
func TestF3_PadExceedsPayload(t *testing.T) {
	for _, o := range []Opcode{RCSendOnly, RCWriteOnly, RCAcknowledge, UDSendOnly, RCCmpSwap, CNP} {
		for payload := range 5 {
			for pad := range 4 {
				b := make([]byte, o.Info().HeaderLen+payload+ICRCLen)
				b[0], b[1] = byte(o), byte(pad<<4)
				var p Packet
				err := p.Parse(b)
				if pad > payload {
					if !errors.Is(err, ErrPad) {
						t.Errorf("%v, %d bytes, pad %d: got %v, want %v", o, payload, pad, err, ErrPad)
					}
					continue
				}
				if err != nil || len(p.Payload) != payload-pad {
					t.Errorf("%v, %d bytes, pad %d: error %v, payload %d", o, payload, pad, err, len(p.Payload))
				}
			}
		}
	}
}

// TestF17_MigReqAccepted: M is read and written, 0 and 1 are both accepted, and
// it is the second bit of the second byte.
func TestF17_MigReqAccepted(t *testing.T) {
	net := NetHeader{Src: gid("127.0.0.1"), Dst: gid("127.0.0.2"), SrcPort: 0xC000, DstPort: 4791}
	for _, m := range []bool{false, true} {
		h := Headers{BTH: BTHFields{Opcode: RCSendOnly, MigReq: m, PKey: DefaultPKey}}
		b := build(&h, nil, &net)
		var p Packet
		if err := p.Parse(b); err != nil || p.BTH().MigReq() != m || b[1] != map[bool]byte{false: 0, true: 0x40}[m] {
			t.Errorf("M %v: error %v, read %v, byte %#02x", m, err, p.BTH().MigReq(), b[1])
		}
	}
}

// TestF35_GoldenPackets: packets built field by field are the golden bytes, so
// that nothing takes the byte order of the machine; the ICRC has its least
// significant byte first.
func TestF35_GoldenPackets(t *testing.T) {
	for i, h := range map[int]Headers{
		3: {BTH: BTHFields{Opcode: RCSendOnly, PKey: 0xFFFF, DestQP: 0x12, AckReq: true, PSN: 0x100}},
		4: {
			BTH:  BTHFields{Opcode: RCAcknowledge, PKey: 0xFFFF, DestQP: 0x11, PSN: 0x100},
			AETH: AETHFields{Syndrome: AckNoCredit, MSN: 1},
		},
		5: {
			BTH:  BTHFields{Opcode: RCWriteOnly, PKey: 0xFFFF, DestQP: 0x102, AckReq: true, PSN: 0xABCDEF},
			RETH: RETHFields{VA: 0x7F0000001000, RKey: 0x123, Length: 8},
		},
		6: {
			BTH:  BTHFields{Opcode: UDSendOnly, PKey: 0xFFFF, DestQP: 0xABC, PSN: 7},
			DETH: DETHFields{QKey: 0x11111111, SrcQP: 0xDEF},
		},
		7: {BTH: BTHFields{Opcode: CNP, PKey: 0xFFFF, BECN: true, DestQP: 0x11}},
	} {
		v := vectors[i]
		want := v.roce(t)
		var p Packet
		if err := p.Parse(want); err != nil {
			t.Fatal(err)
		}
		if got := build(&h, p.Payload, &v.net); !bytes.Equal(got, want) {
			t.Errorf("%s: built\n% x, want\n% x", v.name, got, want)
		}
	}
	if got := AppendICRC(nil, 0xF3506C91); !bytes.Equal(got, []byte{0x91, 0x6C, 0x50, 0xF3}) {
		t.Errorf("AppendICRC: % x", got)
	}
}

// TestEveryHeaderEveryBit sets each bit of each header alone, in a packet of every
// opcode that carries it: it re-serialises to the same bytes, reserved bits
// included.
func TestEveryHeaderEveryBit(t *testing.T) {
	bits := 0
	for o := range 256 {
		info := Opcode(o).Info()
		if !info.Defined {
			continue
		}
		for i := range info.HeaderLen * 8 {
			if i < 8 || i/8 == 1 && i%8 >= 2 { // the opcode; pad and version
				continue
			}
			b := make([]byte, info.HeaderLen+ICRCLen)
			b[0] = byte(o)
			b[i/8] |= 0x80 >> (i % 8)
			var p Packet
			if err := p.Parse(b); err != nil {
				t.Fatalf("%v bit %d: %v", info.Name, i, err)
			}
			h := p.Headers()
			if got := h.Append(nil); !bytes.Equal(got, b[:info.HeaderLen]) {
				t.Fatalf("%v bit %d:\ngot  % x\nwant % x", info.Name, i, got, b[:info.HeaderLen])
			}
			bits++
		}
	}
	t.Logf("%d bits", bits)
}

// TestA17_MaskedFields: what may change on the way does not change the ICRC
// (conformance FRM-18, FRM-19, BTH-10), everything else does (CRC-05, BTH-11).
func TestA17_MaskedFields(t *testing.T) {
	for _, v := range vectors[1:6] {
		ip := unhex(t, v.packet)
		is4 := ip[0]>>4 == 4
		want, _, err := ICRCOfIPPacket(ip)
		if err != nil {
			t.Fatal(err)
		}
		udp := map[bool]int{true: 20, false: 40}[is4]
		masked := func(bit int) bool {
			switch by := bit / 8; {
			case by == udp+6 || by == udp+7: // UDP checksum
				return true
			case by == udp+8+4: // FECN, BECN, reserved
				return true
			case is4:
				return by == 1 || by == 8 || by == 10 || by == 11
			default:
				return bit >= 4 && bit < 32 || by == 7
			}
		}
		for bit := range (len(ip) - ICRCLen) * 8 {
			ip[bit/8] ^= 0x80 >> (bit % 8)
			got, _, err := ICRCOfIPPacket(ip)
			ip[bit/8] ^= 0x80 >> (bit % 8)
			if err != nil { // a length, protocol, fragment or port bit: no such packet
				continue
			}
			if (got == want) != masked(bit) {
				t.Errorf("%s: bit %d of byte %d: ICRC %08x, want it to change: %v", v.name, bit%8, bit/8, got, !masked(bit))
			}
		}
	}
}

// TestICRCOfIPPacketRefuses: each refusal by its name.
func TestICRCOfIPPacketRefuses(t *testing.T) {
	v4, v6 := unhex(t, vectors[3].packet), unhex(t, vectors[5].packet)
	edit := func(b []byte, at int, with ...byte) []byte {
		b = bytes.Clone(b)
		copy(b[at:], with)
		return b
	}
	for _, c := range []struct {
		name string
		b    []byte
		want error
	}{
		{"empty", nil, ErrIPHeader},
		{"version 5", edit(v4, 0, 0x55), ErrIPHeader},
		{"IPv4 truncated", v4[:19], ErrIPHeader},
		{"IPv4 shorter than its length", v4[:51], ErrIPHeader},
		{"IPv4 length below its header", edit(v4, 2, 0, 19), ErrIPHeader},
		{"IPv4 IHL 4", edit(v4, 0, 0x44), ErrIPHeader},
		{"IPv4 options (FRM-14)", edit(v4, 0, 0x46), ErrIPOptions},
		{"IPv4 fragment", edit(v4, 6, 0x20), ErrIPFragment},
		{"IPv4 TCP", edit(v4, 9, 6), ErrNotRoCE},
		{"another port", edit(v4, 22, 0x12, 0xB8), ErrNotRoCE},
		{"UDP length beyond IP's", edit(v4, 24, 0, 33), ErrUDPLength},
		{"UDP length 23", edit(v4, 24, 0, 23), ErrUDPLength},
		{"IPv4 without room for UDP", edit(v4, 2, 0, 27), ErrUDPLength},
		{"IPv6 truncated", v6[:39], ErrIPHeader},
		{"IPv6 shorter than its length", v6[:87], ErrIPHeader},
		{"IPv6 hop-by-hop", edit(v6, 6, 0), ErrIPOptions},
		{"IPv6 fragment", edit(v6, 6, 44), ErrIPFragment},
		{"IPv6 TCP", edit(v6, 6, 6), ErrNotRoCE},
	} {
		if _, _, err := ICRCOfIPPacket(c.b); !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", c.name, err, c.want)
		}
	}
	// FRM-09: Ethernet padding behind the packet is no part of it.
	if want, got, err := ICRCOfIPPacket(append(bytes.Clone(v4), make([]byte, 14)...)); err != nil || want != got {
		t.Errorf("with padding behind: computed %08x, carried %08x, error %v", want, got, err)
	}
}

// TestCopyICRC: copy and CRC in one, over every length about the sizes where the
// method changes, from any offset, and no further than the shorter slice.
func TestCopyICRC(t *testing.T) {
	src := make([]byte, 4200)
	for i := range src {
		src[i] = byte(i*31 + i>>7)
	}
	dst := make([]byte, len(src))
	for _, off := range []int{0, 1, 7} {
		for n := 0; n < len(src)-off; n += 1 + n/64 {
			clear(dst)
			s := src[off : off+n]
			got := CopyICRC(0x12345678, dst[:n], s)
			want := uint32(0x12345678)
			for _, c := range s {
				want = want>>8 ^ crcTables[0][byte(want)^c]
			}
			if got != want || !bytes.Equal(dst[:n], s) || dst[n] != 0 {
				t.Fatalf("%d bytes from %d: register %08x, want %08x", n, off, got, want)
			}
			if u := UpdateCRC(0x12345678, s); u != want {
				t.Fatalf("UpdateCRC of %d bytes from %d: register %08x, want %08x", n, off, u, want)
			}
		}
	}
	if got, want := CopyICRC(7, dst[:3], src), UpdateCRC(7, src[:3]); got != want {
		t.Errorf("a short destination: register %08x, want %08x", got, want)
	}
}

// TestSeedAfterOnes: the register after the eight bytes of ones of Annex A17.
func TestSeedAfterOnes(t *testing.T) {
	if got := UpdateCRC(^uint32(0), bytes.Repeat([]byte{0xFF}, 8)); got != crcAfterPseudoLRH {
		t.Errorf("register %08x, want %08x", got, crcAfterPseudoLRH)
	}
}

// TestPatchAndSolve: every identification, for lengths that are kept and lengths
// that are not.
func TestPatchAndSolve(t *testing.T) {
	net := NetHeader{Src: gid("127.0.0.1"), Dst: gid("127.0.0.2"), SrcPort: 0xC000, DstPort: 4791}
	for _, n := range []int{16, 20, 44, 1040, 4128, maxCachedLen, maxCachedLen + 4, 17, 9000, 65507} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			b := make([]byte, n-ICRCLen)
			binary.BigEndian.PutUint32(b[8:], uint32(n)) // something
			net.ID = 0
			v0 := ICRC(net.Seed(n), b)
			step := 1
			if cachedShift(n) == nil || n > 1040 {
				step = 251
			}
			for id := 0; id <= 0xFFFF; id += step {
				v := PatchICRC(v0, 0, uint16(id), n)
				if id%4099 == 0 {
					net.ID = uint16(id)
					if want := ICRC(net.Seed(n), b); v != want {
						t.Fatalf("identification %#04x: ICRC %08x, want %08x", id, v, want)
					}
				}
				if got, ok := SolveID(v, v0, n); !ok || int(got) != id {
					t.Fatalf("identification %#04x: solved %#04x, %v", id, got, ok)
				}
				if back := PatchICRC(v, uint16(id), 0x1234, n); back != PatchICRC(v0, 0, 0x1234, n) {
					t.Fatalf("identification %#04x: patched to 0x1234 it is %08x", id, back)
				}
			}
		})
	}
}

// TestSolveIDStrength: of ICRCs wrong by chance, about 1 in 65,536 has a solution.
// The errors are every one of 2^20 consecutive differences, so that the figure is
// the same each time.
func TestSolveIDStrength(t *testing.T) {
	solved := 0
	const tries = 1 << 20
	for d := range uint32(tries) {
		if _, ok := SolveID(d*2654435761, 0, 1040); ok {
			solved++
		}
	}
	if solved < 8 || solved > 24 { // 16 expected
		t.Errorf("%d of %d wrong ICRCs have a solution", solved, tries)
	}
}
