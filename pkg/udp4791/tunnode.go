package udp4791

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// openTUNNode opens the device that TUN links are made and opened by.
func openTUNNode(path string) (int, error) {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) {
		return -1, &nodeRefused{path, err}
	}
	return fd, err
}

// A nodeRefused is that the device itself may not be opened, whoever the link is for.
type nodeRefused struct {
	path string
	err  error
}

// Error is the kernel's.
func (r *nodeRefused) Error() string { return r.err.Error() }

// Unwrap returns the error number.
func (r *nodeRefused) Unwrap() error { return r.err }

// reason says what the device's mode is, where it is about that.
func (r *nodeRefused) reason() string {
	var st unix.Stat_t
	if err := unix.Stat(r.path, &st); err != nil {
		return fmt.Sprintf("the device %s may not be opened by this user, nor looked at (%v)", r.path, err)
	}
	if st.Mode&0o666 == 0o666 {
		return fmt.Sprintf("the device %s may not be opened here, though its mode is %04o: a security policy or a device cgroup forbids it", r.path, st.Mode&0o7777)
	}
	return fmt.Sprintf("the device %s may not be opened by this user: its mode is %04o, its owner user %d, group %d; \"chmod 666 %s\" as root lets everybody"+
		" open it, and nobody make a link", r.path, st.Mode&0o7777, st.Uid, st.Gid, r.path)
}
