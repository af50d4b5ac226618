package foreign

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/shm"
)

var (
	// ErrRevoked is returned for every access after Revoke.
	ErrRevoked = errors.New("foreign: access was revoked")
	// ErrBounds is returned for an access that leaves the region.
	ErrBounds = errors.New("foreign: access outside the region")
	// ErrMisaligned is returned for an atomic on an address that is not a
	// multiple of 8.
	ErrMisaligned = errors.New("foreign: atomic on an address not aligned to 8 bytes")
)

// maxCall is the most bytes that one system call moves: Linux cuts at a little
// less than 2 GiB, and a revocation should not wait long.
const maxCall = 1 << 20

// Process is a program whose memory is reached. All its regions share it, so
// that one Revoke stops them all. Whoever watches the program's exit and
// hang-up calls Revoke. Methods may be called from any goroutine.
type Process struct {
	pid     int
	pidfd   *shm.Pidfd // borrowed; nil: none
	revoked atomic.Bool
}

// NewProcess names a program by its pid, as it is seen from here, and its
// pidfd, which stays the caller's: with it, Open makes sure that the pid still
// is that process's. Ask Allowed first.
func NewProcess(pid int, pidfd *shm.Pidfd) *Process { return &Process{pid: pid, pidfd: pidfd} }

// PID returns the program's pid.
func (p *Process) PID() int { return p.pid }

// Revoke stops every access that has not reached the kernel yet, for good. It
// comes first when a program exits, hangs up or calls exec: the pid then
// belongs to somebody else.
func (p *Process) Revoke() { p.revoked.Store(true) }

// Revoked reports whether Revoke was called.
func (p *Process) Revoked() bool { return p.revoked.Load() }

// Memory is a region of a program's address space, with the methods of
// mrtable.Memory. Methods may be called from any goroutine.
type Memory struct {
	p      *Process
	addr   uint64
	length uint64
}

// Open returns the region [addr, addr+length) of p and proves that its first
// and last byte can be read. Errors: ErrBounds when the range wraps;
// ErrRevoked; EFAULT where nothing is mapped; ESRCH when the program is gone;
// EPERM, with a hint at Yama.
func (p *Process) Open(addr, length uint64) (*Memory, error) {
	// The last byte must not wrap, here or as this machine counts addresses.
	if last := addr + length - 1; length > 0 && (last < addr || uint64(uintptr(last)) != last) {
		return nil, fmt.Errorf("open %d bytes at %#x: %w", length, addr, ErrBounds)
	}
	m := &Memory{p: p, addr: addr, length: length}
	var probe [1]byte
	for _, off := range []uint64{0, length - 1} {
		if length == 0 {
			break
		}
		if err := m.ReadAt(probe[:], off); err != nil {
			return nil, explain(p.pid, err)
		}
	}
	return m, p.alive()
}

// Everything is the length of what OpenAll returns, in bytes: all addresses but
// the last.
const Everything = uint64(^uintptr(0))

// OpenAll returns the whole address space of p, as a region that begins at
// address 0, and proves that it may be reached. What is mapped where shows at
// each access. Errors: ErrRevoked; ESRCH when the program is gone; EPERM, with a
// hint at Yama.
func (p *Process) OpenAll() (*Memory, error) {
	m := &Memory{p: p, length: Everything}
	var probe [1]byte
	// Nothing need be mapped there, but who may not look is told so first.
	if err := m.ReadAt(probe[:], 0); err != nil && !errors.Is(err, unix.EFAULT) {
		return nil, explain(p.pid, err)
	}
	return m, p.alive()
}

// alive reports that the program is: then the pid was its own when its memory
// was read before. ESRCH when it is not.
func (p *Process) alive() error {
	if p.pidfd == nil {
		return nil
	}
	if gone, err := p.pidfd.Exited(); err != nil || gone {
		return fmt.Errorf("open memory of process %d: %w", p.pid, errors.Join(unix.ESRCH, err))
	}
	return nil
}

// explain adds what an operator can do about a refusal.
func explain(pid int, err error) error {
	switch {
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w (not allowed to reach process %d: the kernel's ptrace rules forbid it; with Yama's ptrace_scope 1 the program must name this process with PR_SET_PTRACER, with 2 or 3 use shared regions)", err, pid)
	case errors.Is(err, unix.ENOSYS):
		return fmt.Errorf("%w (process_vm_readv is missing or filtered here: use shared regions)", err)
	}
	return err
}

