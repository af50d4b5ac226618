package cmtime

import (
	"fmt"
	"net/netip"
	"time"
)

// Defaults and limits.
const (
	DefaultPort    = 7471
	DefaultConns   = 100
	DefaultTimeout = 2 * time.Second
	DefaultRetries = 2
	// MaxConns bounds what the client holds at a time; the adapter's limits may be
	// lower.
	MaxConns = 60000
)

// Config says what to measure. Zero values stand for the defaults.
type Config struct {
	// Addr is the server: of a client where it is, of a server where to listen. An
	// address that is not valid, or unspecified, is any of the adapter's.
	Addr netip.AddrPort
	// Local is a client's own address; not valid: the routing table chooses.
	Local netip.Addr
	// Conns is how many connections a client makes, and after how many a server
	// ends; a server with 0 serves until its context ends.
	Conns int
	// Timeout is how long an address may take to resolve, Retries how often it is
	// tried again.
	Timeout time.Duration
	Retries int
	// Ready is called when a server listens, Progress with each step and how much of
	// it is done; nil: not.
	Ready    func(netip.AddrPort)
	Progress func(step string, done, total int)
}

func (c Config) withDefaults() Config {
	if c.Addr.Port() == 0 {
		c.Addr = netip.AddrPortFrom(c.Addr.Addr(), DefaultPort)
	}
	if c.Timeout == 0 {
		c.Timeout = DefaultTimeout
	}
	return c
}

// Validate says what is wrong with the configuration.
func (c Config) Validate() error {
	switch {
	case c.Conns < 0 || c.Conns > MaxConns:
		return fmt.Errorf("cmtime: %d connections are not in 0..%d", c.Conns, MaxConns)
	case c.Timeout < 0:
		return fmt.Errorf("cmtime: a timeout of %v is negative", c.Timeout)
	case c.Retries < 0:
		return fmt.Errorf("cmtime: %d retries are negative", c.Retries)
	}
	return nil
}
