package rdmanet

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/testaddr"
	"github.com/softroce/softroce/internal/testdevices"
	"github.com/softroce/softroce/pkg/adapter"
	"github.com/softroce/softroce/pkg/verbs"
)

// What completions say of an end decides about what CloseWrite and Close report,
// also when they come all at once.
func TestEndOfStreamByCompletions(t *testing.T) {
	ok := func(id uint64) verbs.WC { return verbs.WC{WRID: id, Opcode: verbs.WCRDMAWrite} }
	flushed := func(id uint64) verbs.WC {
		return verbs.WC{Status: verbs.WCWRFlushErr, WRID: id, Opcode: verbs.WCRDMAWrite}
	}
	closed := func(taken uint64) verbs.WC {
		return verbs.WC{Opcode: verbs.WCRecvRDMAWithImm, Flags: verbs.WCWithImm, ImmData: uint32(closeMessage(taken))}
	}
	gone := verbs.WC{Status: verbs.WCWRFlushErr, Opcode: verbs.WCRecv}
	const data, end, last = 0, 1, 2 // the sends
	reset := unix.ECONNRESET
	devs, _ := testdevices.Open(t, 2)
	for _, c := range []struct {
		name              string
		wcs               []verbs.WC
		closeWrite, close error
	}{
		{"all flushed", []verbs.WC{flushed(data), flushed(end)}, reset, reset},
		{"the end flushed", []verbs.WC{ok(data), flushed(end)}, reset, reset},
		{"the end arrived, the peer is gone", []verbs.WC{ok(data), ok(end), gone}, nil, reset},
		{"all flushed of a peer that took all and closed", []verbs.WC{closed(10), gone, flushed(data), flushed(end)}, nil, nil},
		{"all flushed of a peer that closed before", []verbs.WC{closed(0), gone, flushed(data), flushed(end)}, reset, reset},
		{"all arrived at a peer that took part and closed", []verbs.WC{ok(data), ok(end), closed(3), gone}, reset, reset},
		{"the last message arrived", []verbs.WC{ok(data), ok(end), ok(last), gone}, nil, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := pair(t, devs[0], devs[1], nil, nil)
			a.mu.Lock()
			a.sent, a.posts, a.endSent = 10, 3, true
			a.onWay = [sends]onWay{{upTo: 10, kind: kindData}, {upTo: 10, kind: kindEnd}, {upTo: 10, kind: kindClose}}
			a.window -= 10
			a.mu.Unlock()
			a.handle(c.wcs)
			if err := a.CloseWrite(); !errors.Is(err, c.closeWrite) {
				t.Errorf("CloseWrite: %v, want %v", err, c.closeWrite)
			}
			if err := a.Close(); !errors.Is(err, c.close) {
				t.Errorf("Close: %v, want %v", err, c.close)
			}
			check(t, b.Abort())
		})
	}
}

// part plays one end of a connection: it sends data, takes the other's, and closes.
type part func(t *testing.T, c *Conn, send, want []byte)

func write(t *testing.T, c *Conn, data []byte) {
	if _, err := c.Write(data); err != nil {
		t.Errorf("Write: %v", err)
	}
}

func closeWrite(t *testing.T, c *Conn) {
	if err := c.CloseWrite(); err != nil {
		t.Errorf("CloseWrite: %v", err)
	}
}

func readFull(t *testing.T, c *Conn, want []byte) {
	got := make([]byte, len(want))
	if n, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d of %d bytes, equal %v: %v", n, len(want), bytes.Equal(got, want), err)
	}
}

func readAll(t *testing.T, c *Conn, want []byte) {
	if got, err := io.ReadAll(c); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d of %d bytes to the end, equal %v: %v", len(got), len(want), bytes.Equal(got, want), err)
	}
}

