package capture

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"

	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/bth/bthlayer"
)

// roce builds a packet with payload n bytes long and the right ICRC.
func roce(src, dst string, id uint16, o bth.Opcode, n int) []byte {
	h := bth.Headers{BTH: bth.BTHFields{Opcode: o, MigReq: true, PKey: bth.DefaultPKey, DestQP: 0x11, PSN: 7, Pad: bth.PadLen(n)}}
	b := h.Append(nil)
	for i := range n {
		b = append(b, byte(i))
	}
	b = bth.AppendPad(b, n)
	net := bth.NetHeader{
		Src: bth.GIDFromAddr(netip.MustParseAddr(src)), Dst: bth.GIDFromAddr(netip.MustParseAddr(dst)),
		SrcPort: 0xC123, DstPort: rocePort, ID: id,
	}
	return bth.AppendICRC(b, bth.ICRC(net.Seed(len(b)+bth.ICRCLen), b))
}

// packet returns a packet that WritePacket accepts.
func packet(src, dst string, id uint16, n int) Packet {
	return Packet{
		Time: time.Unix(1700000000, 123456789), Src: netip.MustParseAddr(src), Dst: netip.MustParseAddr(dst),
		SrcPort: 0xC123, DstPort: rocePort, TOS: 0x69, TTL: 63, ID: id, IDKnown: true, Payload: roce(src, dst, id, bth.RCSendOnly, n), Outbound: true,
	}
}

