package main

import (
	"encoding/binary"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/softroce/softroce/pkg/bth"
)

// frame is an Ethernet frame of a RoCEv2 packet with the fields, whatever follows them, and a right ICRC.
func frame(f bth.BTHFields, rest []byte) []byte {
	a, b := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	body := append(f.Append(nil), rest...)
	n := bth.NetHeader{Src: bth.GIDFromAddr(a), Dst: bth.GIDFromAddr(b), SrcPort: 0xc000, DstPort: 4791}
	body = bth.AppendICRC(body, bth.ICRC(n.Seed(len(body)+4), body))
	p := append(make([]byte, 12), 8, 0) // IPv4
	p = append(p, 0x45, 0)
	p = binary.BigEndian.AppendUint16(p, uint16(28+len(body)))
	p = append(p, 0, 0, 0x40, 0, 64, 17, 0, 0)
	p = append(append(p, a.AsSlice()...), b.AsSlice()...)
	for _, v := range []int{0xc000, 4791, 8 + len(body), 0} {
		p = binary.BigEndian.AppendUint16(p, uint16(v))
	}
	return append(p, body...)
}

func writePcap(t *testing.T, frames ...[]byte) string {
	t.Helper()
	b := binary.LittleEndian.AppendUint32(nil, 0xa1b2c3d4)
	b = append(b, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 1, 0, 0, 0)
	for i, f := range frames {
		for _, v := range []int{i, 0, len(f), len(f)} {
			b = binary.LittleEndian.AppendUint32(b, uint32(v))
		}
		b = append(b, f...)
	}
	file := filepath.Join(t.TempDir(), "x.pcap")
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func samples() [][]byte {
	send := bth.BTHFields{Opcode: bth.RCSendOnly, PKey: 0xffff, DestQP: 0x11, AckReq: true, PSN: 0xffffff}
	ack := bth.BTHFields{Opcode: bth.RCAcknowledge, PKey: 0xffff, DestQP: 0x12, PSN: 0xffffff}
	return [][]byte{
		frame(send, make([]byte, 64)),
		frame(ack, []byte{0x34, 0, 0, 0}), // RNR NAK
		frame(send, make([]byte, 64)),
		frame(ack, []byte{0x62, 0, 0, 0}), // remote access error
	}
}

func TestReadWireCounts(t *testing.T) {
	w, err := readWire(writePcap(t, samples()...))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]int{"payload 64": 2, "psn 0xffffff": 4, "rnr nak": 1, "nak 0x62": 1, "again": 1}
	if w.packets != 4 {
		t.Errorf("packets: got %d, want 4", w.packets)
	}
	for what, n := range want {
		if w.count[what] != n {
			t.Errorf("%q: got %d, want %d", what, w.count[what], n)
		}
	}
	if text := w.lacks(want); text != "" {
		t.Errorf("lacks(all that is there): %s", text)
	}
	if text := w.lacks(map[string]int{"rnr nak": 2}); text == "" {
		t.Error("lacks(two RNR NAKs) found nothing missing, one is there")
	}
}

func TestReadWireRefusesACutFile(t *testing.T) {
	file := writePcap(t, samples()...)
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, b[:len(b)-1], 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readWire(file); err == nil {
		t.Error("a file whose last packet is cut was read without an error")
	}
}

func TestTsharkCheck(t *testing.T) {
	if _, err := exec.LookPath("tshark"); err != nil {
		t.Skip("tshark is not installed")
	}
	cut := frame(bth.BTHFields{Opcode: bth.RCReadRequest, PKey: 0xffff, DestQP: 0x11}, make([]byte, 4)) // half a RETH
	other := samples()[0]
	binary.BigEndian.PutUint16(other[14+20+2:], 4790)
	for _, row := range []struct {
		name, reason string
		frames       [][]byte
		packets      int
	}{
		{"right", "", samples(), 4},
		{"malformed", "malformed", append(samples(), cut), 5},
		{"not InfiniBand", "does not see InfiniBand", append(samples(), other), 5},
		{"packets missing", "5 are there", samples(), 5},
	} {
		t.Run(row.name, func(t *testing.T) {
			err := tsharkCheck(t.Context(), writePcap(t, row.frames...), row.packets)
			if row.reason == "" && err != nil || row.reason != "" && (err == nil || !strings.Contains(err.Error(), row.reason)) {
				t.Errorf("got %v, want an error with %q", err, row.reason)
			}
		})
	}
}
