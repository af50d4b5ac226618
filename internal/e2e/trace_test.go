package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/capture"
	"github.com/softroce/softroce/internal/testaddr"
)

// capturing waits until a capture has begun: the adapter then shows a file.
func (p *toolProcess) capturing(t *testing.T, file string) {
	t.Helper()
	eventually(t, "the capture begins", func() bool {
		st, err := os.Stat(file)
		return err == nil && st.Size() > 0 || p.ended()
	})
}

// TestCaptureCommand captures from a running daemon into a file, a ring and a disk
// that is full; the transfers know nothing of it.
func TestCaptureCommand(t *testing.T) {
	d := startDaemon(t, testaddr.Take(t, 1)[0], socketIn(t))
	dir := t.TempDir()
	ok := func() {
		t.Helper()
		if s, c := pingpongOnce(t, d); s != 0 || c != 0 {
			t.Errorf("pingpong: status %d and %d", s, c)
		}
	}
	file := filepath.Join(dir, "a.pcapng")
	all := tool(t, "capture", "--socket", d.socket, "-w", file, "--count", "40")
	all.capturing(t, file)
	ring := tool(t, "capture", "--socket", d.socket, "-w", filepath.Join(dir, "r.pcapng"), "--ring", "2", "--size", "8K", "--count", "40")
	ring.capturing(t, filepath.Join(dir, "r.1.pcapng"))
	full := tool(t, "capture", "--socket", d.socket, "-w", "/dev/full")
	eventually(t, "the full disk ends the capture", full.ended)
	if out := full.out.String(); !strings.Contains(out, "capture: the capture ended: its file cannot be written") || !strings.Contains(out, "no space left on device") {
		t.Errorf("a full disk: %s", out)
	}
	ok()
	all.finish(t)
	ring.finish(t)
	if n := packetsIn(t, file); n != 40 {
		t.Errorf("%d packets in the file, want 40", n)
	}
	if out := all.out.String(); !strings.Contains(out, "40 packets written") { // however many the adapter sent meanwhile
		t.Errorf("of 40 packets it says %q", out)
	}
	files, err := filepath.Glob(filepath.Join(dir, "r.*.pcapng"))
	if err != nil || len(files) != 2 || strings.HasSuffix(files[0], "r.1.pcapng") {
		t.Errorf("the ring has %q, %v", files, err)
	}
	for _, f := range files {
		if st, err := os.Stat(f); packetsIn(t, f) == 0 || err != nil || st.Size() > 8<<10 || st.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", f, st, err)
		}
	}
	ok()
}

func packetsIn(t *testing.T, file string) (n int) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := capture.Decode(f, func(r capture.Record) {
		if n++; r.Bad() {
			t.Error(r)
		}
	}); err != nil {
		t.Error(err)
	}
	return n
}

// TestEndlessPipes ends commands whose input never ends by a signal.
func TestEndlessPipes(t *testing.T) {
	for _, c := range []struct {
		args []string
		code int // 0: what was read was whole
	}{{[]string{"trace"}, 0}, {[]string{"decode"}, 0}, {[]string{"impair"}, 2}} {
		fifo := filepath.Join(t.TempDir(), "fifo")
		if err := unix.Mkfifo(fifo, 0o600); err != nil {
			t.Fatal(err)
		}
		p := tool(t, append(c.args, fifo)...)
		w, err := os.OpenFile(fifo, os.O_WRONLY, 0) // waits for the reader
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		if c.code == 0 {
			if _, err := w.Write(read(t, capturedFile)); err != nil {
				t.Fatal(err)
			}
		}
		if err := p.cmd.Process.Signal(unix.SIGTERM); err != nil {
			t.Fatal(err)
		}
		eventually(t, c.args[0]+" ends", p.ended)
		if err := <-p.done; err != nil && !errors.As(err, new(*exec.ExitError)) {
			t.Fatal(err)
		}
		if got := p.cmd.ProcessState.ExitCode(); got != 0 && got != 2 || c.code != 0 && got != c.code { // some may still be in the pipe
			t.Errorf("%q ends with status %d\n%s", c.args, got, p.out.String())
		}
	}
}

