package shm

import (
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// SchedYield offers the CPU to another thread of the host (sched_yield). The Go
// scheduler is not told: a thread whose P is taken meanwhile has to wait for one
// afterwards, behind a switch or two more. So the caller keeps its P for as long
// as others have the CPU, and calls runtime.Gosched now and then.
func SchedYield() { _, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }

// Nap sleeps for d and what the kernel adds, its timer slack of some 50
// microseconds. It takes a thread, unlike time.Sleep, whose wake-up takes
// several.
func Nap(d time.Duration) {
	t := unix.NsecToTimespec(int64(d))
	_, _, _ = unix.Syscall(unix.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&t)), 0, 0)
}

// goschedEvery is how many yields to the host go with one to the goroutines of
// the process; our own tuning.
const goschedEvery = 256

// A Yielder gives the CPU away between the rounds of a poll. runtime.Gosched
// wakes another thread to look for work, in vain where the process has nothing
// else to do, and on few cores at the cost of whom the poll waits for. So it is
// called now and then, and in each round only where the other side of the poll
// is a goroutine of this process. It may be used by several goroutines.
type Yielder struct {
	InProcess bool
	n         atomic.Uint32
}

// Yield gives the CPU away once.
func (y *Yielder) Yield() {
	if y.InProcess || y.n.Add(1)%goschedEvery == 0 {
		runtime.Gosched()
	}
	SchedYield()
}