// ReadAt copies len(dst) bytes of the program's memory from byte off on.
// Errors: ErrRevoked, ErrBounds, EFAULT, ESRCH, EPERM; dst may then be partly
// written.
func (m *Memory) ReadAt(dst []byte, off uint64) error {
	return m.transfer(unix.SYS_PROCESS_VM_READV, dst, off)
}

// WriteAt copies src to the program's memory at byte off. Errors as ReadAt's; a
// part may then have been written.
func (m *Memory) WriteAt(src []byte, off uint64) error {
	return m.transfer(unix.SYS_PROCESS_VM_WRITEV, src, off)
}

// transfer moves buf with one of the two calls, in parts.
func (m *Memory) transfer(call uintptr, buf []byte, off uint64) error {
	n := uint64(len(buf))
	if off > m.length || n > m.length-off {
		return ErrBounds
	}
	at := m.addr + off
	for len(buf) > 0 {
		if m.p.revoked.Load() {
			return ErrRevoked
		}
		part := buf[:min(len(buf), maxCall)]
		done, errno := move(call, m.p.pid, part, at)
		if errno == unix.EINTR {
			continue
		}
		if errno == 0 && done <= 0 {
			errno = unix.EFAULT
		}
		if errno != 0 {
			return &AccessError{Write: call == unix.SYS_PROCESS_VM_WRITEV, PID: m.p.pid, Addr: at, Len: len(part), Errno: errno}
		}
		buf, at = buf[done:], at+uint64(done)
	}
	return nil
}

// move makes the call with one element on either side. It may wait for a page,
// so it goes through the blocking form of a system call; and it keeps the
// elements on the stack, which x/sys does not.
func move(call uintptr, pid int, buf []byte, at uint64) (int, unix.Errno) {
	local := unix.Iovec{Base: unsafe.SliceData(buf)}
	local.SetLen(len(buf))
	remote := unix.RemoteIovec{Base: uintptr(at), Len: len(buf)}
	n, _, errno := unix.Syscall6(call, uintptr(pid), uintptr(unsafe.Pointer(&local)), 1, uintptr(unsafe.Pointer(&remote)), 1, 0)
	return int(n), errno
}

// AccessError is an access that the kernel refused.
type AccessError struct {
	Write bool
	PID   int
	Addr  uint64     // in the program
	Len   int        // bytes
	Errno unix.Errno // EFAULT, ESRCH, EPERM ...
}

// Error names the access and the kernel's reason.
func (e *AccessError) Error() string {
	op := "read"
	if e.Write {
		op = "write"
	}
	return fmt.Sprintf("foreign: %s %d bytes at %#x of process %d: %v", op, e.Len, e.Addr, e.PID, e.Errno)
}

// Unwrap gives the errno.
func (e *AccessError) Unwrap() error { return e.Errno }

// stripes guard the read-and-write of an atomic. The stripe is the place within
// a page, so that one word is one stripe under every address and in every
// program that maps it.
var stripes [pageWords]struct {
	sync.Mutex
	_ [56]byte // one per cache line
}

// pageWords is how many aligned words the smallest page holds.
const pageWords = 4096 / 8

// CompareSwap stores swap at byte off when the 8 bytes there, in host order,
// equal compare, and returns what was there. Errors as ReadAt's, and
// ErrMisaligned.
func (m *Memory) CompareSwap(off, compare, swap uint64) (old uint64, err error) {
	return m.update(off, func(v uint64) (uint64, bool) { return swap, v == compare })
}

// FetchAdd adds to the 8 bytes at byte off, in host order, and returns what was
// there. Errors as ReadAt's, and ErrMisaligned.
func (m *Memory) FetchAdd(off, add uint64) (old uint64, err error) {
	return m.update(off, func(v uint64) (uint64, bool) { return v + add, true })
}

func (m *Memory) update(off uint64, change func(uint64) (uint64, bool)) (old uint64, err error) {
	at := m.addr + off
	if at%8 != 0 {
		return 0, ErrMisaligned
	}
	lock := &stripes[at/8%pageWords]
	lock.Lock()
	defer lock.Unlock()
	var word [8]byte
	if err := m.ReadAt(word[:], off); err != nil {
		return 0, err
	}
	old = binary.NativeEndian.Uint64(word[:])
	v, store := change(old)
	if !store {
		return old, nil
	}
	binary.NativeEndian.PutUint64(word[:], v)
	return old, m.WriteAt(word[:], off)
}

// Bytes returns nil: this memory is not mapped here.
func (m *Memory) Bytes(uint64, uint64) []byte { return nil }
