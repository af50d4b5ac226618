package nc

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/testdevices"
)

type outcome struct {
	rep Report
	err error
}

// run starts a server and a client.
func run(ctx, cctx context.Context, t *testing.T, s, c Config) (server, client <-chan outcome) {
	t.Helper()
	devs, addrs := testdevices.Open(t, 2)
	addr := addrs[0]
	at, sout, cout := make(chan net.Addr, 1), make(chan outcome, 1), make(chan outcome, 1)
	s.Listening = func(a net.Addr) { at <- a }
	go func() {
		rep, err := Server(ctx, devs[0], netip.AddrPortFrom(addr, 0), s)
		sout <- outcome{rep, err}
	}()
	select {
	case a := <-at:
		go func() {
			rep, err := Client(cctx, devs[1], a.String(), c)
			cout <- outcome{rep, err}
		}()
	case o := <-sout:
		t.Fatalf("the server does not listen: %v", o.err)
	}
	return sout, cout
}

func random(n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(b) // it does not fail
	return b
}

// What goes in at one side comes out at the other, in both directions.
func TestBothDirections(t *testing.T) {
	for _, n := range []int{0, 1, 5 << 20} {
		there, here := random(n + 1)[1:], random(n/2)
		var got, back bytes.Buffer
		s, c := run(t.Context(), t.Context(), t,
			Config{In: bytes.NewReader(here), Out: &got},
			Config{In: bytes.NewReader(there), Out: &back})
		for name, o := range map[string]outcome{"client": <-c, "server": <-s} {
			if o.err != nil || o.rep.Sent+o.rep.Received != int64(len(there)+len(here)) {
				t.Errorf("%d bytes: %s: %+v, %v", n, name, o.rep, o.err)
			}
		}
		if !bytes.Equal(got.Bytes(), there) || !bytes.Equal(back.Bytes(), here) {
			t.Errorf("%d bytes: %d and %d came out changed", n, got.Len(), back.Len())
		}
	}
}

// The end of one direction does not end the other: an answer can be made of the
// whole question.
func TestHalfClose(t *testing.T) {
	question, answer := io.Pipe()
	in, out := io.Pipe()
	go func() {
		all, err := io.ReadAll(question)
		_, werr := out.Write(bytes.ToUpper(all))
		_ = out.CloseWithError(errors.Join(err, werr))
	}()
	var got bytes.Buffer
	s, c := run(t.Context(), t.Context(), t,
		Config{In: in, Out: closer{answer}},
		Config{In: strings.NewReader("question"), Out: &got})
	if o := <-c; o.err != nil || got.String() != "QUESTION" {
		t.Errorf("the client has %q, %v", got.String(), o.err)
	}
	if o := <-s; o.err != nil {
		t.Errorf("the server: %v", o.err)
	}
}

// closer ends a pipe after the question, which comes in one piece.
type closer struct{ w *io.PipeWriter }

func (c closer) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	_ = c.w.Close() // never fails
	return n, err
}

// A person who types need not end the input when the peer has ended.
func TestPersonNeedNotEnd(t *testing.T) {
	typed, keys := io.Pipe()
	defer keys.Close()
	var got bytes.Buffer
	s, c := run(t.Context(), t.Context(), t,
		Config{In: typed, Person: true, Out: &got},
		Config{In: strings.NewReader("hello"), Out: io.Discard})
	if o := <-c; o.err != nil {
		t.Errorf("the client: %v", o.err)
	}
	if o := <-s; o.err != nil || got.String() != "hello" {
		t.Errorf("the server has %q, %v", got.String(), o.err)
	}
}

// A side that is stopped, or fails, ends its peer with an error: no part is taken
// for the whole.
func TestStopped(t *testing.T) {
	waits, never := io.Pipe()
	defer never.Close()
	ctx, cancel := context.WithCancel(t.Context())
	came := make(notify, 1)
	s, c := run(t.Context(), ctx, t,
		Config{In: strings.NewReader(""), Out: came},
		Config{In: io.MultiReader(strings.NewReader("part"), waits), Out: io.Discard})
	<-came
	cancel()
	if o := <-c; !errors.Is(o.err, context.Canceled) || o.rep.Sent != 4 {
		t.Errorf("the client that was stopped: %+v, %v", o.rep, o.err)
	}
	if o := <-s; !errors.Is(o.err, unix.ECONNRESET) {
		t.Errorf("its peer: %v, want ECONNRESET", o.err)
	}
}

type notify chan struct{}

func (n notify) Write(b []byte) (int, error) {
	n <- struct{}{}
	return len(b), nil
}

var errDisk = errors.New("the disk is full")

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errDisk }
func (full) Read([]byte) (int, error)  { return 0, errDisk }

func TestOutputAndInputThatFail(t *testing.T) {
	idle, end := io.Pipe()
	defer end.Close()
	for name, bad := range map[string]Config{
		"output": {In: idle, Out: full{}},
		"input":  {In: full{}, Out: io.Discard},
	} {
		endless, never := io.Pipe()
		s, c := run(t.Context(), t.Context(), t, bad,
			Config{In: io.MultiReader(strings.NewReader("data"), endless), Out: io.Discard})
		if o := <-s; !errors.Is(o.err, errDisk) || !strings.HasPrefix(o.err.Error(), name) {
			t.Errorf("%s that fails: %v", name, o.err)
		}
		_ = never.Close() // a peer that has its end already learns by its own
		if o := <-c; o.err == nil {
			t.Errorf("%s that fails: the peer has no error", name)
		}
	}
}

// Nobody there is an error that says where; a wait that is stopped ends.
func TestNobodyThere(t *testing.T) {
	devs, addrs := testdevices.Open(t, 2)
	addr := addrs[0]
	cfg := Config{In: strings.NewReader(""), Out: io.Discard, Wait: time.Minute}
	at := netip.AddrPortFrom(addr, 9).String()
	if _, err := Client(t.Context(), devs[1], at, cfg); err == nil || !strings.Contains(err.Error(), at) {
		t.Errorf("a port nobody listens on: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cfg.Listening = func(net.Addr) { cancel() }
	if _, err := Server(ctx, devs[0], netip.AddrPortFrom(addr, 0), cfg); !errors.Is(err, context.Canceled) {
		t.Errorf("a server that is stopped: %v", err)
	}
}
