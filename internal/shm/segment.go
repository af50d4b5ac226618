package shm

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

var (
	// ErrNotSealed refuses memory whose size its owner could still reduce: a
	// load from a page that is gone would kill the reader.
	ErrNotSealed = errors.New("shm: descriptor is not a memfd sealed against shrinking (F_SEAL_SHRINK)")
	// ErrSize refuses a segment of no or of an impossible size.
	ErrSize = errors.New("shm: impossible segment size")
	// ErrClosed is returned for an operation on something already closed.
	ErrClosed = errors.New("shm: already closed")
	// ErrHandedOut is returned by SealFutureWrite once FD has given the
	// descriptor away: a writable mapping may exist by then.
	ErrHandedOut = errors.New("shm: descriptor was handed out before it was sealed against writing")
	// ErrOtherHeap says that a segment lies on the Go heap of another process,
	// which was built with -race; see ShareAcrossProcesses.
	ErrOtherHeap = errors.New("shm: segment lies on the heap of another process built with -race")
)

// Segment is a piece of memory that two processes map. Its bytes live outside
// the Go heap (except in a race build, see the package comment) until Close.
// The methods may be called from several goroutines, Close once nobody uses
// the bytes any more.
type Segment struct {
	mem      []byte
	fd       int // -1 when this side did not create it
	readOnly bool
	inode    inode
	release  func() error // gives mem back

	mu     sync.Mutex
	sealed bool // F_SEAL_SEAL is set
	closed bool
}

// Create makes a memfd of size bytes, rounded up to whole pages, and maps it
// for reading and writing. It is sealed against growing and shrinking at once,
// and against more seals when FD first hands it out. The name shows in
// /proc/PID/maps only. Pages are zero and take memory when first touched.
func Create(name string, size int) (*Segment, error) { return newSegment(name, size, (*Segment).back) }

// CreateMapped is Create with a real mapping in a race build, too: for memory
// that is raced on by intention, as a test of a hostile program does.
func CreateMapped(name string, size int) (*Segment, error) {
	return newSegment(name, size, (*Segment).backMapped)
}

func newSegment(name string, size int, back func(*Segment, int) error) (*Segment, error) {
	if size <= 0 {
		return nil, fmt.Errorf("create %s: %w: %d bytes", name, ErrSize, size)
	}
	size = roundUp(size, os.Getpagesize())
	fd, err := memfd(name)
	if err != nil {
		return nil, fmt.Errorf("shm: memfd_create %s: %w", name, err)
	}
	s := &Segment{fd: fd}
	if err := s.init(size, back); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("shm: create %s of %d bytes: %w", name, size, err)
	}
	return s, nil
}

// memfd makes an empty memfd that can be sealed and that nobody can execute,
// where the kernel knows that flag (Linux 6.3).
func memfd(name string) (int, error) {
	flags := unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate(name, flags|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) {
		fd, err = unix.MemfdCreate(name, flags)
	}
	return fd, err
}

func (s *Segment) init(size int, back func(*Segment, int) error) error {
	if err := unix.Ftruncate(s.fd, int64(size)); err != nil {
		return fmt.Errorf("ftruncate: %w", err)
	}
	if err := s.addSeals(unix.F_SEAL_GROW | unix.F_SEAL_SHRINK); err != nil {
		return err
	}
	var err error
	if s.inode, _, err = stat(s.fd); err != nil {
		return err
	}
	return back(s, size)
}

