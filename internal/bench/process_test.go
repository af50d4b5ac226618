package bench

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/softroce/softroce/internal/rawudp"
	"github.com/softroce/softroce/internal/testnet"
)

// patience bounds everything that should take seconds.
const patience = 60 * time.Second

// host is where one side runs: an address, in a namespace or here.
type host struct {
	addr netip.Addr
	ns   *testnet.Host // nil: this namespace
}

// in runs f in the host's namespace.
func (h host) in(f func() error) error {
	if h.ns == nil {
		return f()
	}
	return h.ns.Do(f)
}

func (h host) side() rawudp.Side { return rawudp.Side{Addr: h.addr, In: h.in} }

// starter starts processes, and ends what is left of them with the benchmark.
// Should this process be killed, they are killed with it, or rather with the
// thread that started them, which therefore lives as long.
type starter struct {
	work  chan func()
	procs []*proc
}

func newStarter(tb testing.TB) *starter {
	s := &starter{work: make(chan func())}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		runtime.LockOSThread() // never unlocked: nobody else uses the thread
		for f := range s.work {
			f()
		}
	}()
	tb.Cleanup(func() {
		for _, p := range s.procs {
			p.stop()
		}
		close(s.work)
		<-ended
	})
	return s
}

// proc is a process that was started.
type proc struct {
	cmd       *exec.Cmd
	out, errs text
	done      chan struct{}
	err       error // valid when done
}

// text keeps what a process prints, and tells when it begins.
type text struct {
	mu    sync.Mutex
	buf   bytes.Buffer
	began chan struct{}
}

func (t *text) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.buf.Len() == 0 && len(b) > 0 {
		close(t.began)
	}
	return t.buf.Write(b)
}

func (t *text) Bytes() []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	return bytes.Clone(t.buf.Bytes())
}

// start starts a program on a host.
func (s *starter) start(h host, name string, args ...string) (*proc, error) {
	p := &proc{cmd: exec.Command(name, args...), done: make(chan struct{})}
	p.out.began, p.errs.began = make(chan struct{}), make(chan struct{})
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.errs
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	s.work <- func() { started <- h.in(p.cmd.Start) }
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", filepath.Base(name), err)
	}
	s.procs = append(s.procs, p)
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// wait waits for a process's end, which must be a success.
func (p *proc) wait() error {
	select {
	case <-p.done:
	case <-time.After(patience):
		p.stop()
		return fmt.Errorf("%s did not end within %v: %s", filepath.Base(p.cmd.Path), patience, p.errs.Bytes())
	}
	if p.err != nil {
		return fmt.Errorf("%s: %w: %s", filepath.Base(p.cmd.Path), p.err, p.errs.Bytes())
	}
	return nil
}

// stop ends a process, if need be by force.
func (p *proc) stop() {
	if p == nil {
		return
	}
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		_ = p.cmd.Process.Signal(sig) // it may have ended
		select {
		case <-p.done:
			return
		case <-time.After(5 * time.Second):
		}
	}
	<-p.done
}

// build makes the command as a user has it.
func build(tb testing.TB) string {
	tb.Helper()
	bin := filepath.Join(tb.TempDir(), "softroce")
	if msg, err := exec.Command("go", "build", "-o", bin, "../../cmd/softroce").CombinedOutput(); err != nil {
		tb.Fatalf("build: %v\n%s", err, msg)
	}
	return bin
}

// daemons are an adapter on each of two hosts, or one adapter that is both.
type daemons struct {
	s       *starter
	bin     string
	dir     string
	hosts   [2]host
	sockets [2]string
	procs   []*proc
}

// startDaemons starts one daemon for each distinct host.
func startDaemons(s *starter, bin string, x, y host) (d *daemons, err error) {
	d = &daemons{s: s, bin: bin, hosts: [2]host{x, y}}
	// Short, as a socket's path must be.
	if d.dir, err = os.MkdirTemp("", "bench"); err != nil {
		return nil, err
	}
	for i, h := range d.hosts {
		if i == 1 && h == d.hosts[0] {
			d.sockets[1] = d.sockets[0]
			break
		}
		d.sockets[i] = filepath.Join(d.dir, fmt.Sprint(i))
		p, err := s.start(h, bin, "daemon", "--addr", h.addr.String(), "--socket", d.sockets[i], "--log-level", "warn")
		if err == nil {
			d.procs = append(d.procs, p)
			err = await(p, func() bool { _, err := os.Stat(d.sockets[i]); return err == nil })
		}
		if err != nil {
			d.stop()
			return nil, err
		}
	}
	return d, nil
}

// await waits until a process's work can be seen.
func await(p *proc, ready func() bool) error {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); !ready(); {
		select {
		case <-p.done:
			return fmt.Errorf("%s ended: %w: %s", filepath.Base(p.cmd.Path), p.err, p.errs.Bytes())
		case <-tick.C:
		}
		if time.Now().After(end) {
			return fmt.Errorf("%s is not ready after %v", filepath.Base(p.cmd.Path), patience)
		}
	}
	return nil
}

func (d *daemons) stop() {
	for _, p := range d.procs {
		p.stop()
		if msg := p.errs.Bytes(); len(msg) > 0 {
			fmt.Fprintf(os.Stderr, "daemon: %s", msg)
		}
	}
	_ = os.RemoveAll(d.dir) // of our own making
}

// perf runs server and client programs and returns the client's figures.
func (d *daemons) perf(op string, args ...string) (Perf, error) {
	client, server, err := d.begin(op, append(args, "--json")...)
	if err != nil {
		return Perf{}, err
	}
	defer server.stop()
	defer client.stop()
	if err := errors.Join(client.wait(), server.wait()); err != nil {
		return Perf{}, fmt.Errorf("perf %s %s: %w", op, strings.Join(args, " "), err)
	}
	return ParsePerf(client.out.Bytes())
}

// begin starts server and client; the client is tried until the server
// listens.
func (d *daemons) begin(op string, args ...string) (client, server *proc, err error) {
	port, err := freePort()
	if err != nil {
		return nil, nil, err
	}
	common := append([]string{"perf", op, "-p", port}, args...)
	if server, err = d.s.start(d.hosts[1], d.bin, append(common, "--socket", d.sockets[1])...); err != nil {
		return nil, nil, err
	}
	for end := time.Now().Add(patience); time.Now().Before(end); {
		client, err = d.s.start(d.hosts[0], d.bin, append(common, "--socket", d.sockets[0], d.hosts[1].addr.String())...)
		if err != nil {
			break
		}
		select { // refused at once, or under way
		case <-client.done:
		case <-client.out.began:
		case <-time.After(time.Second):
		}
		if !client.refused() {
			return client, server, nil
		}
		select {
		case <-server.done:
			return nil, nil, fmt.Errorf("perf %s: server: %w: %s", op, server.err, server.errs.Bytes())
		default:
		}
	}
	server.stop()
	return nil, nil, fmt.Errorf("perf %s: no server within %v: %w", op, patience, err)
}

// refused says whether a client ended because nobody listened.
func (p *proc) refused() bool {
	select {
	case <-p.done:
		return strings.Contains(string(p.errs.Bytes()), "refused")
	default:
		return false
	}
}

// freePort is a TCP port that nobody has.
func freePort() (string, error) {
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, err
}
