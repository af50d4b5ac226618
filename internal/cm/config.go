package cm

import (
	"errors"
	"fmt"
)

// Errors of calls. Each is wrapped with what was asked.
var (
	ErrUnknownID = errors.New("no such communication id")
	ErrState     = errors.New("not in this state")
	ErrFull      = errors.New("the connection manager's table is full")
	ErrInUse     = errors.New("service id in use")
	ErrPrivate   = errors.New("private data too long")
	ErrInvalid   = errors.New("invalid argument")
)

// Config is what a Machine is made with.
type Config struct {
	// GUID is the adapter's node GUID, unique among all that it talks to: peers
	// tell duplicates and stale connections by it.
	GUID uint64
	// Secret is random: communication ids, transaction ids and first PSNs are
	// made from it, so that a restart does not repeat those before it.
	Secret [16]byte
	// AckDelay is how long this side takes to acknowledge a packet, sent as the
	// target ACK delay: 4.096 µs × 2^n. 0 is DefaultAckDelay.
	AckDelay uint8
	// MaxDepth is the most READs and atomics in flight that the adapter takes or
	// makes on a connection; a request for more is answered with it. 0 is
	// DefaultMaxDepth.
	MaxDepth uint8
	Limits   Limits
}

// Limits bound the tables. A zero field is its default.
type Limits struct {
	Conns     int // ids of all kinds, with those in time-wait; default 65,536
	HalfOpen  int // requests of peers that are not established; default 8,192
	PeerHalf  int // of those: of one address; default 2,048
	Listeners int // default 4,096
	Sends     int // MADs that wait to be sent; more are lost as in the network; default 4,096
}

// Our own tuning.
const (
	DefaultAckDelay = 15 // as kernel rxe
	DefaultMaxDepth = 128
	// DefaultBacklog is a listener's backlog when none, or a larger one, is asked for.
	DefaultBacklog = 1024
	// DefaultLifeTime is a path's packet life time, 4.096 µs × 2^n: about 0.27 s.
	DefaultLifeTime = 16
)

const maxCode = 31 // of a time as 4.096 µs × 2^n

func (c *Config) withDefaults() (Config, error) {
	d := *c
	if d.AckDelay > maxCode {
		return d, fmt.Errorf("cm: ACK delay %d is above %d: %w", d.AckDelay, maxCode, ErrInvalid)
	}
	if d.GUID == 0 {
		return d, fmt.Errorf("cm: no GUID: %w", ErrInvalid)
	}
	l := &d.Limits
	for _, v := range []struct {
		field *int
		value int
	}{{&l.Conns, 65536}, {&l.HalfOpen, 8192}, {&l.PeerHalf, 2048}, {&l.Listeners, 4096}, {&l.Sends, 4096}} {
		if *v.field < 0 {
			return d, fmt.Errorf("cm: limit %d is negative: %w", *v.field, ErrInvalid)
		}
		if *v.field == 0 {
			*v.field = v.value
		}
	}
	if d.AckDelay == 0 {
		d.AckDelay = DefaultAckDelay
	}
	if d.MaxDepth == 0 {
		d.MaxDepth = DefaultMaxDepth
	}
	return d, nil
}
