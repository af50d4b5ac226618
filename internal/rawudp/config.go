package rawudp

import (
	"fmt"
	"net/netip"
	"time"
)

// A Side is one end of a path.
type Side struct {
	Addr netip.Addr
	// In runs a function in the side's network namespace, on the same
	// goroutine; nil: the caller's namespace.
	In func(func() error) error
}

func (s Side) in(f func() error) error {
	if s.In == nil {
		return f()
	}
	return s.In(f)
}

// A Receiver is how merged buffers are taken from the socket.
type Receiver uint8

// The receivers.
const (
	Recvmsg  Receiver = iota // one buffer a call
	Recvmmsg                 // up to eight
)

// Config says what to measure. Zero means the default, in parentheses.
type Config struct {
	Tx, Rx Side
	// Size is the UDP payload of a packet in bytes.
	Size int
	// Segments is how many packets a segmented send has (as many as fit, at
	// most 64); Batch how many datagrams a sendmmsg (32).
	Segments, Batch int
	Receiver        Receiver
	// Window bounds the bytes on the way (1 MiB, less where the receive buffer
	// cannot be made large).
	Window int
	// Duration is how long is measured, after a tenth of it that is not (0.5 s).
	Duration time.Duration
	// Block lets the ping-pong sleep in recvfrom instead of spinning.
	Block bool
	// Unpinned leaves the choice of CPUs to the kernel. Else each thread has
	// one to itself, as far as there are two.
	Unpinned bool
}

// Our own tuning.
const (
	defaultBatch    = 32
	defaultDuration = 500 * time.Millisecond
	mmsgBuffers     = 8 // merged buffers of one recvmmsg
	maxDatagram     = 65507
	maxSegments     = 64
	sendBuffer      = 8 << 20
	recvBuffer      = 16 << 20
	sourceBytes     = 1 << 20 // what is sent from, over and over
	stall           = 20 * time.Millisecond
	spinSends       = 100 * time.Microsecond // before a sender sleeps
	spinReceives    = 256                    // looks before a receiver sleeps
	dozeTime        = time.Millisecond
)

func (c Config) withDefaults() (Config, error) {
	if c.Size < 1 || c.Size > maxDatagram {
		return c, fmt.Errorf("rawudp: size %d is not in 1..%d", c.Size, maxDatagram)
	}
	if c.Segments == 0 {
		c.Segments = min(maxDatagram/c.Size, maxSegments)
	}
	if c.Batch == 0 {
		c.Batch = defaultBatch
	}
	if c.Window == 0 {
		c.Window = 1 << 20
	}
	if c.Duration == 0 {
		c.Duration = defaultDuration
	}
	if c.Segments < 1 || c.Segments*c.Size > maxDatagram || c.Batch < 1 || c.Duration < 0 || c.Window < max(c.Segments, c.Batch)*c.Size {
		return c, fmt.Errorf("rawudp: %d segments or batches of %d of %d bytes (a datagram has up to %d), window %d, duration %v",
			c.Segments, c.Batch, c.Size, maxDatagram, c.Window, c.Duration)
	}
	return c, nil
}

// Result is what came through.
type Result struct {
	Packets int64 // that came
	Lost    int64 // sent and given up, over the whole run
	Elapsed time.Duration
	// Waited is the part of the time that a thread, of the two the worse off,
	// waited for a CPU that others had: the floor is disturbed.
	Waited float64
}

// Rate is packets a second.
func (r Result) Rate() float64 {
	if r.Elapsed <= 0 {
		return 0
	}
	return float64(r.Packets) / r.Elapsed.Seconds()
}

// RTT is what round trips took.
type RTT struct {
	Trips       int
	Median, P99 time.Duration
	Waited      float64 // as of a Result
}
