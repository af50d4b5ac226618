package rping

import (
	"fmt"
	"net/netip"
)

// Defaults and limits of rdma-core's program.
const (
	DefaultPort = 7174
	DefaultSize = 64
	MinSize     = 23
	MaxSize     = 65535
)

// Config says what to run. The zero value is a client without end, or a server of
// one client, of messages of DefaultSize.
type Config struct {
	// Addr is the server: of a client where it is, of a server where to listen. An
	// address that is not valid, or unspecified, is any of the adapter's; port 0 is
	// DefaultPort.
	Addr netip.AddrPort
	// Local is a client's own address; not valid: the routing table chooses.
	Local netip.Addr
	// Size is how many bytes a ping has (64), Count how many pings a client
	// makes (0: without end) and a server serves before it hangs up.
	Size, Count int
	// Check makes a client compare what comes back with what it sent.
	Check bool
	// Persistent makes a server serve one client after the other, and several at a
	// time.
	Persistent bool

	// Ready is called when a server listens, Connected when a connection is up,
	// Ping with the data of each ping, without the zero at its end, Debug with each
	// step, and Served when a client of a persistent server is gone; nil: not. A
	// persistent server calls them from several goroutines.
	Ready     func(netip.AddrPort)
	Connected func(local, peer netip.AddrPort)
	Ping      func(data []byte)
	Debug     func(step string)
	Served    func(*Report, error)
}

func (c Config) withDefaults() Config {
	if c.Size == 0 {
		c.Size = DefaultSize
	}
	if c.Addr.Port() == 0 {
		c.Addr = netip.AddrPortFrom(c.Addr.Addr(), DefaultPort)
	}
	return c
}

// Validate says what is wrong with the configuration.
func (c Config) Validate() error {
	switch c = c.withDefaults(); {
	case c.Size < MinSize || c.Size > MaxSize:
		return fmt.Errorf("rping: size %d is not in %d..%d", c.Size, MinSize, MaxSize)
	case c.Count < 0:
		return fmt.Errorf("rping: count %d is negative", c.Count)
	}
	return nil
}
