package verbs

import (
	"context"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/shm"
)

// records reads fixed-size records from a pipe of the adapter's. Waiting is
// done in Go's netpoller: no thread spins or blocks. A wait allocates only
// when its context is another than that of the wait before.
type records struct {
	f       *os.File
	raw     syscall.RawConn
	turn    chan struct{} // one reader at a time; who put its token in has it
	b       []byte
	readNow func(fd uintptr) // a read that does not wait, into b
	n       int              // its results
	err     error

	mu   sync.Mutex
	done <-chan struct{} // of the context that ends waits
	stop func() bool     // ends its watch
	past bool            // it ended them: the deadline is over
}

// newRecords owns fd.
func newRecords(fd, size int) (*records, error) {
	f, err := shm.OpenRecordReader(fd)
	if err != nil {
		return nil, err
	}
	r := &records{f: f, turn: make(chan struct{}, 1), b: make([]byte, size)}
	if r.raw, err = f.SyscallConn(); err != nil {
		_ = f.Close() // nobody reads it
		return nil, err
	}
	r.readNow = func(fd uintptr) { r.n, r.err = unix.Read(int(fd), r.b) }
	return r, nil
}

// next waits for a record and copies it to dst. It ends with ctx's error, or
// io.EOF when the adapter's end is closed.
func (r *records) next(ctx context.Context, dst []byte) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case r.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-r.turn }()
	if err := r.watch(ctx); err != nil {
		return err
	}
	if _, err := io.ReadFull(r.f, r.b); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return err
	}
	copy(dst, r.b)
	return nil
}

// watch lets ctx end the reads that follow, until another context does. It is
// asked for its Done channel, as contexts themselves need not be comparable.
func (r *records) watch(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	done := ctx.Done()
	if done == r.done {
		return nil
	}
	if r.stop != nil {
		r.stop()
		r.stop = nil
	}
	r.done = done
	if r.past {
		r.past = false
		if err := r.f.SetReadDeadline(time.Time{}); err != nil {
			return err
		}
	}
	if done != nil {
		r.stop = context.AfterFunc(ctx, func() { r.end(done) })
	}
	return nil
}

// end ends the wait of the context whose Done channel is done.
func (r *records) end(done <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.done == done {
		r.past = true
		_ = r.f.SetReadDeadline(time.Unix(1, 0)) // closed: the wait ended by that
	}
}

// try copies a record to dst when there is one: EAGAIN when there is none, or
// when a reader waits for it already; io.EOF as next.
func (r *records) try(dst []byte) error {
	select {
	case r.turn <- struct{}{}:
	default:
		return unix.EAGAIN
	}
	defer func() { <-r.turn }()
	if err := r.raw.Control(r.readNow); err != nil {
		return err
	}
	switch {
	case r.err != nil:
		return r.err
	case r.n != len(r.b):
		return io.EOF
	}
	copy(dst, r.b)
	return nil
}

func (r *records) close() {
	r.mu.Lock()
	if r.stop != nil {
		r.stop()
		r.stop = nil
	}
	r.mu.Unlock()
	_ = r.f.Close()
}
