package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/testaddr"
	"github.com/softroce/softroce/internal/testmatrix"
	"github.com/softroce/softroce/pkg/verbs"
)

// topOn is softroce top on a pseudo terminal, with all that it drew.
type topOn struct {
	*toolProcess
	master, slave *os.File
	before        *unix.Termios
	drawn         lockedBuffer
}

func startTop(t *testing.T, socket string, columns, lines uint16, args ...string) *topOn {
	t.Helper()
	p := &topOn{}
	p.master, p.slave = terminal(t)
	fd := int(p.slave.Fd())
	if err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: lines, Col: columns}); err != nil {
		t.Fatal(err)
	}
	var err error
	if p.before, err = unix.IoctlGetTermios(fd, unix.TCGETS); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binaries.softroce, append([]string{"top", "--interval=100ms", "--socket", socket}, args...)...)
	p.toolProcess = &toolProcess{cmd: cmd, done: make(chan error, 1)}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = p.slave, p.slave, &p.out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() }) // it may have ended
	go func() {
		b := make([]byte, 1<<16)
		for {
			n, err := p.master.Read(b)
			_, _ = p.drawn.Write(b[:n])
			if err != nil {
				return
			}
		}
	}()
	return p
}

var escapes = regexp.MustCompile("\x1b\\[[?0-9;]*[A-Za-z]")

// screen is the last whole picture, without sequences.
func (p *topOn) screen() string {
	all := strings.Split(p.drawn.String(), "\x1b[H")
	if len(all) < 3 {
		return ""
	}
	return escapes.ReplaceAllString(all[len(all)-2], "")
}

