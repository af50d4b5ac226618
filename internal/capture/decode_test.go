package capture

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/softroce/softroce/pkg/bth"
)

const captures = "../../pkg/bth/testdata/captures"

// TestDecodeCaptures decodes kernel rxe's captures: no packet is malformed, every
// ICRC is right.
func TestDecodeCaptures(t *testing.T) {
	files, err := filepath.Glob(captures + "/*.pcap")
	if err != nil || len(files) == 0 {
		t.Fatalf("no captures: %v", err)
	}
	total := 0
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range records(t, b) {
			total++
			if r.Bad() || r.ICRC != ICRCRight {
				t.Errorf("%s: %v", filepath.Base(file), r)
			}
		}
	}
	t.Logf("%d packets in %d files", total, len(files))
	if total != 1123 {
		t.Errorf("%d packets, want 1123", total)
	}
}

// TestDecodeLines: the words for each kind of packet, as they stand on a line.
func TestDecodeLines(t *testing.T) {
	for _, c := range []struct {
		file   string
		number int
		want   string
	}{
		{"rc_send_small", 1, "RC SEND Only qp=0x000079 psn=0x000100 pkey=0xffff A payload=64 pad=0 icrc="},
		{"rc_atomic", 3, "RC FetchAdd qp="},
		{"rc_atomic", 3, " atomiceth.add=0x0000000000000005 payload=0 pad=0"},
		{"rc_atomic", 4, " aeth.syndrome=0x1f(ACK) aeth.msn=2 atomicacketh.original=0x"},
		{"rc_rnr", 3, " aeth.syndrome=0x34(RNR NAK, 10.24ms) aeth.msn=0 payload=0"},
		{"rc_nak_out_of_range", 2, " aeth.syndrome=0x62(NAK remote access error) "},
		{"ud_send_ipv6", 1, "[fd77::11]:"},
		{"ud_send", 1, " deth.qkey=0x11111111 deth.srcqp=0x000172 payload=64"},
		{"ud_mckey", 1, "qp=0xffffff"},
		{"rc_send_imm", 1, " immdt=0x"},
		{"rc_write", 1, " reth.va=0x0000"},
	} {
		b, err := os.ReadFile(captures + "/" + c.file + ".pcap")
		if err != nil {
			t.Fatal(err)
		}
		if got := records(t, b)[c.number-1]; got.Number != c.number || !strings.Contains(got.String(), c.want) || !strings.HasSuffix(got.String(), " right") {
			t.Errorf("%s %d: got %q, want it to contain %q", c.file, c.number, got, c.want)
		}
	}
}

