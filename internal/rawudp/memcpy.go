package rawudp

import (
	"fmt"
	"runtime"
	"time"
)

// Memcpy copies n bytes from one buffer into another, over and over for d, and
// returns the bytes copied a second. Buffers larger than the caches measure
// memory.
func Memcpy(n int, d time.Duration) (float64, error) {
	if n < 1 || d <= 0 {
		return 0, fmt.Errorf("rawudp: memcpy of %d bytes for %v", n, d)
	}
	src, dst := newSource(n).b[:n], newSource(n).b[:n]
	var rate float64
	err := <-onThread(0, false, func() error {
		done, start := 0, time.Now()
		for took := time.Duration(0); took < d; took = time.Since(start) {
			done += copy(dst, src)
			rate = float64(done) / time.Since(start).Seconds()
		}
		return nil
	})
	runtime.KeepAlive(dst)
	return rate, err
}
