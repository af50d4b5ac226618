package agent

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// patience ends waits of a test that hangs; nothing is measured by it.
const patience = 30 * time.Second

// echo is a handler that does little: it answers hello, waits until it is cancelled, and counts who is there.
type echo struct {
	alive *atomic.Int32
	gone  chan struct{}
	once  sync.Once
}

func (e *echo) Handle(ctx context.Context, r Request) (*Answer, error) {
	switch r.Do {
	case DoHello:
		return &Answer{Hello: &Hello{Agent: "echo"}}, nil
	case DoWrite:
		return &Answer{Data: r.Data}, nil
	case DoPoll:
		<-ctx.Done()
		return &Answer{}, nil
	case DoRead:
		return &Answer{Data: make([]byte, MaxLine)}, nil
	}
	return nil, &Error{Do: r.Do, Text: "not that", Errno: "EINVAL"}
}

func (e *echo) Close() error {
	e.once.Do(func() { e.alive.Add(-1); close(e.gone) })
	return nil
}

// served is a server under test.
type served struct {
	*Server
	addr  string
	alive atomic.Int32
	gone  chan *echo // the sessions, as they begin
}

func serve(t *testing.T, change func(*ServerConfig)) *served {
	t.Helper()
	s := &served{gone: make(chan *echo, 100)}
	cfg := ServerConfig{
		Testers: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")},
		New: func(context.Context) (Handler, error) {
			s.alive.Add(1)
			e := &echo{alive: &s.alive, gone: make(chan struct{})}
			s.gone <- e
			return e, nil
		},
	}
	if change != nil {
		change(&cfg)
	}
	var err error
	if s.Server, err = NewServer(cfg); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.addr = l.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
		if n := s.alive.Load(); n != 0 {
			t.Errorf("%d sessions are left", n)
		}
	})
	return s
}

// ends waits for the end of the next session that began.
func (s *served) ends(t *testing.T) {
	t.Helper()
	select {
	case e := <-s.gone:
		select {
		case <-e.gone:
			return
		case <-time.After(patience):
		}
	case <-time.After(patience):
	}
	t.Fatal("the session's objects are still there")
}

