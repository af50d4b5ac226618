package shm

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// lockTries and lockPause bound the wait for another adapter that starts on the
// same directory; our own tuning.
const (
	lockTries = 200
	lockPause = 10 * time.Millisecond
)

// ListenConfig says where a Listener is and who may connect.
type ListenConfig struct {
	// Path of the socket, at most 107 bytes. Its directory must exist.
	Path string
	// Mode of the socket file; whoever may write it may connect. 0 means 0600.
	Mode os.FileMode
	// UID and GID own the file; negative leaves them as they are.
	UID, GID int
}

// InUseError says that a live process listens on the socket already.
type InUseError struct {
	Path string
	PID  int // 0 when it is not visible from here
}

// Error names the socket and its holder.
func (e *InUseError) Error() string {
	if e.PID == 0 {
		return fmt.Sprintf("listen %s: in use by a process that is not visible here; choose another path", e.Path)
	}
	return fmt.Sprintf("listen %s: in use by process %d; stop it or choose another path", e.Path, e.PID)
}

// Is makes errors.Is(err, unix.EADDRINUSE) hold.
func (e *InUseError) Is(target error) bool { return target == unix.EADDRINUSE }

// Listener accepts control connections on a socket file. Methods may be called
// from any goroutine.
type Listener struct {
	l    *net.UnixListener
	path string
	id   inode // of the socket file, so that Close removes no other; none of an inherited one

	once sync.Once
	err  error
}

// Listen makes the socket file with its mode and owner before anybody can
// connect. A file that a dead adapter left is replaced; of a live one the error
// is *InUseError; anything that is not a socket is left alone. Starters on one
// directory exclude each other with a lock on the directory, so that none
// removes the other's fresh socket.
func Listen(cfg ListenConfig) (*Listener, error) {
	if err := checkPath(cfg.Path); err != nil {
		return nil, err
	}
	unlock, err := lockDir(filepath.Dir(cfg.Path))
	if err != nil {
		return nil, fmt.Errorf("listen %s: %w", cfg.Path, err)
	}
	defer unlock()
	if err := clearStale(cfg.Path); err != nil {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("listen %s: socket: %w", cfg.Path, err)
	}
	f := os.NewFile(uintptr(fd), cfg.Path)
	defer f.Close() //nolint:errcheck // FileListener duplicated it (2026-11)
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: cfg.Path}); err != nil {
		return nil, fmt.Errorf("listen %s: bind: %w", cfg.Path, err)
	}
	l, err := open(f, cfg)
	if err != nil {
		return nil, fmt.Errorf("listen %s: %w", cfg.Path, errors.Join(err, os.Remove(cfg.Path)))
	}
	return l, nil
}

// open sets the file's owner and mode and then starts to listen; until then a
// connect is refused.
func open(f *os.File, cfg ListenConfig) (*Listener, error) {
	if cfg.UID >= 0 || cfg.GID >= 0 {
		if err := os.Lchown(cfg.Path, max(cfg.UID, -1), max(cfg.GID, -1)); err != nil {
			return nil, err
		}
	}
	mode := cfg.Mode
	if mode == 0 {
		mode = 0o600
	}
	if err := os.Chmod(cfg.Path, mode); err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Lstat(cfg.Path, &st); err != nil {
		return nil, fmt.Errorf("lstat: %w", err)
	}
	if err := unix.Listen(int(f.Fd()), unix.SOMAXCONN); err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	l, err := net.FileListener(f)
	if err != nil {
		return nil, err
	}
	ul, ok := l.(*net.UnixListener)
	if !ok {
		return nil, errors.Join(errors.New("no Unix listener"), l.Close())
	}
	return &Listener{l: ul, path: cfg.Path, id: inode{uint64(st.Dev), st.Ino}}, nil //nolint:unconvert // st_dev has other widths on some targets (2026-11)
}

// clearStale removes the socket file of a dead adapter.
func clearStale(path string) error {
	st, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("listen %s: %w", path, err)
	}
	if st.Mode().Type() != os.ModeSocket {
		return fmt.Errorf("listen %s: exists and is not a socket (%s): remove it or choose another path", path, st.Mode())
	}
	c, err := Dial(path)
	switch {
	case err == nil:
		cred, credErr := c.PeerCred()
		return errors.Join(&InUseError{Path: path, PID: cred.PID}, credErr, c.Close())
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EPROTOTYPE):
		// A full backlog, or a socket of another type: somebody is there.
		return &InUseError{Path: path}
	case !errors.Is(err, unix.ECONNREFUSED):
		return fmt.Errorf("listen %s: probe: %w", path, err)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("listen %s: remove the stale socket: %w", path, err)
	}
	return nil
}

// lockDir takes an exclusive lock on a directory, for a bounded time.
func lockDir(dir string) (unlock func(), err error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	for range lockTries {
		if err = unix.Flock(int(d.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
			return func() { _ = d.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			break
		}
		time.Sleep(lockPause)
	}
	return nil, errors.Join(fmt.Errorf("lock %s: %w", dir, err), d.Close())
}

// Accept waits for the next connection. Error: net.ErrClosed after Close.
func (l *Listener) Accept() (*Conn, error) {
	c, err := l.l.AcceptUnix()
	if err != nil {
		return nil, fmt.Errorf("shm: accept: %w", err)
	}
	return newConn(c), nil
}

// Path returns the path of the socket file.
func (l *Listener) Path() string { return l.path }

// Close stops listening and removes the socket file, if it is still the one
// that Listen made. Connections go on.
func (l *Listener) Close() error {
	l.once.Do(func() {
		var st unix.Stat_t
		if err := unix.Lstat(l.path, &st); err == nil && (inode{uint64(st.Dev), st.Ino}) == l.id { //nolint:unconvert // st_dev has other widths on some targets (2026-11)
			l.err = os.Remove(l.path)
		}
		l.err = errors.Join(l.err, l.l.Close())
	})
	return l.err
}