// write returns the file that holds the packets.
func write(t testing.TB, packets ...Packet) []byte {
	t.Helper()
	var out bytes.Buffer
	w, err := NewWriter(&out, "softroce0", WriterOptions{Description: "a test", Comment: "all of it"})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range packets {
		if err := w.WritePacket(p); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// records decodes a file that is whole.
func records(t testing.TB, file []byte) (all []Record) {
	t.Helper()
	if err := Decode(bytes.NewReader(file), func(r Record) { all = append(all, r) }); err != nil {
		t.Fatal(err)
	}
	return all
}

// TestWriterReadBackByPcapgo reads what we write with gopacket's reader: times,
// headers field by field, checksums, the RoCE layer and its ICRC.
func TestWriterReadBackByPcapgo(t *testing.T) {
	in := []Packet{
		packet("10.0.0.1", "10.0.0.2", 0xBEEF, 5),
		packet("fd00::1", "fd00::2", 0, 4096),
		packet("::ffff:10.0.0.3", "10.0.0.4", 0, 0),
		packet("10.0.0.1", "10.0.0.2", 1, 1),
	}
	in[1].FlowLabel = 0x12345
	r, err := pcapgo.NewNgReader(bytes.NewReader(write(t, in...)), pcapgo.DefaultNgReaderOptions)
	if err != nil {
		t.Fatal(err)
	}
	if i, err := r.Interface(0); err != nil || i.Name != "softroce0" || i.LinkType != layers.LinkTypeRaw {
		t.Errorf("interface %+v, error %v", i, err)
	}
	for i, want := range in {
		data, ci, err := r.ReadPacketData()
		if err != nil {
			t.Fatalf("packet %d: %v", i, err)
		}
		if !ci.Timestamp.Equal(want.Time) || ci.Length != len(data) || ci.CaptureLength != len(data) {
			t.Errorf("packet %d: %+v, want time %v and length %d", i, ci, want.Time, len(data))
		}
		checkIP(t, i, data, want)
	}
	if _, _, err := r.ReadPacketData(); !errors.Is(err, io.EOF) {
		t.Errorf("after the last packet: %v", err)
	}
}

// checkIP compares a written IP packet with what it was written from.
func checkIP(t *testing.T, i int, data []byte, want Packet) {
	t.Helper()
	p := gopacket.NewPacket(data, layers.LinkTypeRaw, gopacket.Default)
	if p.ErrorLayer() != nil {
		t.Fatalf("packet %d: %v", i, p.ErrorLayer().Error())
	}
	switch ip := p.NetworkLayer().(type) {
	case *layers.IPv4:
		if ip.TOS != want.TOS || ip.TTL != want.TTL || ip.Id != want.ID || ip.Flags != layers.IPv4DontFragment ||
			int(ip.Length) != len(data) || ip.SrcIP.String() != want.Src.Unmap().String() || ip.DstIP.String() != want.Dst.Unmap().String() {
			t.Errorf("packet %d: %+v, want %+v", i, ip, want)
		}
		if fold(sum16(0, data[:ipv4Len])) != 0xFFFF {
			t.Errorf("packet %d: IP checksum %#04x is wrong", i, ip.Checksum)
		}
	case *layers.IPv6:
		if ip.TrafficClass != want.TOS || ip.HopLimit != want.TTL || ip.FlowLabel != want.FlowLabel || int(ip.Length) != len(data)-ipv6Len {
			t.Errorf("packet %d: %+v, want %+v", i, ip, want)
		}
	}
	udp := p.TransportLayer().(*layers.UDP)
	carried := udp.Checksum
	buf := gopacket.NewSerializeBuffer()
	_ = udp.SetNetworkLayerForChecksum(p.NetworkLayer())
	if err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{ComputeChecksums: true}, udp, gopacket.Payload(udp.Payload)); err != nil || udp.Checksum != carried {
		t.Errorf("packet %d: UDP checksum %#04x, want %#04x, error %v", i, carried, udp.Checksum, err)
	}
	r, ok := p.Layer(bthlayer.LayerTypeRoCEv2).(*bthlayer.RoCEv2)
	if !ok {
		t.Fatalf("packet %d has no RoCEv2 layer", i)
	}
	if good, err := r.Verify(p.NetworkLayer()); !good || err != nil || !bytes.Equal(r.Packet.Bytes(), want.Payload) {
		t.Errorf("packet %d: ICRC right %v, error %v, bytes % x, want % x", i, good, err, r.Packet.Bytes(), want.Payload)
	}
}

// TestWriterSaysWhatIsNotKnown: a field that is not known is named in the comment.
func TestWriterSaysWhatIsNotKnown(t *testing.T) {
	hidden := packet("10.0.0.1", "10.0.0.2", 0x1234, 9) // the ICRC covers 0x1234
	hidden.ID, hidden.IDKnown, hidden.Comment = 0, false, "seen"
	broken := hidden
	broken.Payload = bytes.Clone(hidden.Payload)
	broken.Payload[13] ^= 0x40
	noTTL := packet("10.0.0.1", "10.0.0.2", 3, 9)
	noTTL.TTL = 0
	in6 := packet("fd00::1", "fd00::2", 0, 9)
	in6.Outbound, in6.FlowLabel = false, 5
	junk := hidden
	junk.Payload, junk.Comment = []byte{1, 2, 3}, ""
	for i, c := range []struct {
		name    string
		p       Packet
		comment string
		id      uint16
		icrc    ICRCState
	}{
		{"all known", packet("10.0.0.1", "10.0.0.2", 3, 9), "", 3, ICRCRight},
		{"identification", hidden, "seen; not known: IP identification (the one that explains the ICRC is written)", 0x1234, ICRCRight},
		{"identification, bad ICRC", broken, "seen; not known: IP identification (0 is written, none explains the ICRC)", 0, ICRCWrong},
		{"TTL", noTTL, "not known: TTL (64 is written)", 3, ICRCRight},
		{"received IPv6", in6, "not known: UDP checksum (the right one is written), IPv6 flow label (0 is written)", 0, ICRCRight},
		{"no packet", junk, "not known: IP identification (0 is written, none explains the ICRC)", 0, ICRCUnchecked},
	} {
		file := write(t, c.p)
		got := records(t, file)
		if len(got) != 1 || got[0].Comment != c.comment || got[0].ICRC != c.icrc {
			t.Errorf("%d %s: got %+v, want comment %q, ICRC state %d", i, c.name, got, c.comment, c.icrc)
		}
		src, err := openSource(bytes.NewReader(file))
		if err != nil {
			t.Fatal(err)
		}
		var f frame
		if err := src.next(&f); err != nil {
			t.Fatal(err)
		}
		if id := binary.BigEndian.Uint16(f.data[4:]); c.p.Src.Is4() && id != c.id {
			t.Errorf("%d %s: identification %#04x, want %#04x", i, c.name, id, c.id)
		}
	}
}

// TestWriterDirection: the packet block says which way the packet went.
func TestWriterDirection(t *testing.T) {
	le := binary.LittleEndian
	for out, want := range map[bool]uint32{false: flagInbound, true: flagOutbound} {
		p := packet("10.0.0.1", "10.0.0.2", 0, 0)
		p.Outbound = out
		b := appendPacketBlock(nil, &p, nil)
		options := b[blockPacketFixed+int(le.Uint32(b[20:])):]
		if code, n := le.Uint16(options), le.Uint16(options[2:]); code != optFlags || n != 4 || le.Uint32(options[4:]) != want {
			t.Errorf("outbound %v: options % x, want flags %d", out, options, want)
		}
	}
}

// TestWriterUDPChecksumZero: a checksum that comes out as 0 is written as ones,
// since 0 says that there is none (RFC 768).
func TestWriterUDPChecksumZero(t *testing.T) {
	p := packet("10.0.0.1", "10.0.0.2", 0, 2)
	b := p.appendIP(nil)
	// Adding the checksum to a payload word makes the sum of all others ones.
	word := p.Payload[12:14]
	sum := binary.BigEndian.Uint16(b[ipv4Len+6:])
	binary.BigEndian.PutUint16(word, fold(uint32(binary.BigEndian.Uint16(word))+uint32(sum)))
	b = p.appendIP(nil)
	if got := binary.BigEndian.Uint16(b[ipv4Len+6:]); got != 0xFFFF {
		t.Errorf("UDP checksum %#04x, want 0xffff", got)
	}
}

// TestWriterRefuses: errors that leave the file as it is, and one that ends it.
func TestWriterRefuses(t *testing.T) {
	var out bytes.Buffer
	w, err := NewWriter(&out, "x", WriterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	mixed := packet("10.0.0.1", "10.0.0.2", 0, 0)
	mixed.Dst = netip.MustParseAddr("fd00::1")
	if err := w.WritePacket(mixed); !errors.Is(err, ErrAddress) {
		t.Errorf("addresses of two versions: %v", err)
	}
	if err := w.WritePacket(Packet{}); !errors.Is(err, ErrAddress) {
		t.Errorf("no addresses: %v", err)
	}
	big := packet("10.0.0.1", "10.0.0.2", 0, 0)
	big.Payload = make([]byte, maxPayload+1)
	if err := w.WritePacket(big); !errors.Is(err, ErrPayloadSize) {
		t.Errorf("a payload of %d bytes: %v", len(big.Payload), err)
	}
	if err := w.WritePacket(packet("10.0.0.1", "10.0.0.2", 0, 0)); err != nil {
		t.Error(err)
	}
	if err := w.Flush(); err != nil || len(records(t, out.Bytes())) != 1 {
		t.Errorf("after refusals: %v", err)
	}

	full := errors.New("disk full")
	w, err = NewWriter(&failing{after: 1, err: full}, "x", WriterOptions{BufferSize: 16})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := w.WritePacket(packet("10.0.0.1", "10.0.0.2", 0, 100)); !errors.Is(err, full) {
			t.Errorf("a full disk: %v", err)
		}
	}
	if err := w.Flush(); !errors.Is(err, full) {
		t.Errorf("flush to a full disk: %v", err)
	}
	if _, err := NewWriter(&failing{err: full}, "x", WriterOptions{}); !errors.Is(err, full) {
		t.Errorf("start on a full disk: %v", err)
	}
}

// failing fails every write after the first few.
type failing struct {
	after int
	err   error
}

func (f *failing) Write(b []byte) (int, error) {
	if f.after == 0 {
		return 0, f.err
	}
	f.after--
	return len(b), nil
}

// TestWriterConcurrent: packets of several goroutines are whole.
func TestWriterConcurrent(t *testing.T) {
	var out bytes.Buffer
	w, err := NewWriter(&out, "x", WriterOptions{BufferSize: 512})
	if err != nil {
		t.Fatal(err)
	}
	const writers, each = 4, 100
	var wg sync.WaitGroup
	for g := range writers {
		wg.Go(func() {
			for i := range each {
				if err := w.WritePacket(packet("10.0.0.1", "10.0.0.2", uint16(i), g*100+i)); err != nil {
					t.Error(err)
				}
				if i%10 == 0 {
					_ = w.Flush()
				}
			}
		})
	}
	wg.Wait()
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	got := records(t, out.Bytes())
	for _, r := range got {
		if r.Bad() || r.ICRC != ICRCRight {
			t.Errorf("%v", r)
		}
	}
	if len(got) != writers*each {
		t.Errorf("%d packets, want %d", len(got), writers*each)
	}
}

// TestWriterNoAllocation: once its scratch has grown, a capture costs no memory.
func TestWriterNoAllocation(t *testing.T) {
	w, err := NewWriter(io.Discard, "x", WriterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	p := packet("10.0.0.1", "10.0.0.2", 9, 1024)
	p.IDKnown, p.Outbound = false, false
	if n := testing.AllocsPerRun(100, func() { _ = w.WritePacket(p) }); n != 0 {
		t.Errorf("%v allocations a packet", n)
	}
}

// TestRewriteCaptures sends kernel rxe's captures through the writer as an adapter
// would see them, with the identification hidden: every ICRC is right again, and
// every description is the same.
func TestRewriteCaptures(t *testing.T) {
	files, _ := filepath.Glob(captures + "/*.pcap")
	total := 0
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		before := records(t, b)
		src, err := openSource(bytes.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		var f frame
		var packets []Packet
		for src.next(&f) == nil {
			d, ok := locate(ipOf(f.link, f.data))
			if !ok {
				t.Fatalf("%s: a packet that is not RoCEv2", file)
			}
			packets = append(packets, Packet{
				Time: f.time, Src: d.src, Dst: d.dst, SrcPort: d.srcPort, TTL: 64, Payload: bytes.Clone(d.payload), Outbound: true,
			})
		}
		after := records(t, write(t, packets...))
		if len(after) != len(before) {
			t.Fatalf("%s: %d packets, want %d", file, len(after), len(before))
		}
		for i := range after {
			got := after[i]
			want := before[i]
			got.Comment, got.Way, got.TOS, got.TTL, got.Raw = "", want.Way, want.TOS, want.TTL, want.Raw
			if !reflect.DeepEqual(got, want) {
				t.Errorf("%s: got %v, want %v", file, got, before[i])
			}
			if after[i].Src.Addr().Is4() != strings.Contains(after[i].Comment, "identification") {
				t.Errorf("%s: comment %q", file, after[i].Comment)
			}
		}
		total += len(after)
	}
	t.Logf("%d packets", total)
}
