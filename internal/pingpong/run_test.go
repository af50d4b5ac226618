package pingpong

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/softroce/softroce/internal/testaddr"
	"github.com/softroce/softroce/internal/testdevices"
	"github.com/softroce/softroce/pkg/verbs"
)

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("listen: %v", err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

type outcome struct {
	rep *Report
	err error
}

// begin runs a side and delivers its outcome.
func begin(ctx context.Context, d *verbs.Device, cfg Config) <-chan outcome {
	out := make(chan outcome, 1)
	go func() {
		rep, err := Run(ctx, d, cfg)
		out <- outcome{rep, err}
	}()
	return out
}

// port is the port of a listener on 127.0.0.1.
func port(l net.Listener) int { return l.Addr().(*net.TCPAddr).Port }

func TestPingPong(t *testing.T) {
	devs, _ := testdevices.Open(t, 2)
	for _, c := range []Config{
		{Service: UC, Iters: 50, Check: true},
		{Service: UC, Iters: 20, Check: true, Size: 10001, MTU: 1, Events: true},
		{Service: UC, Iters: 20, Size: -1, RxDepth: 1},
		{Service: UD, Iters: 50, Check: true},
		{Service: UD, Iters: 50, Check: true, Size: 64, Events: true},
		{Service: UD, Iters: 20, Check: true, Size: 1, RxDepth: 1},
		{Service: UD, Iters: 20, Check: true, Size: 777, RxDepth: 2, SL: 3},
		{Service: UD, Iters: 20, Size: -1},
		{Service: SRQ, Iters: 200, Check: true},
		{Service: SRQ, Iters: 60, Check: true, QPs: 3, Size: 64, RxDepth: 3, Events: true},
		{Service: SRQ, Iters: 10, Check: true, QPs: 1, Size: 10001, MTU: 1},
		{Service: SRQ, Iters: 5, Check: true, QPs: 40, Size: 3000, RxDepth: 100},
		{Iters: 50, Check: true},
		{Iters: 50, Check: true, Events: true},
		{Iters: 20, Check: true, Size: 65536, MTU: 5},
		{Iters: 20, Check: true, Size: 10001, MTU: 1, Events: true},
		{Iters: 50, Check: true, Size: 64},
		{Iters: 20, Size: -1},
		{Iters: 30, Check: true, Size: 3000, RxDepth: 1},
		{Iters: 30, Check: true, Size: 3000, RxDepth: 2, SL: 3},
	} {
		t.Run(fmt.Sprintf("%v, %d QPs, size %d, mtu %d, rx-depth %d, events %v", c.Service, c.QPs, c.Size, c.MTU, c.RxDepth, c.Events), func(t *testing.T) {
			l := listen(t)
			server, client := c, c
			var shown [2][]Endpoint // the server as the client knows it, and the client itself
			server.Listener = l
			client.Host, client.Port = "127.0.0.1", port(l)
			client.Remote = func(e Endpoint) { shown[0] = append(shown[0], e) }
			client.Local = func(e Endpoint) { shown[1] = append(shown[1], e) }
			served := begin(t.Context(), devs[0], server)
			rep, err := Run(t.Context(), devs[1], client)
			s := <-served
			if err != nil || s.err != nil {
				t.Fatalf("client: %v, server: %v", err, s.err)
			}
			if rep.Iters != c.Iters || rep.Size != max(c.withDefaults().Size, 0) || rep.Elapsed <= 0 || s.rep.Elapsed <= 0 {
				t.Errorf("report: got %+v", rep)
			}
			if len(rep.BadPages)+len(s.rep.BadPages) != 0 || rep.Checked != c.Check {
				t.Errorf("data: wrong pages %v at the client, %v at the server", rep.BadPages, s.rep.BadPages)
			}
			if !slices.Equal(rep.Local, s.rep.Remote) || !slices.Equal(rep.Remote, s.rep.Local) ||
				!slices.Equal(shown[0], rep.Remote) || !slices.Equal(shown[1], rep.Local) || len(rep.Local) != c.withDefaults().QPs {
				t.Errorf("endpoints: client %v and %v, server %v and %v, shown %v",
					rep.Local, rep.Remote, s.rep.Local, s.rep.Remote, shown)
			}
		})
	}
}

// Validation must see wrong data: a client without it does not prepare its
// pages, as with ibv_rc_pingpong.
func TestCheckSeesWrongData(t *testing.T) {
	devs, _ := testdevices.Open(t, 2)
	for service, size := range map[Service]int{RC: 3*4096 + 1, UC: 3*4096 + 1, UD: 500} {
		t.Run(service.String(), func(t *testing.T) {
			l := listen(t)
			served := begin(t.Context(), devs[0], Config{Service: service, Listener: l, Iters: 5, Size: size, Check: true})
			_, err := Run(t.Context(), devs[1], Config{Service: service, Host: "127.0.0.1", Port: port(l), Iters: 5, Size: size})
			s := <-served
			if err != nil || s.err != nil {
				t.Fatalf("client: %v, server: %v", err, s.err)
			}
			if len(s.rep.BadPages) == 0 {
				t.Error("the server found no wrong page")
			}
		})
	}
}

// The bytes on TCP are those of rdma-core's programs, in their order, and nothing
// else; they hang up right after them, and the run goes on.
func TestExchangeBytes(t *testing.T) {
	devs, _ := testdevices.Open(t, 2)
	for service, ends := range map[Service]int{RC: 1, UC: 1, UD: 1, SRQ: 256} {
		t.Run(service.String(), func(t *testing.T) {
			server, front := listen(t), listen(t)
			relayed := make(chan error, 1)
			go func() { relayed <- relay(front, server.Addr().String(), ends) }()
			served := begin(t.Context(), devs[0], Config{Service: service, Listener: server, Iters: 300, Check: true})
			rep, err := Run(t.Context(), devs[1], Config{
				Service: service, Host: "127.0.0.1", Port: port(front), Iters: 300, Check: true,
			})
			if err := <-relayed; err != nil {
				t.Error(err)
			}
			s := <-served
			if err != nil || s.err != nil {
				t.Fatalf("client: %v, server: %v", err, s.err)
			}
			if len(rep.BadPages)+len(s.rep.BadPages) != 0 {
				t.Errorf("wrong pages: %v, %v", rep.BadPages, s.rep.BadPages)
			}
		})
	}
}

// relay passes one exchange on, looks at it, and hangs up on both.
func relay(front net.Listener, server string, ends int) error {
	c, err := front.Accept()
	if err != nil {
		return err
	}
	defer c.Close()
	s, err := net.Dial("tcp", server)
	if err != nil {
		return err
	}
	defer s.Close()
	for _, step := range []struct {
		from, to net.Conn
		n        int
	}{{c, s, 52 * ends}, {s, c, 52 * ends}, {c, s, 5}} {
		b := make([]byte, step.n)
		if _, err := io.ReadFull(step.from, b); err != nil {
			return fmt.Errorf("message of %d bytes: %w", step.n, err)
		}
		if step.n == 5 && string(b) != "done\x00" || step.n != 5 && strings.Count(string(b), ":") != 3*ends {
			return fmt.Errorf("message: got %q", b)
		}
		if _, err := step.to.Write(b); err != nil {
			return err
		}
	}
	return nil
}

// strangers are peers that do not keep to the exchange; each plays one side
// of a connection.
var strangers = []struct {
	name string
	play func(c net.Conn)
	want string
}{
	{"hangs up", func(net.Conn) {}, "hung up after 0 bytes"},
	{"hangs up in the middle", func(c net.Conn) { _, _ = c.Write([]byte(known[0].wire[:20])) }, "hung up after 20 bytes"},
	{"speaks something else", func(c net.Conn) { _, _ = c.Write([]byte(strings.Repeat("GET / HTTP/1.1\r\n", 10))) }, ErrExchange.Error()},
	{"has no GID", func(c net.Conn) { _, _ = c.Write((Endpoint{QPN: 17}).wire()) }, "-g"},
	{"is silent", func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }, "i/o timeout"},
}

