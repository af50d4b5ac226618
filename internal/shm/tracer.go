package shm

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// AllowTracer lets the process pid, the adapter as it is seen from here, reach
// this process's memory where Yama restricts that to parents (ptrace_scope 1).
// It lasts until the next call or the end of either process. Without Yama there
// is nothing to allow, and the call succeeds. Take pid from PeerCred, never from
// a message. Error: ErrPeerHidden for pid 0.
func AllowTracer(pid int) error {
	if pid <= 0 {
		return ErrPeerHidden
	}
	err := unix.Prctl(unix.PR_SET_PTRACER, uintptr(pid), 0, 0, 0)
	if err == nil || errors.Is(err, unix.EINVAL) {
		// EINVAL: no Yama; or no such process any more, which the next call to
		// the adapter shows.
		return nil
	}
	return fmt.Errorf("shm: name process %d as tracer: %w", pid, err)
}
