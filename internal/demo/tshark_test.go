package demo

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/softroce/softroce/internal/capture"
)

// guessers are tshark's protocols that take any short payload for their own.
var guessers = []string{"rpcordma", "smb_direct", "nvme-rdma", "iser", "infiniband.eoib", "smc", "lnet"}

// A stranger reads the demo's packets without a complaint, and so do we: none
// is malformed, each ICRC is right.
func TestDemoTshark(t *testing.T) {
	file := filepath.Join(t.TempDir(), "demo.pcapng")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := Run(context.Background(), Config{Addrs: addrs(t), Capture: f, Change: cell(t)}); err != nil {
		t.Fatal(err)
	}
	packets := decodeAll(t, file)
	t.Run("tshark", func(t *testing.T) {
		bin, err := exec.LookPath("tshark")
		if err != nil {
			t.Skip("skipped: tshark is not installed")
		}
		if n := tsharkLines(t, bin, file, ""); n != packets {
			t.Errorf("packets that tshark reads: got %d, want %d", n, packets)
		}
		if n := tsharkLines(t, bin, file, "infiniband"); n != packets {
			t.Errorf("packets that tshark takes for RoCEv2: got %d, want %d", n, packets)
		}
		if n := tsharkLines(t, bin, file, "_ws.malformed or _ws.expert.severity >= 0x400000"); n != 0 {
			t.Errorf("packets with a complaint of tshark's (malformed, note, warning or error): got %d, want none", n)
		}
	})
}

func decodeAll(t *testing.T, file string) (packets int) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	bad := 0
	err = capture.Decode(bytes.NewReader(b), func(r capture.Record) {
		packets++
		if r.Bad() {
			if bad++; bad < 5 {
				t.Errorf("bad packet: %v", r)
			}
		}
	})
	if err != nil || bad > 0 || packets == 0 {
		t.Fatalf("decode: %v, %d of %d packets bad", err, bad, packets)
	}
	return packets
}

// tsharkLines counts the packets that match a display filter.
func tsharkLines(t *testing.T, bin, file, filter string) int {
	t.Helper()
	args := []string{"-n", "-r", file, "-T", "fields", "-e", "frame.number"}
	for _, g := range guessers {
		args = append(args, "--disable-protocol", g)
	}
	if filter != "" {
		args = append(args, "-Y", filter)
	}
	var complaint bytes.Buffer
	cmd := exec.Command(bin, args...)
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("tshark: %v: %s", err, complaint.String())
	}
	return strings.Count(string(out), "\n")
}