// pcapFile makes a classic pcap file of frames.
func pcapFile(order binary.AppendByteOrder, magic, link uint32, frames ...[]byte) []byte {
	b := order.AppendUint32(nil, magic)
	b = append(b, 2, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
	b = order.AppendUint32(b, 65535)
	b = order.AppendUint32(b, link)
	for i, f := range frames {
		for _, v := range []int{1700000000, 500 + i, len(f), len(f)} {
			b = order.AppendUint32(b, uint32(v))
		}
		b = append(b, f...)
	}
	return b
}

// ipPacket returns a good IP packet.
func ipPacket(src, dst string) []byte {
	p := packet(src, dst, 7, 5)
	return p.appendIP(nil)
}

// TestDecodeLinkTypes: each framing with the same packet in it.
func TestDecodeLinkTypes(t *testing.T) {
	v4, v6 := ipPacket("10.0.0.1", "10.0.0.2"), ipPacket("fd00::1", "fd00::2")
	pre := func(n int, tail ...byte) []byte { return append(make([]byte, n), tail...) }
	tooManyTags := pre(12)
	for range maxVLANTags + 1 {
		tooManyTags = append(tooManyTags, 0x81, 0, 0, 5)
	}
	for _, c := range []struct {
		name  string
		link  uint32
		front []byte
		ip    []byte
		found bool
	}{
		{"Ethernet", linkEthernet, pre(12, 8, 0), v4, true},
		{"Ethernet IPv6", linkEthernet, pre(12, 0x86, 0xDD), v6, true},
		{"Ethernet VLAN", linkEthernet, pre(12, 0x81, 0, 0, 5, 8, 0), v4, true},
		{"Ethernet QinQ", linkEthernet, pre(12, 0x88, 0xA8, 0, 5, 0x81, 0, 0, 6, 0x86, 0xDD), v6, true},
		{"Ethernet, tags without end", linkEthernet, append(tooManyTags, 8, 0), v4, false},
		{"Ethernet ARP", linkEthernet, pre(12, 8, 6), v4, false},
		{"raw", linkRaw, nil, v4, true},
		{"raw IPv6", linkRaw, nil, v6, true},
		{"raw of BSD", linkRawBSD, nil, v4, true},
		{"IPv4", linkIPv4, nil, v4, true},
		{"IPv6", linkIPv6, nil, v6, true},
		{"null", linkNull, []byte{2, 0, 0, 0}, v4, true},
		{"loop", linkLoop, []byte{0, 0, 0, 24}, v6, true},
		{"SLL", linkSLL, pre(14, 8, 0), v4, true},
		{"SLL2", linkSLL2, append([]byte{0x86, 0xDD}, pre(18)...), v6, true},
	} {
		frame := append(c.front, c.ip...)
		got := records(t, pcapFile(binary.LittleEndian, pcapMicro, c.link, frame, frame))
		if c.found != (len(got) == 2 && got[0].ICRC == ICRCRight && got[1].Number == 2) {
			t.Errorf("%s: %v", c.name, got)
		}
		for n := range frame {
			// Whatever is cut off, the rest is read without harm.
			_ = Decode(bytes.NewReader(pcapFile(binary.BigEndian, pcapNano, c.link, frame[:n])), func(Record) {})
		}
	}
	err := Decode(bytes.NewReader(pcapFile(binary.LittleEndian, pcapMicro, 127, v4)), func(Record) {})
	if !errors.Is(err, ErrLink) || !strings.Contains(err.Error(), "127") {
		t.Errorf("802.11: %v, want %v", err, ErrLink)
	}
}

// TestDecodeByteOrders: classic files of both byte orders and resolutions.
func TestDecodeByteOrders(t *testing.T) {
	ip := ipPacket("10.0.0.1", "10.0.0.2")
	for _, order := range []binary.AppendByteOrder{binary.LittleEndian, binary.BigEndian} {
		for magic, want := range map[uint32]time.Time{
			pcapMicro: time.Unix(1700000000, 500000), pcapNano: time.Unix(1700000000, 500),
		} {
			got := records(t, pcapFile(order, magic, linkRaw, ip))
			if len(got) != 1 || !got[0].Time.Equal(want) {
				t.Errorf("%v %#x: %v, want time %v", order, magic, got, want)
			}
		}
	}
}

// block makes a pcapng block.
func block(order binary.AppendByteOrder, typ uint32, body []byte) []byte {
	body = append(body, make([]byte, -len(body)&3)...)
	b := order.AppendUint32(nil, typ)
	b = order.AppendUint32(b, uint32(len(body)+12))
	b = append(b, body...)
	return order.AppendUint32(b, uint32(len(body)+12))
}

// section makes a section header block.
func section(order binary.AppendByteOrder) []byte {
	b := order.AppendUint32(nil, sectionMagic)
	b = order.AppendUint16(b, 1)
	b = append(b, 0, 0)
	b = append(b, bytes.Repeat([]byte{0xFF}, 8)...)
	return block(order, blockSection, b)
}

// intf makes an interface block with options.
func intf(order binary.AppendByteOrder, link uint16, options ...byte) []byte {
	b := order.AppendUint16(nil, link)
	b = append(b, 0, 0)
	b = order.AppendUint32(b, 0)
	return block(order, blockInterface, append(b, options...))
}

// enhanced makes a packet block.
func enhanced(order binary.AppendByteOrder, typ, index uint32, ts uint64, data []byte) []byte {
	b := order.AppendUint32(nil, index)
	if typ == blockObsolete {
		b = append(order.AppendUint16(nil, uint16(index)), 0, 0)
	}
	for _, v := range []uint32{uint32(ts >> 32), uint32(ts), uint32(len(data)), uint32(len(data))} {
		b = order.AppendUint32(b, v)
	}
	return block(order, typ, append(b, data...))
}

// TestDecodePcapng: both byte orders, sections, resolutions and offsets, the
// packet blocks of every age, and blocks to be passed over.
func TestDecodePcapng(t *testing.T) {
	ip := ipPacket("10.0.0.1", "10.0.0.2")
	for _, order := range []binary.AppendByteOrder{binary.LittleEndian, binary.BigEndian} {
		option := func(code uint16, v ...byte) []byte {
			b := order.AppendUint16(nil, code)
			b = order.AppendUint16(b, uint16(len(v)))
			return append(append(b, v...), make([]byte, -len(v)&3)...)
		}
		var file []byte
		file = append(file, section(order)...)
		file = append(file, intf(order, linkRaw)...)
		file = append(file, intf(order, linkRaw, option(optTimeResolution, 9)...)...)
		file = append(file, intf(order, linkRaw, append(option(optTimeResolution, 0x80|10), option(optTimeOffset, order.AppendUint64(nil, 100)...)...)...)...)
		file = append(file, intf(order, linkRaw, option(optTimeResolution, 200)...)...)
		file = append(file, block(order, 0x0BAD, make([]byte, 100))...)
		file = append(file, enhanced(order, blockPacket, 0, 5_000_001, ip)...)
		file = append(file, enhanced(order, blockPacket, 1, 5_000_000_001, ip)...)
		file = append(file, enhanced(order, blockPacket, 2, 5<<10|512, ip)...)
		file = append(file, enhanced(order, blockPacket, 3, 5, ip)...)
		file = append(file, enhanced(order, blockObsolete, 1, 6_000_000_000, ip)...)
		file = append(file, block(order, blockSimple, append(order.AppendUint32(nil, uint32(len(ip))), ip...))...)
		file = append(file, section(binary.LittleEndian)...)
		file = append(file, intf(binary.LittleEndian, linkIPv4)...)
		file = append(file, enhanced(binary.LittleEndian, blockPacket, 0, 7_000_000, ip)...)
		want := []time.Time{
			time.Unix(5, 1000), time.Unix(5, 1), time.Unix(105, 500_000_000), {}, time.Unix(6, 0), {}, time.Unix(7, 0),
		}
		for _, r := range []io.Reader{bytes.NewReader(file), iotest.OneByteReader(bytes.NewReader(file))} {
			var got []Record
			if err := Decode(r, func(r Record) { got = append(got, r) }); err != nil || len(got) != len(want) {
				t.Fatalf("%v: %d packets, want %d, error %v", order, len(got), len(want), err)
			}
			for i := range got {
				if !got[i].Time.Equal(want[i]) || got[i].ICRC != ICRCRight {
					t.Errorf("%v packet %d: %v, want time %v", order, i, got[i], want[i])
				}
			}
		}
	}
}

// TestDecodeRefusesFiles: broken and hostile files, each by its name.
func TestDecodeRefusesFiles(t *testing.T) {
	le := binary.LittleEndian
	ip := ipPacket("10.0.0.1", "10.0.0.2")
	good := pcapFile(le, pcapMicro, linkRaw, ip)
	huge := bytes.Clone(good)
	le.PutUint32(huge[24+8:], 0xFFFFFFFF)
	ng := append(section(le), intf(le, linkRaw)...)
	join := func(parts ...[]byte) []byte { return bytes.Join(append([][]byte{ng}, parts...), nil) }
	hugeBlock := le.AppendUint32(le.AppendUint32(nil, blockPacket), 0xFFFFFFFC)
	skipped := le.AppendUint32(le.AppendUint32(nil, 0x0BAD), 0xFFFFFFFC)
	lies := enhanced(le, blockPacket, 0, 0, ip)
	le.PutUint32(lies[20:], uint32(len(ip)+100))
	trailer := enhanced(le, blockPacket, 0, 0, ip)
	trailer[len(trailer)-1] ^= 1
	var manyInterfaces []byte
	for range maxInterfaces {
		manyInterfaces = append(manyInterfaces, intf(le, linkRaw)...)
	}
	for _, c := range []struct {
		name string
		b    []byte
		want error
	}{
		{"empty", nil, ErrFormat},
		{"text", []byte("this is not a capture file at all"), ErrFormat},
		{"pcap header cut", good[:23], ErrFormat},
		{"pcap record header cut", good[:30], ErrFormat},
		{"pcap frame cut", good[:len(good)-1], ErrFormat},
		{"pcap frame of 4 GiB", huge, ErrLimit},
		{"pcapng magic", append(le.AppendUint32(le.AppendUint32(nil, blockSection), 28), 1, 2, 3, 4), ErrFormat},
		{"pcapng section cut", ng[:10], ErrFormat},
		{"pcapng block header cut", join([]byte{6, 0, 0}), ErrFormat},
		{"pcapng block cut", join(enhanced(le, blockPacket, 0, 0, ip)[:40]), ErrFormat},
		{"pcapng block of 4 GiB", join(hugeBlock), ErrLimit},
		{"pcapng unknown block of 4 GiB", join(skipped), ErrFormat},
		{"pcapng block of 8 bytes", join(le.AppendUint32(le.AppendUint32(nil, 6), 8)), ErrFormat},
		{"pcapng block of 33 bytes", join(le.AppendUint32(le.AppendUint32(nil, 6), 33)), ErrFormat},
		{"pcapng packet block of 16 bytes", join(block(le, blockPacket, make([]byte, 16))), ErrFormat},
		{"pcapng interface block of 4 bytes", join(block(le, blockInterface, make([]byte, 4))), ErrFormat},
		{"pcapng simple block of 0 bytes", join(block(le, blockSimple, nil)), ErrFormat},
		{"pcapng simple block that lies", join(block(le, blockSimple, []byte{0xFF, 0, 0, 0, 1, 2, 3, 4})), ErrFormat},
		{"pcapng frame longer than its block", join(lies), ErrFormat},
		{"pcapng frame above the limit", join(enhanced(le, blockPacket, 0, 0, make([]byte, maxFrame+1))), ErrLimit},
		{"pcapng no such interface", join(enhanced(le, blockPacket, 1, 0, ip)), ErrFormat},
		{"pcapng interface of another section", append(join(), join(enhanced(le, blockPacket, 1, 0, ip))...), ErrFormat},
		{"pcapng two lengths", join(trailer), ErrFormat},
		{"pcapng interfaces without end", join(manyInterfaces), ErrLimit},
	} {
		if err := Decode(bytes.NewReader(c.b), func(Record) {}); !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", c.name, err, c.want)
		}
	}
	broken := errors.New("cable pulled")
	for _, b := range [][]byte{nil, good[:30], join()} {
		if err := Decode(io.MultiReader(bytes.NewReader(b), iotest.ErrReader(broken)), func(Record) {}); !errors.Is(err, broken) && !errors.Is(err, ErrFormat) {
			t.Errorf("a reader that fails after %d bytes: %v", len(b), err)
		}
	}
}

