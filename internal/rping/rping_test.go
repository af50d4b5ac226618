package rping

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/softroce/softroce/internal/testdevices"
	"github.com/softroce/softroce/pkg/rdmacm"
	"github.com/softroce/softroce/pkg/verbs"
)

type outcome struct {
	rep *Report
	err error
}

// server runs a server and returns when it listens.
func server(ctx context.Context, t *testing.T, d *verbs.Device, cfg Config) <-chan outcome {
	t.Helper()
	ready, out := make(chan netip.AddrPort, 1), make(chan outcome, 1)
	cfg.Ready = func(a netip.AddrPort) { ready <- a }
	go func() {
		rep, err := Server(ctx, d, cfg)
		out <- outcome{rep, err}
	}()
	select {
	case <-ready:
	case o := <-out:
		t.Fatalf("the server does not listen: %v", o.err)
	}
	return out
}

// A server that is through with all pings leaves the hang-up to its client.
func TestServerHangsUpLast(t *testing.T) {
	devs, addrs := testdevices.Open(t, 2)
	srv := server(t.Context(), t, devs[0], Config{Count: 2})
	var early bool
	pings := 0
	_, err := Client(t.Context(), devs[1], Config{Count: 2, Addr: netip.AddrPortFrom(addrs[0], 0), Ping: func([]byte) {
		if pings++; pings < 2 {
			return
		}
		select {
		case o := <-srv:
			early = true
			t.Errorf("the server ended before its client: %v", o.err)
		case <-time.After(100 * time.Millisecond): // a moment in which a server that does not wait would be gone
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	if !early {
		if o := <-srv; o.err != nil || o.rep.Pings != 2 {
			t.Errorf("server: %+v, %v", o.rep, o.err)
		}
	}
}

func TestPings(t *testing.T) {
	devs, addrs := testdevices.Open(t, 2)
	for _, c := range []Config{
		{Count: 20, Check: true},
		{Count: 3, Size: MinSize, Check: true},
		{Count: 3, Size: MaxSize, Check: true},
		{Count: 1},
	} {
		var mu sync.Mutex
		var there, here [][]byte
		keep := func(to *[][]byte) func([]byte) {
			return func(b []byte) {
				mu.Lock()
				defer mu.Unlock()
				*to = append(*to, bytes.Clone(b))
			}
		}
		srv := server(t.Context(), t, devs[0], Config{Size: c.Size, Ping: keep(&there)})
		c.Addr, c.Ping = netip.AddrPortFrom(addrs[0], 0), keep(&here)
		rep, err := Client(t.Context(), devs[1], c)
		if err != nil {
			t.Fatalf("%d bytes: client: %v", c.Size, err)
		}
		o := <-srv
		if o.err != nil {
			t.Fatalf("%d bytes: server: %v", c.Size, o.err)
		}
		if rep.Pings != c.Count || o.rep.Pings != c.Count {
			t.Errorf("%d bytes: the client counts %d pings, the server %d, want %d", c.Size, rep.Pings, o.rep.Pings, c.Count)
		}
		if len(here) != c.Count || !bytes.Equal(bytes.Join(here, nil), bytes.Join(there, nil)) {
			t.Errorf("%d bytes: the client saw %q, the server %q", c.Size, here, there)
		}
		if rep.Local.Addr() != addrs[1] || rep.Peer != netip.AddrPortFrom(addrs[0], DefaultPort) {
			t.Errorf("%d bytes: connected %v to %v", c.Size, rep.Local, rep.Peer)
		}
	}
}

// The data is that of rping: its name, then characters that begin one later each
// time, then a zero.
func TestFill(t *testing.T) {
	b := make([]byte, 80)
	for n, want := range map[int]string{
		0:  "rdma-ping-0: ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrstuvwxyzABCDEFGH\x00",
		57: "rdma-ping-57: zABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrstuvwxyzABCDEF\x00",
		58: "rdma-ping-58: ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrstuvwxyzABCDEFG\x00",
	} {
		if fill(b, n); string(b) != want {
			t.Errorf("ping %d:\n got %q\nwant %q", n, b, want)
		}
	}
	small := make([]byte, MinSize)
	if fill(small, 123456789); string(small) != "rdma-ping-123456789: T\x00" {
		t.Errorf("a small one: got %q", small)
	}
}

func TestInfo(t *testing.T) {
	var b [infoSize]byte
	i := info{0x0102030405060708, 0x090A0B0C, 0x0D0E0F10}
	i.put(b[:])
	if want := []byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}; !bytes.Equal(b[:], want) {
		t.Errorf("got %x, want %x", b, want)
	}
	if got := parseInfo(b[:]); got != i {
		t.Errorf("parsed: got %+v, want %+v", got, i)
	}
}

// A client with a larger buffer is an error at the server, not a write beyond
// its own.
func TestSizesDiffer(t *testing.T) {
	devs, addrs := testdevices.Open(t, 2)
	srv := server(t.Context(), t, devs[0], Config{Size: 100})
	_, err := Client(t.Context(), devs[1], Config{Addr: netip.AddrPortFrom(addrs[0], 0), Size: 101, Count: 1})
	if !errors.Is(err, errHungUp) || !strings.Contains(err.Error(), "101 bytes: a server with a smaller -S does") {
		t.Errorf("client: got %v, want %v and the cause", err, errHungUp)
	}
	if o := <-srv; o.err == nil || !strings.Contains(o.err.Error(), "101 bytes, and this side's 100") {
		t.Errorf("server: got %v", o.err)
	}
}

func TestNobodyListens(t *testing.T) {
	devs, addrs := testdevices.Open(t, 2)
	_, err := Client(t.Context(), devs[1], Config{Addr: netip.AddrPortFrom(addrs[0], 0), Count: 1})
	var rej *rdmacm.RejectError
	if !errors.As(err, &rej) || rej.Reason != rdmacm.RejectNoListener {
		t.Errorf("got %v, want the reason %v", err, rdmacm.RejectNoListener)
	}
}

// A server that is persistent serves several clients, one of which stays.
func TestPersistent(t *testing.T) {
	devs, addrs := testdevices.Open(t, 2)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	served := make(chan outcome, 3)
	srv := server(ctx, t, devs[0], Config{Persistent: true, Served: func(r *Report, err error) { served <- outcome{r, err} }})
	to := netip.AddrPortFrom(addrs[0], 0)
	endless, hangUp := context.WithCancel(t.Context())
	defer hangUp()
	first, stays := make(chan struct{}), make(chan error, 1)
	go func() {
		_, err := Client(endless, devs[1], Config{Addr: to, Connected: func(_, _ netip.AddrPort) { close(first) }})
		stays <- err
	}()
	<-first
	for range 2 {
		if _, err := Client(t.Context(), devs[1], Config{Addr: to, Count: 2}); err != nil {
			t.Fatalf("client: %v", err)
		}
		if o := <-served; o.err != nil || o.rep.Pings != 2 {
			t.Fatalf("served: %+v, %v", o.rep, o.err)
		}
	}
	hangUp()
	if err := <-stays; !errors.Is(err, context.Canceled) {
		t.Errorf("the client that was stopped: %v", err)
	}
	<-served
	stop()
	if o := <-srv; !errors.Is(o.err, context.Canceled) {
		t.Errorf("the server that was stopped: %v", o.err)
	}
}

func TestValidate(t *testing.T) {
	for _, c := range []Config{{Size: MinSize - 1}, {Size: MaxSize + 1}, {Size: -1}, {Count: -1}} {
		if c.Validate() == nil {
			t.Errorf("%+v is taken", c)
		}
	}
}
