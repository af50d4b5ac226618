package rdmanet

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/nettest"
	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/testdevices"
)

// The tests of golang.org/x/net for every net.Conn.
func TestNettest(t *testing.T) {
	testConn(t, func(c *Conn) net.Conn { return c })
}

// testConn runs them over connections as wrap makes them, with buffers so small that
// all that can wrap, run out or wait does, and with the usual ones.
func testConn(t *testing.T, wrap func(*Conn) net.Conn) {
	t.Helper()
	for _, c := range []struct {
		name string
		conf *Config
	}{
		{"small", &Config{RecvBuffer: minBuffer, SendBuffer: minBuffer + 1024, Receives: minReceives}},
		{"usual", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			devs, _ := testdevices.Open(t, 2)
			nettest.TestConn(t, func() (net.Conn, net.Conn, func(), error) {
				a, b := pair(t, devs[0], devs[1], c.conf, c.conf)
				return wrap(a), wrap(b), func() { closeBoth(a, b) }, nil
			})
		})
	}
}

// closeBoth closes both ends at once, so that neither waits for one that is gone.
func closeBoth(a, b net.Conn) {
	var wg sync.WaitGroup
	wg.Go(func() { _ = a.Close() })
	wg.Go(func() { _ = b.Close() })
	wg.Wait()
}

// Both directions at once, in pieces of any size, through buffers that differ.
func TestStream(t *testing.T) {
	devs, _ := testdevices.Open(t, 2)
	const total = 4 << 20
	data := make([]byte, total)
	for i := range data {
		data[i] = byte(rand.Uint32())
	}
	for _, c := range []struct {
		name   string
		ca, cb *Config
	}{
		{"usual", nil, nil},
		{"small and large", &Config{RecvBuffer: 5000, SendBuffer: 4099, Receives: 8}, &Config{RecvBuffer: 1 << 20, Receives: 1023}},
		{"few receives", &Config{Receives: 8}, &Config{Receives: 9}},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := pair(t, devs[0], devs[1], c.ca, c.cb)
			var wg sync.WaitGroup
			for i, conn := range []*Conn{a, b} {
				wg.Go(func() {
					rng := rand.New(rand.NewPCG(1, uint64(i)))
					for rest := data; len(rest) > 0; {
						n := min(1+int(rng.ExpFloat64()*10000), len(rest))
						if _, err := conn.Write(rest[:n]); err != nil {
							t.Error(err)
							return
						}
						rest = rest[n:]
					}
					if err := conn.CloseWrite(); err != nil {
						t.Error(err)
					}
				})
				wg.Go(func() {
					got, err := io.ReadAll(conn)
					if err != nil || !bytes.Equal(got, data) {
						t.Errorf("%d bytes, %v; equal %v", len(got), err, bytes.Equal(got, data))
					}
				})
			}
			wg.Wait()
			if _, err := a.Write([]byte("x")); !errors.Is(err, unix.EPIPE) {
				t.Errorf("Write after CloseWrite: %v", err)
			}
			check(t, a.Close())
			check(t, b.Close())
		})
	}
}

// What was written before Close arrives, whether or not the peer reads.
func TestCloseDelivers(t *testing.T) {
	devs, _ := testdevices.Open(t, 2)
	a, b := pair(t, devs[0], devs[1], nil, nil)
	data := bytes.Repeat([]byte("0123456789"), 5000)
	if n, err := a.Write(data); n != len(data) || err != nil {
		t.Fatalf("Write: %d, %v", n, err)
	}
	check(t, a.Close())
	if err := a.Close(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("second Close: %v", err)
	}
	got, err := io.ReadAll(b)
	if err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	check(t, b.Close())
}

// One that waits for the peer's messages only does not hold up who waits for own
// sends to complete.
func TestCloseWriteBesideRead(t *testing.T) {
	devs, _ := testdevices.Open(t, 2)
	a, b := pair(t, devs[0], devs[1], nil, nil)
	read := make(chan error)
	go func() {
		_, err := a.Read(make([]byte, 1))
		read <- err
	}()
	for waits := false; !waits; {
		a.mu.Lock()
		waits = a.driving && a.solicited
		a.mu.Unlock()
	}
	if _, err := a.Write([]byte("question")); err != nil {
		t.Error(err)
	}
	check(t, a.CloseWrite())
	check(t, b.Close())
	if err := <-read; !errors.Is(err, io.EOF) {
		t.Errorf("Read: %v", err)
	}
	_ = a.Close()
}

