package shm

import (
	"encoding/binary"
	"fmt"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Doorbell is an eventfd: one side rings, the other sleeps on it in a Poller.
// Rings while nobody looks add up to one wake-up. Ring, Drain and Close may be
// called from any goroutine.
type Doorbell struct {
	mu sync.RWMutex // held for reading while the descriptor is used
	fd int          // -1 once closed
}

// NewDoorbell makes an eventfd.
func NewDoorbell() (*Doorbell, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("shm: eventfd: %w", err)
	}
	return &Doorbell{fd: fd}, nil
}

// DoorbellFromFD takes over a received eventfd.
func DoorbellFromFD(fd int) *Doorbell { return &Doorbell{fd: fd} }

// ringValue is what a ring adds to the counter.
var ringValue = func() (b [8]byte) { binary.NativeEndian.PutUint64(b[:], 1); return b }()

// Ring wakes whoever waits. One system call; a counter that is full has rung
// already.
func (d *Doorbell) Ring() {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.fd < 0 {
		return
	}
	// Cannot block: ones do not fill a 64-bit counter in a lifetime. (A program
	// that fills its own blocks itself.)
	_, _, _ = unix.RawSyscall(unix.SYS_WRITE, uintptr(d.fd), uintptr(unsafe.Pointer(&ringValue[0])), 8)
}

// Drain forgets the rings so far. It never blocks, even when the other side of
// a shared descriptor took O_NONBLOCK away. An eventfd watched with
// Poller.AddEdge needs no Drain.
func (d *Doorbell) Drain() {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.fd < 0 {
		return
	}
	var buf [8]byte
	readNoWait(d.fd, buf[:])
}

// FD returns the descriptor, which the doorbell goes on owning; -1 when closed.
func (d *Doorbell) FD() int {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.fd
}

// Close closes the descriptor; later rings do nothing. A second call returns
// ErrClosed.
func (d *Doorbell) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.fd < 0 {
		return ErrClosed
	}
	err := unix.Close(d.fd)
	d.fd = -1
	return err
}

// readNoWait reads what is there without blocking, whatever the flags of the
// open file: preadv2 with RWF_NOWAIT and the offset -1 of a stream. A kernel
// that cannot do that for this kind of file gets a plain read, after a look
// whether there is something to read.
func readNoWait(fd int, buf []byte) int {
	iov := unix.Iovec{Base: unsafe.SliceData(buf)}
	iov.SetLen(len(buf))
	n, _, errno := unix.RawSyscall6(unix.SYS_PREADV2, uintptr(fd), uintptr(unsafe.Pointer(&iov)), 1,
		^uintptr(0), ^uintptr(0), unix.RWF_NOWAIT)
	if errno == unix.ENOSYS || errno == unix.EOPNOTSUPP || errno == unix.EINVAL {
		if ready, err := readable(fd); err != nil || !ready {
			return 0
		}
		n, _, errno = unix.Syscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(buf))), uintptr(len(buf)))
	}
	if errno != 0 {
		return 0
	}
	return int(n)
}

// readable reports whether a read of fd would not block.
func readable(fd int) (bool, error) {
	fds := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds[:], 0)
		if err == unix.EINTR {
			continue
		}
		return n > 0 && fds[0].Revents&unix.POLLIN != 0, err
	}
}