// Map maps the memfd behind fd, whole, with the size that the kernel gives for
// it. It keeps no descriptor: fd stays the caller's and may be closed at once.
// Errors: ErrNotSealed, ErrSize, ErrOtherHeap, or the kernel's (EPERM for a
// writable mapping of a segment sealed against writing).
func Map(fd int, readOnly bool) (*Segment, error) {
	seals, ok := sealsOf(fd)
	if !ok {
		return nil, ErrNotSealed
	}
	ino, size, err := stat(fd)
	if err != nil {
		return nil, fmt.Errorf("shm: fstat: %w", err)
	}
	if size <= 0 || int64(int(size)) != size {
		return nil, fmt.Errorf("map: %w: %d bytes", ErrSize, size)
	}
	s := &Segment{fd: -1, readOnly: readOnly, inode: ino}
	if err := s.attach(fd, int(size), seals); err != nil {
		return nil, fmt.Errorf("shm: map %d bytes: %w", size, err)
	}
	return s, nil
}

// Sealed says whether fd is a memory file that cannot shrink. It asks no file
// system, so it cannot be made to wait.
func Sealed(fd int) bool {
	_, ok := sealsOf(fd)
	return ok
}

// sealsOf gives the seals of a memory file; ok is false when it could shrink.
func sealsOf(fd int) (seals int, ok bool) {
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	return seals, err == nil && seals&unix.F_SEAL_SHRINK != 0
}

// Bytes returns the memory. It is invalid after Close; a read-only segment
// faults on a store.
func (s *Segment) Bytes() []byte { return s.mem }

// Size returns the length of the memory in bytes.
func (s *Segment) Size() int { return len(s.mem) }

// ReadOnly reports whether this side mapped the memory for reading only.
func (s *Segment) ReadOnly() bool { return s.readOnly }

// FD returns the descriptor to pass to the other side, or -1 for a segment got
// from Map. The segment goes on owning it. The first call adds F_SEAL_SEAL: the
// receiver can add no seal of its own.
func (s *Segment) FD() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fd >= 0 && !s.sealed {
		// Cannot fail: the memfd is ours and allows sealing.
		s.sealed = s.addSeals(unix.F_SEAL_SEAL) == nil
	}
	return s.fd
}

// SealFutureWrite closes the segment to all other writers: this mapping goes on
// writing, everybody else can map it for reading only. It must come before the
// first FD (else ErrHandedOut).
func (s *Segment) SealFutureWrite() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed || s.fd < 0:
		return ErrClosed
	case s.sealed:
		return ErrHandedOut
	}
	if err := s.addSeals(unix.F_SEAL_FUTURE_WRITE | unix.F_SEAL_SEAL); err != nil {
		return err
	}
	s.sealed = true
	return nil
}

// Close unmaps the memory and closes the descriptor. Nobody may hold a part of
// Bytes, a word or a RegionMemory of it any more. A second call returns
// ErrClosed.
func (s *Segment) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrClosed
	}
	s.closed = true
	err := s.release()
	s.mem = nil
	if s.fd >= 0 {
		err = errors.Join(err, unix.Close(s.fd))
		s.fd = -1
	}
	return err
}

func (s *Segment) addSeals(seals int) error {
	if _, err := unix.FcntlInt(uintptr(s.fd), unix.F_ADD_SEALS, seals); err != nil {
		return fmt.Errorf("add seals %#x: %w", seals, err)
	}
	return nil
}

// backMapped gives a new segment a real mapping.
func (s *Segment) backMapped(size int) error { return s.mmap(s.fd, size) }

// mmap maps fd as this segment's memory.
func (s *Segment) mmap(fd, size int) error {
	prot := unix.PROT_READ
	if !s.readOnly {
		prot |= unix.PROT_WRITE
	}
	mem, err := unix.Mmap(fd, 0, size, prot, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("mmap: %w", err)
	}
	s.mem, s.release = mem, func() error { return unix.Munmap(mem) }
	return nil
}

// inode names the memory behind a descriptor within this host.
type inode struct{ dev, ino uint64 }

func stat(fd int) (inode, int64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return inode{}, 0, err
	}
	return inode{uint64(st.Dev), st.Ino}, st.Size, nil //nolint:unconvert // st_dev has other widths on some targets (2026-11)
}

func roundUp(n, unit int) int { return (n + unit - 1) / unit * unit }