// Errors are those that callers of a net.Conn look for.
func TestErrors(t *testing.T) {
	devs, _ := testdevices.Open(t, 2)
	a, b := pair(t, devs[0], devs[1], nil, nil)
	check(t, a.SetReadDeadline(time.Now().Add(-time.Second)))
	_, err := a.Read(make([]byte, 1))
	var ne net.Error
	if !errors.Is(err, os.ErrDeadlineExceeded) || !errors.As(err, &ne) || !ne.Timeout() {
		t.Errorf("Read past its deadline: %v", err)
	}
	check(t, a.SetReadDeadline(time.Time{}))
	read := make(chan error)
	go func() {
		_, err := a.Read(make([]byte, 1))
		read <- err
	}()
	check(t, a.Close())
	if err := <-read; !errors.Is(err, net.ErrClosed) {
		t.Errorf("Read while closed: %v", err)
	}
	if err := a.SetDeadline(time.Now()); !errors.Is(err, net.ErrClosed) {
		t.Errorf("SetDeadline after Close: %v", err)
	}
	if _, err := a.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Write after Close: %v", err)
	}
	if _, err := b.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("Read after the peer's Close: %v", err)
	}
	if _, err = b.Write([]byte("x")); !errors.Is(err, unix.EPIPE) {
		t.Errorf("Write to a peer that has closed: %v", err)
	}
	check(t, b.Close())
}

// A peer that does not keep to the protocol ends the connection, and nothing
// beyond its ring is touched.
func TestPeerBreaksProtocol(t *testing.T) {
	devs, _ := testdevices.Open(t, 2)
	for _, c := range []struct {
		name  string
		m     message
		bytes int
	}{
		{"more bytes than it wrote", newMessage(kindData, 0, 100), 10},
		{"no bytes", newMessage(kindData, 0, 0), 0},
		{"more receives than it has", newMessage(kindUpdate, 1, 0), 0},
		{"more room than there is", newMessage(kindUpdate, 0, 1), 0},
		{"more taken than was sent", closeMessage(1), 0},
		{"a last message with bytes", closeMessage(0), 10},
		{"an end with bytes", newMessage(kindEnd, 0, 1), 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := pair(t, devs[0], devs[1], nil, nil)
			wr := a.message(kindEnd, 0)
			wr.ImmData = uint32(c.m)
			wr.RemoteAddr, wr.RKey = a.peer.addr, a.peer.rkey
			if c.bytes > 0 {
				wr.SGList = append(wr.SGList, a.e.sendMR.SGE(0, c.bytes))
			}
			if _, err := a.e.qp.PostSend(wr); err != nil {
				t.Fatal(err)
			}
			if _, err := b.Read(make([]byte, 10)); !errors.Is(err, errProtocol) {
				t.Errorf("Read: %v", err)
			}
			closeBoth(a, b)
		})
	}
}

func TestHello(t *testing.T) {
	h := hello{receives: 128, rkey: 0x1234, size: 1 << 20, addr: 1 << 40}
	b := h.encode()
	if got, err := readHello(append(b, 0, 0, 0)); err != nil || got != h || len(b) != helloSize {
		t.Errorf("%+v, %v", got, err)
	}
	bad := func(i int, v byte) []byte {
		c := bytes.Clone(b)
		c[i] = v
		return c
	}
	for _, b := range [][]byte{nil, b[:23], bad(0, 'T'), bad(2, 1), bad(5, 1), bad(4, 0xFF), bad(12, 0xFF), make([]byte, 24)} {
		if h, err := readHello(b); err == nil {
			t.Errorf("%x is a hello: %+v", b, h)
		}
	}
}

func FuzzHello(f *testing.F) {
	f.Add((&hello{receives: 128, rkey: 0x1234, size: 1 << 20, addr: 1 << 40}).encode())
	f.Add([]byte("SR\x02"))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := readHello(b)
		if err != nil {
			return
		}
		again, err := readHello(h.encode())
		if err != nil || again != h {
			t.Errorf("%x: %+v, then %+v, %v", b, h, again, err)
		}
	})
}
