package capture

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
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
		err = Decode(bytes.NewReader(b), func(r Record) {
			total++
			if r.Bad() || r.ICRC != ICRCRight {
				t.Errorf("%s: %v", filepath.Base(file), r)
			}
			if testing.Verbose() && filepath.Base(file) == "cm_rping.pcap" {
				t.Log(r)
			}
		})
		if err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
	t.Logf("%d packets in %d files", total, len(files))
}
