package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/testaddr"
)

// inspected is a daemon with two ping-pongs that go on for ever: over datagrams,
// and over three connections with one receive queue.
type inspected struct {
	*daemon
	ud, srq *toolProcess // the servers
}

func startInspected(t *testing.T, more ...string) *inspected {
	t.Helper()
	d := &inspected{daemon: startDaemon(t, testaddr.Take(t, 1)[0], socketIn(t), more...)}
	begin := func(args ...string) *toolProcess {
		port := freePort(t)
		args = append([]string{"pingpong"}, append(args, "-n", "1000000000", "-e", "-p", strconv.Itoa(port), "--socket", d.socket)...)
		srv := tool(t, args...)
		eventually(t, "the server listens", func() bool { return listening(t, port) || srv.ended() })
		cl := tool(t, append(args, "127.0.0.1")...)
		eventually(t, "both know one another", func() bool {
			return strings.Contains(srv.out.String(), "remote") && strings.Contains(cl.out.String(), "remote")
		})
		return srv
	}
	d.ud, d.srq = begin("ud"), begin("srq", "-q", "3")
	return d
}

// object is an object of a listing in JSON.
type object map[string]any

func (d *inspected) objects(t *testing.T, args ...string) (list []object) {
	t.Helper()
	r := softroce(t, nil, append([]string{"resource", "--json", "--socket", d.socket}, args...)...)
	if r.code != 0 || r.stderr != "" {
		t.Fatalf("resource %v: status %d\n%s", args, r.code, r.stderr)
	}
	if err := json.Unmarshal([]byte(r.stdout), &list); err != nil {
		t.Fatalf("resource %v: %v in\n%s", args, err, r.stdout)
	}
	return list
}

// The objects of two programs, as their listing has them, and what filters
// leave of them. The asker is not among them.
func TestResource(t *testing.T) {
	d := startInspected(t)
	r := softroce(t, nil, "resource", "--socket", d.socket)
	if want := "softroce0: ctx 4 pd 4 cq 4 qp 8 mr 4 mw 0 srq 2 ah 2 cm_id 0\n"; r.stdout != want || r.code != 0 {
		t.Errorf("summary: got %q, status %d, want %q", r.stdout, r.code, want)
	}
	pid := strconv.Itoa(d.srq.cmd.Process.Pid)
	qps := d.objects(t, "qp", "--pid", pid, "--type", "rc", "--state", "rts")
	if len(qps) != 3 {
		t.Fatalf("queue pairs: got %v", qps)
	}
	for _, q := range qps {
		peer := fmt.Sprint("::ffff:", d.addr)
		if q["peer_gid"] != peer || q["path_mtu"] != 1024.0 || q["srqn"] == nil || q["rqpn"] == nil || q["sq_psn"] == nil || q["comm"] != "softroce" {
			t.Errorf("queue pair: got %v, want one with peer %s", q, peer)
		}
		other := d.objects(t, "qp", "--qpn", fmt.Sprint(uint32(q["rqpn"].(float64))))
		if len(other) != 1 || other[0]["rqpn"] != q["lqpn"] || other[0]["pid"] == q["pid"] {
			t.Errorf("peer of %v: got %v", q, other)
		}
		if shown := fmt.Sprintf("0x%06x", uint32(q["lqpn"].(float64))); !strings.Contains(d.srq.out.String(), "QPN "+shown) {
			t.Errorf("queue pair %s is none that the program has:\n%s", shown, d.srq.out.String())
		}
	}
	for kind, want := range map[string]int{"ctx": 1, "pd": 1, "cq": 1, "qp": 1, "mr": 1, "mw": 0, "srq": 0, "ah": 1, "cm_id": 0} {
		if got := d.objects(t, kind, "--pid", strconv.Itoa(d.ud.cmd.Process.Pid)); len(got) != want {
			t.Errorf("%s of the datagrams' server: got %v, want %d", kind, got, want)
		}
	}
	if q := d.objects(t, "qp", "--type", "UD"); len(q) != 2 || q[0]["state"] != "RTS" || q[0]["rqpn"] != nil {
		t.Errorf("datagram queue pairs: got %v", q)
	}
}

// A program that listens by the connection manager has its identifier listed, and
// no more when it has gone.
func TestResourceOfListener(t *testing.T) {
	d := startDaemon(t, testaddr.Take(t, 1)[0], socketIn(t))
	i := &inspected{daemon: d}
	srv := tool(t, "cmtime", "-b", d.addr.String(), "-p", "7654", "--socket", d.socket)
	eventually(t, "the server listens", func() bool { return strings.Contains(srv.out.String(), "listening on") || srv.ended() })
	ids := i.objects(t, "cm_id")
	if len(ids) != 1 || ids[0]["state"] != "LISTEN" || ids[0]["ps"] != "TCP" || ids[0]["src-addr"] != d.addr.String()+":7654" || ids[0]["dst-addr"] != nil ||
		ids[0]["pid"] != float64(srv.cmd.Process.Pid) {
		t.Errorf("identifiers: got %v", ids)
	}
	srv.interrupt(t)
	eventually(t, "the identifier is gone", func() bool { return len(i.objects(t, "cm_id")) == 0 })
}

