package nic

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/vishvananda/netlink"

	"github.com/softroce/softroce/internal/capture"
	"github.com/softroce/softroce/internal/impair"
	"github.com/softroce/softroce/internal/shm"
	"github.com/softroce/softroce/internal/uapi"
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/mrtable"
	"github.com/softroce/softroce/pkg/udp4791"
)

// Our own tuning.
const defaultName = "softroce0"

// Offload says whether to use UDP segmentation and receive offload.
type Offload = udp4791.Offload

// The choices, see udp4791.
const (
	OffloadAuto = udp4791.OffloadAuto
	OffloadOn   = udp4791.OffloadOn
	OffloadOff  = udp4791.OffloadOff
)

// ParseOffload reads auto, on or off.
func ParseOffload(s string) (Offload, error) { return udp4791.ParseOffload(s) }

// Backend is the way to the network, see udp4791.
type Backend = udp4791.Backend

// The backends, see udp4791.
const (
	BackendUDP    = udp4791.BackendUDP
	BackendPacket = udp4791.BackendPacket
	BackendTUN    = udp4791.BackendTUN
)

// ParseBackend reads udp, packet or tun.
func ParseBackend(s string) (Backend, error) { return udp4791.ParseBackend(s) }

// Config says what an adapter is. One of Addrs and Interface is required;
// zero elsewhere means the default.
type Config struct {
	// Name is what programs see as the device's name, at most 63 bytes;
	// default "softroce0".
	Name string
	// Addrs are the adapter's addresses, GID 0 first; each must be bindable
	// here. A link-local IPv6 address needs its zone.
	Addrs []netip.Addr
	// Interface names a network interface whose bindable addresses are the
	// adapter's, IPv4 first.
	Interface string
	// Workers is the number of receive sockets and goroutines, 1 to 8;
	// default one per CPU, at most 8.
	Workers int
	// Log gets one line for what an operator should know; nil discards.
	Log *slog.Logger
	// Limits bounds what programs use.
	Limits Limits
	// OwnProcess says that the process is the adapter's alone, so that idle
	// workers need not make way for other goroutines in each round.
	OwnProcess bool
	// Window is the most bytes in flight on one QP; 0: the engine's default.
	Window int
	// RecvBuffer and SendBuffer are socket buffers in bytes, see
	// udp4791.Config.
	RecvBuffer, SendBuffer int
	// Backend is the way to the network; default BackendUDP.
	Backend Backend
	// TUN is the name of BackendTUN's link; Addrs are the adapter's own then.
	TUN string
	// Routes are the networks that the host is to reach by a TUN link which the
	// adapter makes.
	Routes []netip.Prefix
	// Offload says whether the kernel cuts and merges datagrams.
	Offload Offload
	// StrictICRC refuses packets whose identification cannot be proven.
	StrictICRC bool
	// Capture gets every packet sent and received; nil: none. The adapter
	// does not close it.
	Capture *capture.Writer
	// Impair are rules that harm packets on purpose, from the first packet on.
	Impair []impair.Rule
}

// Validate reports the first thing wrong with c that can be told without
// opening anything.
func (c *Config) Validate() error {
	switch {
	case len(c.Name) > 63:
		return fmt.Errorf("nic: config: name of %d bytes, at most 63", len(c.Name))
	case c.Workers < 0 || c.Workers > udp4791.MaxWorkers:
		return fmt.Errorf("nic: config: %d workers, want 1 to %d", c.Workers, udp4791.MaxWorkers)
	case c.Window < 0:
		return fmt.Errorf("nic: config: window of %d bytes", c.Window)
	}
	return c.Limits.Validate()
}

