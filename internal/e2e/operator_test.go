package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/testaddr"
)

// refused runs a daemon that must not start and gives its last line.
func refused(t *testing.T, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, binaries.softroce, append([]string{"daemon"}, args...)...)
	out, err := cmd.CombinedOutput()
	var e *exec.ExitError
	if ctx.Err() != nil || !errors.As(err, &e) || e.ExitCode() <= 0 {
		t.Fatalf("softroce daemon %v: %v; want an exit status other than 0\n%s", args, err, out)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return lines[len(lines)-1]
}

// What operators do wrong is answered with one line that says what and why, and
// disturbs nobody: the daemon that was there goes on, no socket stays behind.
func TestOperatorsMistakes(t *testing.T) {
	addrs := testaddr.Take(t, 4)
	socket := socketIn(t)
	pcap := filepath.Join(t.TempDir(), "d.pcapng")
	d := startDaemon(t, addrs[0], socket, "--pcap", pcap)
	pid := fmt.Sprint(d.cmd.Process.Pid)
	other := socket + "2"
	squatter, err := net.ListenUDP("udp4", &net.UDPAddr{IP: addrs[1].AsSlice(), Port: 4791})
	if err != nil {
		t.Fatal(err)
	}
	defer squatter.Close()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		args []string
		says []string
	}{
		{"the address is another daemon's", []string{"--addr", addrs[0].String(), "--socket", other}, []string{"busy", pid, addrs[0].String()}},
		{"the port is another program's", []string{"--addr", addrs[1].String(), "--socket", other}, []string{"busy", fmt.Sprint(os.Getpid())}},
		{"the socket is another daemon's", []string{"--addr", addrs[2].String(), "--socket", socket}, []string{"in use", pid, socket}},
		{"the socket is a file", []string{"--addr", addrs[2].String(), "--socket", file}, []string{"not a socket", file}},
		{"the capture is another daemon's", []string{"--addr", addrs[2].String(), "--socket", other, "--pcap", pcap}, []string{"--pcap", pcap, "another"}},
		{"the disk is full", []string{"--addr", addrs[2].String(), "--socket", other, "--pcap", "/dev/full"}, []string{"--pcap", "no space"}},
		{"the metrics port is busy", []string{"--addr", addrs[2].String(), "--socket", other, "--metrics", strings.TrimSuffix(strings.TrimPrefix(d.metrics, "http://"), "/metrics")}, []string{"--metrics", "in use"}},
		{"not an address of this host", []string{"--addr", "192.0.2.77", "--socket", other}, []string{"192.0.2.77", "not an address of this host"}},
		{"no address", []string{"--socket", other}, []string{"addr"}},
		{"no such flag", []string{"--adr", addrs[2].String()}, []string{"--adr", "--help"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			line := refused(t, c.args...)
			for _, w := range c.says {
				if !strings.Contains(line, w) {
					t.Errorf("%q does not say %q", line, w)
				}
			}
			if _, err := os.Lstat(other); err == nil {
				t.Error("a socket stayed behind")
			}
		})
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "precious" {
		t.Errorf("the file holds %q, %v", b, err)
	}
	if st, err := os.Stat(pcap); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the capture: %v, %v; want it for its owner only", st, err)
	}
	if code := d.stop(); code != 0 {
		t.Errorf("the daemon that was there ends with %d:\n%s", code, d.log)
	}
	out, err := exec.Command(binaries.softroce, "decode", pcap).CombinedOutput()
	if err != nil {
		t.Errorf("the first daemon's capture: %v\n%s", err, out)
	}
}

// A daemon ends cleanly at each signal that asks for it, and its socket with
// it. After kill -9 the next one starts on what is left.
func TestSignals(t *testing.T) {
	addr := testaddr.Take(t, 1)[0]
	socket := socketIn(t)
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGKILL, syscall.SIGTERM} {
		t.Run(sig.String(), func(t *testing.T) {
			if signal.Ignored(sig) {
				t.Skipf("skipped: %v is ignored here, as under nohup, and a daemon keeps to that", sig)
			}
			d := startDaemon(t, addr, socket)
			code := d.end(sig)
			if sig == syscall.SIGKILL {
				return
			}
			if _, err := os.Lstat(socket); code != 0 || err == nil {
				t.Errorf("%v: exit status %d, the socket is gone: %t\n%s", sig, code, err != nil, d.log)
			}
		})
	}
}

// A capture that can no longer be written, as on a full disk, stops, which is
// said once, and nothing else stops; the exit status tells of it.
func TestCaptureThatCannotBeWritten(t *testing.T) {
	addr := testaddr.Take(t, 1)[0]
	pipe := filepath.Join(t.TempDir(), "d.pcapng")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	reader, err := os.OpenFile(pipe, os.O_RDWR, 0) // both, so as not to wait
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	d := startDaemon(t, addr, socketIn(t), "--pcap", pipe)
	if err := reader.Close(); err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("udp", net.JoinHostPort(addr.String(), "4791"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	eventually(t, "the capture stops", func() bool {
		if _, err := c.Write(make([]byte, 4096)); err != nil {
			t.Fatal(err)
		}
		return strings.Contains(d.log.String(), "the capture stopped")
	})
	if out, err := exec.Command(binaries.softroce, "devinfo", "--socket", d.socket).CombinedOutput(); err != nil {
		t.Errorf("devinfo: %v\n%s", err, out)
	}
	if n := strings.Count(d.log.String(), "capture stopped"); n != 1 {
		t.Errorf("said %d times", n)
	}
	if code := d.stop(); code == 0 {
		t.Error("the daemon ends with 0 although the capture is not whole")
	}
}