// TestStuckPipes has pipes that nobody reads take what commands write: they end at a
// signal, and an adapter whose capture goes there goes on.
func TestStuckPipes(t *testing.T) {
	dir := t.TempDir()
	fifo := func(name string) string {
		t.Helper()
		file := filepath.Join(dir, name)
		if err := unix.Mkfifo(file, 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	stuck := func(name string) string { // somebody has the other end
		t.Helper()
		file := fifo(name)
		fd, err := unix.Open(file, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(fd) })
		return file
	}
	d := startDaemon(t, testaddr.Take(t, 1)[0], socketIn(t), "--pcap", stuck("daemon"), "--log-level", "debug")
	var all []*toolProcess
	capture := func(file string) {
		all = append(all, tool(t, "capture", "--socket", d.socket, "-w", file))
	}
	capture(fifo("none"))
	capture(stuck("capture"))
	for _, p := range all {
		eventually(t, "a capture is there", func() bool { return strings.Contains(d.log.String(), fmt.Sprintf("pid=%d ", p.cmd.Process.Pid)) })
	}
	for !strings.Contains(d.log.String(), "the capture stopped") { // the pipe is full
		if s, c := pingpongOnce(t, d); s != 0 || c != 0 {
			t.Fatalf("pingpong: status %d and %d\n%s", s, c, d.log)
		}
	}
	for _, p := range all {
		if err := p.cmd.Process.Signal(unix.SIGTERM); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range all {
		eventually(t, "a capture into a stuck pipe ends", p.ended)
	}
	if s, c := pingpongOnce(t, d); s != 0 || c != 0 {
		t.Errorf("pingpong afterwards: status %d and %d", s, c)
	}
	d.stop()
}

// TestTraceCommand tells a capture's story as text and as a page, also of a running
// adapter; its exit status says whether a request failed.
func TestTraceCommand(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page.html")
	captures := filepath.Dir(capturedFile)
	for _, c := range []struct {
		args           []string
		code           int
		stdout, stderr string
	}{
		{[]string{capturedFile}, 0, "Nothing went wrong", ""},
		{[]string{filepath.Join(captures, "rc_nak_bad_rkey_write.pcap"), "--text", "--html", page}, 1, "remote access error", ""},
		{[]string{filepath.Join(captures, "rc_nak_bad_rkey_write.pcap"), "--qp", "0x12345"}, 2, "", "no RoCEv2 packets of the chosen queue pairs"},
		{[]string{"/no/such/file"}, 2, "", "/no/such/file"},
		{[]string{"/proc/version"}, 2, "", "not a pcap or pcapng file"},
		{[]string{}, 2, "", "give a file, or --live"},
		{[]string{"--live", capturedFile}, 2, "", "give a file, or --live"},
		{[]string{capturedFile, "--qp", "x"}, 2, "", "no queue pair number"},
		{[]string{capturedFile, "--peer", "x"}, 2, "", "not an IP address"},
	} {
		r := softroce(t, nil, append([]string{"trace"}, c.args...)...)
		if r.code != c.code || !strings.Contains(r.stdout, c.stdout) || !strings.Contains(r.stderr, c.stderr) || (r.stderr == "") != (c.stderr == "") {
			t.Errorf("trace %q: status %d, stdout %q, stderr %q", c.args, r.code, tail(r.stdout), r.stderr)
		}
	}
	if b := read(t, page); !strings.Contains(string(b), "<!DOCTYPE html>") || !strings.Contains(string(b), "remote access error") {
		t.Errorf("the page: %.200s", b)
	}
	d := startDaemon(t, testaddr.Take(t, 1)[0], socketIn(t))
	if r := softroce(t, nil, "trace", "--live", "--seconds", "0.2", "--socket", d.socket); r.code != 1 || !strings.Contains(r.stderr, "sent and received nothing") {
		t.Errorf("an idle adapter: %+v", r)
	}
	live := tool(t, "trace", "--live", "--seconds", "0", "--socket", d.socket)
	for range 3 { // it begins during the first
		pingpongOnce(t, d)
	}
	live.interrupt(t)
	if out := live.out.String(); !strings.Contains(out, "RC") || !strings.Contains(out, "SEND First") {
		t.Errorf("a running adapter: %s", tail(out))
	}
}
