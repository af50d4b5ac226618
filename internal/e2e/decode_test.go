package e2e

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// capturedFile is a capture of kernel rxe's: 16 bytes of header before each
// packet, little-endian.
const capturedFile = "../../pkg/bth/testdata/captures/rc_write.pcap"

// decode prints a line a packet; its exit status is 0 when all are right, 1 when
// one is malformed or has a wrong ICRC, 2 when the file cannot be read.
func TestDecodeExitStatus(t *testing.T) {
	good, err := os.ReadFile(capturedFile)
	if err != nil {
		t.Fatal(err)
	}
	flipped := bytes.Clone(good)
	flipped[len(flipped)-1] ^= 1 // the last packet's ICRC
	noise := bytes.Clone(good)
	noise[24+16+14+20+8] = 0xFF // the first packet's opcode, behind Ethernet, IPv4 and UDP
	for _, c := range []struct {
		name   string
		file   []byte
		code   int
		stdout string
		stderr string
	}{
		{"right", good, 0, "RC RDMA WRITE", ""},
		{"wrong ICRC", flipped, 1, "WRONG", "1 of "},
		{"reserved opcode", noise, 1, "0xff", "1 of "},
		{"cut in a packet", good[:len(good)-3], 2, "RC RDMA WRITE", "decode: "},
		{"not a capture", []byte("what is this, then, if not a capture?"), 2, "", "not a pcap or pcapng"},
		{"empty", nil, 2, "", "decode: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "file")
			if err := os.WriteFile(file, c.file, 0o600); err != nil {
				t.Fatal(err)
			}
			r := softroce(t, nil, "decode", file)
			if r.code != c.code || !strings.Contains(r.stdout, c.stdout) || !strings.Contains(r.stderr, c.stderr) || (c.code == 0) != (r.stderr == "") {
				t.Errorf("got status %d, stdout %q, stderr %q, want %d, %q and %q in them", r.code, r.stdout, r.stderr, c.code, c.stdout, c.stderr)
			}
			if piped := softroce(t, c.file, "decode", "-"); piped != r {
				t.Errorf("from a pipe: got %+v, want the same as from the file: %+v", piped, r)
			}
		})
	}
	if r := softroce(t, nil, "decode", "/no/such/file"); r.code != 2 || !strings.Contains(r.stderr, "/no/such/file") {
		t.Errorf("a file that is not there: %+v, want status 2", r)
	}
}
