package udp4791

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/testaddr"
	"github.com/softroce/softroce/internal/testnet"
)

// helperEnv makes the test binary a second program: "hold ADDR" opens a group,
// "bind ADDR [reuseport]" binds port 4791 as any program would. It says
// "ready" and waits for the end of its input.
const helperEnv = "UDP4791_TEST_HELPER"

func TestMain(m *testing.M) {
	if what := os.Getenv(helperEnv); what != "" {
		if err := helper(strings.Fields(what)); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println("ready")
		_, _ = bufio.NewReader(os.Stdin).ReadByte()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func helper(args []string) error {
	addr, err := netip.ParseAddr(args[1])
	if err != nil {
		return err
	}
	if args[0] == "hold" {
		_, err := Open(Config{Addrs: []netip.Addr{addr}, Workers: 2})
		return err
	}
	l := local{addr: addr}
	fd, err := unix.Socket(l.family(), unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if len(args) > 2 {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
			return err
		}
	}
	return unix.Bind(fd, l.sockaddr(Port))
}

// otherProgram starts the helper in the calling thread's network namespace
// and returns its pid once it is ready.
func otherProgram(t *testing.T, what string) int {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), helperEnv+"="+what)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("helper %q: %v", what, err)
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if line != "ready\n" {
		t.Fatalf("helper %q: %q, %v", what, line, err)
	}
	return cmd.Process.Pid
}

func wantBusy(t *testing.T, addr netip.Addr, workers, pid int, text ...string) *BusyError {
	t.Helper()
	g, err := Open(Config{Addrs: []netip.Addr{addr}, Workers: workers})
	if err == nil {
		g.Close()
		t.Fatalf("%v was opened though it is busy", addr)
	}
	var busy *BusyError
	if !errors.As(err, &busy) {
		t.Fatalf("got %v, want a BusyError", err)
	}
	if busy.Addr != addr || busy.PID != pid {
		t.Errorf("busy error for %v names pid %d, want %v and pid %d", busy.Addr, busy.PID, addr, pid)
	}
	for _, s := range text {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("error %q lacks %q", err, s)
		}
	}
	return busy
}

// F62: one adapter per address; a second one of the same user would otherwise
// join the SO_REUSEPORT group and take packets.
func TestF62SecondAdapterOnAnAddressIsRefused(t *testing.T) {
	for _, workers := range []int{1, 2} {
		t.Run(fmt.Sprintf("same process, %d workers", workers), func(t *testing.T) {
			a := testaddr.Take(t, 1)[0]
			g := mustOpen(t, Config{Addrs: []netip.Addr{a}, Workers: workers})
			busy := wantBusy(t, a, workers, os.Getpid(), a.String(), "another adapter", fmt.Sprint("pid ", os.Getpid()), "stop it or")
			if !busy.Adapter {
				t.Error("holder is not said to be an adapter")
			}
			g.Close()
			mustOpen(t, Config{Addrs: []netip.Addr{a}, Workers: workers})
		})
	}
	t.Run("other process", func(t *testing.T) {
		a := testaddr.Take(t, 1)[0]
		pid := otherProgram(t, "hold "+a.String())
		if busy := wantBusy(t, a, 2, pid, fmt.Sprint("pid ", pid)); !busy.Adapter || busy.Command == "" {
			t.Errorf("got %+v, want an adapter with a command name", busy)
		}
	})
}

// Each failed attempt leaves a connection in the lock's queue. A full queue
// must not hide the holder.
func TestHolderIsKnownAfterManyAttempts(t *testing.T) {
	a := testaddr.Take(t, 1)[0]
	pid := otherProgram(t, "hold "+a.String())
	full := false
	for i := 0; i < 2*lockBacklog && !full; i++ {
		full = lockHolder(lockName(local{addr: a})) == 0
	}
	if !full {
		t.Fatalf("the queue still takes connections after %d", 2*lockBacklog)
	}
	_ = wantBusy(t, a, 1, pid, fmt.Sprint("pid ", pid))
}

func TestF62TwoAdaptersInOneProcessWorkTogether(t *testing.T) {
	a, b := pair(t, "ipv4")
	ea, eb := a.Endpoint(0), b.Endpoint(0)
	fa, _ := mustFlow(t, ea, a.Addrs()[0], 1, 0)
	fb, _ := mustFlow(t, eb, b.Addrs()[0], 1, 0)
	mustSend(t, ea, SendSlot{Flow: fa, Dst: b.Addrs()[0], Buf: bth(1, "ping")})
	if got := collect(t, eb, 1)[0]; got.Buf != string(bth(1, "ping")) {
		t.Errorf("b got %q", got.Buf)
	}
	mustSend(t, eb, SendSlot{Flow: fb, Dst: a.Addrs()[0], Buf: bth(1, "pong")})
	if got := collect(t, ea, 1)[0]; got.Buf != string(bth(1, "pong")) {
		t.Errorf("a got %q", got.Buf)
	}
}