func TestServerMeetsStranger(t *testing.T) {
	devs, _ := testdevices.Open(t, 1)
	for _, c := range strangers {
		t.Run(c.name, func(t *testing.T) {
			l := listen(t)
			served := begin(t.Context(), devs[0], Config{Listener: l, Patience: 200 * time.Millisecond})
			conn, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			c.play(conn)
			conn.Close()
			if o := <-served; o.err == nil || !strings.Contains(o.err.Error(), c.want) {
				t.Errorf("server: got %v, want %q", o.err, c.want)
			}
		})
	}
}

func TestClientMeetsStranger(t *testing.T) {
	devs, _ := testdevices.Open(t, 1)
	for _, c := range strangers {
		t.Run(c.name, func(t *testing.T) {
			l := listen(t)
			go func() {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				var b [wireSize]byte
				_, _ = io.ReadFull(conn, b[:]) // whatever it is
				c.play(conn)
				conn.Close()
			}()
			_, err := Run(t.Context(), devs[0], Config{Host: "127.0.0.1", Port: port(l), Patience: 200 * time.Millisecond})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("client: got %v, want %q", err, c.want)
			}
		})
	}
}

// A client that vanishes after the exchange leaves a server that waits for
// packets: its patience ends that, and says what a lost packet does.
func TestServerGivesUpADeadClient(t *testing.T) {
	devs, _ := testdevices.Open(t, 1)
	for service, lost := range map[Service]bool{RC: false, UC: true, UD: true, SRQ: false} {
		t.Run(service.String(), func(t *testing.T) {
			l := listen(t)
			cfg := Config{Service: service, Listener: l, Patience: 300 * time.Millisecond}
			served := begin(t.Context(), devs[0], cfg)
			conn, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			peer := Endpoint{QPN: 0x1234, GID: gidOf(testaddr.Take(t, 1)[0].String())}
			n := cfg.withDefaults().QPs
			if err := (link{conn, service}).sendEndpoints(slices.Repeat([]Endpoint{peer}, n)); err != nil {
				t.Fatal(err)
			}
			if _, err := (link{conn, service}).recvEndpoints(n); err != nil {
				t.Fatal(err)
			}
			if _, err := conn.Write([]byte(doneMessage)); err != nil {
				t.Fatal(err)
			}
			conn.Close()
			if o := <-served; !errors.Is(o.err, errStalled) || errors.Is(o.err, errLost) != lost {
				t.Errorf("server: got %v, want errStalled, and errLost: %v", o.err, lost)
			}
		})
	}
}