// No orderly end on both sides is an error of either, whoever is first and however
// close they are.
func TestBothCloseAtOnce(t *testing.T) {
	rounds := 20
	if testing.Short() {
		rounds = 5
	}
	known := func(t *testing.T, c *Conn, send, want []byte) { // the length
		write(t, c, send)
		readFull(t, c, want)
	}
	half := func(t *testing.T, c *Conn, send, want []byte) {
		write(t, c, send)
		closeWrite(t, c)
		readAll(t, c, want)
	}
	answer := func(t *testing.T, c *Conn, send, want []byte) {
		readAll(t, c, want)
		write(t, c, send)
	}
	l, d := listen(t, &ListenConfig{Config: Config{RecvBuffer: 64 << 10, SendBuffer: 32 << 10}})
	for _, c := range []struct {
		name string
		a, b part
	}{
		{"known lengths", known, known},
		{"half close", half, half},
		{"question and answer", half, answer},
		{"answer and question", answer, half},
	} {
		t.Run(c.name, func(t *testing.T) {
			var all sync.WaitGroup
			for worker := range 8 {
				all.Go(func() {
					for i := range rounds {
						there := bytes.Repeat([]byte{byte(worker), byte(i)}, (i*977+worker*131)%20_000)
						here := bytes.Repeat([]byte{byte(i), 'x'}, (i*613)%3_000)
						x, y := connect(t, l, d)
						if x == nil {
							return
						}
						var both sync.WaitGroup
						both.Go(func() { play(t, c.a, x, there, here) })
						both.Go(func() { play(t, c.b, y, here, there) })
						both.Wait()
					}
				})
			}
			all.Wait()
		})
	}
}

func play(t *testing.T, p part, c *Conn, send, want []byte) {
	p(t, c, send, want)
	if err := c.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
}

// connecting pairs each Dial with its Accept.
var connecting sync.Mutex

// connect makes a connection; nil: that is an error.
func connect(t *testing.T, l *Listener, d *Dialer) (dialed, accepted *Conn) {
	connecting.Lock()
	defer connecting.Unlock()
	x, err := d.DialContext(patience(t), Network, l.Addr().String())
	if err != nil {
		t.Error(err)
		return nil, nil
	}
	y, err := l.Accept()
	if err != nil {
		t.Error(err)
		return nil, nil
	}
	return x.(*Conn), y.(*Conn)
}

// A peer whose program is killed, at any step, is an error of who closes after
// that, and nothing hangs.
func TestPeerKilled(t *testing.T) {
	for _, c := range []struct {
		name   string
		before func(t *testing.T, c, peer *Conn)
	}{
		{"before anything", func(*testing.T, *Conn, *Conn) {}},
		{"with data that it did not read", func(t *testing.T, c, _ *Conn) { write(t, c, []byte("data")) }},
		{"after it read all", func(t *testing.T, c, peer *Conn) {
			write(t, c, []byte("data"))
			readFull(t, peer, []byte("data"))
		}},
		{"after its end of stream", func(t *testing.T, c, peer *Conn) {
			closeWrite(t, peer)
			readAll(t, c, nil)
		}},
		{"after both ends of stream", func(t *testing.T, c, peer *Conn) {
			write(t, c, []byte("data"))
			closeWrite(t, peer)
			closeWrite(t, c)
			readAll(t, peer, []byte("data"))
			readAll(t, c, nil)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, d := listen(t, &ListenConfig{})
			x, y := connect(t, l, d)
			c.before(t, y, x)
			check(t, d.Device.Close()) // as when its process ends
			untilFailed(y)
			if err := y.Close(); !errors.Is(err, unix.ECONNRESET) && !errors.Is(err, unix.ETIMEDOUT) {
				t.Errorf("Close: %v, want ECONNRESET or ETIMEDOUT", err)
			}
			_ = x.Close()
		})
	}
}

// untilFailed waits until a connection has learned that its peer is gone.
func untilFailed(c *Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.err == nil {
		c.look()
	}
}

// A host that is gone without a word does not hold a deadline up, and Close not for
// ever.
func TestPeersHostGone(t *testing.T) {
	addrs := testaddr.Take(t, 2)
	var devs []*verbs.Device
	var ads []*adapter.Adapter
	for _, a := range addrs {
		ad, err := adapter.Start(adapter.Config{Addrs: []netip.Addr{a}, Workers: 1})
		check(t, err)
		defer ad.Close()
		dev, err := ad.Open()
		check(t, err)
		devs, ads = append(devs, dev), append(ads, ad)
	}
	a, b := pair(t, devs[0], devs[1], nil, nil)
	check(t, ads[1].Close())
	write(t, a, []byte("data"))
	check(t, a.SetWriteDeadline(time.Now().Add(time.Millisecond)))
	if err := a.CloseWrite(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("CloseWrite with a deadline: %v", err)
	}
	err := a.Close()
	if !errors.Is(err, unix.ETIMEDOUT) && !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("Close: %v, want a timeout", err)
	}
	if err := a.Close(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("second Close: %v", err)
	}
	_ = b.Close()
}