// TestDecodeMalformed: bad packets are named, not passed over, and others are
// passed over.
func TestDecodeMalformed(t *testing.T) {
	edit := func(f func(b []byte) []byte) []byte { return f(ipPacket("10.0.0.1", "10.0.0.2")) }
	set := func(at int, v ...byte) []byte {
		return edit(func(b []byte) []byte { copy(b[at:], v); return b })
	}
	const udp, roce = 20, 28
	for _, c := range []struct {
		name string
		ip   []byte
		want string // part of the line; "" for no packet
	}{
		{"good", edit(func(b []byte) []byte { return b }), " right"},
		{"payload bit", set(roce+12, 0xFF), " WRONG want="},
		{"reserved opcode", set(roce, 0x1F), "reserved 0x1f qp=0x000011"},
		{"reserved opcode", set(roce, 0x1F), "MALFORMED: parse packet: reserved opcode"},
		{"version", set(roce+1, 0x71), "MALFORMED: parse packet: transport version"},
		{"short of its headers", set(roce, byte(bth.RCCmpSwap)), "MALFORMED: parse packet: shorter than"},
		{"pad of an ACK", set(roce, byte(bth.RCReadResponseOnly), 0x30), "payload=1 pad=3"},
		{"not aligned", edit(func(b []byte) []byte {
			b[3]--
			b[udp+5]--
			return b[:len(b)-1]
		}), "MALFORMED: payload and pad"},
		{"UDP length", set(udp+4, 0xFF, 0xFF), "MALFORMED: read IP packet: bad UDP length"},
		{"UDP length 0", set(udp+4, 0, 0), "MALFORMED: read IP packet: bad UDP length"},
		{"options", edit(func(b []byte) []byte {
			return append(append(append([]byte{0x46}, b[1:20]...), 1, 1, 1, 1), b[20:]...)
		}), "MALFORMED: read IP packet: options"},
		{"first fragment", set(6, 0x20), "MALFORMED: read IP packet: fragment"},
		{"later fragment", set(6, 0x20, 0x08), ""},
		{"IP length", set(2, 0xFF, 0xFF), "MALFORMED: read IP packet: bad or truncated"},
		{"another port", set(udp+2, 0, 53), ""},
		{"TCP", set(9, 6), ""},
		{"version 9", set(0, 0x95), ""},
	} {
		got := records(t, pcapFile(binary.LittleEndian, pcapMicro, linkRaw, c.ip))
		switch {
		case c.want == "" && len(got) != 0:
			t.Errorf("%s: %v, want no packet", c.name, got)
		case c.want != "" && (len(got) != 1 || !strings.Contains(got[0].String(), c.want)):
			t.Errorf("%s: %v, want %q", c.name, got, c.want)
		case c.want != "" && got[0].Bad() != (c.name != "good"):
			t.Errorf("%s: bad %v: %v", c.name, got[0].Bad(), got[0])
		}
	}
}