// A server that vanishes leaves a client whose message nobody acknowledges.
func TestClientSeesADeadServer(t *testing.T) {
	devs, _ := testdevices.Open(t, 1)
	l := listen(t)
	gone := testaddr.Take(t, 1)[0]
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		if _, err := (link{Conn: conn}).recvEndpoints(1); err == nil {
			_ = (link{Conn: conn}).sendEndpoints([]Endpoint{{QPN: 0x1234, GID: gidOf(gone.String())}}) // the client tells
		}
	}()
	_, err := Run(t.Context(), devs[0], Config{Host: "127.0.0.1", Port: port(l)})
	if err == nil || !strings.Contains(err.Error(), "RETRY_EXC") {
		t.Errorf("client: got %v, want the transport's retries exceeded", err)
	}
}

// An acknowledgement that is lost after the last exchange fails nobody: the answer says at the client that the message
// arrived, and the server's peer is through.
func TestLastAcknowledgementIsLost(t *testing.T) {
	for side, name := range []string{"server", "client"} {
		t.Run(name, func(t *testing.T) {
			devs, _ := testdevices.Open(t, 2)
			must := func(err error) {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
			}
			must(devs[side].Impair("drop received ACK"))
			l := listen(t)
			served := begin(t.Context(), devs[0], Config{Iters: 1, Listener: l})
			asked := begin(t.Context(), devs[1], Config{Iters: 1, Host: "127.0.0.1", Port: port(l)})
			for i, out := range []<-chan outcome{served, asked} {
				o := <-out
				must(o.err)
				want := 0
				if i == side {
					want = 1
				}
				if o.rep.Unacknowledged != want {
					t.Errorf("side %d: %d messages were not acknowledged, want %d", i, o.rep.Unacknowledged, want)
				}
			}
		})
	}
}

