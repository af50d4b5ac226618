package transport

import (
	"errors"
	"fmt"

	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/cq"
	"github.com/softroce/softroce/pkg/mrtable"
	"github.com/softroce/softroce/pkg/qpstate"
	"github.com/softroce/softroce/pkg/wq"
)

// Our own tuning.
const (
	// defaultWindow is the most that a queue pair has in flight, in bytes of
	// window cost, and maxWindow the most that can be asked for.
	defaultWindow = 1 << 20
	maxWindow     = 1 << 30
	// packetCost is what a packet takes of a receiver's buffer beside its
	// payload: headers and the kernel's bookkeeping, in bytes.
	packetCost = 512
	// minWindowPackets is the least window, in packets of the path MTU.
	minWindowPackets = 2
	// maxOutstanding bounds unacknowledged PSNs. The specification allows less
	// than 2^23 (IBTA Vol 1 §9.7.1); a READ may go past this bound by its own
	// length, which the window keeps far smaller.
	maxOutstanding = 1 << 22
	// maxMTU is the largest path MTU in bytes.
	maxMTU = 4096
	// defaultRDAtomic is the limit of both max_rd_atomic attributes.
	defaultRDAtomic = 16
)

// TransmitSpace is the least length of the buffer given to PollTransmit: the
// largest packet of any service, with room to spare.
const TransmitSpace = maxMTU + 128

// A Sink takes completions. wc is valid during the call only; solicited says
// that it wakes a completion queue armed for solicited completions. Complete
// must not call back into the queue pair.
type Sink interface {
	Complete(wc *cq.WC, solicited bool)
}

// AddressHandles are a program's address handles, as one queue pair needs them.
type AddressHandles interface {
	// Path is where a datagram to queue pair remote goes, nil when the domain has
	// no such handle. It is valid until the next call; in steady state nothing is
	// allocated for it.
	Path(ah uint32, pd mrtable.PD, remote bth.QPN) *Path
}

// Path says where a queue pair's packets, or those of an address handle, go. The engine uses the addresses and
// the source port for the ICRC; the rest it hands back with each packet.
type Path struct {
	Src, Dst     bth.GID
	SrcPort      uint16 // UDP
	TrafficClass uint8
	HopLimit     uint8
	NoICRC       bool   // see QP.OmitICRC
	Near         bool   // the peer handles each packet before the next is built: nothing is read ahead
	FlowLabel    uint32 // 20 bits
	Flow         int32  // the caller's own mark
	// Peers has the windows shared by all queue pairs with this peer; its owner
	// calls TakeReady. They begin small. nil: the queue pair has windows of its
	// own, which begin at Config.Window, for a way that loses nothing.
	// An address handle's path has none.
	Peers *Peers
	// MTU is the largest datagram that an address handle takes, in bytes of
	// payload; 0: 4096. Connected queue pairs have a path MTU of their own.
	MTU uint32
}

// Config says what a queue pair is made of. Type, QPN, PD, Keys, SendCQ, RecvCQ
// and Recv are required, and AHs for UD.
type Config struct {
	Type qpstate.Type // RC, UC or UD
	QPN  bth.QPN
	PD   mrtable.PD
	Keys *mrtable.Table

	SendCQ, RecvCQ Sink
	Recv           wq.RecvSource // posted receives
	SRQ            bool          // Recv is shared: what was not taken is not this queue pair's
	AHs            AddressHandles

	Cap      qpstate.Cap
	SQSigAll bool // every send request completes with a completion

	// Slab holds copies of requests in flight; nil: one of its own.
	Slab *wq.Slab
	// Stage holds what was read ahead; nil: nothing is.
	Stage *Stage
	// Counters are shared by the queue pairs of one worker; nil: its own.
	Counters *Counters
	// MaxRDAtomic limits both max_rd_atomic and max_dest_rd_atomic; 0: 16.
	MaxRDAtomic uint8
	// Window is the most in flight, in bytes; a packet counts its payload and
	// 512. 0: 1 MiB. Less than two packets is brought up to two. The window to
	// the peer, which adapts to what the peer takes, may be smaller: see Path.
	Window int
}

// ErrConfig is a Config that misses something or asks for what is not there. It
// comes wrapped, with the field's name.
var ErrConfig = errors.New("transport: invalid config")

// Validate says whether a queue pair can be made of c. Errors wrap ErrConfig.
func (c *Config) Validate() error {
	switch {
	case c.Type != qpstate.RC && c.Type != qpstate.UC && c.Type != qpstate.UD:
		return fmt.Errorf("%w: Type %v is not supported", ErrConfig, c.Type)
	case c.QPN == 0 || c.QPN >= bth.MulticastQPN:
		return fmt.Errorf("%w: QPN %v", ErrConfig, c.QPN)
	case c.PD == 0:
		return fmt.Errorf("%w: PD 0", ErrConfig)
	case c.Keys == nil:
		return fmt.Errorf("%w: Keys is nil", ErrConfig)
	case c.SendCQ == nil || c.RecvCQ == nil:
		return fmt.Errorf("%w: SendCQ or RecvCQ is nil", ErrConfig)
	case c.Recv == nil:
		return fmt.Errorf("%w: Recv is nil", ErrConfig)
	case c.Type == qpstate.UD && c.AHs == nil:
		return fmt.Errorf("%w: AHs is nil", ErrConfig)
	case c.Window < 0:
		return fmt.Errorf("%w: Window %d", ErrConfig, c.Window)
	}
	return nil
}

// A Packet is one received packet: what the network said and the parsed bytes.
type Packet struct {
	Src, Dst   bth.GID
	TOS, TTL   uint8
	ID         uint16 // IPv4 identification, 0 when it is not known
	FlowLabel  uint32 // IPv6, 0 when it is not known
	bth.Packet        // parsed without an error, ICRC verified
}

// Transmit describes a packet that PollTransmit built.
type Transmit struct {
	Path   *Path  // the queue pair's, valid until the next Modify; with UD the address handle's, until the next call
	ICRC   uint32 // as in the packet: for IP identification 0; 0 when it is left out
	Opcode bth.Opcode
	PSN    bth.PSN
	Resend bool // a request sent before, or a replayed response
}
