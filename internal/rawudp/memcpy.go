package rawudp

import (
	"fmt"
	"runtime"
	"time"
)

// Memcpy copies n bytes from one buffer into another, over and over for d, and
// returns the bytes copied a second, and as Result.Waited has it what others
// took. Buffers larger than the caches measure
// memory.
func Memcpy(n int, d time.Duration) (rate, waited float64, err error) {
	if n < 1 || d <= 0 {
		return 0, 0, fmt.Errorf("rawudp: memcpy of %d bytes for %v", n, d)
	}
	src, dst := newSource(n).b[:n], newSource(n).b[:n]
	o := <-onThread(0, false, func() error {
		done, start := 0, time.Now()
		for took := time.Duration(0); took < d; took = time.Since(start) {
			done += copy(dst, src)
			rate = float64(done) / time.Since(start).Seconds()
		}
		return nil
	})
	runtime.KeepAlive(dst)
	return rate, o.waited, o.err
}
