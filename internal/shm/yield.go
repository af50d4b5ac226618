package shm

import "golang.org/x/sys/unix"

// SchedYield offers the CPU to another thread of the host (sched_yield). It
// goes through the blocking form of a system call: a thread that is not
// scheduled again at once must not keep a P from the other goroutines.
func SchedYield() { _, _, _ = unix.Syscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }
