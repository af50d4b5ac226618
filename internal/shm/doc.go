// Package shm holds what two processes of one host share: sealed memory, the
// eventfds and record pipes that wake the other side, the control socket with
// its passed descriptors, and the waits that belong beside them.
//
// It knows nothing of what lies in the memory (that is internal/uapi) and takes
// no decision about a program (that is internal/nic). Everything that arrives
// from the other process is hostile: sizes are asked of the kernel, a
// descriptor that could shrink is refused, and a descriptor nobody wanted is
// closed.
//
// Words shared between the two sides are read and written with sync/atomic
// only, in the host's byte order: both ends run on one host. All other fields
// are little-endian, see internal/uapi.
//
// # The race detector
//
// The race detector does not see memory that it did not allocate. In a build
// with -race, Create therefore takes the memory from the Go heap and keeps it
// in a registry of the process by the inode of its memfd; Map, given a
// descriptor of that inode, returns the same slice. Both ends of a test in one
// process thus share one heap slice and the detector sees every access. A
// race build that must talk to another process calls ShareAcrossProcesses
// first, as pkg/verbs does when it opens a daemon's adapter; until then a segment on a heap carries F_SEAL_WRITE, so that another
// process cannot map it and is told so, instead of reading zeros.
package shm
