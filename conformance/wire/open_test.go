package wire

import (
	"errors"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/testnet"
)

// What cannot be opened says what to do.
func TestOpenSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	a, b := testnet.Pair(t, 0)
	addr := netip.MustParseAddr
	udpAt(t, a, a.Addr4)
	own := addr("198.18.77.5")
	a.AddLoopback(t, own)
	for _, c := range []struct {
		name string
		cfg  Config
		is   error
		text string
	}{
		{"port in use", Config{Remote: b.Addr4}, unix.EADDRINUSE, "another address of this host"},
		{"not an own address", Config{Remote: b.Addr4, Local: addr("198.18.77.9")}, nil, "from 198.18.77.9"},
		{"not an own address 6", Config{Remote: b.Addr6, Local: addr("fd5c:4791::9")}, nil, "fd5c:4791::9"},
		{"the same", Config{Remote: b.Addr4, Local: b.Addr4}, nil, "198.18.77.2"},
		{"of this host", Config{Remote: a.Addr4}, nil, "another address of this host"},
		{"versions", Config{Remote: b.Addr4, Local: a.Addr6}, nil, "not of one IP version"},
		{"nothing", Config{}, nil, "not one of a host"},
		{"a group", Config{Remote: addr("224.0.0.1")}, nil, "not one of a host"},
		{"no zone", Config{Remote: addr("fe80::1")}, nil, "fe80::1%INTERFACE"},
		{"no route", Config{Remote: addr("203.0.113.1")}, unix.ENETUNREACH, "find the way to 203.0.113.1"},
		{"no interface", Config{Remote: b.Addr4, Iface: "eth77"}, nil, "by eth77"},
		{"nobody there", Config{Remote: addr("198.18.77.99"), Local: own}, nil, "answers for 198.18.77.99"},
		{"loopback", Config{Remote: addr("127.0.0.5"), Local: addr("127.0.0.6")}, nil, "sysctl -w net.ipv4.conf.lo.route_localnet=1"},
		{"own", Config{Remote: a.Addr4, Local: own}, nil, "sysctl -w net.ipv4.conf.lo.accept_local=1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := a.Do(func() error {
				l, err := Open(c.cfg)
				if err == nil {
					_ = l.Close()
				}
				return err
			})
			if err == nil || !strings.Contains(err.Error(), c.text) || c.is != nil && !errors.Is(err, c.is) {
				t.Errorf("got %v, want it to say %q, to be %v", err, c.text, c.is)
			}
		})
	}
}

// Without CAP_NET_RAW the error names it.
func TestOpenWithoutCapability(t *testing.T) {
	h := testnet.One(t)
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine, its capabilities with it
		done <- func() error {
			hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
			var data [2]unix.CapUserData
			if err := unix.Capget(&hdr, &data[0]); err != nil {
				return err
			}
			data[0].Effective &^= 1 << unix.CAP_NET_RAW
			if err := unix.Capset(&hdr, &data[0]); err != nil {
				return err
			}
			_, err := Open(Config{Local: h.Addr4, Remote: netip.MustParseAddr("127.0.0.3")})
			return err
		}()
	}()
	if err := <-done; !errors.Is(err, unix.EPERM) || !strings.Contains(err.Error(), "setcap cap_net_raw+ep") {
		t.Errorf("got %v", err)
	}
}

// Close ends a Receive that waits, and calls after it fail.
func TestCloseEndsReceive(t *testing.T) {
	a, b := testnet.Pair(t, 0)
	m, _ := Pair()
	for name, l := range map[string]Link{"wire": open(t, a, Config{Remote: b.Addr4}), "memory": m} {
		got := make(chan error)
		go func() {
			_, _, err := l.Receive(time.Now().Add(limit))
			got <- err
		}()
		if err := l.Close(); err != nil {
			t.Errorf("%s: close: %v", name, err)
		}
		if err := <-got; !errors.Is(err, net.ErrClosed) {
			t.Errorf("%s: the Receive that waited: %v", name, err)
		}
		if _, _, err := l.Receive(time.Now()); !errors.Is(err, net.ErrClosed) {
			t.Errorf("%s: receive: %v", name, err)
		}
		if err := l.Send(write(1)); !errors.Is(err, net.ErrClosed) {
			t.Errorf("%s: send: %v", name, err)
		}
		if err := l.Close(); err != nil {
			t.Errorf("%s: second close: %v", name, err)
		}
	}
}

// A deadline ends a Receive, one that is over too.
func TestDeadline(t *testing.T) {
	a, b := testnet.Pair(t, 0)
	m, _ := Pair()
	for name, l := range map[string]Link{"wire": open(t, a, Config{Remote: b.Addr4}), "memory": m} {
		if f, ok, err := l.Receive(time.Time{}); f != nil || ok || err != nil {
			t.Errorf("%s, no deadline: got %v, %v, %v", name, f, ok, err)
		}
		for _, d := range []time.Duration{-time.Second, 0, time.Millisecond} {
			if f, ok, err := l.Receive(time.Now().Add(d)); f != nil || ok || err != nil {
				t.Errorf("%s, %v: got %v, %v, %v", name, d, f, ok, err)
			}
		}
	}
}
