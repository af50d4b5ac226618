package nic

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/shm"
)

// fileID names a memory file within this host.
type fileID struct{ dev, ino uint64 }

// A mapping is one memory file of a program, mapped once however many regions
// lie in it. The program's lock guards it.
type mapping struct {
	id   fileID
	seg  *shm.Segment
	refs int
	size uint64
}

// mapFile maps the memory file behind fd, or finds it mapped. The descriptor
// stays the caller's. Errors: EINVAL for a file that could shrink, ENOMEM
// over a limit.
func (p *program) mapFile(fd int) (*mapping, error) {
	// First of all: a file system in userspace answers an fstat when it likes,
	// and the program would hold this goroutine. Only the kernel's own memory
	// files have seals.
	if !shm.Sealed(fd) {
		return nil, refuse(syscall.EINVAL, "register memory: %v", shm.ErrNotSealed)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, refuse(syscall.EBADF, "register memory: fstat of the descriptor: %v", err)
	}
	id := fileID{uint64(st.Dev), st.Ino} //nolint:unconvert // st_dev has other widths on some targets (2026-11)
	if m := p.mappings[id]; m != nil {
		m.refs++
		return m, nil
	}
	size := uint64(max(st.Size, 0))
	if err := p.account.charge(ResourceMappings, 1); err != nil {
		return nil, err
	}
	if err := p.account.charge(ResourceMappedBytes, size); err != nil {
		p.account.release(ResourceMappings, 1)
		return nil, err
	}
	seg, err := shm.Map(fd, false)
	if err != nil {
		p.account.release(ResourceMappings, 1)
		p.account.release(ResourceMappedBytes, size)
		errno := errnoOf(err, syscall.EINVAL)
		if errors.Is(err, os.ErrPermission) {
			errno = syscall.EPERM
		}
		return nil, refuse(errno, "register memory: %v", err)
	}
	if uint64(seg.Size()) != size {
		_ = seg.Close()
		p.account.release(ResourceMappings, 1)
		p.account.release(ResourceMappedBytes, size)
		return nil, refuse(syscall.EINVAL, "register memory: the memory file grew from %d bytes meanwhile", size)
	}
	m := &mapping{id: id, seg: seg, refs: 1, size: size}
	p.mappings[id] = m
	return m, nil
}

// unmap drops one use of m, which may be nil, and unmaps the file with the
// last. No worker may hold a segment of a region in it any more.
func (p *program) unmap(m *mapping) {
	if m == nil {
		return
	}
	if m.refs--; m.refs > 0 {
		return
	}
	delete(p.mappings, m.id)
	_ = m.seg.Close()
	p.account.release(ResourceMappings, 1)
	p.account.release(ResourceMappedBytes, m.size)
}
