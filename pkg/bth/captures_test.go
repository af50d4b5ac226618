package bth_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/gopacket/pcapgo"

	"github.com/softroce/softroce/pkg/bth"
)

// captureCounts holds how many packets each capture of kernel rxe has, so that a
// reader that stops early is noticed. Every one is a RoCEv2 packet.
var captureCounts = map[string]int{
	"cm_rdma_client": 10, "cm_reject": 2, "cm_rping": 29, "cm_ucmatose": 26, "cm_udaddy": 6,
	"perf_atomic_bw": 10, "perf_send_lat": 20, "perf_write_bw": 90, "rc_atomic": 18,
	"rc_dup_responses": 68, "rc_loss_read": 83, "rc_loss_send": 153, "rc_loss_write": 241,
	"rc_mixed_ipv6": 13, "rc_mtu4096": 15, "rc_mw_send_inv": 11, "rc_nak_bad_rkey_write": 2,
	"rc_nak_no_permission": 2, "rc_nak_out_of_range": 2, "rc_nak_recv_too_small": 2,
	"rc_pingpong": 18, "rc_psn_wrap": 13, "rc_read_large": 23, "rc_read_small": 8,
	"rc_retry_exceeded": 4, "rc_rnr": 16, "rc_send_imm": 8, "rc_send_multi": 17,
	"rc_send_small": 14, "rc_tclass_hop": 4, "rc_write": 13, "rc_write_long": 101,
	"srq_pingpong": 24, "uc_loss": 40, "uc_send": 6, "ud_mckey": 3, "ud_send": 4, "ud_send_ipv6": 4,
}

// captured is an IP packet of a capture and where it stands there.
type captured struct {
	file   string
	number int
	ip     []byte
}

// payload returns the UDP payload of an IP packet without options.
func (c captured) payload() []byte {
	hdr := 20
	if c.ip[0]>>4 == 6 {
		hdr = 40
	}
	return c.ip[hdr+8 : hdr+int(binary.BigEndian.Uint16(c.ip[hdr+4:]))]
}

// net returns what the ICRC covers of an IP packet, and its identification.
func (c captured) net() bth.NetHeader {
	be := binary.BigEndian
	if c.ip[0]>>4 == 6 {
		return bth.NetHeader{
			Src: bth.GID(c.ip[8:24]), Dst: bth.GID(c.ip[24:40]), SrcPort: be.Uint16(c.ip[40:]), DstPort: be.Uint16(c.ip[42:]),
		}
	}
	return bth.NetHeader{
		Src: mapped(c.ip[12:16]), Dst: mapped(c.ip[16:20]),
		SrcPort: be.Uint16(c.ip[20:]), DstPort: be.Uint16(c.ip[22:]), ID: be.Uint16(c.ip[4:]),
	}
}

// mapped returns the GID of an IPv4 address.
func mapped(a []byte) bth.GID {
	return bth.GID{10: 0xFF, 11: 0xFF, 12: a[0], 13: a[1], 14: a[2], 15: a[3]}
}

// readCaptures returns the packets of every capture.
func readCaptures(tb testing.TB) (all []captured) {
	tb.Helper()
	files, err := filepath.Glob("testdata/captures/*.pcap")
	if err != nil {
		tb.Fatal(err)
	}
	for _, path := range files {
		b, err := os.ReadFile(path)
		if err != nil {
			tb.Fatal(err)
		}
		r, err := pcapgo.NewReader(bytes.NewReader(b))
		if err != nil {
			tb.Fatal(err)
		}
		name := strings.TrimSuffix(filepath.Base(path), ".pcap")
		for n := 1; ; n++ {
			frame, _, err := r.ReadPacketData()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				tb.Fatalf("%s: %v", name, err)
			}
			all = append(all, captured{name, n, frame[14:]})
		}
	}
	return all
}

// TestCaptures takes every packet that kernel rxe was seen to send: it parses, its
// fields re-serialise to the same bytes, and its ICRC is what we compute, from
// the packet as captured and from the facts that an adapter has.
func TestCaptures(t *testing.T) {
	perFile := map[string]int{}
	opcodes := map[bth.Opcode]int{}
	for _, c := range readCaptures(t) {
		perFile[c.file]++
		checkCaptured(t, c, opcodes)
	}
	total := 0
	for file, want := range captureCounts {
		total += perFile[file]
		if perFile[file] != want {
			t.Errorf("%s: %d packets, want %d", file, perFile[file], want)
		}
	}
	if len(perFile) != len(captureCounts) {
		t.Errorf("%d capture files, want %d", len(perFile), len(captureCounts))
	}
	t.Logf("%d packets in %d files, %d opcodes: all parse, re-serialise and verify", total, len(perFile), len(opcodes))
}

// checkCaptured checks one packet.
func checkCaptured(t *testing.T, c captured, opcodes map[bth.Opcode]int) {
	t.Helper()
	roce := c.payload()
	var p bth.Packet
	if err := p.Parse(roce); err != nil {
		t.Fatalf("%s %d: %v, packet % x", c.file, c.number, err, roce)
	}
	opcodes[p.Opcode]++
	if !p.Aligned() {
		t.Errorf("%s %d: %d bytes and pad %d are not aligned", c.file, c.number, len(p.Payload), p.Pad)
	}
	if got := rebuild(&p); !bytes.Equal(got, roce) {
		t.Errorf("%s %d: re-serialised to\n% x, want\n% x", c.file, c.number, got, roce)
	}
	if want, got, err := bth.ICRCOfIPPacket(c.ip); err != nil || want != got {
		t.Errorf("%s %d: ICRC computed %08x, carried %08x, error %v", c.file, c.number, want, got, err)
	}
	net := c.net()
	v := bth.ICRC(net.Seed(len(roce)), p.Covered())
	if v != p.ICRC() {
		t.Errorf("%s %d: ICRC from facts %08x, carried %08x", c.file, c.number, v, p.ICRC())
	}
	if net.Src.Is4() {
		checkLinearity(t, c, net, v, len(roce))
	}
}

// checkLinearity: the ICRC for identification 0 follows from the one on the wire,
// and the identification on the wire from the two.
func checkLinearity(t *testing.T, c captured, net bth.NetHeader, v uint32, n int) {
	t.Helper()
	id := net.ID
	net.ID = 0
	roce := c.payload()
	v0 := bth.ICRC(net.Seed(n), roce[:n-bth.ICRCLen])
	if got := bth.PatchICRC(v, id, 0, n); got != v0 {
		t.Errorf("%s %d: PatchICRC to identification 0 gave %08x, want %08x", c.file, c.number, got, v0)
	}
	if got, ok := bth.SolveID(v, v0, n); !ok || got != id {
		t.Errorf("%s %d: SolveID gave %#04x, %v, want %#04x", c.file, c.number, got, ok, id)
	}
}

// rebuild encodes a parsed packet from its fields.
func rebuild(p *bth.Packet) []byte {
	h := p.Headers()
	b := h.Append(nil)
	b = append(b, p.Payload...)
	b = append(b, p.PadBytes()...)
	return bth.AppendICRC(b, p.ICRC())
}
