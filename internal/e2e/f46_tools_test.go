package e2e

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/softroce/softroce/internal/testaddr"
)

// toolRun is one row of the smoke table: a tool, and one of its verbs in one
// of its ways to work.
type toolRun struct {
	args string
	want string // in the client's output
}

// toolRuns is every verb with every tool that has a server and a client; the
// demo does all verbs in one process.
func toolRuns() (runs []toolRun) {
	for _, args := range []string{"", "-s 0", "-s 1", "-s 70001 -m 4096", "-e", "-m 256 -r 2", "-g 0 -s 8"} {
		runs = append(runs, toolRun{strings.TrimSpace("pingpong -c -n 50 " + args), "50 iters in"})
	}
	for _, args := range []string{
		"uc", "uc -s 70001 -m 4096", "uc -e -s 1", "ud", "ud -s 0", "ud -e -s 1 -r 2", "srq", "srq -q 3 -r 4 -e", "srq -s 70001 -m 256 -q 2",
	} {
		runs = append(runs, toolRun{"pingpong " + args + " -c -n 50", "50 iters in"})
	}
	for _, c := range []struct{ op, extra string }{
		{"write", ""},
		{"write", "-I 64 -s 64"},
		{"write", "-s 1000003 -q 2"},
		{"read", ""},
		{"read", "-s 1 -o 1"},
		{"read", "-e"},
		{"send", ""},
		{"send", "-s 7 -I 7"},
		{"send", "-e -r 4 -t 4"},
		{"atomic", ""},
		{"atomic", "-A CMP_AND_SWAP"},
		{"atomic", "-e"},
	} {
		for _, kind := range []string{"--bw", "--lat"} {
			if kind == "--lat" && strings.Contains(c.extra, "-q 2") {
				continue // latency has one queue pair
			}
			runs = append(runs, toolRun{strings.TrimSpace(fmt.Sprintf("perf %s %s --check -n 40 %s", c.op, kind, c.extra)), "checked"})
		}
	}
	return runs
}

// Field case F46: every verb with every tool. Each run ends by itself, with
// status 0, with the data checked.
func TestF46EveryVerbEveryTool(t *testing.T) {
	addrs := testaddr.Take(t, 4)
	server, client := startDaemon(t, addrs[0], socketIn(t)), startDaemon(t, addrs[1], socketIn(t))
	for _, r := range toolRuns() {
		t.Run(r.args, func(t *testing.T) {
			port := freePort(t)
			args := append(strings.Fields(r.args), "-p", fmt.Sprint(port))
			srv := tool(t, append(args, "--socket", server.socket)...)
			eventually(t, "the server listens", func() bool { return listening(t, port) || srv.ended() })
			cl := tool(t, append(args, "--socket", client.socket, toolHost(t, addrs[0]))...)
			cl.finish(t)
			srv.finish(t)
			if !strings.Contains(cl.out.String(), r.want) {
				t.Errorf("the client says nothing of %q:\n%s", r.want, cl.out.String())
			}
		})
	}
	t.Run("rping", func(t *testing.T) { rpings(t, server, client) })
	t.Run("perf -R", func(t *testing.T) { perfByCM(t, server, client) })
	t.Run("cmtime", func(t *testing.T) {
		srv := tool(t, "cmtime", "-c", "30", "--socket", server.socket)
		eventually(t, "the server listens", func() bool { return srv.ended() || strings.Contains(srv.out.String(), "listening on") })
		cl := tool(t, "cmtime", "-s", server.addr.String(), "-c", "30", "--socket", client.socket)
		cl.finish(t)
		srv.finish(t)
		if !strings.Contains(cl.out.String(), "disconnect ") {
			t.Errorf("the client does not tell of disconnecting:\n%s", cl.out.String())
		}
	})
	t.Run("demo", func(t *testing.T) {
		p := tool(t, "demo", "--addr", addrs[2].String()+","+addrs[3].String())
		p.finish(t)
		for _, verb := range []string{
			"SEND", "SEND_WITH_IMM", "SEND inline", "RDMA_WRITE", "RDMA_WRITE_WITH_IMM", "RDMA_READ", "ATOMIC_CMP_AND_SWP", "ATOMIC_FETCH_AND_ADD",
		} {
			if !strings.Contains(p.out.String(), verb) {
				t.Errorf("the demo does not show %s:\n%s", verb, p.out.String())
			}
		}
	})
}

