package shm

import (
	"errors"
	"fmt"
	"math"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// pollBatch bounds the descriptors reported by one Wait; the others come with
// the next.
const pollBatch = 64

// Poller is the one sleep of a worker: on sockets, eventfds and a deadline. Add
// and its kin may be called from any goroutine, also during a Wait; Wait
// belongs to one goroutine.
type Poller struct {
	fd     int
	coarse bool // no epoll_pwait2 here: milliseconds
	events [pollBatch]unix.EpollEvent
}

// NewPoller makes an epoll instance.
func NewPoller() (*Poller, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("shm: epoll_create1: %w", err)
	}
	return &Poller{fd: fd}, nil
}

// Add reports token whenever fd is readable or hung up.
func (p *Poller) Add(fd int, token uint64) error {
	return p.control(unix.EPOLL_CTL_ADD, fd, unix.EPOLLIN, token)
}

// AddEdge reports token once for each time that fd becomes readable. It is the
// way to watch an eventfd shared with a program: every ring is reported, the
// counter is never read, so nothing the program does to the open file can make
// a worker block.
func (p *Poller) AddEdge(fd int, token uint64) error {
	return p.control(unix.EPOLL_CTL_ADD, fd, unix.EPOLLIN|unix.EPOLLET, token)
}

// AddWritable reports token once when fd takes data again, and not again until
// Rearm: the wait for a full socket. It reports at once when fd is writable
// now.
func (p *Poller) AddWritable(fd int, token uint64) error {
	return p.control(unix.EPOLL_CTL_ADD, fd, unix.EPOLLOUT|unix.EPOLLONESHOT, token)
}

// Watch changes what a descriptor added before is watched for.
func (p *Poller) Watch(fd int, token uint64, readable, writable bool) error {
	var events uint32
	if readable {
		events |= unix.EPOLLIN
	}
	if writable {
		events |= unix.EPOLLOUT
	}
	return p.control(unix.EPOLL_CTL_MOD, fd, events, token)
}

// Rearm makes AddWritable report once more.
func (p *Poller) Rearm(fd int, token uint64) error {
	return p.control(unix.EPOLL_CTL_MOD, fd, unix.EPOLLOUT|unix.EPOLLONESHOT, token)
}

// Remove forgets fd. Call it before the descriptor is closed; an event already
// fetched may still name its token.
func (p *Poller) Remove(fd int) error {
	return p.control(unix.EPOLL_CTL_DEL, fd, 0, 0)
}

func (p *Poller) control(op, fd int, events uint32, token uint64) error {
	ev := unix.EpollEvent{Events: events}
	setToken(&ev, token)
	if err := unix.EpollCtl(p.fd, op, fd, &ev); err != nil {
		return fmt.Errorf("shm: epoll_ctl on descriptor %d: %w", fd, err)
	}
	return nil
}

// setToken and token keep 64 bits of user data in the two halves that x/sys
// makes of an event's data field; which half is which does not matter here.
func setToken(ev *unix.EpollEvent, t uint64) {
	ev.Fd, ev.Pad = int32(uint32(t)), int32(uint32(t>>32))
}

func token(ev *unix.EpollEvent) uint64 {
	return uint64(uint32(ev.Fd)) | uint64(uint32(ev.Pad))<<32
}

// Wait sleeps until a descriptor reports or timeout has passed (0: only look;
// negative: no limit) and stores the tokens in events, at most min(len(events),
// 64). A signal ends it early with n = 0: the caller looks at its deadline
// again. It allocates nothing.
func (p *Poller) Wait(timeout time.Duration, events []uint64) (n int, err error) {
	max := min(len(events), pollBatch)
	if max == 0 {
		return 0, nil
	}
	n, err = p.wait(max, timeout)
	if errors.Is(err, unix.EINTR) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("shm: epoll_wait: %w", err)
	}
	for i := range n {
		events[i] = token(&p.events[i])
	}
	return n, nil
}

// wait sleeps with nanoseconds where the kernel can (Linux 5.11, and no filter
// against it), else with milliseconds, rounded up.
func (p *Poller) wait(max int, timeout time.Duration) (int, error) {
	if !p.coarse {
		n, errno := p.waitFine(max, timeout)
		if errno != unix.ENOSYS && errno != unix.EPERM {
			if errno != 0 {
				return 0, errno
			}
			return n, nil
		}
		p.coarse = true
	}
	ms := -1
	if timeout >= 0 {
		ms = int(min((timeout+time.Millisecond-1)/time.Millisecond, math.MaxInt32))
	}
	return unix.EpollWait(p.fd, p.events[:max], ms)
}

func (p *Poller) waitFine(max int, timeout time.Duration) (int, unix.Errno) {
	var ts unix.Timespec
	var limit unsafe.Pointer
	if timeout >= 0 {
		ts = unix.NsecToTimespec(int64(timeout))
		limit = unsafe.Pointer(&ts)
	}
	var n uintptr
	var errno unix.Errno
	if timeout == 0 { // cannot block
		n, _, errno = unix.RawSyscall6(unix.SYS_EPOLL_PWAIT2, uintptr(p.fd), uintptr(unsafe.Pointer(&p.events[0])), uintptr(max), uintptr(limit), 0, 0)
	} else {
		n, _, errno = unix.Syscall6(unix.SYS_EPOLL_PWAIT2, uintptr(p.fd), uintptr(unsafe.Pointer(&p.events[0])), uintptr(max), uintptr(limit), 0, 0)
	}
	return int(n), errno
}

// Close ends the poller; the watched descriptors stay open.
func (p *Poller) Close() error { return unix.Close(p.fd) }
