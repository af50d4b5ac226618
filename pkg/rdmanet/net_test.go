package rdmanet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/nettest"
	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/testdevices"
	"github.com/softroce/softroce/pkg/rdmacm"
	"github.com/softroce/softroce/pkg/verbs"
)

// patience ends waits of a test that hangs; nothing is measured by it.
func patience(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// listen makes a listener on one device, and a dialer to it on another.
func listen(t testing.TB, lc *ListenConfig) (*Listener, *Dialer) {
	t.Helper()
	devs, addrs := testdevices.Open(t, 2)
	l, err := lc.ListenTo(devs[1], net.JoinHostPort(addrs[1].String(), "0"))
	check(t, err)
	t.Cleanup(func() { check(t, l.Close()) })
	return l, &Dialer{Device: devs[0], Config: lc.Config}
}

func TestNettestByAddress(t *testing.T) {
	l, d := listen(t, &ListenConfig{})
	nettest.TestConn(t, func() (net.Conn, net.Conn, func(), error) {
		a, err := d.DialContext(patience(t), "tcp", l.Addr().String())
		if err != nil {
			return nil, nil, nil, err
		}
		b, err := l.Accept()
		return a, b, func() { _, _ = a.Close(), b.Close() }, err
	})
}

// net/http, unchanged, with several connections at once.
func TestHTTP(t *testing.T) {
	l, d := listen(t, &ListenConfig{})
	big := strings.Repeat("softroce ", 200_000)
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		fmt.Fprintf(w, "%s %s %d\n%s", r.Method, r.RemoteAddr[:4], len(body), big)
	})}
	served := make(chan error)
	go func() { served <- srv.Serve(l) }()
	client := &http.Client{Transport: &http.Transport{DialContext: d.DialContext}}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 5 {
				r, err := client.Post("http://"+l.Addr().String()+"/x", "text/plain", strings.NewReader(big))
				if err != nil {
					t.Error(err)
					return
				}
				got, err := io.ReadAll(r.Body)
				_ = r.Body.Close()
				if want := fmt.Sprintf("POST 127. %d\n%s", len(big), big); err != nil || string(got) != want {
					t.Errorf("%d bytes, %v", len(got), err)
				}
			}
		})
	}
	wg.Wait()
	client.CloseIdleConnections()
	check(t, srv.Shutdown(patience(t)))
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		t.Error(err)
	}
}

// Who cannot be reached, does not listen, or speaks something else.
func TestDialErrors(t *testing.T) {
	l, d := listen(t, &ListenConfig{})
	ctx := patience(t)
	_, err := d.DialContext(ctx, "rdma", net.JoinHostPort(l.l.Addr().Addr().String(), "1"))
	if r := (*rdmacm.RejectError)(nil); !errors.As(err, &r) || r.Reason != rdmacm.RejectNoListener || !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("nobody listens: %v", err)
	}
	if _, err := d.DialContext(ctx, "udp", l.Addr().String()); err == nil {
		t.Error("network udp: no error")
	}
	if _, err := d.DialContext(ctx, "rdma", "192.0.2.1:http"); err == nil {
		t.Error("a port by name: no error")
	}
	canceled, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := d.DialContext(canceled, "rdma", l.Addr().String()); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
	limits := verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}
	_, err = rdmacm.Dial(ctx, d.Device, l.l.Addr(), &rdmacm.Config{QP: verbs.QPInitAttr{Cap: limits}})
	if r := (*rdmacm.RejectError)(nil); !errors.As(err, &r) || !strings.HasPrefix(string(r.Private), "rdmanet: the peer speaks another protocol") {
		t.Errorf("another protocol: %v", err)
	}
	check(t, l.Close())
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept after Close: %v", err)
	}
}

// A peer that goes without a word ends reads and writes.
func TestPeerGone(t *testing.T) {
	l, d := listen(t, &ListenConfig{})
	a, err := d.Dial("rdma", l.Addr().String())
	check(t, err)
	b, err := l.Accept()
	check(t, err)
	if _, err := a.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	check(t, d.Device.Close()) // as when its process ends
	got, err := io.ReadAll(b)
	if string(got) != "x" || !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := b.Write([]byte("x")); err == nil {
		t.Error("Write to a peer that is gone: no error")
	}
	if err := b.Close(); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("Close of a connection whose peer is gone: %v", err)
	}
	if _, err := a.Write([]byte("x")); !errors.Is(err, verbs.ErrDeviceDead) {
		t.Errorf("Write without an adapter: %v", err)
	}
	if _, err := a.Read(make([]byte, 1)); !errors.Is(err, verbs.ErrDeviceDead) {
		t.Errorf("Read without an adapter: %v", err)
	}
	if err := a.Close(); !errors.Is(err, verbs.ErrDeviceDead) {
		t.Errorf("Close without an adapter: %v", err)
	}
}

// A connection that is aborted has no end of stream for its peer.
func TestAbort(t *testing.T) {
	l, d := listen(t, &ListenConfig{})
	c, err := d.Dial("rdma", l.Addr().String())
	check(t, err)
	b, err := l.Accept()
	check(t, err)
	a := c.(*Conn)
	if _, err := a.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	check(t, a.Abort())
	if _, err := io.ReadAll(b); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("Read of a connection that the peer aborted: %v, want ECONNRESET", err)
	}
	if err := a.Close(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Close after Abort: %v", err)
	}
	if err := b.Close(); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("Close of a connection that the peer aborted: %v, want ECONNRESET", err)
	}
}

// left counts what a program has in its adapter.
func left(t *testing.T, dev *verbs.Device) string {
	t.Helper()
	var b strings.Builder
	for _, kind := range []verbs.ResourceKind{verbs.ResourcePD, verbs.ResourceMR, verbs.ResourceCQ, verbs.ResourceQP} {
		rs, err := dev.Resources(kind)
		check(t, err)
		fmt.Fprintf(&b, "%d of kind %v, ", len(rs), kind)
	}
	return b.String()
}

// Connections leave nothing behind.
func TestConnectsLeaveNothing(t *testing.T) {
	n := 1000
	if testing.Short() {
		n = 100
	}
	small := Config{RecvBuffer: minBuffer, SendBuffer: minBuffer}
	l, d := listen(t, &ListenConfig{Config: small})
	beforeD, beforeL := left(t, d.Device), left(t, l.dev)
	var wg sync.WaitGroup
	wg.Go(func() {
		for range n {
			c, err := l.Accept()
			if err != nil {
				t.Error(err)
				return
			}
			wg.Go(func() {
				if b, err := io.ReadAll(c); string(b) != "hello" || err != nil {
					t.Errorf("%q, %v", b, err)
				}
				if err := c.Close(); err != nil {
					t.Error(err)
				}
			})
		}
	})
	for range n {
		c, err := d.Dial("rdma", l.Addr().String())
		check(t, err)
		if _, err := c.Write([]byte("hello")); err != nil {
			t.Error(err)
		}
		check(t, c.Close())
	}
	wg.Wait()
	if now := left(t, d.Device); now != beforeD {
		t.Errorf("the dialer's adapter has %s, before %s", now, beforeD)
	}
	if now := left(t, l.dev); now != beforeL {
		t.Errorf("the listener's adapter has %s, before %s", now, beforeL)
	}
}