// rpings pings from one daemon to the other by the connection manager.
func rpings(t *testing.T, server, client *daemon) {
	srv := tool(t, "rping", "-s", "-d", "-S", "4096", "--socket", server.socket)
	eventually(t, "the server listens", func() bool { return srv.ended() || strings.Contains(srv.out.String(), "listening on") })
	cl := tool(t, "rping", "-c", "-a", server.addr.String(), "-v", "-V", "-C", "3", "-S", "4096", "--socket", client.socket)
	cl.finish(t)
	srv.finish(t)
	for p, wants := range map[*toolProcess][]string{
		cl:  {"ping data: rdma-ping-2: CDEF", "3 pings of 4096 bytes with " + server.addr.String(), "checked"},
		srv: {"3 pings of 4096 bytes with " + client.addr.String()},
	} {
		for _, want := range wants {
			if !strings.Contains(p.out.String(), want) {
				t.Errorf("%v says nothing of %q:\n%s", p.cmd.Args[1:], want, p.out.String())
			}
		}
	}
}

// perfByCM measures from one daemon to the other, connected by the connection
// manager, without TCP.
func perfByCM(t *testing.T, server, client *daemon) {
	srv := tool(t, "perf", "write", "--bw", "-R", "-p", "7100", "--socket", server.socket)
	var r ran
	eventually(t, "the server listens", func() bool {
		r = softroce(t, nil, "perf", "write", "--bw", "-R", "-p", "7100", "-n", "100", "-q", "2", "--check", "--socket", client.socket, server.addr.String())
		return r.code == 0 || srv.ended() || !strings.Contains(r.stderr, "no server to connect to")
	})
	srv.finish(t)
	for _, want := range []string{"remote " + server.addr.String(), "65536", "Data           : checked"} {
		if r.code != 0 || !strings.Contains(r.stdout, want) {
			t.Errorf("the client says nothing of %q: status %d\n%s%s", want, r.code, r.stdout, r.stderr)
		}
	}
}

// A toolProcess is a running softroce tool.
type toolProcess struct {
	cmd  *exec.Cmd
	out  lockedBuffer
	done chan error
}

func tool(t *testing.T, args ...string) *toolProcess {
	t.Helper()
	p := &toolProcess{cmd: exec.Command(binaries.softroce, args...), done: make(chan error, 1)}
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	exited := make(chan struct{})
	go func() {
		p.done <- p.cmd.Wait()
		close(exited)
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // it may have ended
		<-exited
	})
	return p
}

// ended says whether the tool has ended already.
func (p *toolProcess) ended() bool { return len(p.done) > 0 }

// finish waits until the tool ends by itself, with status 0.
func (p *toolProcess) finish(t *testing.T) {
	t.Helper()
	stuck := time.NewTimer(limit)
	defer stuck.Stop()
	select {
	case err := <-p.done:
		if err != nil {
			t.Fatalf("%v: %v\n%s", p.cmd.Args[1:], err, p.out.String())
		}
	case <-stuck.C:
		t.Fatalf("%v is stuck\n%s", p.cmd.Args[1:], p.out.String())
	}
}

// freePort is a TCP port that nobody has now.
func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// listening says whether somebody listens on a TCP port here, without
// connecting: a server takes one client.
func listening(t *testing.T, port int) bool {
	t.Helper()
	for _, file := range []string{"/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"} {
		table, err := os.ReadFile(file)
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		for line := range bytes.Lines(table) {
			// sl, local address:port, remote address:port, state: 0A is LISTEN.
			f := bytes.Fields(line)
			if len(f) > 3 && string(f[3]) == "0A" && bytes.HasSuffix(f[1], fmt.Appendf(nil, ":%04X", port)) {
				return true
			}
		}
	}
	return false
}
