//go:build !race

package shm

// ShareAcrossProcesses makes a race build use real mappings from now on, so
// that it can talk to another process; the detector then no longer sees what
// happens in segments. Builds without -race always do, and this does nothing.
func ShareAcrossProcesses() {}

// back gives a new segment its memory.
func (s *Segment) back(size int) error { return s.backMapped(size) }

// attach gives a segment the memory behind a received descriptor.
func (s *Segment) attach(fd, size, _ int) error { return s.mmap(fd, size) }
