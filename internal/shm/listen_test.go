package shm

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

func listen(t *testing.T, cfg ListenConfig) *Listener {
	t.Helper()
	l, err := Listen(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

func socketConfig(t *testing.T) ListenConfig {
	t.Helper()
	return ListenConfig{Path: filepath.Join(t.TempDir(), "s"), UID: -1, GID: -1}
}

func TestListenAndDial(t *testing.T) {
	noNewFDs(t)
	cfg := socketConfig(t)
	cfg.Mode, cfg.UID, cfg.GID = 0o660, os.Getuid(), os.Getgid()
	l := listen(t, cfg)
	st, err := os.Stat(cfg.Path)
	if err != nil || st.Mode() != os.ModeSocket|0o660 {
		t.Errorf("socket file: %v, %v; want mode 0660", st.Mode(), err)
	}
	c, err := Dial(l.Path())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, end := range []*Conn{c, s} {
		if cred, err := end.PeerCred(); err != nil || cred.PID != os.Getpid() {
			t.Errorf("PeerCred() = %+v, %v, want pid %d", cred, err, os.Getpid())
		}
	}
	if err := c.Send([]byte("hello"), nil); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 10)
	if n, _, err := s.Recv(buf); err != nil || string(buf[:n]) != "hello" {
		t.Errorf("received %q, %v", buf[:n], err)
	}
	done := make(chan error)
	go func() {
		_, err := l.Accept()
		done <- err
	}()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept: %v, want net.ErrClosed", err)
	}
	if _, err := os.Lstat(cfg.Path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket file is still there: %v", err)
	}
	if _, err := Dial(cfg.Path); !errors.Is(err, unix.ENOENT) {
		t.Errorf("Dial after Close: %v, want ENOENT", err)
	}
}

func TestListenDefaultMode(t *testing.T) {
	l := listen(t, socketConfig(t))
	if st, err := os.Stat(l.Path()); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("socket file: %v, %v; want mode 0600", st.Mode(), err)
	}
}

// Outcome of starting on a path where something is already.
func TestListenOnWhatIsThere(t *testing.T) {
	noNewFDs(t)
	t.Run("dead", func(t *testing.T) {
		cfg := socketConfig(t)
		bindOnly(t, cfg.Path)
		if _, err := Dial(cfg.Path); !errors.Is(err, unix.ECONNREFUSED) {
			t.Fatalf("Dial of a dead socket: %v, want ECONNREFUSED", err)
		}
		listen(t, cfg)
		c, err := Dial(cfg.Path)
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
	})
	t.Run("alive", func(t *testing.T) {
		cfg := socketConfig(t)
		listen(t, cfg)
		_, err := Listen(cfg)
		var inUse *InUseError
		if !errors.As(err, &inUse) || inUse.PID != os.Getpid() || !errors.Is(err, unix.EADDRINUSE) {
			t.Errorf("second Listen: %v, want *InUseError with pid %d", err, os.Getpid())
		}
		if _, err := os.Lstat(cfg.Path); err != nil {
			t.Errorf("the live socket was removed: %v", err)
		}
	})
	t.Run("file", func(t *testing.T) {
		cfg := socketConfig(t)
		if err := os.WriteFile(cfg.Path, []byte("precious"), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Listen(cfg)
		if err == nil || !strings.Contains(err.Error(), "not a socket") {
			t.Errorf("Listen on a file: %v", err)
		}
		if b, err := os.ReadFile(cfg.Path); string(b) != "precious" {
			t.Errorf("the file now holds %q (%v)", b, err)
		}
	})
	t.Run("stream socket", func(t *testing.T) {
		cfg := socketConfig(t)
		l, err := net.Listen("unix", cfg.Path)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		if _, err := Listen(cfg); !errors.Is(err, unix.EADDRINUSE) {
			t.Errorf("Listen on another program's socket: %v, want EADDRINUSE", err)
		}
	})
	t.Run("no directory", func(t *testing.T) {
		cfg := socketConfig(t)
		cfg.Path = filepath.Join(cfg.Path, "below", "s")
		if _, err := Listen(cfg); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("Listen: %v, want os.ErrNotExist", err)
		}
	})
	t.Run("long path", func(t *testing.T) {
		cfg := socketConfig(t)
		cfg.Path = "/" + strings.Repeat("p", maxPath)
		for _, err := range []error{second(Listen(cfg)), second(Dial(cfg.Path))} {
			if err == nil || !strings.Contains(err.Error(), "107") {
				t.Errorf("a path of %d bytes: %v, want the limit named", len(cfg.Path), err)
			}
		}
	})
	t.Run("owner refused", func(t *testing.T) {
		if os.Getuid() == 0 {
			t.Skip("skipped: root may give a socket to anybody")
		}
		cfg := socketConfig(t)
		cfg.UID = 0
		if _, err := Listen(cfg); !errors.Is(err, unix.EPERM) {
			t.Errorf("Listen: %v, want EPERM", err)
		}
		if _, err := os.Lstat(cfg.Path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("a socket file was left: %v", err)
		}
	})
}

func second[T any](_ T, err error) error { return err }

// bindOnly leaves a socket file that nobody listens on, as a killed adapter does.
func bindOnly(t *testing.T, path string) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		t.Fatal(err)
	}
}

// Of many that start at once over a dead adapter's file, one gets the socket
// and keeps it.
func TestListenRace(t *testing.T) {
	noNewFDs(t)
	cfg := socketConfig(t)
	for range 10 {
		bindOnly(t, cfg.Path)
		var mu sync.Mutex
		var won []*Listener
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				l, err := Listen(cfg)
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err == nil:
					won = append(won, l)
				case !errors.Is(err, unix.EADDRINUSE):
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if len(won) != 1 {
			t.Fatalf("%d listeners on one path", len(won))
		}
		c, err := Dial(cfg.Path)
		if err != nil {
			t.Fatalf("the winner's socket: %v", err)
		}
		if err := errors.Join(c.Close(), won[0].Close()); err != nil {
			t.Fatal(err)
		}
	}
}

// Close leaves the file of a successor alone.
func TestListenerCloseKeepsAnothersFile(t *testing.T) {
	cfg := socketConfig(t)
	l := listen(t, cfg)
	if err := os.Remove(cfg.Path); err != nil {
		t.Fatal(err)
	}
	other := listen(t, cfg)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	c, err := Dial(other.Path())
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
}