// TestDecodeExtensionHeaders: IPv6 packets with headers that RoCEv2 has not.
func TestDecodeExtensionHeaders(t *testing.T) {
	b := ipPacket("fd00::1", "fd00::2")
	with := func(next byte, ext ...byte) []byte {
		p := append(append(bytes.Clone(b[:ipv6Len]), ext...), b[ipv6Len:]...)
		p[6] = next
		binary.BigEndian.PutUint16(p[4:], uint16(len(p)-ipv6Len))
		return p
	}
	for _, c := range []struct {
		name string
		ip   []byte
		want string
	}{
		{"hop-by-hop", with(0, 17, 0, 1, 4, 0, 0, 0, 0), "options or extension headers"},
		{"first fragment", with(44, 17, 0, 0, 1, 0, 0, 0, 1), "fragment"},
		{"later fragment", with(44, 17, 0, 0, 9, 0, 0, 0, 1), ""},
		{"extension beyond the end", with(60, 17, 255), ""},
		{"TCP behind", with(60, 6, 0, 1, 4, 0, 0, 0, 0), ""},
		{"ten destination options", with(60, append(bytes.Repeat([]byte{60, 0, 1, 4, 0, 0, 0, 0}, 9), 17, 0, 1, 4, 0, 0, 0, 0)...), ""},
		{"itself for ever", with(0, bytes.Repeat([]byte{0, 0, 1, 4, 0, 0, 0, 0}, 20)...), ""},
	} {
		got := records(t, pcapFile(binary.LittleEndian, pcapMicro, linkRaw, c.ip))
		if c.want == "" && len(got) != 0 || c.want != "" && (len(got) != 1 || !strings.Contains(got[0].Malformed, c.want)) {
			t.Errorf("%s: %v, want %q", c.name, got, c.want)
		}
	}
}

