package udp4791

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/testaddr"
)

// holdPort binds a port of an address for the length of the test.
func holdPort(t *testing.T, l local, port int) {
	t.Helper()
	fd, err := unix.Socket(l.family(), unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.Bind(fd, l.sockaddr(port)); err != nil {
		t.Fatalf("bind %v port %d: %v", l.addr, port, err)
	}
}

func TestSourcePortOfAFlow(t *testing.T) {
	addrs := testaddr.Take(t, 2)
	l := local{addr: addrs[0]}
	holdPort(t, l, 0xD000)
	holdPort(t, l, 0xFFFF)
	for i := range portTries {
		holdPort(t, l, 0xE000+i)
	}
	b := mustOpen(t, Config{Addrs: addrs[1:]})
	for _, c := range []struct {
		name         string
		wanted, port uint16
	}{
		{"as wanted", 0xC800, 0xC800},
		{"any", 0, 0xC000},
		{"brought into the range", 0x1234, 0xD234},
		{"taken, the next", 0xD000, 0xD001},
		{"last one taken, wraps", 0xFFFF, 0xC000},
		{"all tried ones taken, the receive socket", 0xE000, Port},
		{"the receive socket itself", Port, Port},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := mustOpen(t, Config{Addrs: addrs[:1]})
			e := a.Endpoint(0)
			f, port := mustFlow(t, e, addrs[0], 5, c.wanted)
			if port != c.port {
				t.Errorf("wanted %#x, got %#x, want %#x", c.wanted, port, c.port)
			}
			mustSend(t, e, SendSlot{Flow: f, Dst: addrs[1], Buf: bth(5, "x")})
			if src := collect(t, b.Endpoint(0), 1)[0].Meta.Src; src.Port() != c.port || src.Addr() != addrs[0] {
				t.Errorf("arrived from %v, want port %#x of %v", src, c.port, addrs[0])
			}
			a.Close()
		})
	}
}

// At most 16 send sockets per worker, each for one key of one
// local address; what exceeds that shares a socket of its key, or falls back.
func TestSendSocketsAreBoundedAndCarryOneKey(t *testing.T) {
	for _, n := range []int{1, 2, 3} { // 3 addresses have 24 (address, key) pairs
		addrs := testaddr.Take(t, n)
		g := mustOpen(t, Config{Addrs: addrs})
		e := g.Endpoint(0)
		type carried struct {
			local int
			key   uint8
		}
		byPort := map[uint16]map[carried]bool{}
		for round := range uint16(5) {
			for li, a := range addrs {
				for key := range uint8(Keys) {
					f, port := mustFlow(t, e, a, key, 0xC000+round<<8+uint16(li)<<4+uint16(key))
					if e.WriteFD(f) < 0 {
						t.Fatalf("open flow %d has no descriptor", f)
					}
					if port == Port {
						continue
					}
					if byPort[port] == nil {
						byPort[port] = map[carried]bool{}
					}
					byPort[port][carried{li, key}] = true
				}
			}
		}
		if len(byPort) != MaxSendSockets {
			t.Errorf("%d addresses: %d send sockets, want all %d in use and no more", n, len(byPort), MaxSendSockets)
		}
		for port, c := range byPort {
			if len(c) != 1 {
				t.Errorf("port %#x carries %v, want one key of one address", port, c)
			}
		}
	}
}

// The first key to open flows must not take the sockets of the others.
func TestNoKeyTakesTheOthersSockets(t *testing.T) {
	addrs := testaddr.Take(t, 1)
	e := mustOpen(t, Config{Addrs: addrs}).Endpoint(0)
	for i := range uint16(100) {
		mustFlow(t, e, addrs[0], 0, 0xC000+i)
	}
	for key := range uint8(Keys) {
		if _, port := mustFlow(t, e, addrs[0], key, 0xD000+uint16(key)); port == Port {
			t.Errorf("key %d found no send socket", key)
		}
	}
}

