package udp4791

import (
	"fmt"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"
)

// Values fixed by the specification.
const (
	// Port is the UDP destination port of RoCEv2 (Annex A17.3.1.1, IANA roce).
	Port = 4791
	// FirstFlowPort and LastFlowPort bound the source ports of send sockets:
	// the dynamic range of RFC 6335, which A17 leaves to the sender.
	FirstFlowPort = 0xC000
	LastFlowPort  = 0xFFFF
	// Keys is the number of steering keys: a key is the low 3 bits of the
	// destination QPN, on every adapter, whatever its worker count.
	Keys = 8
)

// Our own tuning.
const (
	// MaxWorkers is the largest Config.Workers: there are no more keys.
	MaxWorkers = Keys
	// MaxAddrs is the largest number of addresses in one Config.
	MaxAddrs = 64
	// MaxBatch is the largest Config.Batch, the kernel's UIO_MAXIOV.
	MaxBatch = 1024
	// MaxSendSockets is the number of send sockets an endpoint holds at most.
	MaxSendSockets = 16
	// BufferSize is the room for one received datagram: 4096 bytes of
	// payload and all headers and extended headers that can precede it. A
	// longer datagram is cut and marked RecvMeta.Truncated.
	BufferSize = 4608
	// DefaultTTL is the IPv4 TTL and IPv6 hop limit of the sockets. A
	// SendSlot with another value costs a control message.
	DefaultTTL = 64
	// MaxSegments is how many datagrams one SendSlot holds at most: what every
	// kernel with UDP_SEGMENT takes. MaxSegmented is how many bytes: what a
	// device takes in one piece with its Ethernet, IPv6 and UDP headers. The
	// kernel takes a little more, and then cuts it itself.
	MaxSegments  = 64
	MaxSegmented = 65535 - 14 - 40 - 8

	// offloadBuffer is the room for one receive-offload buffer, and
	// offloadBatch how many a system call fills at most: together they should
	// stay in a second-level cache.
	offloadBuffer = 64 << 10
	offloadBatch  = 8

	defaultBatch  = 64
	defaultBuffer = 8 << 20
)

// Config says what to open. Addrs is required; zero elsewhere means the
// default.
type Config struct {
	// Addrs are the local addresses of the adapter, all bindable on this
	// host, no wildcard, no multicast, at least one and at most MaxAddrs.
	// A link-local IPv6 address needs its zone.
	Addrs []netip.Addr
	// Workers is the number of endpoints, 1 to MaxWorkers; default 1. A
	// datagram goes to endpoint (destination QPN & 7) mod Workers.
	Workers int
	// RecvBuffer and SendBuffer are socket buffer sizes in bytes, in the
	// unit of SO_RCVBUF (the kernel doubles it for its own overhead).
	// Default 8 MiB. The kernel may give less; see Group.Notes.
	RecvBuffer, SendBuffer int
	// Batch is the number of datagrams per system call, at most MaxBatch;
	// default 64. With receive offload it is 8 at most.
	Batch int
	// Backend is the way to the network; default BackendUDP. Open is for that
	// one only, OpenNet for all.
	Backend Backend
	// TUN is the name of BackendTUN's link, which is opened, or made where there
	// is none. The addresses are then not the host's, and have no zones.
	TUN string
	// Offload says whether the kernel shall cut and merge datagrams
	// (UDP_SEGMENT and UDP_GRO): default OffloadAuto.
	Offload Offload
}

// Offload says whether to use segmentation and receive offload. The zero value
// is OffloadAuto.
type Offload uint8

// The choices. OffloadOn differs from OffloadAuto in that a kernel without it
// is an error.
const (
	OffloadAuto Offload = iota
	OffloadOn
	OffloadOff
)

var offloadNames = [...]string{"auto", "on", "off"}

// String is the choice's name: auto, on or off.
func (o Offload) String() string {
	if int(o) < len(offloadNames) {
		return offloadNames[o]
	}
	return "unknown"
}

