package udp4791

import (
	"errors"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/testaddr"
	"github.com/softroce/softroce/internal/testnet"
)

// Debian's default buffer, with which all speed and loss tests also run.
func TestBufferIsWhatWasAskedFor(t *testing.T) {
	g := mustOpen(t, Config{Addrs: testaddr.Take(t, 1), RecvBuffer: 212992, SendBuffer: 100000})
	if g.RecvBuffer() != 212992 || g.SendBuffer() != 100000 {
		t.Errorf("receive %d, send %d bytes; want 212992 and 100000", g.RecvBuffer(), g.SendBuffer())
	}
	if n := g.Notes(); len(n) != 1 || !strings.Contains(n[0], "212992") {
		t.Errorf("notes %q, want the two sizes only", n)
	}
}

// withoutNetAdmin runs f on a thread that lacks CAP_NET_ADMIN, as an ordinary
// user's does.
func withoutNetAdmin(t *testing.T, f func()) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var old [2]unix.CapUserData
	if err := unix.Capget(&h, &old[0]); err != nil {
		t.Fatal(err)
	}
	less := old
	less[0].Effective &^= 1 << unix.CAP_NET_ADMIN
	if err := unix.Capset(&h, &less[0]); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Capset(&h, &old[0]); err != nil {
			t.Errorf("capabilities are not back: %v", err)
		}
	}()
	f()
}

// Without privilege the kernel's limit holds; it works, and the notes say what
// would help.
func TestUnprivilegedBufferIsNoted(t *testing.T) {
	limit := sysctlInt("net.core.rmem_max")
	if limit < 0 {
		t.Skip("net.core.rmem_max cannot be read here")
	}
	want := limit + 1<<20
	withoutNetAdmin(t, func() {
		g := mustOpen(t, Config{Addrs: testaddr.Take(t, 1), RecvBuffer: want, SendBuffer: 4096})
		if g.RecvBuffer() != limit {
			t.Errorf("effective %d bytes, want rmem_max, %d", g.RecvBuffer(), limit)
		}
		all := strings.Join(g.Notes(), "\n")
		for _, s := range []string{"sysctl -w net.core.rmem_max=", "CAP_NET_ADMIN"} {
			if !strings.Contains(all, s) {
				t.Errorf("notes lack %q:\n%s", s, all)
			}
		}
		if strings.Contains(all, "wmem_max") {
			t.Errorf("notes complain of the send buffer, which is as asked:\n%s", all)
		}
	})
}

// F57: a container without IPv6 is told so, not "cannot assign address".
func TestF57SwitchedOffIPv6IsSaid(t *testing.T) {
	h := testnet.One(t)
	if !h.Addr6.IsValid() {
		t.Skip("this kernel has no IPv6")
	}
	h.Enter(t)
	if err := os.WriteFile("/proc/sys/net/ipv6/conf/all/disable_ipv6", []byte("1"), 0); err != nil {
		t.Skipf("cannot switch IPv6 off: %v", err)
	}
	_, err := Open(Config{Addrs: []netip.Addr{netip.IPv6Loopback()}})
	var ae *AddrError
	if !errors.As(err, &ae) || !errors.Is(err, unix.EADDRNOTAVAIL) || !strings.Contains(err.Error(), "IPv6 is switched off") {
		t.Errorf("got %v", err)
	}
	mustOpen(t, Config{Addrs: []netip.Addr{h.Addr4}}) // IPv4 works on
}

func TestErrorsSayWhatToDo(t *testing.T) {
	v4, v6 := local{addr: netip.MustParseAddr("192.0.2.1")}, local{addr: netip.IPv6Loopback()}
	for _, c := range []struct {
		name string
		err  error
		want []string
	}{
		{"no IPv6 in the kernel", explainSocket(v6, unix.EAFNOSUPPORT), []string{"::1", "no IPv6", "IPv4"}},
		{"sockets forbidden", explainSocket(v4, unix.EPERM), []string{"192.0.2.1", "security policy", "allow"}},
		{"descriptors", explainSocket(v4, unix.EMFILE), []string{"ulimit -n"}},
		{"host's descriptors", explainSocket(v4, unix.ENFILE), []string{"fs.file-max"}},
		{"port forbidden", explainBind(v4, unix.EACCES), []string{"4791", "ip_unprivileged_port_start", "CAP_NET_BIND_SERVICE"}},
		{"anything else", explainBind(v4, unix.ENOMEM), []string{"192.0.2.1", "cannot allocate memory"}},
		{"MTU", &SendError{unix.EMSGSIZE}, []string{"MTU", "smaller"}},
		{"firewall", &SendError{unix.EPERM}, []string{"firewall"}},
		{"route", &SendError{unix.ENETUNREACH}, []string{"no route"}},
	} {
		for _, s := range c.want {
			if !strings.Contains(c.err.Error(), s) {
				t.Errorf("%s: %q lacks %q", c.name, c.err, s)
			}
		}
	}
}
