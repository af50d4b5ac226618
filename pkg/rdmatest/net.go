package rdmatest

import (
	"log/slog"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/softroce/softroce/internal/testaddr"
	"github.com/softroce/softroce/pkg/adapter"
	"github.com/softroce/softroce/pkg/verbs"
)

// Config says what adapters a Net makes. The zero value is usable.
type Config struct {
	// Seed decides what chance decides.
	Seed uint64
	// Workers is how many sockets and goroutines an adapter has; default 1, with
	// which all packets of an adapter come in one order.
	Workers int
	// Log gets the adapters' log lines; nil discards them.
	Log *slog.Logger
}

// A Net is adapters that reach one another, and the rules on them. Its methods
// may be called by any goroutine; errors of the set-up end the test.
type Net struct {
	t   testing.TB
	cfg Config

	mu       sync.Mutex
	adapters []*Adapter
	rules    []*Rule
	number   uint64 // of rules so far
}

// New returns a network without adapters, which ends with the test.
func New(t testing.TB, cfg Config) *Net {
	if cfg.Workers == 0 {
		cfg.Workers = 1
	}
	return &Net{t: t, cfg: cfg}
}

// An Adapter is one adapter of a Net.
type Adapter struct {
	net   *Net
	name  string
	addr  netip.Addr
	index uint64

	// Guarded by the Net's lock.
	running *adapter.Adapter // nil: killed
}

// Adapter starts an adapter on a loopback address of its own. The rules that are
// for all adapters are for it, too.
func (n *Net) Adapter(name string) *Adapter {
	n.t.Helper()
	a := &Adapter{net: n, name: name, addr: testaddr.Take(n.t, 1)[0]}
	n.mu.Lock()
	a.index = uint64(len(n.adapters))
	n.adapters = append(n.adapters, a)
	n.mu.Unlock()
	a.Restart()
	n.t.Cleanup(a.end)
	return a
}

// Name is the name that the adapter was made with, and the device's.
func (a *Adapter) Name() string { return a.name }

// Addr is the adapter's address, by which pkg/rdmacm and pkg/rdmanet reach it.
func (a *Adapter) Addr() netip.Addr { return a.addr }

// Open opens the adapter as a device for one program, as often as wanted. It is
// closed when the test ends, if the program did not.
func (a *Adapter) Open() *verbs.Device {
	a.net.t.Helper()
	a.net.mu.Lock()
	running := a.running
	a.net.mu.Unlock()
	if running == nil {
		a.net.t.Fatalf("rdmatest: open %s: it was killed", a.name)
	}
	d, err := running.Open()
	if err != nil {
		a.net.t.Fatalf("rdmatest: open %s: %v", a.name, err)
	}
	a.net.t.Cleanup(func() { _ = d.Close() }) // the program may have closed it
	return d
}

// Kill ends the adapter as a crash does: nothing more leaves it, its devices die,
// and its peers are told nothing.
func (a *Adapter) Kill() {
	a.net.t.Helper()
	a.net.mu.Lock()
	defer a.net.mu.Unlock() // a Restart meanwhile waits: the address is still taken
	running := a.running
	a.running = nil
	if running == nil {
		return
	}
	if _, err := running.AddImpair("drop"); err != nil { // no last words
		a.net.t.Fatalf("rdmatest: kill %s: %v", a.name, err)
	}
	if err := running.Close(); err != nil {
		a.net.t.Errorf("rdmatest: kill %s: %v", a.name, err)
	}
}

// Restart starts an adapter again that was killed, with its address and its rules,
// which count from the beginning, and without anything else that it had.
func (a *Adapter) Restart() {
	n := a.net
	n.t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	if a.running != nil {
		return
	}
	running, err := adapter.Start(adapter.Config{
		Name: a.name, Addrs: []netip.Addr{a.addr}, Workers: n.cfg.Workers, Log: n.cfg.Log,
	})
	if err != nil {
		n.t.Fatalf("rdmatest: start %s: %v", a.name, err)
	}
	a.running = running
	for _, r := range n.rules {
		if r.isFor(a) {
			r.putOn(a)
		}
	}
}

// end closes the adapter at the end of the test.
func (a *Adapter) end() {
	a.net.mu.Lock()
	running := a.running
	a.running = nil
	a.net.mu.Unlock()
	if running == nil {
		return
	}
	if err := running.Close(); err != nil {
		a.net.t.Errorf("rdmatest: close %s: %v", a.name, err)
	}
}

// patience ends waits of a test that hangs; nothing is measured by it.
const patience = time.Minute
