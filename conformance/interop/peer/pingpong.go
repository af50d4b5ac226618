package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// A pingpongCase is rdma-core's ibv_rc_pingpong, or its like of another service, in the guest against `softroce pingpong`, the
// guest once as the server and once as the client. Both get the same options.
type pingpongCase struct {
	name     string
	options  string
	service  string // rc when it is empty
	ipv6     bool
	impaired bool
	shows    map[string]int
}

var pingpongCases = []pingpongCase{
	{name: "small", options: "-s 64 -n 200 -c"},
	{name: "defaults", options: ""},
	{name: "64k", options: "-s 65536 -n 100 -c", shows: map[string]int{"payload 1024": 1000}},
	{name: "mtu-1024", options: "-m 1024 -s 10000 -n 100 -c", shows: map[string]int{"payload 1024": 1000}},
	{name: "mtu-4096", options: "-m 4096 -s 65536 -n 100 -c", shows: map[string]int{"payload 4096": 1000}},
	{name: "mtu-256", options: "-m 256 -s 1000 -n 50 -c", shows: map[string]int{"payload 256": 100}},
	{name: "events", options: "-e -s 4096 -n 200 -c"},
	{name: "few-receives", options: "-r 2 -s 3000 -n 100 -c"},
	{name: "other-port", options: "-p 19000 -s 100 -n 20 -c"},
	{name: "ipv6", options: "-s 10000 -n 100 -c", ipv6: true},
	{name: "ipv6-events", options: "-e -m 4096 -s 65536 -n 50 -c", ipv6: true},
	{name: "uc", service: "uc", options: "-s 10000 -n 100 -c", shows: map[string]int{"payload 1024": 1000}},
	{name: "uc-mtu-4096-events", service: "uc", options: "-e -m 4096 -s 65536 -n 50 -c", shows: map[string]int{"payload 4096": 1000}},
	{name: "uc-ipv6", service: "uc", options: "-s 1 -n 50 -c", ipv6: true},
	{name: "ud", service: "ud", options: "-n 200 -c", shows: map[string]int{"payload 1024": 300}},
	{name: "ud-largest-events", service: "ud", options: "-e -s 4096 -n 100 -c", shows: map[string]int{"payload 4096": 150}},
	{name: "ud-small-few-receives", service: "ud", options: "-s 1 -r 2 -n 50 -c"},
	{name: "ud-ipv6", service: "ud", options: "-s 1000 -n 100 -c", ipv6: true},
	{name: "srq", service: "srq", options: "-n 200 -c"},
	{name: "srq-few-receives-events", service: "srq", options: "-e -q 3 -r 6 -m 4096 -s 20000 -n 100 -c"},
	{name: "srq-many-ipv6", service: "srq", options: "-q 100 -s 64 -n 500 -c", ipv6: true},
	{name: "loss", options: "-s 16384 -n 100 -c", impaired: true},
	{name: "loss-events-ipv6", options: "-e -m 4096 -s 16384 -n 100 -c", ipv6: true, impaired: true},
}

// port is the TCP port of the exchange: 18515 unless the options say otherwise.
func (c pingpongCase) port() string {
	f := strings.Fields(c.options)
	for i := range f {
		if f[i] == "-p" {
			return f[i+1]
		}
	}
	return "18515"
}

// A pingpongHost runs one end.
type pingpongHost interface {
	name() string
	address() string
	// pingpong runs the program of a service with options and, for a client, the server's address; it returns what it printed.
	pingpong(ctx context.Context, service string, ipv6 bool, options, server string) (string, error)
	// awaitPort returns once the host listens on a TCP port.
	awaitPort(ctx context.Context, port string) error
}

const pingpongLimit = 60 * time.Second

func (g guest) name() string { return fmt.Sprintf("guest%d", g.n) }

func (g guest) pingpong(ctx context.Context, service string, ipv6 bool, options, server string) (string, error) {
	gid := 1
	if ipv6 {
		gid = 2
	}
	out, status, err := g.exec(ctx, pingpongLimit, fmt.Sprintf("ibv_%s_pingpong -d rxe0 -g %d %s %s", service, gid, options, server))
	if err == nil && status != 0 {
		err = fmt.Errorf("ended with %d", status)
	}
	return out, err
}

