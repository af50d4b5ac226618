package bthlayer

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"

	"github.com/softroce/softroce/pkg/bth"
)

// eachPacket calls f with every frame of the captures of kernel rxe.
func eachPacket(t *testing.T, f func(file string, number int, frame []byte)) {
	t.Helper()
	files, err := filepath.Glob("../testdata/captures/*.pcap")
	if err != nil || len(files) == 0 {
		t.Fatalf("no captures: %v", err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		r, err := pcapgo.NewReader(bytes.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		for n := 1; ; n++ {
			frame, _, err := r.ReadPacketData()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			f(filepath.Base(file), n, frame)
		}
	}
}

// TestLayerOverCaptures decodes every captured frame as any gopacket program
// would, verifies its ICRC, and serializes its layers to the same bytes.
func TestLayerOverCaptures(t *testing.T) {
	total := 0
	eachPacket(t, func(file string, n int, frame []byte) {
		total++
		p := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.Default)
		if e := p.ErrorLayer(); e != nil {
			t.Fatalf("%s %d: %v", file, n, e.Error())
		}
		r, ok := p.Layer(LayerTypeRoCEv2).(*RoCEv2)
		if !ok {
			t.Fatalf("%s %d: no RoCEv2 layer in %v", file, n, p)
		}
		if good, err := r.Verify(p.NetworkLayer()); err != nil || !good {
			t.Fatalf("%s %d: ICRC right %v, error %v", file, n, good, err)
		}
		opts := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
		want := r.ICRC
		r.ICRC = 0
		r.Net = netOf(p)
		buf := gopacket.NewSerializeBuffer()
		if err := gopacket.SerializeLayers(buf, opts, r, gopacket.Payload(r.Payload)); err != nil {
			t.Fatalf("%s %d: serialize: %v", file, n, err)
		}
		if got := buf.Bytes(); r.ICRC != want || !bytes.Equal(got, r.Packet.Bytes()) {
			t.Fatalf("%s %d: serialized to\n% x, ICRC %08x, want\n% x, ICRC %08x", file, n, got, r.ICRC, r.Packet.Bytes(), want)
		}
	})
	t.Logf("%d packets decoded and serialized", total)
	if total < 1000 {
		t.Errorf("only %d packets in the captures", total)
	}
}

// netOf returns what the ICRC covers of p's IP and UDP layers.
func netOf(p gopacket.Packet) *bth.NetHeader {
	udp := p.Layer(layers.LayerTypeUDP).(*layers.UDP)
	h := &bth.NetHeader{SrcPort: uint16(udp.SrcPort), DstPort: uint16(udp.DstPort)}
	switch ip := p.NetworkLayer().(type) {
	case *layers.IPv4:
		h.ID = ip.Id
		h.Src, h.Dst = gid(ip.SrcIP.To16()), gid(ip.DstIP.To16())
	case *layers.IPv6:
		h.Src, h.Dst = gid(ip.SrcIP), gid(ip.DstIP)
	}
	return h
}

func gid(b []byte) bth.GID { return bth.GID(b) }

// TestDecodingLayerParser decodes with gopacket's parser that reuses layers.
func TestDecodingLayerParser(t *testing.T) {
	var eth layers.Ethernet
	var ip4 layers.IPv4
	var ip6 layers.IPv6
	var udp layers.UDP
	var roce RoCEv2
	var payload gopacket.Payload
	parser := gopacket.NewDecodingLayerParser(layers.LayerTypeEthernet, &eth, &ip4, &ip6, &udp, &roce, &payload)
	decoded := make([]gopacket.LayerType, 0, 8)
	seen := 0
	eachPacket(t, func(file string, n int, frame []byte) {
		if err := parser.DecodeLayers(frame, &decoded); err != nil {
			t.Fatalf("%s %d: %v", file, n, err)
		}
		for _, l := range decoded {
			if l == LayerTypeRoCEv2 {
				seen++
			}
		}
	})
	if seen < 1000 {
		t.Errorf("the parser saw %d RoCEv2 layers", seen)
	}
}

// TestMalformed: what bth refuses becomes gopacket's error layer, not a panic.
func TestMalformed(t *testing.T) {
	for _, c := range []struct {
		name string
		b    []byte
		want error
	}{
		{"empty", nil, bth.ErrShort},
		{"reserved opcode", append([]byte{0xFF}, make([]byte, 47)...), bth.ErrReserved},
		{"short of its RETH", append([]byte{byte(bth.RCWriteOnly)}, make([]byte, 20)...), bth.ErrShort},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := gopacket.NewPacket(c.b, LayerTypeRoCEv2, gopacket.Default)
			if e := p.ErrorLayer(); e == nil || !errors.Is(e.Error(), c.want) {
				t.Errorf("error layer %v, want %v", e, c.want)
			}
		})
	}
	var r RoCEv2
	r.Headers.BTH.Opcode = 0xFF
	if err := r.SerializeTo(gopacket.NewSerializeBuffer(), gopacket.SerializeOptions{}); !errors.Is(err, bth.ErrReserved) {
		t.Errorf("serialize a reserved opcode: got %v, want %v", err, bth.ErrReserved)
	}
}
