package main

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/capture"
	"github.com/softroce/softroce/internal/nic"
)

// A capture's file that cannot be written is closed at once, and the daemon's end
// says why.
func TestCaptureFileIsClosedWhenItFails(t *testing.T) {
	file := filepath.Join(t.TempDir(), "full")
	if err := unix.Mkfifo(file, 0o600); err != nil {
		t.Fatal(err)
	}
	reader, err := unix.Open(file, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var cfg nic.Config
	done, err := (&daemonFlags{pcap: file}).openCapture(t.Context(), &cfg)
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(reader) // from now on nothing can be written
	p := capture.Packet{Time: time.Unix(1, 0), Src: netip.MustParseAddr("192.0.2.1"), Dst: netip.MustParseAddr("192.0.2.2"), Payload: make([]byte, 64)}
	if err := errors.Join(cfg.Capture.WritePacket(p), cfg.Capture.Flush()); !errors.Is(err, unix.EPIPE) {
		t.Fatalf("wrote to nobody: %v", err)
	}
	fds, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil && to == file {
			t.Errorf("descriptor %s is still open", fd)
		}
	}
	if err := done(); !errors.Is(err, unix.EPIPE) || errors.Is(err, os.ErrClosed) {
		t.Errorf("at the daemon's end: %v", err)
	}
}
