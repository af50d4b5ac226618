package shm

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Cred says who is at the other end, as the kernel saw it at connect (for the
// connecting side: at listen). PID is 0 when that process is not visible in
// this pid namespace.
type Cred struct {
	PID int
	UID uint32
	GID uint32
}

// PeerCred returns the other end's credentials.
func (s *Conn) PeerCred() (Cred, error) {
	var c Cred
	err := s.control(func(fd int) (err error) {
		c, err = peerCred(fd)
		return err
	})
	return c, err
}

func peerCred(fd int) (Cred, error) {
	u, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return Cred{}, fmt.Errorf("shm: peer credentials: %w", err)
	}
	return Cred{PID: int(u.Pid), UID: u.Uid, GID: u.Gid}, nil
}
