// Package testnet gives a test two hosts: two network namespaces joined by a
// veth pair, which only this test sees. It owns their making and removal; what
// runs on them is the caller's.
//
// A host is reached in two ways. Do runs a function with its thread in the
// namespace: sockets made there stay there, and a command started there (with
// exec.Cmd.Start or Run) lives there. Goroutines started inside Do do not run
// there. From outside, "ip netns exec NAME" and "nsenter --net=PATH" work with
// Host.Name and Host.Path.
//
// It needs root (CAP_SYS_ADMIN and CAP_NET_ADMIN); without it the test is
// skipped with the reason.
package testnet

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Iface is the name of the veth device on either host.
const Iface = "veth0"

// DefaultMTU is the link's MTU in bytes when Pair is given 0.
const DefaultMTU = 1500

// readyTimeout bounds the wait for the kernel's deferred work.
const readyTimeout = 10 * time.Second

// Host is one end of a pair.
type Host struct {
	// Name is the namespace's name for "ip netns".
	Name string
	// Addr4 (a /24) and Addr6 (a /64) are the host's addresses on Iface.
	// 127.0.0.1/8 and ::1 are there, too.
	Addr4, Addr6 netip.Addr

	ns int // descriptor of the namespace
}

var pairs atomic.Uint32

// Pair makes two hosts with addresses on one link of the given MTU in bytes
// (0 is DefaultMTU). They are gone when t ends. Addr6 is usable at once: no
// duplicate address detection runs for it; it is the zero Addr where the
// kernel has no IPv6.
func Pair(t testing.TB, mtu int) (a, b *Host) {
	t.Helper()
	if mtu == 0 {
		mtu = DefaultMTU
	}
	sweep()
	n := pairs.Add(1)
	a = newHost(t, n, "a", "198.18.77.1", "fd5c:4791::1")
	b = newHost(t, n, "b", "198.18.77.2", "fd5c:4791::2")
	if err := join(a, b, mtu); err != nil {
		t.Fatalf("testnet: join %s and %s: %v", a.Name, b.Name, err)
	}
	return a, b
}

// One makes a single host that has the loopback device only, with 127.0.0.1
// and ::1.
func One(t testing.TB) *Host {
	t.Helper()
	sweep()
	h := newHost(t, pairs.Add(1), "a", "127.0.0.1", "::1")
	if err := h.withHandle(h.loopbackUp); err != nil {
		t.Fatalf("testnet: %s: %v", h.Name, err)
	}
	return h
}

// AddLoopback gives the host one more address, on its loopback device.
func (h *Host) AddLoopback(t testing.TB, a netip.Addr) {
	t.Helper()
	err := h.withHandle(func(nl *netlink.Handle) error {
		lo, err := nl.LinkByName("lo")
		if err != nil {
			return err
		}
		return addAddr(nl, lo, netip.PrefixFrom(a, a.BitLen()))
	})
	if err != nil {
		t.Fatalf("testnet: %s: %v", h.Name, err)
	}
}

func newHost(t testing.TB, n uint32, end, addr4, addr6 string) *Host {
	t.Helper()
	h := &Host{Name: hostName(n, end), Addr4: netip.MustParseAddr(addr4)}
	if _, err := os.Stat("/proc/sys/net/ipv6"); err == nil {
		h.Addr6 = netip.MustParseAddr(addr6)
	}
	var err error
	h.ns, err = newNamespace(h.Path())
	if errors.Is(err, os.ErrPermission) {
		t.Skipf("testnet: needs root to make a network namespace: %v", err)
	}
	if err != nil {
		t.Fatalf("testnet: namespace %s: %v", h.Name, err)
	}
	t.Cleanup(func() {
		unix.Close(h.ns)
		if err := removeNamespace(h.Path()); err != nil {
			t.Errorf("testnet: remove %s: %v", h.Path(), err)
		}
	})
	return h
}

// Path returns the namespace's file.
func (h *Host) Path() string { return netnsDir + "/" + h.Name }

// Enter moves the test's goroutine to the host's namespace until t ends. It
// must be called from t's own goroutine; subtests run on others and are not
// moved.
func (h *Host) Enter(t testing.TB) {
	t.Helper()
	leave, err := h.enter()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(leave)
}

// Do runs f with the calling goroutine locked to a thread that is in the
// host's namespace, and returns f's error. f may end the test (t.Fatal).
func (h *Host) Do(f func() error) error {
	leave, err := h.enter()
	if err != nil {
		return err
	}
	defer leave()
	return f()
}

