package e2e

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/softroce/softroce/internal/testmatrix"
	"github.com/softroce/softroce/pkg/adapter"
)

// limit ends waits of a test that hangs; nothing is measured by it.
const limit = 30 * time.Second

// lockedBuffer collects a process's output.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// A daemon is a running softroce daemon of the test.
type daemon struct {
	t       *testing.T
	cmd     *exec.Cmd
	addr    netip.Addr
	socket  string
	metrics string
	log     *lockedBuffer
	gone    sync.Once
}

func startDaemon(t *testing.T, addr netip.Addr, socket string, more ...string) *daemon {
	t.Helper()
	d := &daemon{t: t, addr: addr, socket: socket, log: &lockedBuffer{}}
	args := []string{
		"daemon", "--addr", addr.String(), "--socket", socket, "--metrics", "127.0.0.1:0",
		"--backend", testmatrix.Backend(t).String(), "--gso", testmatrix.Offload(t).String(), "--workers", strconv.Itoa(testmatrix.Workers(t, 0)),
	}
	if link := testmatrix.TUN(t, []netip.Addr{addr}); link != "" {
		args = append(args, "--tun", link)
	}
	args = append(args, more...)
	d.cmd = exec.Command(binaries.softroce, args...)
	d.cmd.Stderr = d.log
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.kill)
	eventually(t, "the daemon serves", func() bool { return strings.Contains(d.log.String(), "msg=serving") })
	m := regexp.MustCompile(`msg=metrics url=(\S+)`).FindStringSubmatch(d.log.String())
	if m == nil {
		t.Fatalf("no metrics address in the log:\n%s", d.log.String())
	}
	d.metrics = m[1]
	return d
}

// toolHost is where a tool's TCP side is reached whose daemon has an address: there;
// on a TUN link nobody answers TCP, but the loopback does as well.
func toolHost(t *testing.T, addr netip.Addr) string {
	t.Helper()
	if testmatrix.Backend(t) == adapter.BackendTUN {
		return "127.0.0.1"
	}
	return addr.String()
}

// socketIn gives a short path for a daemon's socket.
func socketIn(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "e2e") //nolint:usetesting // t.TempDir's path is too long for a socket (2026-11)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "s")
}

// kill ends the daemon with SIGKILL and waits.
func (d *daemon) kill() {
	d.gone.Do(func() {
		_ = d.cmd.Process.Kill() // it may have ended
		_ = d.cmd.Wait()         // killed: an error by nature
	})
}

// stop ends the daemon with SIGTERM and gives its exit status.
func (d *daemon) stop() (code int) { return d.end(syscall.SIGTERM) }

// end sends a signal, waits and gives the exit status. A daemon that does not
// go is killed, and the test has failed.
func (d *daemon) end(sig syscall.Signal) (code int) {
	d.t.Helper()
	d.gone.Do(func() {
		_ = d.cmd.Process.Signal(sig) // it may have ended
		stuck := time.AfterFunc(limit, func() {
			d.t.Errorf("the daemon does not end at %v", sig)
			_ = d.cmd.Process.Kill() // it may have ended meanwhile
		})
		defer stuck.Stop()
		_ = d.cmd.Wait() // the status says it
		code = d.cmd.ProcessState.ExitCode()
	})
	return code
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	end := time.Now().Add(limit)
	for !ok() {
		if time.Now().After(end) {
			t.Fatalf("still not after %v: %s", limit, what)
		}
		<-tick.C
	}
}

// scraper keeps no connection: the daemon's descriptors are counted.
var scraper = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// metric sums the samples of one metric, those whose labels contain label.
func (d *daemon) metric(name, label string) float64 {
	d.t.Helper()
	resp, err := scraper.Get(d.metrics)
	if err != nil {
		d.t.Fatalf("scrape: %v", err)
	}
	defer resp.Body.Close()
	sum := 0.0
	s := bufio.NewScanner(resp.Body)
	for s.Scan() {
		line := s.Text()
		if !strings.HasPrefix(line, name+"{") || !strings.Contains(line, label) {
			continue
		}
		v, err := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64)
		if err != nil {
			d.t.Fatalf("sample %q: %v", line, err)
		}
		sum += v
	}
	return sum
}

// footprint is what a process holds.
type footprint struct {
	qps, mrs, programs  float64
	descriptors, shared int // shared: mappings of memory files
	maps                int // all
	rss                 int // bytes
}

func (d *daemon) footprint() (f footprint) {
	d.t.Helper()
	f.qps = d.metric("softroce_resource_used", `resource="queue pairs"`)
	f.mrs = d.metric("softroce_resource_used", `resource="memory regions"`)
	f.programs = d.metric("softroce_resource_used", `resource="programs"`)
	proc := fmt.Sprintf("/proc/%d/", d.cmd.Process.Pid)
	f.descriptors = d.descriptors()
	maps, err := os.ReadFile(proc + "maps")
	if err != nil {
		d.t.Fatal(err)
	}
	statm, err := os.ReadFile(proc + "statm")
	if err != nil {
		d.t.Fatal(err)
	}
	f.maps = bytes.Count(maps, []byte("\n"))
	f.shared = bytes.Count(maps, []byte("/memfd:"))
	pages, err := strconv.Atoi(strings.Fields(string(statm))[1])
	if err != nil {
		d.t.Fatal(err)
	}
	f.rss = pages * os.Getpagesize()
	return f
}

// descriptors counts the daemon's open descriptors once the number holds still:
// the scrape's own connection is closed a moment after the answer.
func (d *daemon) descriptors() int {
	d.t.Helper()
	last, same := -1, 0
	eventually(d.t, "the number of descriptors holds still", func() bool {
		fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", d.cmd.Process.Pid))
		if err != nil {
			d.t.Fatal(err)
		}
		if len(fds) != last {
			last, same = len(fds), 0
		}
		same++
		return same == 10
	})
	return last
}

// A program is this test binary as a client.
type program struct {
	cmd *exec.Cmd
	out *bufio.Reader
}

func startProgram(t *testing.T, mode string, args ...string) *program {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &program{cmd: exec.Command(self, args...)}
	p.cmd.Env = append(os.Environ(), childEnv+"="+mode)
	p.cmd.Stderr = os.Stderr
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.out = bufio.NewReader(out)
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return p
}

// line reads the next line of a program's output.
func (p *program) line(t *testing.T) string {
	t.Helper()
	s, err := p.out.ReadString('\n')
	if err != nil && err != io.EOF {
		t.Fatal(err)
	}
	return strings.TrimSpace(s)
}

// kill ends a program with SIGKILL and waits.
func (p *program) kill() {
	_ = p.cmd.Process.Kill() // it may have ended
	_, _ = io.Copy(io.Discard, p.out)
	_ = p.cmd.Wait() // killed: an error by nature
}