// F62: the same address in two namespaces is two addresses.
func TestF62SameAddressInTwoNamespaces(t *testing.T) {
	a, b := testnet.One(t), testnet.One(t)
	for _, h := range []*testnet.Host{a, b} {
		if err := h.Do(func() error {
			mustOpen(t, Config{Addrs: []netip.Addr{h.Addr4}, Workers: 2})
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
}

// Any other program on the port is as busy as an adapter, also one that would
// share it, also one on a wildcard.
func TestForeignProgramOnThePortIsBusy(t *testing.T) {
	for _, c := range []struct {
		name, bind string
		addr       string
		text       []string
	}{
		{"same address", "127.3.2.1", "127.3.2.1", []string{"is bound to it"}},
		{"same address, shareable", "127.3.2.1 reuseport", "127.3.2.1", []string{"is bound to it"}},
		{"IPv4 wildcard", "0.0.0.0", "127.3.2.1", []string{"the wildcard 0.0.0.0"}},
		{"IPv4 wildcard, shareable", "0.0.0.0 reuseport", "127.3.2.1", []string{"the wildcard 0.0.0.0"}},
		{"IPv6 wildcard against IPv6", ":: reuseport", "::1", []string{"the wildcard ::"}},
		{"dual-stack wildcard against IPv4", ":: reuseport", "127.3.2.1", []string{"the wildcard ::"}},
	} {
		for _, workers := range []int{1, 2} {
			t.Run(fmt.Sprintf("%s, %d workers", c.name, workers), func(t *testing.T) {
				needIPv6(t) // a namespace: a wildcard would disturb other tests
				pid := otherProgram(t, "bind "+c.bind)
				busy := wantBusy(t, netip.MustParseAddr(c.addr), workers, pid, append(c.text, fmt.Sprint("pid ", pid), "end it")...)
				if busy.Adapter {
					t.Error("a foreign program is called an adapter")
				}
				if err := trialBind(local{addr: busy.Addr}); err == nil {
					t.Error("the trial bind alone does not see it")
				}
			})
		}
	}
}

// The kernel's own socket (rdma_rxe binds the wildcard) has no process.
func TestBusyTextForTheKernel(t *testing.T) {
	e := &BusyError{Addr: netip.MustParseAddr("192.0.2.1"), Bound: netip.IPv4Unspecified()}
	for _, s := range []string{"192.0.2.1", "0.0.0.0", "kernel", "rdma_rxe", "rdma link"} {
		if !strings.Contains(e.Error(), s) {
			t.Errorf("%q lacks %q", e, s)
		}
	}
}

func TestOpenIsWholeOrNothing(t *testing.T) {
	addrs := testaddr.Take(t, 3)
	held := mustOpen(t, Config{Addrs: addrs[2:]})
	if g, err := Open(Config{Addrs: addrs, Workers: 2}); err == nil {
		g.Close()
		t.Fatal("opened with one address busy")
	}
	// The first two are free again.
	mustOpen(t, Config{Addrs: addrs[:2], Workers: 2})
	held.Close()
	mustOpen(t, Config{Addrs: addrs[2:]})
}

func TestCloseGivesEveryDescriptorBack(t *testing.T) {
	count := func() int {
		d, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(d)
	}
	addrs := testaddr.Take(t, 3)
	before := count()
	for range 10 {
		g := mustOpen(t, Config{Addrs: addrs, Workers: 3})
		for k := range uint8(Keys) {
			mustFlow(t, g.Endpoint(1), addrs[1], k, 0)
		}
		g.Close()
		if g, err := Open(Config{Addrs: append(addrs[:3:3], netip.MustParseAddr("192.0.2.9"))}); err == nil {
			g.Close()
			t.Fatal("192.0.2.9 was opened")
		}
	}
	if after := count(); after != before {
		t.Errorf("%d descriptors open before, %d after", before, after)
	}
}

func TestParseUDPLine(t *testing.T) {
	const v4 = "  2114: 0100007F:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 4242 2 0000000000000000 0"
	if binary.NativeEndian.Uint16([]byte{1, 0}) == 1 { // the file is in host order, this line a little-endian host's
		s, ok := parseUDPLine(v4)
		if want := (udpSocket{netip.MustParseAddr("127.0.0.1"), 4791, 4242}); !ok || s != want {
			t.Errorf("got %v %v, want %v", s, ok, want)
		}
	}
	for _, bad := range []string{"", "sl local_address rem_address st tx_queue", "1: zz:12B7 0 0 0 0 0 0 0 1", "1: 0100007F 0 0 0 0 0 0 0 1", "1: 01:12B7 0 0 0 0 0 0 0 1"} {
		if s, ok := parseUDPLine(bad); ok {
			t.Errorf("%q read as %v", bad, s)
		}
	}
}

// A program started by the adapter's process must not keep its addresses
// after it.
func TestChildrenDoNotInheritTheAddress(t *testing.T) {
	addrs := testaddr.Take(t, 2)
	g := mustOpen(t, Config{Addrs: addrs[:1], Workers: 2})
	mustFlow(t, g.Endpoint(0), addrs[0], 0, 0xC000)
	otherProgram(t, "hold "+addrs[1].String())
	g.Close()
	g = mustOpen(t, Config{Addrs: addrs[:1], Workers: 2})
	if _, port := mustFlow(t, g.Endpoint(0), addrs[0], 0, 0xC000); port != 0xC000 {
		t.Errorf("the child holds the send socket: got port %#x", port)
	}
}
