// Package testaddr hands each test its own loopback addresses, so that tests
// of parallel processes, which all use UDP port 4791, do not meet. It owns the
// choice of address and nothing else.
package testaddr

import (
	"hash/fnv"
	"net/netip"
	"os"
	"strconv"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// The pool is 127.64.0.0/10: addresses people use by hand (127.0.0.x) and
// resolvers (127.0.0.53) lie outside.
const (
	poolFirst = 127<<24 | 64<<16
	poolSize  = 1 << 22
)

// EnvRouted, when it is "tun", has the pool be 10.64.0.0/10, which is routed, as
// 127.0.0.0/8 is not: all of it is to be local (see the Makefile's matrix).
const (
	EnvRouted   = "SOFTROCE_TEST_BACKEND"
	routedFirst = 10<<24 | 64<<16
)

var taken atomic.Uint32

// Take returns n distinct addresses out of 127.64.0.0/10 that no other test
// of this host, process or network namespace uses until t ends. The lock is an
// abstract Unix socket per address: the kernel keeps these per network
// namespace, as it keeps addresses, and drops them with the process.
func Take(t testing.TB, n int) []netip.Addr {
	t.Helper()
	h := fnv.New32a()
	h.Write([]byte(t.Name() + strconv.Itoa(os.Getpid())))
	at := h.Sum32()
	out := make([]netip.Addr, 0, n)
	for tries := 0; len(out) < n; tries++ {
		if tries > 10000 {
			t.Fatalf("testaddr: no free loopback address after %d tries", tries)
		}
		// An odd step visits the whole pool; the counter tells apart tests
		// of one process that hash alike.
		at += 2*taken.Add(1) + 7919
		a := poolAddr(at)
		if low := a.As4()[3]; low == 0 || low == 255 {
			continue
		}
		fd, ok := lock(t, a)
		if !ok {
			continue
		}
		t.Cleanup(func() { unix.Close(fd) })
		out = append(out, a)
	}
	return out
}

func poolAddr(i uint32) netip.Addr {
	v := uint32(poolFirst)
	if os.Getenv(EnvRouted) == "tun" {
		v = routedFirst
	}
	v += i % poolSize
	return netip.AddrFrom4([4]byte{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)})
}

// lock binds the address's name; false means that another test has it.
func lock(t testing.TB, a netip.Addr) (int, bool) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatalf("testaddr: socket: %v", err)
	}
	err = unix.Bind(fd, &unix.SockaddrUnix{Name: "@softroce/testaddr/" + a.String()})
	if err == nil {
		return fd, true
	}
	unix.Close(fd)
	if err != unix.EADDRINUSE {
		t.Fatalf("testaddr: lock %v: %v", a, err)
	}
	return -1, false
}
