package udp4791

import (
	"fmt"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/testaddr"
)

// waitMillis bounds every wait for something that must come; it is a hang
// guard, not an assertion on time.
const waitMillis = 20000

func mustOpen(t testing.TB, cfg Config) *Group {
	t.Helper()
	g, err := Open(cfg)
	if err != nil {
		t.Fatalf("open %v: %v", cfg.Addrs, err)
	}
	t.Cleanup(func() { g.Close() })
	return g
}

// pair opens two groups with one worker each on addresses of one family.
func pair(t testing.TB, family string) (a, b *Group) {
	t.Helper()
	addrs := familyAddrs(t, family)
	return mustOpen(t, Config{Addrs: addrs[:1]}), mustOpen(t, Config{Addrs: addrs[1:]})
}

// familyAddrs returns two local addresses of the test's own. IPv6 has one
// loopback address only: it gets a namespace, see needIPv6.
func familyAddrs(t testing.TB, family string) []netip.Addr {
	t.Helper()
	if family == "ipv4" {
		return testaddr.Take(t, 2)
	}
	return needIPv6(t)
}

func mustFlow(t testing.TB, e Queue, local netip.Addr, key uint8, wanted uint16) (FlowID, uint16) {
	t.Helper()
	f, port, err := e.OpenFlow(local, key, wanted)
	if err != nil {
		t.Fatalf("open flow from %v key %d: %v", local, key, err)
	}
	return f, port
}

func mustSend(t testing.TB, e Queue, slots ...SendSlot) {
	t.Helper()
	if n, err := e.WriteBatch(slots); err != nil || n != len(slots) {
		t.Fatalf("write batch of %d: sent %d, %v", len(slots), n, err)
	}
}

// datagram is a received datagram that outlives the next ReadBatch.
type datagram struct {
	Buf  string
	Meta RecvMeta
}

// collect reads until n datagrams have come.
func collect(t testing.TB, e Queue, n int) []datagram {
	t.Helper()
	var out []datagram
	for len(out) < n {
		slots, err := e.ReadBatch()
		if err != nil {
			t.Fatalf("read batch: %v", err)
		}
		for _, s := range slots {
			out = append(out, datagram{string(s.Buf), s.Meta})
		}
		if len(slots) == 0 && !pollFDs(t, e.FDs(), unix.POLLIN) {
			t.Fatalf("%d of %d datagrams came, then none for %d ms", len(out), n, waitMillis)
		}
	}
	return out
}

// expectNone fails when a datagram waits. Loopback and veth deliver within the
// send call, so no wait is needed.
func expectNone(t testing.TB, e Queue) {
	t.Helper()
	slots, err := e.ReadBatch()
	if err != nil {
		t.Fatalf("read batch: %v", err)
	}
	for _, s := range slots {
		t.Errorf("unexpected datagram of %d bytes from %v: % x", len(s.Buf), s.Meta.Src, s.Buf[:min(16, len(s.Buf))])
	}
}

func pollFDs(t testing.TB, fds []int, events int16) bool {
	t.Helper()
	p := make([]unix.PollFd, len(fds))
	for i, fd := range fds {
		p[i] = unix.PollFd{Fd: int32(fd), Events: events}
	}
	for {
		n, err := unix.Poll(p, waitMillis)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			t.Fatalf("poll: %v", err)
		}
		return n > 0
	}
}

// bth returns the first 12 bytes of a RoCE packet as far as this package
// knows them, the destination QPN in bytes 5 to 7, with a label behind.
func bth(qpn uint32, label string) []byte {
	return append([]byte{0, 0, 0xff, 0xff, 0, byte(qpn >> 16), byte(qpn >> 8), byte(qpn), 0, 0, 0, 0}, label...)
}

func seq(i int) []byte { return bth(0, fmt.Sprintf("#%d", i)) }
