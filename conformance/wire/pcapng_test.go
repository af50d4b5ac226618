package wire

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// framesOf are frames of both directions and IP versions, with odd ones.
func framesOf(t *testing.T) (frames []*Frame) {
	t.Helper()
	for _, pair := range []func() (Link, Link){Pair, Pair6} {
		a, b := pair()
		a.Record(func(f *Frame) {
			f.Time = time.Unix(1_800_000_000, 123_456_789).Add(time.Duration(len(frames)) * time.Microsecond)
			frames = append(frames, f)
		})
		for n := range 6 {
			p := write(n)
			if n == 3 {
				p.VLAN, p.Extra = 0x123, []byte("trailer")
			}
			if err := errors.Join(a.Send(p), b.Send(p)); err != nil {
				t.Fatal(err)
			}
			receive(t, a)
		}
	}
	return frames
}

// tshark reads the file as it was written.
func TestPcapngIsReadByTshark(t *testing.T) {
	bin, err := exec.LookPath("tshark")
	if err != nil {
		t.Skip("skipped: tshark is not installed")
	}
	frames := framesOf(t)
	var b bytes.Buffer
	if err := WritePcapng(&b, frames); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "x.pcapng")
	if err := os.WriteFile(file, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(bin, "-n", "-r", file, "-T", "fields", "-E", "separator=|", "-e", "frame.time_epoch",
		"-e", "frame.packet_flags_direction", "-e", "infiniband.bth.psn", "-e", "frame.len", "-e", "frame.comment").Output()
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, f := range frames {
		dir, comment := "0x00000001", ""
		if f.Dir == Sent {
			dir = "0x00000002"
		}
		if f.Tagged {
			comment = "802.1Q tag, TCI 0x0123"
		}
		want = append(want, fmt.Sprintf("1800000000.%09d|%s|7|%d|%s", f.Time.Nanosecond(), dir, len(f.IP)+len(f.Pad), comment))
	}
	if got := strings.TrimSpace(string(out)); got != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", got, strings.Join(want, "\n"))
	}
}

// The bytes of a small file, so that something is checked where tshark is missing.
func TestPcapngBytes(t *testing.T) {
	var b bytes.Buffer
	f := &Frame{IP: []byte{0x45, 1, 2}, Pad: []byte{9, 8}, Dir: Sent, Time: time.Unix(1, 2)}
	if err := WritePcapng(&b, []*Frame{f}); err != nil {
		t.Fatal(err)
	}
	const want = "0a0d0d0a 1c000000 4d3c2b1a 01000000 ffffffffffffffff 1c000000" +
		"01000000 20000000 65000000 00000000 09000100 09000000 00000000 20000000" +
		"06000000 34000000 00000000 00000000 02ca9a3b 05000000 05000000 4501020908000000 02000400 02000000 00000000 34000000"
	if got := hex.EncodeToString(b.Bytes()); got != strings.ReplaceAll(want, " ", "") {
		t.Errorf("got %s", got)
	}
}

// A write that fails ends it.
func TestPcapngWriteFails(t *testing.T) {
	frames := framesOf(t)
	for range 8 {
		frames = append(frames, frames...)
	}
	r, w := io.Pipe()
	_ = r.CloseWithError(os.ErrPermission)
	if err := WritePcapng(w, frames); !errors.Is(err, os.ErrPermission) {
		t.Errorf("got %v", err)
	}
}