// Cancel ends the run wherever it is.
func TestCancel(t *testing.T) {
	devs, _ := testdevices.Open(t, 2)
	ctx, cancel := context.WithCancel(t.Context())
	served := begin(ctx, devs[0], Config{Listener: listen(t)})
	cancel()
	if o := <-served; !errors.Is(o.err, context.Canceled) {
		t.Errorf("server without a client: got %v, want context.Canceled", o.err)
	}
	for _, events := range []bool{false, true} {
		l := listen(t)
		ctx, cancel := context.WithCancel(t.Context())
		moving := make(chan struct{}, 1)
		cfg := Config{Iters: 1 << 30, Events: events, Progress: func(int, int) {
			select {
			case moving <- struct{}{}:
			default:
			}
		}}
		server, client := cfg, cfg
		server.Listener = l
		client.Host, client.Port = "127.0.0.1", port(l)
		s := begin(ctx, devs[0], server)
		c := begin(ctx, devs[1], client)
		<-moving
		cancel()
		for _, o := range []outcome{<-s, <-c} {
			if !errors.Is(o.err, context.Canceled) {
				t.Errorf("events %v: got %v, want context.Canceled", events, o.err)
			}
		}
	}
}

// Both sides need the same size; a larger message is told by its receiver.
func TestSizesDiffer(t *testing.T) {
	devs, _ := testdevices.Open(t, 2)
	l := listen(t)
	served := begin(t.Context(), devs[0], Config{Listener: l, Size: 200, Patience: time.Second})
	_, err := Run(t.Context(), devs[1], Config{Host: "127.0.0.1", Port: port(l), Size: 100, Patience: time.Second})
	s := <-served
	if err == nil || s.err == nil || !strings.Contains(s.err.Error(), "a message of 100 bytes came, not 200") {
		t.Errorf("client: %v, server: %v", err, s.err)
	}
}

func TestValidate(t *testing.T) {
	for _, c := range []struct {
		cfg  Config
		want string
	}{
		{Config{}, ""},
		{Config{Port: 70000}, "port 70000"},
		{Config{Size: maxSize + 1}, "size"},
		{Config{MTU: 6}, "path MTU"},
		{Config{RxDepth: -1}, "rx-depth"},
		{Config{Iters: -1}, "iterations"},
		{Config{SL: 8}, "service level"},
		{Config{Service: SRQ}, ""},
		{Config{Service: SRQ, QPs: maxQPs, RxDepth: maxQPs}, ""},
		{Config{Service: SRQ, QPs: maxQPs + 1}, "not in 1..254"},
		{Config{Service: SRQ, QPs: -1}, "not in 1..254"},
		{Config{Service: SRQ, QPs: 20, RxDepth: 19}, "rx-depth 19 is less than the 20"},
		{Config{Service: UD, QPs: 2}, "ud has one"},
		{Config{Service: numServices}, "there is no service 4"},
	} {
		err := c.cfg.Validate()
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%+v: got %v, want %q", c.cfg, err, c.want)
		}
	}
}
