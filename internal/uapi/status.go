package uapi

import (
	"fmt"
	"sync/atomic"
)

// The status page: one per adapter, which alone writes it.
//
//	  64w asleep  u32    worker w sleeps: a doorbell must be followed by its eventfd
//	4032  closing u32    0 while the adapter lives, 1 when it closes
const (
	statusStride  = 64
	statusClosing = 4032

	// StatusSize is the length of the status page in bytes.
	StatusSize = 4096
	// MaxWorkers is how many workers the page has room for.
	MaxWorkers = statusClosing / statusStride
)

// StatusPage is the adapter's status page, seen from either side. The program's
// side is mapped read-only and only asks. Methods may be called from any
// goroutine.
type StatusPage struct {
	mem     Memory
	closing *atomic.Uint32
}

// NewStatusPage returns the page at the start of mem. Error: ErrGeometry.
func NewStatusPage(mem Memory) (*StatusPage, error) {
	if len(mem.Bytes()) < StatusSize {
		return nil, fmt.Errorf("%w: status page in %d bytes", ErrGeometry, len(mem.Bytes()))
	}
	return &StatusPage{mem: mem, closing: mem.Word32(statusClosing)}, nil
}

// SleepWord returns a worker's sleep flag: not 0 while it sleeps or is about
// to. The worker sets it, looks at all its doorbells again, and only then
// sleeps. Error: ErrGeometry.
func (p *StatusPage) SleepWord(worker int) (*atomic.Uint32, error) {
	if worker < 0 || worker >= MaxWorkers {
		return nil, fmt.Errorf("%w: worker %d of at most %d", ErrGeometry, worker, MaxWorkers)
	}
	return p.mem.Word32(worker * statusStride), nil
}

// SetClosing tells all programs that the adapter closes.
func (p *StatusPage) SetClosing() { p.closing.Store(1) }

// Closing reports whether the adapter closes.
func (p *StatusPage) Closing() bool { return p.closing.Load() != 0 }
