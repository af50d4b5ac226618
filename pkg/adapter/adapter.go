// Package adapter is a softroce adapter inside the program's own process, for
// tests and for programs that want no daemon. It hands out a verbs.Device
// over a socket pair: the same client code, the same rings and the same
// engine as with a daemon. It refuses to be a second data path.
//
// Its Config bounds and options are the daemon's. Two adapters of one process
// need two addresses, as 127.0.0.1 and 127.0.0.2.
package adapter

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"sync"

	"github.com/softroce/softroce/internal/capture"
	"github.com/softroce/softroce/internal/nic"
	"github.com/softroce/softroce/internal/shm"
	"github.com/softroce/softroce/pkg/verbs"
)

// Offload says whether to use the kernel's UDP segmentation and receive
// offload (UDP_SEGMENT and UDP_GRO, udp(7)).
type Offload = nic.Offload

// The choices: as the kernel and each peer's way allow, on or an error, off.
const (
	OffloadAuto = nic.OffloadAuto
	OffloadOn   = nic.OffloadOn
	OffloadOff  = nic.OffloadOff
)

// Backend is the way to the network (docs/operations.md, "Backends").
type Backend = nic.Backend

// The backends: UDP sockets; packet sockets beside them, which show IP headers
// and need CAP_NET_RAW; a TUN link with addresses of the adapter's own.
const (
	BackendUDP    = nic.BackendUDP
	BackendPacket = nic.BackendPacket
	BackendTUN    = nic.BackendTUN
)

// Config says what adapter to start. One of Addrs and Interface is required;
// zero elsewhere means the default.
type Config struct {
	// Name is the device's name; default "softroce0".
	Name string
	// Addrs are the adapter's addresses, GID 0 first, each an address of this
	// host; or Interface names an interface whose addresses they are.
	Addrs     []netip.Addr
	Interface string
	// Workers is the number of receive sockets and goroutines, 1 to 8;
	// default one per CPU.
	Workers int
	// Window is the most bytes in flight on one queue pair; 0: the default.
	Window int
	// RecvBuffer and SendBuffer are the sockets' buffers in bytes; 0: as much
	// as the host allows, up to 8 MiB.
	RecvBuffer, SendBuffer int
	// Backend is the way to the network; default BackendUDP.
	Backend Backend
	// TUN is the name of BackendTUN's link, which is opened, or made where there
	// is none (CAP_NET_ADMIN). Addrs are then addresses that no interface has.
	TUN string
	// Offload says whether the kernel cuts and merges datagrams; default
	// OffloadAuto.
	Offload Offload
	// StrictICRC refuses packets whose IPv4 identification cannot be proven.
	StrictICRC bool
	// Log gets what an operator should know; nil discards.
	Log *slog.Logger
	// Capture gets a pcapng of every packet sent and received; nil: none. The
	// adapter flushes it on Close and does not close it.
	Capture io.Writer
}

// Adapter is a running adapter.
type Adapter struct {
	nic *nic.Adapter
	tap *capture.Writer

	mu     sync.Mutex
	closed bool
	served sync.WaitGroup
}

// Start opens the addresses and starts the workers. An address that is not
// this host's, or that another adapter has, is an error that says so.
func Start(cfg Config) (*Adapter, error) {
	a := &Adapter{}
	c := nic.Config{
		Name: cfg.Name, Addrs: cfg.Addrs, Interface: cfg.Interface, Workers: cfg.Workers, Window: cfg.Window,
		RecvBuffer: cfg.RecvBuffer, SendBuffer: cfg.SendBuffer, StrictICRC: cfg.StrictICRC, Log: cfg.Log,
		Offload: cfg.Offload, Backend: cfg.Backend, TUN: cfg.TUN,
	}
	var err error
	if cfg.Capture != nil {
		if a.tap, err = capture.NewWriter(cfg.Capture, cfg.Name, capture.WriterOptions{}); err != nil {
			return nil, fmt.Errorf("start adapter: capture: %w", err)
		}
		c.Capture = a.tap
	}
	if a.nic, err = nic.New(c); err != nil {
		return nil, err
	}
	return a, nil
}

// Open opens the adapter as a device, as often as wanted. Close the devices
// before the adapter, or see them die with it.
func (a *Adapter) Open() (*verbs.Device, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return nil, verbs.ErrDeviceDead
	}
	theirs, ours, err := shm.Socketpair()
	if err != nil {
		return nil, fmt.Errorf("open adapter: %w", err)
	}
	a.served.Go(func() { a.nic.ServeConn(ours) })
	return verbs.OpenConn(theirs)
}

// Addrs are the adapter's addresses in GID order.
func (a *Adapter) Addrs() []netip.Addr { return a.nic.Addrs() }

// CloseSockets closes the adapter's sockets and leaves everything else alive,
// as when its network is gone for good. For tests; Close is still to be
// called.
func (a *Adapter) CloseSockets() error { return a.nic.CloseSockets() }

// Close ends the adapter: its devices die, and all of theirs is released.
func (a *Adapter) Close() error {
	a.mu.Lock()
	a.closed = true
	a.mu.Unlock()
	err := a.nic.Close()
	a.served.Wait()
	if a.tap != nil {
		err = errors.Join(err, a.tap.Flush())
	}
	return err
}
