package e2e

import (
	"bytes"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/shm"
	"github.com/softroce/softroce/internal/testaddr"
	"github.com/softroce/softroce/pkg/verbs"
)

// activate starts a daemon as a service manager does that passes a socket: its
// descriptor is the third, and the variables name the daemon's own process.
func activate(t *testing.T, passed *os.File, args ...string) *daemon {
	t.Helper()
	d := &daemon{t: t, log: &lockedBuffer{}}
	script := []string{"-c", `export LISTEN_PID=$$ LISTEN_FDS=1; exec "$0" daemon "$@"`, binaries.softroce}
	d.cmd = exec.Command("sh", append(script, args...)...)
	d.cmd.Stderr = d.log
	d.cmd.ExtraFiles = []*os.File{passed}
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.kill)
	return d
}

// listeningSocket is what systemd opens for ListenSequentialPacket=.
func listeningSocket(t *testing.T, path string, kind int) *os.File {
	t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), path)
	t.Cleanup(func() { _ = f.Close() })
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(fd, 16); err != nil {
		t.Fatal(err)
	}
	return f
}

// A daemon serves the socket that the service manager passed, also programs that
// connected before it ran, and leaves the file to the manager: the next daemon
// serves the same one.
func TestSocketActivation(t *testing.T) {
	addr, path := testaddr.Take(t, 1)[0].String(), socketIn(t)
	passed := listeningSocket(t, path, unix.SOCK_SEQPACKET)
	for range 2 {
		opened := make(chan error, 1)
		go func() {
			dev, err := verbs.Open(&verbs.Options{Socket: path})
			if err == nil {
				err = dev.Close()
			}
			opened <- err
		}()
		d := activate(t, passed, "--addr", addr)
		if err := <-opened; err != nil {
			t.Fatalf("a program that came before the daemon: %v\n%s", err, d.log)
		}
		if _, err := verbs.Open(&verbs.Options{Socket: path}); err != nil {
			t.Errorf("a program that came after it: %v\n%s", err, d.log)
		}
		if pid := listenerOf(t, path); pid != d.cmd.Process.Pid {
			t.Errorf("programs take process %d for the daemon, want %d", pid, d.cmd.Process.Pid)
		}
		if code := d.stop(); code != 0 {
			t.Errorf("exit status %d, want 0\n%s", code, d.log)
		}
		if _, err := os.Lstat(path); err != nil {
			t.Errorf("the service manager's socket is gone with the daemon: %v", err)
		}
	}
}

// listenerOf is the process that a program believes to be the adapter.
func listenerOf(t *testing.T, path string) int {
	t.Helper()
	c, err := shm.Dial(path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	cred, err := c.PeerCred()
	if err != nil {
		t.Fatal(err)
	}
	return cred.PID
}

// What a daemon cannot serve is said in a line, and the socket stays.
func TestSocketActivationRefused(t *testing.T) {
	for _, c := range []struct {
		name, want string
		kind, code int
		args       []string
	}{
		{name: "a stream", kind: unix.SOCK_STREAM, code: 1, want: "ListenSequentialPacket="},
		{name: "another path by flag", kind: unix.SOCK_SEQPACKET, code: 2, args: []string{"--socket", "/nowhere/s"}, want: "leave one of them out"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := socketIn(t)
			d := activate(t, listeningSocket(t, path, c.kind), append(c.args, "--addr", testaddr.Take(t, 1)[0].String())...)
			d.gone.Do(func() { _ = d.cmd.Wait() }) // the status says it
			if code := d.cmd.ProcessState.ExitCode(); code != c.code || !strings.Contains(d.log.String(), c.want) {
				t.Errorf("exit status %d, want %d and %q:\n%s", code, c.code, c.want, d.log)
			}
			if strings.Count(d.log.String(), "\n") != 1 {
				t.Errorf("more than a line:\n%s", d.log)
			}
			if _, err := os.Lstat(path); err != nil {
				t.Errorf("the socket: %v", err)
			}
		})
	}
}

// Variables that were meant for another process pass nothing.
func TestSocketOfAnotherProcess(t *testing.T) {
	t.Setenv("LISTEN_PID", "1")
	t.Setenv("LISTEN_FDS", "1")
	socket := socketIn(t)
	startDaemon(t, testaddr.Take(t, 1)[0], socket)
	if _, err := verbs.Open(&verbs.Options{Socket: socket}); err != nil {
		t.Error(err)
	}
}

// The watchdog is fed for as long as the adapter answers, and with it comes a
// line about who uses it.
func TestDaemonFeedsWatchdog(t *testing.T) {
	socket := socketIn(t)
	name := filepath.Join(filepath.Dir(socket), "n")
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	t.Setenv("NOTIFY_SOCKET", name)
	t.Setenv("WATCHDOG_USEC", "20000")
	startDaemon(t, testaddr.Take(t, 1)[0], socket)
	wantState(t, c, "STATUS=serving "+socket)
	if _, err := verbs.Open(&verbs.Options{Socket: socket}); err != nil {
		t.Fatal(err)
	}
	told, buf := "", make([]byte, 256)
	eventually(t, "the watchdog hears of the program", func() bool {
		if err := c.SetReadDeadline(time.Now().Add(limit)); err != nil {
			t.Fatal(err)
		}
		n, err := c.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		told = string(bytes.TrimSpace(buf[:n]))
		return told == "WATCHDOG=1\nSTATUS=serving "+socket+": 1 programs, 0 queue pairs"
	})
}
