package wire

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// InOrder keeps the calling goroutine on one CPU until undo is called, so that what it sends stays in order: the kernel
// queues packets for this host by the sender's CPU, and two CPUs' queues overtake each other. Where the kernel does not
// let it, only the thread is kept.
func InOrder() (undo func()) {
	runtime.LockOSThread()
	var before, one unix.CPUSet
	if unix.SchedGetaffinity(0, &before) != nil || before.Count() == 0 {
		return runtime.UnlockOSThread
	}
	cpu := 0
	for !before.IsSet(cpu) {
		cpu++
	}
	one.Set(cpu)
	if unix.SchedSetaffinity(0, &one) != nil {
		return runtime.UnlockOSThread
	}
	return func() {
		_ = unix.SchedSetaffinity(0, &before)
		runtime.UnlockOSThread()
	}
}