// Counters grow with the traffic, and each queue pair has its own.
func TestStat(t *testing.T) {
	d := startInspected(t)
	r := softroce(t, nil, "stat", "--socket", d.socket, "sent_pkts", "drop_*")
	lines := strings.Split(r.stdout, "\n")
	if f := strings.Fields(lines[min(1, len(lines)-1)]); r.code != 0 || len(f) < 3 || f[0] != "sent_pkts" || f[1] == "0" {
		t.Errorf("stat: status %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	r = softroce(t, nil, "stat", "qp", "--json", "--socket", d.socket, "--pid", strconv.Itoa(d.ud.cmd.Process.Pid))
	var qps []object
	if err := json.Unmarshal([]byte(r.stdout), &qps); err != nil || len(qps) != 1 || qps[0]["sent_bytes"] == 0.0 || qps[0]["timeouts"] != 0.0 {
		t.Errorf("stat qp: got %v, %v\n%s", qps, err, r.stdout)
	}
}

// A watch that is no terminal's writes line after line, each one on its own.
func TestWatch(t *testing.T) {
	d := startInspected(t)
	for _, args := range [][]string{
		{"stat", "--watch=20ms", "--json", "rcvd_pkts"},
		{"stat", "qp", "--watch=20ms", "--json"},
		{"resource", "-w=20ms", "--json"},
		{"resource", "qp", "-w=20ms", "--json"},
	} {
		p := tool(t, append(args, "--socket", d.socket)...)
		eventually(t, "three lines", func() bool { return strings.Count(p.out.String(), "\n") >= 3 || p.ended() })
		p.interrupt(t)
		var last object
		for line := range strings.Lines(p.out.String()) {
			if err := json.Unmarshal([]byte(line), &last); err != nil {
				t.Errorf("%v: %v in %s", args, err, line)
			}
		}
		if args[0] == "stat" && args[1] != "qp" {
			per, _ := last["stat"].(map[string]any)["per_second"].(map[string]any)
			if rate, _ := per["rcvd_pkts"].(float64); rate <= 0 {
				t.Errorf("%v: no rate in %v", args, last)
			}
		}
	}
	p := tool(t, "stat", "--watch=20ms", "--socket", d.socket, "sent_pkts")
	eventually(t, "three lines", func() bool { return strings.Count(p.out.String(), "sent_pkts") >= 3 || p.ended() })
	d.kill()
	if err := <-p.done; err == nil || !strings.Contains(p.out.String(), "the adapter is gone") {
		t.Errorf("the daemon died: got %v\n%s", err, p.out.String())
	}
}

// interrupt ends a tool as ctrl-C does; its status is then 0.
func (p *toolProcess) interrupt(t *testing.T) {
	t.Helper()
	if err := p.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	p.finish(t)
}

// On a terminal a watch draws over what it drew before, in the terminal's size.
func TestWatchOnTerminal(t *testing.T) {
	d := startInspected(t)
	master, slave := terminal(t)
	if err := unix.IoctlSetWinsize(int(slave.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 5, Col: 30}); err != nil {
		t.Fatal(err)
	}
	p := &toolProcess{cmd: exec.Command(binaries.softroce, "resource", "qp", "--watch=20ms", "--socket", d.socket), done: make(chan error, 1)}
	p.cmd.Stdout, p.cmd.Stderr = slave, &p.out
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.cmd.Process.Kill() }) // it may have ended
	var drawn lockedBuffer
	go func() {
		b := make([]byte, 4096)
		for {
			n, err := master.Read(b)
			_, _ = drawn.Write(b[:n])
			if err != nil {
				return
			}
		}
	}()
	const again = "\x1b[4A\r\x1b[JLQPN"
	eventually(t, "it is drawn again", func() bool { return strings.Count(drawn.String(), again) >= 2 })
	if err := p.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Wait(); err != nil {
		t.Errorf("ctrl-C: %v\n%s", err, p.out.String())
	}
	for _, view := range strings.Split(drawn.String(), "\x1b[J")[1:] {
		view, _, _ = strings.Cut(view, "\x1b")
		for line := range strings.Lines(view) {
			if len(strings.TrimRight(line, "\r\n")) > 30 {
				t.Errorf("a line of more than 30 columns: %q", line)
			}
		}
		if n := strings.Count(view, "\n"); n > 4 {
			t.Errorf("%d lines on a terminal of 5:\n%s", n, view)
		}
	}
}

// Another user sees nothing of root's programs, and its own.
func TestResourceOfAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("to be another user takes root")
	}
	d := startInspected(t, "--socket-mode", "0666")
	dir := filepath.Join(filepath.Dir(d.socket), "bin")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "softroce")
	text, err := os.ReadFile(binaries.softroce)
	if err == nil {
		err = os.WriteFile(program, text, 0o755)
	}
	if err == nil {
		err = os.Chmod(filepath.Dir(d.socket), 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	command := func(args ...string) *exec.Cmd {
		cmd := exec.CommandContext(t.Context(), program, append(args, "--socket", d.socket)...)
		cmd.Dir = dir
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 31999, Gid: 31999}}
		return cmd
	}
	shows := func(want string) {
		t.Helper()
		out, err := command("resource").CombinedOutput()
		if err != nil || string(out) != want {
			t.Errorf("got %q, %v, want %q", out, err, want)
		}
	}
	shows("softroce0: ctx 0 pd 0 cq 0 qp 0 mr 0 mw 0 srq 0 ah 0 cm_id 0\n")
	port := freePort(t)
	own := command("pingpong", "-p", strconv.Itoa(port))
	if err := own.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = own.Process.Kill() // it waits for a client
		_ = own.Wait()         // killed: an error by nature
	})
	eventually(t, "the server listens", func() bool { return listening(t, port) })
	shows("softroce0: ctx 1 pd 1 cq 1 qp 1 mr 1 mw 0 srq 0 ah 0 cm_id 0\n")
	out, err := command("stat", "qp", "--json").Output()
	var qps []object
	if err != nil || json.Unmarshal(out, &qps) != nil || len(qps) != 1 || qps[0]["pid"] != float64(own.Process.Pid) {
		t.Errorf("stat qp: %v\n%s", err, out)
	}
}
