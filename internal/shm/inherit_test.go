package shm

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// passed is a descriptor as a service manager passes it: not the test's own.
func passed(t *testing.T, kind int, path string, listens bool) int {
	t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, kind, 0)
	if err != nil {
		t.Fatal(err)
	}
	if path != "" {
		if err := unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
			t.Fatal(err)
		}
	}
	if listens {
		if err := unix.Listen(fd, 4); err != nil {
			t.Fatal(err)
		}
	}
	return fd
}

// An inherited socket serves, and its file stays when the listener closes.
func TestInherit(t *testing.T) {
	noNewFDs(t)
	path := filepath.Join(t.TempDir(), "s")
	l, err := Inherit(passed(t, unix.SOCK_SEQPACKET, path, true))
	if err != nil {
		t.Fatal(err)
	}
	if l.Path() != path {
		t.Errorf("path %q, want %q", l.Path(), path)
	}
	c, err := Dial(path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("the file went with the listener: %v", err)
	}
}

// Whatever else is passed is refused with its name, and its descriptor closed.
func TestInheritRefuses(t *testing.T) {
	noNewFDs(t)
	dir := t.TempDir()
	for _, c := range []struct {
		name, want string
		fd         func() int
	}{
		{"a stream", "sequential packets", func() int { return passed(t, unix.SOCK_STREAM, filepath.Join(dir, "a"), true) }},
		{"one that does not listen", "does not listen", func() int { return passed(t, unix.SOCK_SEQPACKET, filepath.Join(dir, "b"), false) }},
		{"one without a path", "not a Unix socket with a path", func() int { return passed(t, unix.SOCK_SEQPACKET, "", false) }},
		{"an abstract one", "not a Unix socket with a path", func() int { return passed(t, unix.SOCK_SEQPACKET, "@softroce-inherit-test", true) }},
		{"a TCP port", "not a Unix socket with a path", func() int {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			f, err := l.(*net.TCPListener).File()
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			fd, err := unix.Dup(int(f.Fd()))
			if err != nil {
				t.Fatal(err)
			}
			return fd
		}},
		{"a file", "no socket", func() int {
			fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			return fd
		}},
		{"nothing", "no socket", func() int { return 1 << 19 }},
	} {
		l, err := Inherit(c.fd())
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, %v; want an error with %q", c.name, l, err, c.want)
		}
	}
}
