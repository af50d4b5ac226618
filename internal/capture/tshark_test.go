package capture

import (
	"bytes"
	"fmt"
	"math/bits"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/softroce/softroce/pkg/bth"
)

// guessers are the protocols that take any short payload for their own.
var guessers = []string{"rpcordma", "smb_direct", "nvme-rdma", "iser", "infiniband.eoib", "smc", "lnet"}

// tsharkFields are compared with what Decode says, in this order.
var tsharkFields = []string{
	"frame.number", "infiniband.bth.opcode", "infiniband.bth.destqp", "infiniband.bth.psn",
	"infiniband.reth.va", "infiniband.aeth.msn", "infiniband.invariant.crc",
	"_ws.malformed", "_ws.expert.severity", "frame.comment",
}

// tshark returns the fields of every packet of a file, one line each. It skips the
// test, saying so, where tshark is missing.
func tshark(t *testing.T, file string) [][]string {
	t.Helper()
	bin, err := exec.LookPath("tshark")
	if err != nil {
		t.Skip("skipped: tshark is not installed")
	}
	args := []string{"-n", "-r", file, "-T", "fields", "-E", "separator=|", "-E", "occurrence=a"}
	for _, g := range guessers {
		args = append(args, "--disable-protocol", g)
	}
	for _, f := range tsharkFields {
		args = append(args, "-e", f)
	}
	var complaint bytes.Buffer
	cmd := exec.Command(bin, args...)
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("tshark: %v: %s", err, complaint.String())
	}
	var lines [][]string
	for l := range strings.Lines(string(out)) {
		lines = append(lines, strings.Split(strings.TrimRight(l, "\n"), "|"))
	}
	return lines
}

// TestTsharkReadsOurFiles: a stranger finds in our files what we wrote, every
// header kept apart, nothing malformed, and the comments.
func TestTsharkReadsOurFiles(t *testing.T) {
	var packets []Packet
	for o := range 256 {
		info := bth.Opcode(o).Info()
		if !info.Defined || info.Class == bth.ClassRD {
			continue // tshark 4.0 reads RD with other headers than our table; no adapter speaks it
		}
		for _, src := range []string{"10.0.0.1", "fd00::1"} {
			p := packet(src, strings.TrimSuffix(src, "1")+"2", uint16(o), 0)
			p.Payload = roce(src, p.Dst.String(), uint16(o), bth.Opcode(o), map[bool]int{true: 0, false: 21}[info.Payload == bth.PayloadNone])
			p.Comment = fmt.Sprintf("opcode %d", o)
			packets = append(packets, p)
		}
	}
	compare(t, write(t, packets...), len(packets))
}

// TestTsharkAgreesOnCaptures: a stranger and we read kernel rxe's packets alike.
func TestTsharkAgreesOnCaptures(t *testing.T) {
	files, _ := filepath.Glob(captures + "/*.pcap")
	var all []byte
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if len(all) > 0 {
			b = b[pcapHeaderLen:] // they are all of one format and link type
		}
		all = append(all, b...)
	}
	compare(t, all, 1123)
	t.Logf("packets of %d files compared", len(files))
}

// expertComment is how tshark ranks a packet's comment among its complaints, and
// expertError an error.
const (
	expertComment = "1048576"
	expertError   = "8388608"
)

// compare checks tshark's reading of a file against Decode's; want is the number
// of packets.
func compare(t *testing.T, b []byte, want int) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "x")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	theirs, ours := tshark(t, path), records(t, b)
	if len(theirs) != len(ours) || len(ours) != want {
		t.Fatalf("tshark reads %d packets, we %d, want %d", len(theirs), len(ours), want)
	}
	icrcs := 0
	for i, l := range theirs {
		if l[6] != "" {
			icrcs++
		}
		comparePacket(t, l, ours[i])
	}
	if icrcs == 0 {
		t.Error("tshark shows no ICRC at all")
	}
}

// comparePacket checks tshark's line on a packet against our record.
func comparePacket(t *testing.T, l []string, r Record) {
	t.Helper()
	number := func(s string) uint64 {
		v, err := strconv.ParseUint(s, 0, 64)
		if err != nil {
			t.Errorf("tshark says %q: %v", s, err)
		}
		return v
	}
	same := number(l[0]) == uint64(r.Number) && number(l[1]) == uint64(r.Opcode) &&
		number(l[2]) == uint64(r.QPN) && number(l[3]) == uint64(r.PSN)
	if l[4] != "" {
		same = same && strings.Contains(r.Fields, fmt.Sprintf("eth.va=0x%016x", number(l[4])))
	}
	if l[5] != "" {
		same = same && strings.Contains(r.Fields, fmt.Sprintf("aeth.msn=%d", number(l[5])))
	}
	if l[6] != "" { // shown as if it were big endian
		same = same && bits.ReverseBytes32(uint32(number(l[6]))) == r.GotICRC
	}
	if !same || r.ICRC != ICRCRight {
		t.Errorf("tshark says %v, we %v", l, r)
	}
	severity := ""
	if r.Comment != "" {
		severity = expertComment
	} else if r.Src.Addr().Is6() {
		severity = expertError // kernel rxe's UDP checksum of 0, which IPv6 forbids
	}
	if l[7] != "" || l[8] != severity || l[9] != r.Comment {
		t.Errorf("tshark complains: malformed %q, expert %q (want %q), comment %q: %v", l[7], l[8], severity, l[9], r)
	}
}
