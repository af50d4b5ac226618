package testaddr

import (
	"net"
	"net/netip"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

func TestTakeGivesDistinctBindableAddresses(t *testing.T) {
	seen := map[netip.Addr]bool{}
	for i := range 20 {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			for _, a := range Take(t, 5) {
				if !a.IsLoopback() || seen[a] {
					t.Fatalf("got %v, not a new loopback address", a)
				}
				c, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(a, 0)))
				if err != nil {
					t.Fatalf("bind %v: %v", a, err)
				}
				c.Close()
			}
		})
	}
}

func TestTakenAddressIsLockedUntilTheTestEnds(t *testing.T) {
	var a netip.Addr
	t.Run("holder", func(t *testing.T) {
		a = Take(t, 1)[0]
		if _, ok := lock(t, a); ok {
			t.Errorf("second lock of %v succeeded", a)
		}
	})
	fd, ok := lock(t, a)
	if !ok {
		t.Fatalf("%v is still locked after its test", a)
	}
	unix.Close(fd)
}
