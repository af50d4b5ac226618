package pingpong

import (
	"fmt"
	"net"
	"time"

	"github.com/softroce/softroce/pkg/verbs"
)

// Config says what to run. Its zero values stand for the defaults of
// ibv_rc_pingpong, in parentheses. Both sides need the same sizes and counts.
type Config struct {
	// Host is the server to connect to; empty: be the server.
	Host string
	// Port is the TCP port of the exchange (18515).
	Port int
	// Listener is what a server accepts its one client from, instead of Port.
	Listener net.Listener

	Size    int       // bytes of the message (4096); negative: no byte
	MTU     verbs.MTU // path MTU (1024)
	RxDepth int       // receives posted at a time (500)
	Iters   int       // exchanges (1000)

	SL       uint8 // service level
	GIDIndex uint8 // local address
	Events   bool  // sleep on completion events instead of polling
	// Check validates what was received. The server takes that its client
	// validates too, since that is who prepares the data.
	Check bool

	// Patience is how long nothing may happen before the peer is given up
	// (10 s); negative: for ever. It does not bound the wait for a client.
	Patience time.Duration

	// Local and Remote are called with the endpoints as soon as they are
	// known; nil: not.
	Local, Remote func(Endpoint)
	// Progress is called a few times a second from a goroutine of its own
	// with the exchanges done; nil: not.
	Progress func(done, total int)
}

// Defaults of ibv_rc_pingpong.
const (
	DefaultSize    = 4096
	DefaultMTU     = verbs.MTU(3) // 1024 bytes
	DefaultRxDepth = 500
	DefaultIters   = 1000
)

// Our own tuning.
const (
	// DefaultPatience is how long nothing may happen.
	DefaultPatience = 10 * time.Second
	// maxSize bounds the memory, which is twice that.
	maxSize = 1 << 30
)

// withDefaults fills in what is zero.
func (c Config) withDefaults() Config {
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	def(&c.Port, Port)
	def(&c.Size, DefaultSize)
	def(&c.RxDepth, DefaultRxDepth)
	def(&c.Iters, DefaultIters)
	c.Size = max(c.Size, 0)
	if c.MTU == 0 {
		c.MTU = DefaultMTU
	}
	if c.Patience == 0 {
		c.Patience = DefaultPatience
	}
	return c
}

// Validate says what is wrong with the configuration.
func (c Config) Validate() error {
	switch c = c.withDefaults(); {
	case c.Port < 1 || c.Port > 65535:
		return fmt.Errorf("pingpong: port %d is not in 1..65535", c.Port)
	case c.Size > maxSize:
		return fmt.Errorf("pingpong: size %d is over the limit of %d bytes", c.Size, maxSize)
	case !c.MTU.Valid():
		return fmt.Errorf("pingpong: %v is not a path MTU", c.MTU)
	case c.RxDepth < 1:
		return fmt.Errorf("pingpong: rx-depth %d is less than 1", c.RxDepth)
	case c.Iters < 1 || c.Iters > 1<<31-1:
		return fmt.Errorf("pingpong: %d iterations are not in 1..2147483647", c.Iters)
	case c.SL > 7:
		return fmt.Errorf("pingpong: service level %d is not in 0..7", c.SL)
	}
	return nil
}