// ParseOffload is the inverse of Offload.String.
func ParseOffload(s string) (Offload, error) {
	for i, n := range offloadNames {
		if n == s {
			return Offload(i), nil
		}
	}
	return 0, fmt.Errorf("udp4791: offload %q: want auto, on or off", s)
}

// Validate reports the first thing wrong with c, in words.
func (c *Config) Validate() error {
	switch {
	case len(c.Addrs) == 0:
		return fmt.Errorf("udp4791: config: no local address given")
	case len(c.Addrs) > MaxAddrs:
		return fmt.Errorf("udp4791: config: %d addresses, limit %d", len(c.Addrs), MaxAddrs)
	case c.Workers < 0 || c.Workers > MaxWorkers:
		return fmt.Errorf("udp4791: config: %d workers, want 1 to %d", c.Workers, MaxWorkers)
	case c.Batch < 0 || c.Batch > MaxBatch:
		return fmt.Errorf("udp4791: config: batch of %d datagrams, want 1 to %d", c.Batch, MaxBatch)
	case int(c.Backend) >= len(backendNames):
		return fmt.Errorf("udp4791: config: unknown backend %d", c.Backend)
	case c.Offload > OffloadOff:
		return fmt.Errorf("udp4791: config: unknown offload %d", c.Offload)
	case (c.Backend == BackendTUN) != (c.TUN != ""):
		return fmt.Errorf("udp4791: config: backend %v and TUN link %q: the tun backend needs a link's name, others have none", c.Backend, c.TUN)
	case len(c.TUN) >= unix.IFNAMSIZ:
		return fmt.Errorf("udp4791: config: TUN link %q: a name has at most %d bytes", c.TUN, unix.IFNAMSIZ-1)
	case strings.Contains(c.TUN, "%"):
		return fmt.Errorf("udp4791: config: TUN link %q: a pattern, of which the kernel makes many names", c.TUN)
	case c.RecvBuffer < 0 || c.SendBuffer < 0:
		return fmt.Errorf("udp4791: config: negative buffer size (receive %d, send %d bytes)", c.RecvBuffer, c.SendBuffer)
	}
	seen := make(map[netip.Addr]bool, len(c.Addrs))
	for _, a := range c.Addrs {
		a = a.Unmap()
		switch {
		case !a.IsValid():
			return &AddrError{Addr: a, Reason: "not an address"}
		case a.IsUnspecified():
			return &AddrError{Addr: a, Reason: "a wildcard; an adapter needs the very address that its peers send to"}
		case a.IsMulticast():
			return &AddrError{Addr: a, Reason: "a multicast group; an adapter needs a unicast address"}
		case a.Is6() && a.IsLinkLocalUnicast() && a.Zone() == "":
			return &AddrError{Addr: a, Reason: "link-local and without a zone; write " + a.String() + "%INTERFACE"}
		case c.Backend == BackendTUN && (a.Zone() != "" || a.IsLinkLocalUnicast() || a.IsLoopback()):
			return &AddrError{Addr: a, Reason: "of a scope that is not routed to a TUN link; an adapter there needs an address of its own"}
		case seen[a]:
			return &AddrError{Addr: a, Reason: "given twice"}
		}
		seen[a] = true
	}
	return nil
}

// withDefaults returns a copy with the zero values filled in and the
// addresses unmapped.
func (c Config) withDefaults() Config {
	addrs := make([]netip.Addr, len(c.Addrs))
	for i, a := range c.Addrs {
		addrs[i] = a.Unmap()
	}
	c.Addrs = addrs
	if c.Workers == 0 {
		c.Workers = 1
	}
	if c.Batch == 0 {
		c.Batch = defaultBatch
	}
	if c.RecvBuffer == 0 {
		c.RecvBuffer = defaultBuffer
	}
	if c.SendBuffer == 0 {
		c.SendBuffer = defaultBuffer
	}
	return c
}
