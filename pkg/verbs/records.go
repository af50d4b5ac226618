package verbs

import (
	"context"
	"io"
	"os"
	"sync"
	"time"

	"github.com/softroce/softroce/internal/shm"
)

// records reads fixed-size records from a pipe of the adapter's. Waiting is
// done in Go's netpoller: no thread spins or blocks.
type records struct {
	f  *os.File
	mu sync.Mutex // one reader at a time
	b  []byte
}

// newRecords owns fd.
func newRecords(fd, size int) (*records, error) {
	f, err := shm.OpenRecordReader(fd)
	if err != nil {
		return nil, err
	}
	return &records{f: f, b: make([]byte, size)}, nil
}

// next waits for a record and gives it to take. It ends with ctx's error,
// or io.EOF when the adapter's end is closed.
func (r *records) next(ctx context.Context, take func([]byte)) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.f.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = r.f.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	if _, err := io.ReadFull(r.f, r.b); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return err
	}
	take(r.b)
	return nil
}

func (r *records) close() { _ = r.f.Close() }
