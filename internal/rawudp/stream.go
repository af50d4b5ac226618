package rawudp

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// ErrNoSegmentation says that the kernel, or the interface, cuts no sends.
var ErrNoSegmentation = errors.New("rawudp: the kernel refuses segmented sends here")

// counts is what the two threads tell each other.
type counts struct {
	got  atomic.Int64 // bytes received
	_    [56]byte     // not in the line of
	stop atomic.Bool
}

// Stream measures segmented sends into a socket that takes merged buffers.
func Stream(c Config) (Result, error) {
	c, err := c.withDefaults()
	if err != nil {
		return Result{}, err
	}
	d, err := openDuo(c.Tx, c.Rx)
	if err != nil {
		return Result{}, err
	}
	defer d.close()
	if err := unix.SetsockoptInt(d.rx.fd, unix.SOL_UDP, unix.UDP_GRO, 1); err != nil {
		return Result{}, fmt.Errorf("rawudp: UDP_GRO: %w", err)
	}
	receive := newReceiver(d.rx, 1, maxDatagram+1).one
	if c.Receiver == Recvmmsg {
		receive = newReceiver(d.rx, mmsgBuffers, maxDatagram+1).many
	}
	return run(c, d, newSegmented(d, c).send, receive, c.Segments)
}

// Batches measures sendmmsg and recvmmsg of single datagrams.
func Batches(c Config) (Result, error) {
	c, err := c.withDefaults()
	if err != nil {
		return Result{}, err
	}
	d, err := openDuo(c.Tx, c.Rx)
	if err != nil {
		return Result{}, err
	}
	defer d.close()
	return run(c, d, newBatch(d, c).send, newReceiver(d.rx, c.Batch, c.Size).many, c.Batch)
}

// run lets send and receive go at each other. A send is of n packets.
func run(c Config, d duo, send func() unix.Errno, receive func() (int, unix.Errno), n int) (Result, error) {
	var k counts
	var res Result
	s := sender{c: &c, k: &k, send: send, bytes: int64(n * c.Size), window: int64(d.rx.window(c.Window, c.Size))}
	if s.window < s.bytes {
		return res, fmt.Errorf("rawudp: the receive buffer holds %d bytes, a send has %d; raise net.core.rmem_max", s.window, s.bytes)
	}
	waited, err := together(!c.Unpinned, func() (err error) {
		defer k.stop.Store(true)
		res, err = s.run()
		return err
	}, func() error { return drain(&k, d.rx.fd, receive) })
	res.Waited = waited
	return res, err
}

// drain receives until told to stop. It sleeps when nothing came for long, as
// it does only where others want the CPUs: who never sleeps is served last.
func drain(k *counts, fd int, receive func() (int, unix.Errno)) error {
	for empty := 0; !k.stop.Load(); {
		n, e := receive()
		switch {
		case e == 0:
			k.got.Add(int64(n))
			empty = 0
		case again(e):
			spin()
			if empty++; empty%spinReceives == 0 {
				doze(fd)
			}
		default:
			return fmt.Errorf("rawudp: receive: %w", e)
		}
	}
	return nil
}

// sender keeps the window full.
type sender struct {
	c             *Config
	k             *counts
	send          func() unix.Errno
	bytes, window int64
	sent, lost    int64
}

func (s *sender) run() (Result, error) {
	start := time.Now()
	begin, now, base := start.Add(s.c.Duration/10), start, int64(-1)
	for ; now.Sub(begin) < s.c.Duration; now = time.Now() {
		if base < 0 && !now.Before(begin) {
			begin, base = now, s.k.got.Load()
		}
		if !s.room() {
			continue
		}
		switch e := s.send(); {
		case e == 0:
			s.sent += s.bytes
		case again(e):
		case s.sent == 0 && (e == unix.EINVAL || e == unix.EIO || e == unix.EMSGSIZE):
			return Result{}, fmt.Errorf("%w: %w", ErrNoSegmentation, e)
		default:
			return Result{}, fmt.Errorf("rawudp: send: %w", e)
		}
	}
	size := int64(s.c.Size)
	got := s.k.got.Load() - max(base, 0)
	return Result{Packets: got / size, Lost: s.lost / size, Elapsed: now.Sub(begin)}, nil
}

// room waits for room in the window. Now and then it gives up, so that the
// caller looks at the clock, and what has not come for long is lost.
func (s *sender) room() bool {
	var since time.Time
	seen := int64(-1)
	for i := 1; ; i++ {
		got := s.k.got.Load()
		if s.sent-s.lost-got+s.bytes <= s.window {
			return true
		}
		spin()
		if i%256 != 0 {
			continue
		}
		now := time.Now()
		switch {
		case got != seen:
			seen, since = got, now
		case now.Sub(since) > stall:
			s.lost = s.sent - got
			return false
		case now.Sub(since) > spinSends: // others have the receiver's CPU
			doze(-1)
		}
	}
}
