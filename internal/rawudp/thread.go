package rawudp

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// together runs active and passive on a thread each, active once passive runs.
// passive must end when active has. It returns the part of the time that the
// worse off of them waited for a CPU.
func together(pinned bool, active, passive func() error) (waited float64, err error) {
	ready := make(chan struct{})
	in := onThread(1, pinned, func() error {
		close(ready)
		return passive()
	})
	select {
	case <-ready:
	case r := <-in:
		return r.waited, r.err
	}
	a, p := <-onThread(0, pinned, active), <-in
	return max(a.waited, p.waited), errors.Join(a.err, p.err)
}

// outcome is what became of a thread's work.
type outcome struct {
	waited float64 // part of the time that it waited for a CPU
	err    error
}

// onThread runs f on a thread of its own, if pinned on the i-th CPU that the
// process may use.
func onThread(i int, pinned bool, f func() error) <-chan outcome {
	done := make(chan outcome, 1)
	go func() {
		// Never unlocked when pinned: the thread ends with its affinity.
		runtime.LockOSThread()
		if !pinned {
			defer runtime.UnlockOSThread()
		} else if err := pin(i); err != nil {
			done <- outcome{err: err}
			return
		}
		start, before := time.Now(), queued()
		err := f()
		done <- outcome{waited: float64(queued()-before) / float64(max(time.Since(start), 1)), err: err}
	}()
	return done
}

// queued is how long the calling thread has waited for a CPU while it could
// run: the second figure of its schedstat. Zero where the kernel keeps none.
func queued() time.Duration {
	text, err := os.ReadFile("/proc/thread-self/schedstat")
	if err != nil {
		return 0
	}
	var ran, waited int64
	if _, err := fmt.Sscan(string(text), &ran, &waited); err != nil {
		return 0
	}
	return time.Duration(waited)
}

func pin(i int) error {
	var may, set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &may); err != nil {
		return fmt.Errorf("rawudp: affinity: %w", err)
	}
	n := may.Count()
	for cpu, seen := 0, 0; n > 1; cpu++ {
		if !may.IsSet(cpu) {
			continue
		}
		if seen == i%n {
			set.Set(cpu)
			break
		}
		seen++
	}
	if n < 2 {
		return nil
	}
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return fmt.Errorf("rawudp: affinity: %w", err)
	}
	return nil
}
