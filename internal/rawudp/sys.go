package rawudp

import (
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mmsghdr is the kernel's struct mmsghdr.
type mmsghdr struct {
	hdr unix.Msghdr
	n   uint32
}

// Calls that do not block are raw: the runtime is not told.

func sendmsg(fd int, h *unix.Msghdr) unix.Errno {
	_, _, e := unix.RawSyscall(unix.SYS_SENDMSG, uintptr(fd), uintptr(unsafe.Pointer(h)), 0)
	return e
}

func sendmmsg(fd int, h []mmsghdr) (int, unix.Errno) {
	n, _, e := unix.RawSyscall6(unix.SYS_SENDMMSG, uintptr(fd), uintptr(unsafe.Pointer(&h[0])), uintptr(len(h)), 0, 0, 0)
	return int(n), e
}

func recvmsg(fd int, h *unix.Msghdr) (int, unix.Errno) {
	n, _, e := unix.RawSyscall(unix.SYS_RECVMSG, uintptr(fd), uintptr(unsafe.Pointer(h)), unix.MSG_DONTWAIT)
	return int(n), e
}

func recvmmsg(fd int, h []mmsghdr) (int, unix.Errno) {
	n, _, e := unix.RawSyscall6(unix.SYS_RECVMMSG, uintptr(fd), uintptr(unsafe.Pointer(&h[0])), uintptr(len(h)), unix.MSG_DONTWAIT, 0, 0)
	return int(n), e
}

func sendto(fd int, b []byte, sa *byte, salen uint32) unix.Errno {
	_, _, e := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), 0,
		uintptr(unsafe.Pointer(sa)), uintptr(salen))
	return e
}

// recvfrom may block, so the runtime is told then.
func recvfrom(fd int, b []byte, block bool) unix.Errno {
	call, flags := unix.RawSyscall6, uintptr(unix.MSG_DONTWAIT)
	if block {
		call, flags = unix.Syscall6, 0
	}
	_, _, e := call(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), flags, 0, 0)
	return e
}

// again says whether a call is to be made again.
func again(e unix.Errno) bool {
	return e == unix.EAGAIN || e == unix.EINTR || e == unix.ENOBUFS
}

// alone is whether both threads share one CPU: then spinning means yielding.
var alone = runtime.NumCPU() < 2

func spin() {
	if alone {
		_, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
	}
}

// doze sleeps until a socket has something, or a while; without a socket a
// short while.
func doze(fd int) {
	wait := unix.NsecToTimespec(int64(dozeTime))
	if fd < 0 {
		wait = unix.NsecToTimespec(int64(dozeTime) / 20)
	}
	_, _ = unix.Ppoll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, &wait, nil) // the caller looks again
}

// segmentControl is the control message that cuts a send into packets.
func segmentControl(size int) []byte {
	b := make([]byte, unix.CmsgSpace(2))
	h := (*unix.Cmsghdr)(unsafe.Pointer(&b[0]))
	h.Level, h.Type = unix.SOL_UDP, unix.UDP_SEGMENT
	h.SetLen(unix.CmsgLen(2))
	*(*uint16)(unsafe.Pointer(&b[unix.CmsgLen(0)])) = uint16(size)
	return b
}