// enter locks the goroutine to its thread and moves the thread; leave undoes
// both.
func (h *Host) enter() (leave func(), err error) {
	runtime.LockOSThread()
	home, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		runtime.UnlockOSThread()
		return nil, fmt.Errorf("testnet: own namespace: %w", err)
	}
	if err := unix.Setns(h.ns, unix.CLONE_NEWNET); err != nil {
		unix.Close(home)
		runtime.UnlockOSThread()
		return nil, fmt.Errorf("testnet: enter %s: %w", h.Name, err)
	}
	return func() {
		// A thread that cannot come home stays locked and dies with its
		// goroutine.
		if err := unix.Setns(home, unix.CLONE_NEWNET); err == nil {
			runtime.UnlockOSThread()
		}
		unix.Close(home)
	}, nil
}

// withHandle runs f with a netlink handle of the host's namespace.
func (h *Host) withHandle(f func(*netlink.Handle) error) error {
	nl, err := netlink.NewHandleAt(netns.NsHandle(h.ns))
	if err != nil {
		return err
	}
	defer nl.Close()
	return f(nl)
}

func (h *Host) loopbackUp(nl *netlink.Handle) error {
	lo, err := nl.LinkByName("lo")
	if err != nil {
		return err
	}
	return nl.LinkSetUp(lo)
}

// join puts a veth pair between the hosts.
func join(a, b *Host, mtu int) error {
	err := a.withHandle(func(nl *netlink.Handle) error {
		at := netlink.NewLinkAttrs()
		at.Name, at.MTU = Iface, mtu
		return nl.LinkAdd(&netlink.Veth{LinkAttrs: at, PeerName: Iface, PeerMTU: uint32(mtu), PeerNamespace: netlink.NsFd(b.ns)})
	})
	if err != nil {
		return err
	}
	// A device that comes up before its peer learns of the carrier from a
	// deferred event, up to two seconds later, and holds IPv6 back until then;
	// one that comes up with carrier does not. So a comes up twice, the second
	// time behind b; its IPv6 addresses would not survive the first.
	for _, step := range []struct {
		h *Host
		f func(*netlink.Handle, netlink.Link) error
	}{
		{a, (*netlink.Handle).LinkSetUp},
		{b, (*netlink.Handle).LinkSetUp},
		{b, b.addAddrs},
		{a, (*netlink.Handle).LinkSetDown},
		{a, (*netlink.Handle).LinkSetUp},
		{a, a.addAddrs},
	} {
		if err := step.h.withLink(step.f); err != nil {
			return fmt.Errorf("%s: %w", step.h.Name, err)
		}
	}
	for _, h := range []*Host{a, b} {
		if err := h.withHandle(h.loopbackUp); err != nil {
			return fmt.Errorf("%s: loopback: %w", h.Name, err)
		}
	}
	return nil
}

// withLink runs f on the host's end of the link.
func (h *Host) withLink(f func(*netlink.Handle, netlink.Link) error) error {
	return h.withHandle(func(nl *netlink.Handle) error {
		link, err := nl.LinkByName(Iface)
		if err != nil {
			return err
		}
		return f(nl, link)
	})
}

// addAddrs gives the host its addresses.
func (h *Host) addAddrs(nl *netlink.Handle, link netlink.Link) error {
	for _, p := range []netip.Prefix{netip.PrefixFrom(h.Addr4, 24), netip.PrefixFrom(h.Addr6, 64)} {
		if !p.IsValid() {
			continue
		}
		if err := addAddr(nl, link, p); err != nil {
			return err
		}
	}
	return nil
}

// addAddr adds an address and waits until packets to it are delivered: the
// kernel makes an IPv6 address's local route in deferred work.
func addAddr(nl *netlink.Handle, link netlink.Link, p netip.Prefix) error {
	addr := &netlink.Addr{
		IPNet: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())},
		Flags: unix.IFA_F_NODAD,
	}
	if err := nl.AddrAdd(link, addr); err != nil {
		return fmt.Errorf("address %v: %w", p, err)
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for until := time.Now().Add(readyTimeout); time.Now().Before(until); <-tick.C {
		r, err := nl.RouteGet(addr.IP)
		if err == nil && len(r) > 0 && r[0].Type == unix.RTN_LOCAL {
			return nil
		}
	}
	return fmt.Errorf("address %v: no local route after %v", p, readyTimeout)
}
