package shm

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// ErrPeerHidden says that the peer's process is not visible in this pid
// namespace, so that nothing can be learned about it.
var ErrPeerHidden = errors.New("shm: the peer's process is not visible in this pid namespace")

// Pidfd holds a process, so that its exit is seen and its number cannot come to
// mean another one unnoticed. Methods may be called from any goroutine.
type Pidfd struct{ f *os.File }

// PeerPidfd returns a pidfd of the other end. The kernel hands out the very
// process where it can (SO_PEERPIDFD, Linux 6.5); older ones are asked for the
// peer's pid. Error: ErrPeerHidden when there is no pid to ask for.
func (s *Conn) PeerPidfd() (*Pidfd, error) {
	fd := -1
	err := s.control(func(sock int) (err error) {
		fd, err = unix.GetsockoptInt(sock, unix.SOL_SOCKET, unix.SO_PEERPIDFD)
		return err
	})
	if err == nil {
		return newPidfd(fd)
	}
	cred, err := s.PeerCred()
	if err != nil {
		return nil, err
	}
	if cred.PID == 0 {
		return nil, ErrPeerHidden
	}
	return OpenPidfd(cred.PID)
}

// OpenPidfd returns a pidfd of the process pid. Errors: ESRCH.
func OpenPidfd(pid int) (*Pidfd, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, fmt.Errorf("shm: pidfd_open %d: %w", pid, err)
	}
	return newPidfd(fd)
}

func newPidfd(fd int) (*Pidfd, error) {
	unix.CloseOnExec(fd)
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, fmt.Errorf("shm: pidfd: %w", errors.Join(err, unix.Close(fd)))
	}
	return &Pidfd{f: os.NewFile(uintptr(fd), "pidfd")}, nil
}

// Wait returns nil when the process has exited, os.ErrClosed when the Pidfd was
// closed first. It waits in the runtime's poller.
func (p *Pidfd) Wait() error {
	raw, err := p.f.SyscallConn()
	if err != nil {
		return err
	}
	err = raw.Read(func(fd uintptr) bool {
		gone, err := readable(int(fd))
		return err == nil && gone
	})
	return asClosed(err)
}

// Exited reports whether the process has exited, without waiting. Error:
// os.ErrClosed.
func (p *Pidfd) Exited() (bool, error) {
	raw, err := p.f.SyscallConn()
	if err != nil {
		return false, err
	}
	var gone bool
	var inner error
	if err := raw.Control(func(fd uintptr) { gone, inner = readable(int(fd)) }); err != nil {
		return false, asClosed(err)
	}
	return gone, inner
}

// asClosed gives a raw connection's only error, that the file is closed or
// being closed, the name that os gives it elsewhere.
func asClosed(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("shm: pidfd: %w (%w)", os.ErrClosed, err)
}

// Close drops the process; a Wait that runs returns os.ErrClosed.
func (p *Pidfd) Close() error { return p.f.Close() }