// ended checks that the program ended with success and the terminal is as it was.
func (p *topOn) gaveBack(t *testing.T) {
	t.Helper()
	if err := p.cmd.Wait(); err != nil {
		t.Errorf("top: %v\n%s", err, p.out.String())
	}
	now, err := unix.IoctlGetTermios(int(p.slave.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	if *now != *p.before {
		t.Errorf("the terminal is not as it was: %+v, was %+v", now, p.before)
	}
	eventually(t, "the first screen is back", func() bool {
		s := p.drawn.String()
		return strings.HasPrefix(s, "\x1b[?1049h\x1b[?25l") && strings.HasSuffix(s, "\x1b[?25h\x1b[?1049l")
	})
}

// A ping-pong moves on the screen of top, which obeys keys, follows the terminal's
// size, and gives the terminal back when it is quit and at a signal.
func TestTopOnTerminal(t *testing.T) {
	d := startInspected(t)
	p := startTop(t, d.socket, 200, 20)
	pid := strconv.Itoa(d.srq.cmd.Process.Pid)
	// A row: number, type, state, peer, its number, bytes sent and received a second.
	moving := regexp.MustCompile(`0x[0-9a-f]{6}  RC    RTS    ` + regexp.QuoteMeta(d.addr.String()) + ` +0x[0-9a-f]{6} +[1-9][0-9.]*[kMG]? +[1-9][0-9.]*[kMG]? .*` + pid)
	eventually(t, "the moving queue pair is on the screen", func() bool { return moving.MatchString(p.screen()) })
	if s := p.screen(); !strings.Contains(s, "8 queue pairs  by bytes, every 100ms") || !strings.Contains(s, "q quit") {
		t.Errorf("the screen has no head or foot:\n%s", s)
	}
	if _, err := p.master.WriteString("n"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is sorted by number", func() bool { return strings.Contains(p.screen(), "by qpn") })
	if err := unix.IoctlSetWinsize(int(p.slave.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 8, Col: 50}); err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Process.Signal(unix.SIGWINCH); err != nil { // it has no controlling terminal
		t.Fatal(err)
	}
	eventually(t, "it fits the smaller terminal", func() bool {
		s := p.screen()
		return strings.Contains(s, "... 4 more") && strings.Count(s, "\n") < 8 && !strings.Contains(s, "COMM")
	})
	if _, err := p.master.WriteString("q"); err != nil {
		t.Fatal(err)
	}
	p.gaveBack(t)
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		p := startTop(t, d.socket, 140, 20)
		eventually(t, "it draws", func() bool { return p.screen() != "" })
		if err := p.cmd.Process.Signal(signal); err != nil {
			t.Fatal(err)
		}
		p.gaveBack(t)
	}
}

// Without a terminal there is one table, with rates; JSON has every key.
func TestTopOnce(t *testing.T) {
	d := startInspected(t)
	r := softroce(t, nil, "top", "--interval=200ms", "--sort=messages", "--socket", d.socket)
	if r.code != 0 || strings.Contains(r.stdout, "\x1b") || strings.Count(r.stdout, "\n") != 9 || !strings.HasPrefix(r.stdout, "LQPN ") {
		t.Errorf("top: status %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	r = softroce(t, nil, "top", "--once", "--interval=200ms", "--json", "--socket", d.socket, "--pid", strconv.Itoa(d.ud.cmd.Process.Pid))
	var qps []object
	if err := json.Unmarshal([]byte(r.stdout), &qps); err != nil || len(qps) != 1 {
		t.Fatalf("top --json: %v\n%s%s", err, r.stdout, r.stderr)
	}
	for _, key := range []string{"sent_msgs_per_second", "rcvd_msgs_per_second", "sent_pkts_per_second", "sent_bytes_per_second"} {
		if v, _ := qps[0][key].(float64); v <= 0 {
			t.Errorf("%s is %v in\n%s", key, qps[0][key], r.stdout)
		}
	}
	for _, bad := range [][]string{{"--sort=speed"}, {"--interval=1ms"}, {"--watch"}} {
		if r := softroce(t, nil, append([]string{"top", "--socket", d.socket}, bad...)...); r.code != 2 {
			t.Errorf("%v: status %d\n%s%s", bad, r.code, r.stdout, r.stderr)
		}
	}
}

// explain and gids of a daemon: a failure whose peer died, and the address
// that it has.
func TestExplainOfTheDaemon(t *testing.T) {
	needsSharedMemory(t)
	d := startDaemon(t, testaddr.Take(t, 1)[0], socketIn(t))
	r := softroce(t, nil, "explain", "--last", "--socket", d.socket)
	if r.code != 1 || !strings.Contains(r.stderr, "nothing to explain") {
		t.Errorf("before a failure: status %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	a, err := openEnd(d.socket, 1)
	if err != nil {
		t.Fatal(err)
	}
	b, err := openEnd(d.socket, 2)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(a.qp.ConnectRC(b.id, verbs.RCConfig{PSN: 1}), b.qp.ConnectRC(a.id, verbs.RCConfig{PSN: 2})); err != nil {
		t.Fatal(err)
	}
	writeOnce(t, a, b, 0)
	if _, err := a.qp.PostSend(verbs.SendWR{Opcode: verbs.WRSend, Flags: verbs.SendSignaled}); err != nil {
		t.Fatal(err)
	}
	// No receive is posted, and rnr_retry has no limit.
	waits := fmt.Sprintf("Waiting right now: queue pair 0x%06x (RC, RTS)", uint32(a.qp.Num()))
	eventually(t, "the client is named that waits", func() bool {
		r = softroce(t, nil, "explain", "--last", "--socket", d.socket)
		return r.code == 0 && strings.HasPrefix(strings.Join(strings.Fields(r.stdout), " "), waits)
	})
	if err := b.qp.Destroy(); err != nil { // the peer that is gone
		t.Fatal(err)
	}
	var last string
	eventually(t, "the client's failure is explained", func() bool {
		r = softroce(t, nil, "explain", "--last", "--socket", d.socket)
		last = strings.Join(strings.Fields(r.stdout), " ")
		return r.code == 0 && !strings.HasPrefix(last, "Waiting right now:")
	})
	for _, w := range []string{"IBV_WC_RETRY_EXC_ERR", "retry_cnt = 7, timeout = 14", "process " + strconv.Itoa(os.Getpid()), "packets had come from the peer before"} {
		if !strings.Contains(last, w) {
			t.Errorf("%q is not in\n%s", w, r.stdout)
		}
	}
	for args, code := range map[string]int{"12": 0, "EINVAL": 0, "nonsense": 2, "0x1": 1} {
		if r := softroce(t, nil, "explain", args, "--socket", d.socket); r.code != code {
			t.Errorf("explain %s: status %d, want %d\n%s%s", args, r.code, code, r.stdout, r.stderr)
		}
	}
	r = softroce(t, nil, "gids", "--json", "--socket", d.socket)
	var gids []object
	link := "lo"
	if tun := testmatrix.TUN(t, []netip.Addr{d.addr}); tun != "" {
		link = tun
	}
	if err := json.Unmarshal([]byte(r.stdout), &gids); err != nil || len(gids) != 1 || gids[0]["usable"] != true || gids[0]["index"] != 0.0 ||
		gids[0]["interface"] != link || gids[0]["address"] != d.addr.String() || gids[0]["type"] != "RoCE v2" {
		t.Errorf("gids: %v\n%s%s", err, r.stdout, r.stderr)
	}
}
