package udp4791

import (
	"net/netip"
	"testing"

	"github.com/softroce/softroce/internal/testnet"
)

// needIPv6 moves the test to a network namespace with two IPv6 addresses on
// the loopback device, for ::1 is one address that all processes share.
func needIPv6(t testing.TB) []netip.Addr {
	t.Helper()
	h := testnet.One(t)
	if !h.Addr6.IsValid() {
		t.Skip("this kernel has no IPv6")
	}
	second := netip.MustParseAddr("fd5c:4791::2")
	h.AddLoopback(t, second)
	h.Enter(t)
	return []netip.Addr{h.Addr6, second}
}
