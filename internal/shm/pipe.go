package shm

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// RecordWriter is the writing end of a pipe of small records: completion events
// of a channel, async events of a program. Each record is written whole or not
// at all (records are far below PIPE_BUF). Methods may be called from any
// goroutine.
type RecordWriter struct {
	mu      sync.RWMutex // held for reading while the descriptor is used
	fd      int
	dropped atomic.Uint64
}

// NewRecordPipe makes a pipe. The reading end is for the other process: the
// caller passes readFD on and closes its copy.
func NewRecordPipe() (w *RecordWriter, readFD int, err error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return nil, -1, fmt.Errorf("shm: pipe2: %w", err)
	}
	return &RecordWriter{fd: fds[1]}, fds[0], nil
}

// Write puts one record into the pipe and never blocks. It reports false, and
// counts, when the pipe is full, its reader gone, or the writer closed.
func (w *RecordWriter) Write(record []byte) bool {
	w.mu.RLock()
	defer w.mu.RUnlock()
	if w.fd >= 0 && len(record) > 0 {
		for {
			n, _, errno := unix.RawSyscall(unix.SYS_WRITE, uintptr(w.fd), uintptr(unsafe.Pointer(&record[0])), uintptr(len(record)))
			if errno == unix.EINTR {
				continue
			}
			if errno == 0 && int(n) == len(record) {
				return true
			}
			break
		}
	}
	w.dropped.Add(1)
	return false
}

// Dropped returns how many records Write could not deliver.
func (w *RecordWriter) Dropped() uint64 { return w.dropped.Load() }

// Close closes the writing end: the reader sees the end of the stream. A second
// call returns ErrClosed.
func (w *RecordWriter) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fd < 0 {
		return ErrClosed
	}
	err := unix.Close(w.fd)
	w.fd = -1
	return err
}

// OpenRecordReader takes over the received reading end of a record pipe, as a
// file whose reads wait in the runtime's poller and end when it is closed.
func OpenRecordReader(fd int) (*os.File, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, fmt.Errorf("shm: record pipe: %w", errors.Join(err, unix.Close(fd)))
	}
	return os.NewFile(uintptr(fd), "records"), nil
}
