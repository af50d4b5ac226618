package udp4791

import (
	"fmt"
	"net/netip"
)

// Backend is the way between an adapter and the network.
type Backend uint8

// The backends. The zero value is BackendUDP.
const (
	// BackendUDP is UDP sockets on port 4791 of the host's addresses.
	BackendUDP Backend = iota
	// BackendPacket receives by packet sockets (packet(7)) beside the UDP
	// sockets, which only hold the port and send: it sees IP headers.
	BackendPacket
	// BackendTUN is a TUN link with addresses of the adapter's own, which the host
	// routes to: whole IP packets both ways, and no port of the host's.
	BackendTUN
)

var backendNames = [...]string{"udp", "packet", "tun"}

// String is the backend's name.
func (b Backend) String() string {
	if int(b) < len(backendNames) {
		return backendNames[b]
	}
	return "unknown"
}

// ParseBackend is the inverse of Backend.String.
func ParseBackend(s string) (Backend, error) {
	for i, n := range backendNames {
		if n == s {
			return Backend(i), nil
		}
	}
	return 0, fmt.Errorf("udp4791: backend %q: want udp, packet or tun", s)
}

// Net is an adapter's hold on its addresses, whatever the backend. *Group is the
// one on UDP sockets, whose methods say what is promised. Calls on the data path
// are per batch, so that going through an interface costs nothing per datagram.
type Net interface {
	// Queue is the endpoint of a worker, 0 <= worker < Config.Workers.
	Queue(worker int) Queue
	// Link is the interface that the addresses are on where they are not the
	// host's, "" where they are.
	Link() string
	// Recover looks after a link that went away or came back: nil when the
	// adapter is on it. Any goroutine may call it, one at a time; its thread must
	// be in the network namespace of the adapter.
	Recover() error
	// Segments says whether a SendSlot, and Merges whether a RecvSlot may hold
	// several datagrams.
	Segments() bool
	Merges() bool
	RecvBuffer() int
	Notes() []string
	Reachable(from, to netip.Addr) error
	OpenAddr(a netip.Addr) (*LateAddr, error)
	CloseAddr(a netip.Addr)
	OpenMulticast(group netip.Addr) (*Multicast, error)
	Close() error
}

// Queue is one worker's part of a Net. *Endpoint is the one on UDP sockets, whose
// methods say what is promised.
type Queue interface {
	ReadBatch() ([]RecvSlot, error)
	More() bool
	WriteBatch(slots []SendSlot) (int, error)
	OpenFlow(local netip.Addr, key uint8, wanted uint16) (FlowID, uint16, error)
	CloseFlow(f FlowID)
	WriteFD(f FlowID) int
	FDs() []int
	Adopt(n *LateAddr) (fd int)
	Drop(a netip.Addr)
	Listen(m *Multicast)
	Unlisten(m *Multicast)
}

// OpenNet opens what cfg says by its backend. Errors are those of Open.
func OpenNet(cfg Config) (Net, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	var n Net
	var err error
	switch cfg.Backend {
	case BackendPacket:
		n, err = openPacket(cfg)
	case BackendTUN:
		n, err = openTUN(cfg)
	case BackendUDP:
		n, err = Open(cfg)
	}
	if err != nil {
		return nil, err // n may be a nil pointer in an interface
	}
	return n, nil
}

// Queue is Endpoint as an interface.
func (g *Group) Queue(worker int) Queue { return g.endpoints[worker] }

// Link is "": a group's addresses are the host's.
func (g *Group) Link() string { return "" }

// Recover does nothing: the sockets of a group outlive their interfaces.
func (g *Group) Recover() error { return nil }
