package verbs

import (
	"sync/atomic"
	"time"
)

// Our own tuning of a program that polls in vain. It yields at first. Later
// whatever it waits for takes longer than a nap, and the adapter needs the CPU:
// it naps for a quarter of the time that it has waited, which adds little to it.
const (
	yieldFor = 100 * time.Microsecond
	lastNap  = 4 * time.Millisecond
)

// napAfter is how long to sleep between two polls of a program that has waited
// for so long; 0: yield.
func napAfter(waited time.Duration) time.Duration {
	if waited < yieldFor {
		return 0
	}
	return min(waited/4, lastNap)
}

// waiting is since when a program neither posts nor gets a completion while it
// polls. It may be used by several goroutines.
type waiting struct {
	clock time.Time    // the times are from here
	since atomic.Int64 // nanoseconds; 0: it does not wait
	naps  atomic.Bool  // a thread of the program naps
}

// rest sleeps for d with nap, which keeps a thread, and at first its P as well,
// from all other goroutines. So one at a time naps: of hundreds that poll a
// queue each, the others leave the processor to those with something to do.
func (w *waiting) rest(d time.Duration, nap func(time.Duration)) {
	if !w.naps.CompareAndSwap(false, true) {
		time.Sleep(d)
		return
	}
	nap(d)
	w.naps.Store(false)
}

// goesOn tells how long the program waits already. The first call after the end
// of the last wait begins one.
func (w *waiting) goesOn() time.Duration {
	now := max(int64(time.Since(w.clock)), 1)
	if w.since.CompareAndSwap(0, now) {
		return 0
	}
	since := w.since.Load()
	if since == 0 { // it has just ended
		return 0
	}
	return time.Duration(now - since)
}

// ends says that the program posts or has got something.
func (w *waiting) ends() {
	if w.since.Load() != 0 {
		w.since.Store(0)
	}
}
