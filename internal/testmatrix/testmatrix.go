// Package testmatrix says in which cell of the matrix a run of the tests is:
// with or without the kernel's UDP offloads, with one worker or several, on which
// backend. `make matrix` sets it by the environment. It owns the variables and
// nothing else; a test that is about one of them sets its own value.
package testmatrix

import (
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"testing"

	"github.com/softroce/softroce/internal/testnet"
	"github.com/softroce/softroce/pkg/udp4791"
)

// The variables: auto, on or off; a number; the name of a backend.
const (
	EnvGSO     = "SOFTROCE_TEST_GSO"
	EnvWorkers = "SOFTROCE_TEST_WORKERS"
	EnvBackend = "SOFTROCE_TEST_BACKEND"
)

// Offload is what the adapters of a test are to use; OffloadAuto unless the
// environment says otherwise.
func Offload(t testing.TB) udp4791.Offload {
	t.Helper()
	s := os.Getenv(EnvGSO)
	if s == "" {
		return udp4791.OffloadAuto
	}
	o, err := udp4791.ParseOffload(s)
	if err != nil {
		t.Fatalf("testmatrix: %s: %v", EnvGSO, err)
	}
	return o
}

// Backend is the way to the network that the adapters of a test are to take;
// BackendUDP unless the environment says otherwise.
func Backend(t testing.TB) udp4791.Backend {
	t.Helper()
	s := os.Getenv(EnvBackend)
	if s == "" {
		return udp4791.BackendUDP
	}
	b, err := udp4791.ParseBackend(s)
	if err != nil {
		t.Fatalf("testmatrix: %s: %v", EnvBackend, err)
	}
	return b
}

// SkipOn ends a test that is about what these backends do not have: the host's own
// addresses, UDP sockets, multicast. why says what of it.
func SkipOn(t testing.TB, why string, backends ...udp4791.Backend) {
	t.Helper()
	if b := Backend(t); slices.Contains(backends, b) {
		t.Skipf("backend %v: %s", b, why)
	}
}

// TUN is the link that an adapter of a test is to have with these addresses: "" but
// where Backend is BackendTUN. A test whose adapter is to have the address of an
// interface in the thread's network namespace ends there.
func TUN(t testing.TB, addrs []netip.Addr) string {
	t.Helper()
	if Backend(t) != udp4791.BackendTUN {
		return ""
	}
	if len(addrs) == 0 || onInterface(t, addrs[0]) {
		t.Skip("an interface's addresses are the host's; on a TUN link the adapter has its own")
	}
	return testnet.TUN(t, addrs)
}

func onInterface(t testing.TB, a netip.Addr) bool {
	t.Helper()
	all, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatalf("testmatrix: %v", err)
	}
	return slices.ContainsFunc(all, func(p net.Addr) bool {
		n, ok := p.(*net.IPNet)
		return ok && n.IP.Equal(a.AsSlice())
	})
}

// Workers is how many workers the adapters of a test are to have; otherwise
// unless the environment says so.
func Workers(t testing.TB, otherwise int) int {
	t.Helper()
	s := os.Getenv(EnvWorkers)
	if s == "" {
		return otherwise
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 || n > udp4791.MaxWorkers {
		t.Fatalf("testmatrix: %s is %q, want 1 to %d", EnvWorkers, s, udp4791.MaxWorkers)
	}
	return n
}
