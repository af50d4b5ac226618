package pingpong

import (
	"fmt"
	"net"
	"time"

	"github.com/softroce/softroce/pkg/verbs"
)

// Service is the transport service of the run, and with it which program of
// rdma-core's the other end can be.
type Service uint8

// The services. The zero value is RC.
const (
	RC  Service = iota // ibv_rc_pingpong
	UC                 // ibv_uc_pingpong
	UD                 // ibv_ud_pingpong
	SRQ                // ibv_srq_pingpong: RC, many queue pairs with one receive queue
	numServices
)

var serviceNames = [numServices]string{"rc", "uc", "ud", "srq"}

// String is the service as the programs' names have it.
func (s Service) String() string {
	if s < numServices {
		return serviceNames[s]
	}
	return fmt.Sprintf("service %d", uint8(s))
}

// Program is the name of rdma-core's program.
func (s Service) Program() string { return "ibv_" + s.String() + "_pingpong" }

// qpType is the type of its queue pairs.
func (s Service) qpType() verbs.QPType {
	switch s {
	case UC:
		return verbs.UC
	case UD:
		return verbs.UD
	case RC, SRQ, numServices:
	}
	return verbs.RC
}

// reliable says whether a lost packet is sent again.
func (s Service) reliable() bool { return s == RC || s == SRQ }

// DefaultSize is the message of rdma-core's program when it is not told. That of
// ibv_ud_pingpong is 1024 bytes, whatever its manual says.
func (s Service) DefaultSize() int {
	if s == UD {
		return 1024
	}
	return DefaultSize
}

// Config says what to run. Its zero values stand for the defaults of rdma-core's
// programs, in parentheses. Both sides need the same service, sizes and counts.
type Config struct {
	// Service is how the message travels (RC).
	Service Service
	// QPs is the number of queue pairs with SRQ (16); the others have one.
	QPs int

	// Host is the server to connect to; empty: be the server.
	Host string
	// Port is the TCP port of the exchange (18515).
	Port int
	// Listener is what a server accepts its one client from, instead of Port.
	Listener net.Listener

	Size    int       // bytes of the message (4096, UD 1024); negative: no byte
	MTU     verbs.MTU // path MTU (1024); with UD the port's, which bounds the message
	RxDepth int       // receives posted at a time (500)
	Iters   int       // exchanges (1000), of all queue pairs together

	SL       uint8 // service level
	GIDIndex uint8 // local address
	Events   bool  // sleep on completion events instead of polling
	// Check validates what was received. The server takes that its client
	// validates too, since that is who prepares the data.
	Check bool

	// Patience is how long nothing may happen before the peer is given up
	// (10 s); negative: for ever. It does not bound the wait for a client.
	Patience time.Duration

	// Local and Remote are called with each queue pair's endpoints as soon as
	// they are known; nil: not.
	Local, Remote func(Endpoint)
	// Progress is called a few times a second from a goroutine of its own
	// with the exchanges done; nil: not.
	Progress func(done, total int)
}

// Defaults and limits of rdma-core's programs.
const (
	DefaultSize    = 4096
	DefaultMTU     = verbs.MTU(3) // 1024 bytes
	DefaultRxDepth = 500
	DefaultIters   = 1000
	DefaultQPs     = 16  // of ibv_srq_pingpong
	maxQPs         = 254 // of ibv_srq_pingpong
	// qkey is the Q_Key of both ends of ibv_ud_pingpong.
	qkey = verbs.QKey(0x11111111)
)

// Our own tuning.
const (
	// DefaultPatience is how long nothing may happen.
	DefaultPatience = 10 * time.Second
	// maxSize bounds the memory, which is twice that and more with SRQ.
	maxSize = 1 << 30
	// slotMemory is how much the receives of a shared receive queue may take
	// beyond two for each queue pair.
	slotMemory = 64 << 20
)

// withDefaults fills in what is zero.
func (c Config) withDefaults() Config {
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	def(&c.Port, Port)
	def(&c.Size, c.Service.DefaultSize())
	def(&c.RxDepth, DefaultRxDepth)
	def(&c.Iters, DefaultIters)
	if c.Service == SRQ {
		def(&c.QPs, DefaultQPs)
	}
	def(&c.QPs, 1)
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
	case c.Service >= numServices:
		return fmt.Errorf("pingpong: there is no %v", c.Service)
	case c.Port < 1 || c.Port > 65535:
		return fmt.Errorf("pingpong: port %d is not in 1..65535", c.Port)
	case c.Size > maxSize:
		return fmt.Errorf("pingpong: size %d is over the limit of %d bytes", c.Size, maxSize)
	case !c.MTU.Valid():
		return fmt.Errorf("pingpong: %v is not a path MTU", c.MTU)
	case c.RxDepth < 1:
		return fmt.Errorf("pingpong: rx-depth %d is less than 1", c.RxDepth)
	case c.Service != SRQ && c.QPs != 1:
		return fmt.Errorf("pingpong: %d queue pairs: %v has one", c.QPs, c.Service)
	case c.QPs < 1 || c.QPs > maxQPs:
		return fmt.Errorf("pingpong: %d queue pairs are not in 1..%d", c.QPs, maxQPs)
	case c.RxDepth < c.QPs:
		return fmt.Errorf("pingpong: rx-depth %d is less than the %d queue pairs, each of which needs a receive", c.RxDepth, c.QPs)
	case c.Iters < 1 || c.Iters > 1<<31-1:
		return fmt.Errorf("pingpong: %d iterations are not in 1..2147483647", c.Iters)
	case c.SL > 7:
		return fmt.Errorf("pingpong: service level %d is not in 0..7", c.SL)
	}
	return nil
}