func (g guest) awaitPort(ctx context.Context, port string) error {
	return g.must(ctx, fmt.Sprintf("for i in $(seq 400); do ss -Hltn 'sport = :%s' | grep -q . && exit; sleep 0.05; done; exit 1", port))
}

// softroceHost is this side: the command against the daemon of this run.
type softroceHost struct {
	d *daemon
}

func (s softroceHost) name() string    { return "softroce" }
func (s softroceHost) address() string { return "10.77.0.1" }

func (s softroceHost) pingpong(ctx context.Context, service string, ipv6 bool, options, server string) (string, error) {
	gid, err := s.d.gid(ipv6)
	if err != nil {
		return "", err
	}
	args := append([]string{"pingpong", service, "-g", fmt.Sprint(gid)}, strings.Fields(options)...)
	if server != "" {
		args = append(args, server)
	}
	ctx, cancel := context.WithTimeout(ctx, pingpongLimit)
	defer cancel()
	cmd := child(ctx, s.d.program, args...)
	cmd.Env = append(os.Environ(), "SOFTROCE_SOCKET="+s.d.socket)
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		err = fmt.Errorf("not done after %v", pingpongLimit)
	}
	return string(out), err
}

func (s softroceHost) awaitPort(ctx context.Context, port string) error {
	var number int
	if _, err := fmt.Sscan(port, &number); err != nil {
		return err
	}
	want := fmt.Sprintf(":%04X ", number)
	for range 400 {
		for _, file := range []string{"/proc/self/net/tcp", "/proc/self/net/tcp6"} {
			b, err := os.ReadFile(file)
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
			for line := range strings.Lines(string(b)) {
				// local address:port, remote address:port, state (0A is listening)
				if f := strings.Fields(line); len(f) > 3 && f[3] == "0A" && strings.HasSuffix(f[1]+" ", want) {
					return nil
				}
			}
		}
		if !pause(ctx, 50*time.Millisecond) {
			return ctx.Err()
		}
	}
	return fmt.Errorf("nobody listens on TCP port %s", port)
}

// run plays the case once; the reason why it failed, or nil.
func (c pingpongCase) run(ctx context.Context, server, client pingpongHost, log logf) error {
	type result struct {
		out string
		err error
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	served := make(chan result, 1)
	go func() {
		out, err := server.pingpong(ctx, cmp.Or(c.service, "rc"), c.ipv6, c.options, "")
		served <- result{out, err}
	}()
	listening := make(chan error, 1)
	go func() { listening <- server.awaitPort(ctx, c.port()) }()
	select {
	case s := <-served:
		return errors.Join(fmt.Errorf("the server (%s) ended before a client came: %s", server.name(), lastLine(s.out)), s.err)
	case err := <-listening:
		if err != nil {
			return fmt.Errorf("the server (%s) does not listen: %w", server.name(), err)
		}
	}
	var cl result
	cl.out, cl.err = client.pingpong(ctx, cmp.Or(c.service, "rc"), c.ipv6, c.options, server.address())
	if cl.err != nil {
		cancel() // the server may wait for ever
	}
	s := <-served
	log("--- server %s\n%s", server.name(), s.out)
	log("--- client %s\n%s", client.name(), cl.out)
	if cl.err != nil {
		return fmt.Errorf("the client (%s): %w: %s", client.name(), cl.err, lastLine(cl.out))
	}
	if s.err != nil {
		return fmt.Errorf("the server (%s): %w: %s", server.name(), s.err, lastLine(s.out))
	}
	for _, out := range []string{s.out, cl.out} {
		if !strings.Contains(out, "iters in") {
			return fmt.Errorf("no figures were printed: %s", lastLine(out))
		}
	}
	return nil
}

func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return lines[len(lines)-1]
}

// child is a program that ends with this one.
func child(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// pause waits; false when the context ended first.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}