func dial(t *testing.T, addr string) *Client {
	t.Helper()
	c, err := Dial(t.Context(), addr, ClientConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestExchange(t *testing.T) {
	s := serve(t, nil)
	c := dial(t, s.addr)
	if h := c.Hello(); h.Agent != "echo" || h.Version != Version {
		t.Errorf("hello %+v", h)
	}
	data := make([]byte, MaxData)
	data[5] = 7
	a, err := c.Do(Request{Do: DoWrite, Data: data})
	if err != nil || string(a.Data) != string(data) {
		t.Fatalf("%d bytes, %v; want those that were sent", len(a.Data), err)
	}
	_, err = c.Do(Request{Do: DoMR})
	if e, ok := Refusal(err); !ok || *e != (Error{Do: DoMR, Text: "not that", Errno: "EINVAL"}) {
		t.Errorf("got %v, want a refusal", err)
	}
	if _, err = c.Do(Request{Do: DoPoll, MS: MaxWait + 1}); err == nil || !strings.Contains(err.Error(), "EINVAL") {
		t.Errorf("a wait over the limit: %v", err)
	}
	if _, err = c.Do(Request{Do: DoRead}); err == nil || !strings.Contains(err.Error(), "a line of more than") {
		t.Errorf("an answer over the limit: %v", err)
	}
	if _, err = c.Do(Request{Do: DoWrite}); err != nil {
		t.Errorf("after refusals: %v", err)
	}
	_ = c.Close()
	s.ends(t)
	if _, err = c.Do(Request{Do: DoWrite}); !errors.Is(err, net.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// A connection that ends ends the request that waits on it.
func TestEndWhileWaiting(t *testing.T) {
	s := serve(t, nil)
	c := dial(t, s.addr)
	go func() { _, _ = c.Do(Request{Do: DoPoll, MS: MaxWait}) }()
	_ = c.Close()
	s.ends(t)
}

func TestStrangers(t *testing.T) {
	for _, tt := range []struct {
		name    string
		change  func(*ServerConfig)
		cfg     ClientConfig
		want    string // in the error; empty: served
		refused uint64
	}{
		{"tester", nil, ClientConfig{}, "", 0},
		{"other address", nil, ClientConfig{Local: net.IPv4(127, 0, 0, 2)}, "closed the connection", 1},
		{"prefix", func(c *ServerConfig) { c.Testers[0] = netip.MustParsePrefix("127.0.0.99/24") }, ClientConfig{Local: net.IPv4(127, 0, 0, 2)}, "", 0},
		{"token", func(c *ServerConfig) { c.Token = "x" }, ClientConfig{Token: "x"}, "", 0},
		{"no token", func(c *ServerConfig) { c.Token = "x" }, ClientConfig{}, "say hello first", 0},
		{"wrong token", func(c *ServerConfig) { c.Token = "x" }, ClientConfig{Token: "y"}, "say hello first", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := serve(t, tt.change)
			c, err := Dial(t.Context(), s.addr, tt.cfg)
			if err == nil {
				_ = c.Close()
			}
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !lost(err) && !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
			if n := s.Refused(); n != tt.refused {
				t.Errorf("%d connections refused, want %d", n, tt.refused)
			}
		})
	}
	if _, err := NewServer(ServerConfig{New: func(context.Context) (Handler, error) { return nil, nil }}); err == nil {
		t.Error("a server without a tester")
	}
}

// lost says whether a connection was reset, as one is that is closed before what it sent is read.
func lost(err error) bool { return strings.Contains(err.Error(), "connection reset") }

func TestSessionsLimit(t *testing.T) {
	s := serve(t, func(c *ServerConfig) { c.Sessions = 2 })
	first := dial(t, s.addr)
	dial(t, s.addr)
	if _, err := Dial(t.Context(), s.addr, ClientConfig{}); err == nil || s.Refused() != 1 {
		t.Fatalf("a third session: %v, %d refused", err, s.Refused())
	}
	_ = first.Close()
	s.ends(t)
	for end := time.Now().Add(patience); ; {
		c, err := Dial(t.Context(), s.addr, ClientConfig{})
		if err == nil {
			_ = c.Close()
			return
		}
		if time.Now().After(end) {
			t.Fatalf("a session after another ended: %v", err)
		}
	}
}

func TestIdle(t *testing.T) {
	s := serve(t, func(c *ServerConfig) { c.Idle = 20 * time.Millisecond })
	conn, err := net.Dial("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("read %v, want the end of the connection", err)
	}
	s.ends(t)
}

// raw sends lines and returns the answers to each.
func raw(t *testing.T, addr string, lines ...string) (answers []Answer) {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	in := bufio.NewReader(conn)
	for _, l := range lines {
		if _, err := io.WriteString(conn, l+"\n"); err != nil {
			t.Fatal(err)
		}
		got, err := in.ReadBytes('\n')
		if err != nil {
			t.Fatalf("answer to %.80q: %v", l, err)
		}
		var a Answer
		if err := json.Unmarshal(got, &a); err != nil {
			t.Fatalf("answer to %.80q: %v", l, err)
		}
		answers = append(answers, a)
	}
	return answers
}

func TestBadLines(t *testing.T) {
	s := serve(t, nil)
	const hello = `{"do":"hello","version":1}`
	for _, tt := range []struct {
		name, want string
		lines      []string
	}{
		{"before hello", "say hello first", []string{`{"do":"write"}`}},
		{"version", "this is version 1, asked for 2", []string{`{"do":"hello","version":2}`}},
		{"no version", "asked for 0", []string{`{"do":"hello"}`}},
		{"empty", "no JSON object", []string{hello, ``}},
		{"null", "no JSON object", []string{hello, `null`}},
		{"cut", "EOF", []string{hello, `{"do":"write"`}},
		{"two", "more than one object", []string{hello, `{"do":"write"}{}`}},
		{"unknown field", "unknown field", []string{hello, `{"do":"write","psn":1}`}},
		{"wrong type", "cannot unmarshal", []string{hello, `{"do":"write","off":"1"}`}},
		{"too big a number", "cannot unmarshal", []string{hello, `{"do":"write","off":1e30}`}},
		{"negative wait", "ms is -1", []string{hello, `{"do":"poll","ms":-1}`}},
		{"binary", "no JSON object", []string{hello, "\x00\xff\xfe"}},
		{"long", "a line of more than", []string{hello, strings.Repeat("x", MaxLine)}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := raw(t, s.addr, tt.lines...)
			if got := a[len(a)-1].Error; !strings.Contains(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
	if a := raw(t, s.addr, hello, `{`, `{"do":"write","data":"AQ=="}`); a[2].Error != "" || string(a[2].Data) != "\x01" {
		t.Errorf("after a bad line: %+v", a[2])
	}
}

// What an agent should not do leaves the client dead, with the reason.
func TestBadAgents(t *testing.T) {
	const hello = `{"version":1,"agent":"x"}` + "\n"
	for _, tt := range []struct{ name, hello, then, want string }{
		{"closes", "", "", "closed the connection"},
		{"closes later", hello, "", "closed the connection"},
		{"other version", `{"version":2}` + "\n", "", "version 2"},
		{"no agent", "{}\n", "", "no agent"},
		{"HTTP", "HTTP/1.1 400 Bad Request\n", "", `not one: no JSON object in "HTTP/1.1`},
		{"null", hello, "null\n", "no JSON object"},
		{"cut", hello, `{"wcs":[`, "in the middle of a line"},
		{"half", hello, `{"wcs":[` + "\n", "its answer is not one"},
		{"no device has it", `{"version":1,"max_sge":2147483647}` + "\n", "", "max_sge is 2147483647"},
		{"negative", `{"version":1,"max_inline":-1}` + "\n", "", "max_inline is -1"},
		{"silent", hello, "silence", "did not answer for"},
		{"floods", hello, strings.Repeat("x", MaxLine+1), "a line of more than"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			addr := badAgent(t, tt.hello, tt.then)
			cfg := ClientConfig{Timeout: patience}
			if tt.then == "silence" {
				cfg.Timeout = 200 * time.Millisecond
			}
			c, err := Dial(t.Context(), addr, cfg)
			if err == nil {
				defer c.Close()
				if _, err = c.Do(Request{Do: DoReset}); err == nil {
					t.Fatal("no error")
				}
				if _, again := c.Do(Request{Do: DoReset}); again == nil || again.Error() != err.Error() {
					t.Errorf("then %v, want %v", again, err)
				}
			}
			if _, ok := Refusal(err); ok || !lost(err) && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

// badAgent answers the first line with one text, the second with another, and closes the connection.
func badAgent(t *testing.T, texts ...string) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		in := bufio.NewReader(conn)
		for _, text := range texts {
			if _, err := in.ReadString('\n'); err != nil {
				return
			}
			if text == "silence" {
				<-ctx.Done()
				return
			}
			if _, err := io.WriteString(conn, text); err != nil || text == "" {
				return
			}
		}
	}()
	return l.Addr().String()
}

func TestParseTester(t *testing.T) {
	for in, want := range map[string]string{
		"192.0.2.1": "192.0.2.1/32", "::ffff:192.0.2.1": "192.0.2.1/32", "2001:db8::1": "2001:db8::1/128",
		"fe80::1%eth0": "fe80::1/128", "192.0.2.0/24": "192.0.2.0/24", "host": "", "": "",
	} {
		p, err := ParseTester(in)
		if want == "" && err == nil || want != "" && p.String() != want {
			t.Errorf("%q: %v, %v; want %q", in, p, err, want)
		}
	}
}

func ExampleError() {
	fmt.Println(&Error{Do: DoMR, Text: "length 0", Errno: "EINVAL"})
	// Output: mr: length 0 (EINVAL)
}
