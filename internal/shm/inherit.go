package shm

import (
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// Inherit takes over a listening socket that another process opened and passed
// as descriptor fd: the service manager's. It owns fd, also when an error is
// returned. The socket file belongs to whoever made it: Close leaves it, and
// mode and owner are as they were set there.
func Inherit(fd int) (*Listener, error) {
	unix.CloseOnExec(fd)
	f := os.NewFile(uintptr(fd), "inherited socket")
	if f == nil {
		return nil, fmt.Errorf("inherit descriptor %d: %w", fd, unix.EBADF)
	}
	defer f.Close() //nolint:errcheck // FileListener duplicated it (2026-11)
	path, err := listening(fd)
	if err != nil {
		return nil, fmt.Errorf("inherit descriptor %d: %w", fd, err)
	}
	// The socket still says that the service manager listens. Saying it again
	// makes it this process: programs ask who may look into their memory.
	if err := unix.Listen(fd, unix.SOMAXCONN); err != nil {
		return nil, fmt.Errorf("inherit %s: listen: %w", path, err)
	}
	l, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("inherit %s: %w", path, err)
	}
	ul, ok := l.(*net.UnixListener)
	if !ok {
		return nil, errors.Join(fmt.Errorf("inherit %s: no Unix listener", path), l.Close())
	}
	return &Listener{l: ul, path: path}, nil // no inode: Close removes no file
}

// listening returns the path of a socket that programs can connect to.
func listening(fd int) (path string, err error) {
	name, err := unix.Getsockname(fd)
	if err != nil {
		return "", fmt.Errorf("no socket: %w", err)
	}
	at, ok := name.(*unix.SockaddrUnix)
	if !ok || at.Name == "" || at.Name[0] == '@' {
		return "", fmt.Errorf("not a Unix socket with a path")
	}
	kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	if err != nil {
		return "", fmt.Errorf("%s: socket type: %w", at.Name, err)
	}
	if kind != unix.SOCK_SEQPACKET {
		return "", fmt.Errorf("%s is a socket of type %d, want %d, sequential packets (systemd: ListenSequentialPacket=)", at.Name, kind, unix.SOCK_SEQPACKET)
	}
	on, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	if err != nil {
		return "", fmt.Errorf("%s: accepts: %w", at.Name, err)
	}
	if on == 0 {
		return "", fmt.Errorf("%s does not listen (systemd: Accept=no)", at.Name)
	}
	return at.Name, nil
}