func TestFlowsShareASocketUntilTheLastCloses(t *testing.T) {
	addrs := testaddr.Take(t, 2)
	g := mustOpen(t, Config{Addrs: addrs[:1]})
	b := mustOpen(t, Config{Addrs: addrs[1:]})
	e := g.Endpoint(0)
	f1, _ := mustFlow(t, e, addrs[0], 2, 0xC100)
	f2, _ := mustFlow(t, e, addrs[0], 2, 0xC100)
	other, _ := mustFlow(t, e, addrs[0], 3, 0xC100)
	if f1 != f2 || other == f1 {
		t.Fatalf("flows %d, %d of one key and port, %d of another key", f1, f2, other)
	}
	e.CloseFlow(f1)
	mustSend(t, e, SendSlot{Flow: f2, Dst: addrs[1], Buf: bth(2, "still open")})
	collect(t, b.Endpoint(0), 1)
	e.CloseFlow(f2)
	wantSendError(t, e, SendSlot{Flow: f2, Dst: addrs[1]}, unix.EBADF)
	f3, port := mustFlow(t, e, addrs[0], 2, 0xC100)
	if port != 0xC100 {
		t.Errorf("port %#x was not given back: got %#x", 0xC100, port)
	}
	// The entry is used again; the old name must not reach the new socket.
	if f3 == f1 {
		t.Errorf("flow id %d was handed out again", f1)
	}
	e.CloseFlow(f1)
	if e.WriteFD(f1) != -1 || e.WriteFD(f3) < 0 {
		t.Errorf("descriptors of the closed flow %d, of the open one %d", e.WriteFD(f1), e.WriteFD(f3))
	}
}

// The receive socket as a flow outlives its closing.
func TestClosingAFallbackFlowKeepsTheReceiveSocket(t *testing.T) {
	a, b := pair(t, "ipv4")
	ea, eb := a.Endpoint(0), b.Endpoint(0)
	for range 3 {
		f, _ := mustFlow(t, ea, a.Addrs()[0], 0, Port)
		ea.CloseFlow(f)
	}
	f, _ := mustFlow(t, eb, b.Addrs()[0], 0, 0)
	mustSend(t, eb, SendSlot{Flow: f, Dst: a.Addrs()[0], Buf: seq(1)})
	collect(t, ea, 1)
}

func TestOpenFlowRefusals(t *testing.T) {
	addrs := testaddr.Take(t, 2)
	e := mustOpen(t, Config{Addrs: addrs[:1]}).Endpoint(0)
	var ae *AddrError
	if _, _, err := e.OpenFlow(addrs[1], 0, 0); !errors.As(err, &ae) || ae.Addr != addrs[1] {
		t.Errorf("an address of another adapter: %v", err)
	}
	if _, _, err := e.OpenFlow(addrs[0], Keys, 0); err == nil {
		t.Error("key 8 was taken")
	}
	for _, f := range []FlowID{0, -1, 1, 1 << 30, 255, 1<<flowIndexBits | 200} {
		if fd := e.WriteFD(f); fd != -1 {
			t.Errorf("flow %d, never opened, has descriptor %d", f, fd)
		}
		e.CloseFlow(f) // ignored
	}
}

// Nobody reads a send socket: what strangers send to its port must not pile
// up there.
func TestSendSocketDropsWhatIsSentToIt(t *testing.T) {
	a, b := pair(t, "ipv4")
	ea, eb := a.Endpoint(0), b.Endpoint(0)
	f, port := mustFlow(t, ea, a.Addrs()[0], 0, 0)
	fd, err := newSocket(local{addr: b.Addrs()[0]}, nil, new([]string))
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Sendto(fd, []byte("stranger"), 0, local{addr: a.Addrs()[0]}.sockaddr(int(port))); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 100)
	if n, _, err := unix.Recvfrom(ea.WriteFD(f), buf, unix.MSG_DONTWAIT); err != unix.EAGAIN {
		t.Errorf("the send socket kept %q (%v)", buf[:max(n, 0)], err)
	}
	mustSend(t, ea, SendSlot{Flow: f, Dst: b.Addrs()[0], Buf: seq(1)})
	collect(t, eb, 1)
}

// A process out of descriptors still sends, from the receive socket.
func TestFlowWithoutDescriptorsFallsBack(t *testing.T) {
	a, b := pair(t, "ipv4")
	ea := a.Endpoint(0)
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: old.Max}); err != nil {
		t.Fatal(err)
	}
	f, port, err := ea.OpenFlow(a.Addrs()[0], 0, 0)
	if e := unix.Setrlimit(unix.RLIMIT_NOFILE, &old); e != nil {
		t.Fatal(e)
	}
	if err != nil || port != Port {
		t.Fatalf("got port %d, %v; want %d", port, err, Port)
	}
	mustSend(t, ea, SendSlot{Flow: f, Dst: b.Addrs()[0], Buf: seq(1)})
	collect(t, b.Endpoint(0), 1)
}