func (c Config) withDefaults() Config {
	if c.Name == "" {
		c.Name = defaultName
	}
	if c.Workers == 0 {
		c.Workers = min(runtime.NumCPU(), udp4791.MaxWorkers)
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	c.Limits = c.Limits.withDefaults()
	return c
}

// An Adapter is one RoCEv2 network adapter: addresses, workers and the
// programs that use it.
type Adapter struct {
	cfg     Config
	log     *slog.Logger
	group   udp4791.Net
	workers []*worker
	keys    *mrtable.Table
	status  *uapi.StatusPage
	page    *shm.Segment         // behind status
	tap     atomic.Pointer[taps] // nil while nobody captures
	streams captures
	impair  impairments
	gids    gidTable
	ledger  *ledger
	qpns    *qpnAllocator
	control controlStats
	mcast   mcastTable
	stamps  stampClock
	port    atomic.Pointer[portState]
	watch   *netWatch // nil when the network is not followed
	gsi     *gsi
	routes  *netlink.Handle // nil when the routing table cannot be asked
	guid    uint64          // of the node

	mu        sync.Mutex
	closing   bool
	programs  map[*program]struct{}
	last      uint32                 // number of a program
	conns     map[*shm.Conn]struct{} // served, also before their hello
	listeners map[*shm.Listener]struct{}
	pds       map[mrtable.PD]struct{}
	lastPD    mrtable.PD
	load      []int // QPs per worker

	failures  failures
	gidStatus atomic.Pointer[[]uapi.GIDStatus]
	tooLong   atomic.Bool // a segmented send was longer than its link carried, since the network was last looked at

	refusedLog rateLimit
	faultLog   rateLimit
	comingLog  rateLimit // programs that come
	goingLog   rateLimit // and go
	refusing   atomic.Int32

	serving sync.WaitGroup // ServeConn and Serve calls
}

// controlStats counts what the control plane saw.
type controlStats struct {
	requests, refused, badMessages atomic.Uint64
	programs, deaths               atomic.Uint64
	faults                         atomic.Uint64 // programs whose QPs were ended
	asyncEvents, asyncLost         atomic.Uint64
	linkDowns                      atomic.Uint64
}

// New opens an adapter and starts its workers. Errors say what, why and what
// to do; a busy port names the holder.
func New(cfg Config) (*Adapter, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	gids, err := resolveGIDs(cfg.Addrs, cfg.Interface)
	if err != nil {
		return nil, err
	}
	a := &Adapter{
		cfg: cfg, log: cfg.Log,
		keys:      mrtable.New(mrtable.Config{MaxRegions: int(cfg.Limits.Adapter.MRs + cfg.Limits.Adapter.MWs), Secret: random64()}),
		ledger:    newLedger(cfg.Limits),
		qpns:      newQPNAllocator(random64()),
		programs:  make(map[*program]struct{}),
		conns:     make(map[*shm.Conn]struct{}),
		listeners: make(map[*shm.Listener]struct{}),
		pds:       make(map[mrtable.PD]struct{}),
		lastPD:    mrtable.PD(random64() & 0xFFFF),
		load:      make([]int, cfg.Workers),
	}
	if a.stamps, err = newStampClock(); err != nil {
		return nil, fmt.Errorf("nic: CLOCK_MONOTONIC: %w", err)
	}
	a.gids.entries.Store(&gids)
	a.guid = guidOf(gids[0].addr)
	a.tapFile(cfg.Capture)
	if len(cfg.Impair) > 0 {
		if _, err := a.Impair(cfg.Impair, false); err != nil {
			return nil, fmt.Errorf("nic: config: impairments: %w", err)
		}
	}
	err = a.open(gids)
	a.openRoutes()
	for _, w := range a.workers {
		w.start()
	}
	if err != nil {
		_ = a.closeParts() // the first error is the one that says why
		return nil, err
	}
	a.startWatch()
	a.logStart(a.gids.load()) // with what the watch found
	return a, nil
}

// open opens the status page, the sockets and the workers.
func (a *Adapter) open(gids []gidEntry) error {
	var err error
	if a.page, err = shm.Create("softroce-status", uapi.StatusSize); err != nil {
		return fmt.Errorf("nic: status page: %w", err)
	}
	if err := a.page.SealFutureWrite(); err != nil {
		return fmt.Errorf("nic: seal the status page: %w", err)
	}
	if a.status, err = uapi.NewStatusPage(a.page); err != nil {
		return fmt.Errorf("nic: status page: %w", err)
	}
	addrs := make([]netip.Addr, len(gids))
	for i := range gids {
		addrs[i] = gids[i].addr
	}
	group, err := udp4791.OpenNet(udp4791.Config{
		Addrs: addrs, Workers: a.cfg.Workers, RecvBuffer: a.cfg.RecvBuffer, SendBuffer: a.cfg.SendBuffer,
		Offload: a.cfg.Offload, Backend: a.cfg.Backend, TUN: a.cfg.TUN,
	})
	if err != nil {
		return err
	}
	a.group = group
	a.routeToLink()
	for i := range a.cfg.Workers {
		w, err := newWorker(a, i, a.group.Queue(i))
		if err != nil {
			return fmt.Errorf("nic: worker %d: %w", i, err)
		}
		a.workers = append(a.workers, w)
	}
	a.gsi, err = newGSI(a)
	return err
}

func (a *Adapter) logStart(gids []gidEntry) {
	for i := range gids {
		a.log.Info("gid", keyAdapter, a.cfg.Name, keyIndex, i, keyGID, gids[i].gid.String(),
			keyInterface, gids[i].ifname, keyLinkMTU, gids[i].linkMTU)
	}
	a.log.Info("adapter started", keyAdapter, a.cfg.Name, keyWorkers, len(a.workers),
		keyActiveMTU, activeMTU(a.port.Load().linkMTU).Bytes(), keyRecvBuffer, a.group.RecvBuffer(), keyCRC, bth.CRCPath())
	for _, n := range append(a.group.Notes(), machineNotes()...) {
		a.log.Info(n, keyAdapter, a.cfg.Name)
	}
}

// machineNotes are what of this machine makes an adapter slower.
func machineNotes() (notes []string) {
	if best := bth.CRCPaths()[0]; best == bth.CRCStd {
		notes = append(notes, "no instructions for the ICRC that this build knows: it is computed by "+best)
	}
	if runtime.NumCPU() == 1 {
		notes = append(notes, "one CPU: adapter and programs take turns on it")
	}
	return notes
}

// Close ends the adapter: programs see the alive word, their connections hang
// up, everything of theirs is released, then the workers and sockets go. A
// second call does nothing. It returns when all is gone.
func (a *Adapter) Close() error {
	a.mu.Lock()
	if a.closing {
		a.mu.Unlock()
		a.serving.Wait()
		return nil
	}
	a.closing = true
	a.status.SetClosing()
	for l := range a.listeners {
		_ = l.Close()
	}
	for c := range a.conns {
		_ = c.Close()
	}
	a.mu.Unlock()
	a.serving.Wait()
	return a.closeParts()
}

// closeParts ends what open began.
func (a *Adapter) closeParts() error {
	var errs []error
	a.watch.end()
	for _, w := range a.workers {
		w.stop()
	}
	if a.routes != nil {
		a.routes.Close()
	}
	if a.group != nil {
		errs = append(errs, a.group.Close())
	}
	if a.page != nil {
		errs = append(errs, a.page.Close())
	}
	return errors.Join(errs...)
}

// Name returns the device's name.
func (a *Adapter) Name() string { return a.cfg.Name }

// Addrs returns the adapter's addresses in GID order, without the holes that
// addresses leave which are gone.
func (a *Adapter) Addrs() []netip.Addr {
	var out []netip.Addr
	for _, e := range a.gids.load() {
		if e.addr.IsValid() {
			out = append(out, e.addr)
		}
	}
	return out
}

// workerOf returns the worker that a QPN steers to.
func (a *Adapter) workerOf(q bth.QPN) *worker {
	return a.workers[int(q&(steerKeys-1))%len(a.workers)]
}

// placeQP chooses the worker of a new QP, home if it is not negative, else
// the one with the fewest QPs, and counts the QP there.
func (a *Adapter) placeQP(home int) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	if home < 0 {
		home = 0
		for i, n := range a.load {
			if n < a.load[home] {
				home = i
			}
		}
	}
	a.load[home]++
	return home
}

func (a *Adapter) unplaceQP(worker int) {
	a.mu.Lock()
	a.load[worker]--
	a.mu.Unlock()
}

// quiesce returns once every worker has passed a turn's boundary.
func (a *Adapter) quiesce() {
	for _, w := range a.workers {
		w.quiesce()
	}
}

// newPD returns a protection domain number that is not in use; never 0.
func (a *Adapter) newPD() mrtable.PD {
	a.mu.Lock()
	defer a.mu.Unlock()
	for {
		a.lastPD++
		if _, used := a.pds[a.lastPD]; used || a.lastPD == 0 {
			continue
		}
		a.pds[a.lastPD] = struct{}{}
		return a.lastPD
	}
}

func (a *Adapter) freePD(pd mrtable.PD) {
	a.mu.Lock()
	delete(a.pds, pd)
	a.mu.Unlock()
}

// putRandom fills b.
func putRandom(b []byte) { _, _ = rand.Read(b) } // never fails (crypto/rand)

func random64() uint64 {
	var b [8]byte
	putRandom(b[:])
	return binary.LittleEndian.Uint64(b[:])
}

func random32() uint32 { return uint32(random64()) }