// TestDecodeCut: frames cut by the capture are described as far as they go, and
// are not called malformed.
func TestDecodeCut(t *testing.T) {
	p := packet("10.0.0.1", "10.0.0.2", 7, 512)
	whole := p.appendIP(nil)
	for _, n := range []int{28, 30, 40, 44, 64, len(whole) - 1} {
		file := pcapFile(binary.LittleEndian, pcapMicro, linkRaw, whole[:n])
		binary.LittleEndian.PutUint32(file[24+12:], uint32(len(whole)))
		got := records(t, file)
		if len(got) != 1 || got[0].Bad() || !got[0].Cut || got[0].ICRC != ICRCUnchecked {
			t.Errorf("cut to %d bytes: %v", n, got)
			continue
		}
		if n >= 40 && (got[0].Name != "RC SEND Only" || got[0].PSN != 7) {
			t.Errorf("cut to %d bytes: %v", n, got[0])
		}
	}
}

// TestRecordQuotesComments: a file cannot speak to the terminal.
func TestRecordQuotesComments(t *testing.T) {
	p := packet("10.0.0.1", "10.0.0.2", 7, 0)
	p.Comment = "a\x1b[2J\nb"
	got := records(t, write(t, p))
	if len(got) != 1 || got[0].Comment != p.Comment || !strings.HasSuffix(got[0].String(), `comment="a\x1b[2J\nb"`) {
		t.Errorf("%v", got)
	}
}

// FuzzDecode: no file makes Decode panic or hold more than its limits, and what
// it describes is one line.
func FuzzDecode(f *testing.F) {
	le, ip := binary.LittleEndian, ipPacket("10.0.0.1", "10.0.0.2")
	f.Add(pcapFile(le, pcapMicro, linkRaw, ip, ip[:40]))
	f.Add(pcapFile(binary.BigEndian, pcapNano, linkSLL2, append(append([]byte{0x86, 0xDD}, make([]byte, 18)...), ipPacket("fd00::1", "fd00::2")...)))
	f.Add(append(append(section(le), intf(le, linkRaw)...), enhanced(le, blockPacket, 0, 5, ip)...))
	f.Add(write(f, packet("fd00::1", "fd00::2", 0, 3)))
	for _, name := range []string{"rc_atomic", "rc_mw_send_inv", "ud_send_ipv6", "cm_reject"} {
		b, err := os.ReadFile(captures + "/" + name + ".pcap")
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		last := 0
		_ = Decode(bytes.NewReader(b), func(r Record) {
			if s := r.String(); strings.ContainsAny(s, "\n\r\x1b") {
				t.Errorf("more than a line: %q", s)
			}
			if r.Number <= last || r.Payload < 0 || r.Length > maxFrame {
				t.Errorf("%v", r)
			}
			last = r.Number
		})
	})
}
