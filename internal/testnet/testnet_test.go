package testnet

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestPairCarriesPacketsBothFamilies(t *testing.T) {
	a, b := Pair(t, 4200)
	for _, f := range []struct {
		name     string
		src, dst netip.Addr
	}{{"ipv4", a.Addr4, b.Addr4}, {"ipv6", a.Addr6, b.Addr6}} {
		t.Run(f.name, func(t *testing.T) {
			if !f.dst.IsValid() {
				t.Skip("this kernel has no IPv6")
			}
			var rx, tx *net.UDPConn
			listen := func(c **net.UDPConn, ip netip.Addr) func() error {
				return func() (err error) {
					*c, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(ip, 0)))
					return err
				}
			}
			if err := b.Do(listen(&rx, f.dst)); err != nil {
				t.Fatal(err)
			}
			defer rx.Close()
			if err := a.Do(listen(&tx, f.src)); err != nil {
				t.Fatal(err)
			}
			defer tx.Close()
			want := strings.Repeat("x", 4000) // one packet only at this MTU
			if _, err := tx.WriteTo([]byte(want), rx.LocalAddr()); err != nil {
				t.Fatal(err)
			}
			rx.SetReadDeadline(time.Now().Add(10 * time.Second))
			buf := make([]byte, 5000)
			n, from, err := rx.ReadFromUDPAddrPort(buf)
			if err != nil || string(buf[:n]) != want || from.Addr() != f.src {
				t.Fatalf("got %d bytes from %v, %v; want %d from %v", n, from, err, len(want), f.src)
			}
		})
	}
}

func TestHostsAreSeparateAndTheCallerStaysHome(t *testing.T) {
	ns := func() string {
		s, err := os.Readlink("/proc/thread-self/ns/net")
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	a, b := Pair(t, 0)
	home := ns()
	seen := map[string]bool{home: true}
	for _, h := range []*Host{a, b} {
		if err := h.Do(func() error {
			if seen[ns()] {
				t.Errorf("%s is not a namespace of its own", h.Name)
			}
			seen[ns()] = true
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if got := ns(); got != home {
			t.Fatalf("after Do in %s, want %s", got, home)
		}
	}
}

func TestCommandStartedInsideDoLivesThere(t *testing.T) {
	a, _ := Pair(t, 0)
	var out []byte
	if err := a.Do(func() (err error) {
		out, err = exec.Command("cat", "/proc/net/dev").Output()
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(out), Iface+":") {
		t.Errorf("no %s among the command's devices:\n%s", Iface, out)
	}
}

func TestNamespacesGoWithTheTest(t *testing.T) {
	var paths []string
	t.Run("maker", func(t *testing.T) {
		a, b := Pair(t, 0)
		paths = append(paths, a.Path(), b.Path())
	})
	for _, p := range paths {
		if _, err := os.Stat(p); !os.IsNotExist(err) {
			t.Errorf("%s is still there: %v", p, err)
		}
	}
}

// A test that is killed leaves its namespaces; the next run removes them.
func TestSweepRemovesADeadProcessesNamespace(t *testing.T) {
	One(t)                                                                          // skips where namespaces cannot be made
	stale := netnsDir + "/" + fmt.Sprintf("%s-1-never-%d", namePrefix, os.Getpid()) // pid 1 with a start time it never had
	fd, err := newNamespace(stale)
	for tries := 0; err != nil && tries < 100; tries++ { // another process's sweep was quicker
		fd, err = newNamespace(stale)
	}
	if err != nil {
		t.Fatal(err)
	}
	os.NewFile(uintptr(fd), stale).Close()
	sweep()
	if _, err := os.Stat(stale); !os.IsNotExist(err) {
		t.Errorf("%s is still there: %v", stale, err)
		_ = removeNamespace(stale)
	}
}

// Without the feature the kernel cuts a segmented send before the link; with it
// the send comes over in one piece, into a socket that takes it so.
func TestSetFeatureDecidesWhoCuts(t *testing.T) {
	a, b := Pair(t, 0)
	var in, out int
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	socket := func(h *Host, fd *int) {
		t.Helper()
		must(h.Do(func() (err error) {
			*fd, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
			return err
		}))
		t.Cleanup(func() { unix.Close(*fd) })
	}
	socket(b, &in)
	socket(a, &out)
	if err := unix.SetsockoptInt(in, unix.IPPROTO_UDP, unix.UDP_GRO, 1); err != nil {
		t.Skipf("this kernel merges no datagrams: %v", err)
	}
	if err := unix.SetsockoptInt(out, unix.IPPROTO_UDP, unix.UDP_SEGMENT, 100); err != nil {
		t.Skipf("this kernel cuts no datagrams: %v", err)
	}
	to := &unix.SockaddrInet4{Port: 4000, Addr: b.Addr4.As4()}
	must(unix.Bind(in, to))
	for _, c := range []struct {
		cuts bool
		want int // bytes of the first piece to come
	}{{true, 300}, {false, 100}, {true, 300}} {
		a.SetFeature(t, CutsUDP, c.cuts)
		must(unix.Sendto(out, make([]byte, 300), 0, to))
		buf := make([]byte, 1000)
		for got := 0; got < 300; {
			p := []unix.PollFd{{Fd: int32(in), Events: unix.POLLIN}}
			if n, err := unix.Poll(p, 20000); n != 1 && err != unix.EINTR {
				t.Fatalf("device cuts %v: %d of 300 bytes came", c.cuts, got)
			}
			n, _, err := unix.Recvfrom(in, buf, unix.MSG_DONTWAIT)
			if err == unix.EAGAIN || err == unix.EINTR {
				continue
			}
			must(err)
			if n != c.want {
				t.Errorf("device cuts %v: a piece of %d bytes, want %d", c.cuts, n, c.want)
			}
			got += n
		}
	}
}
