package udp4791

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// FloorConfig says how to measure the raw floor. Zero means the default.
type FloorConfig struct {
	// Size is the UDP payload in bytes, default 4112: 4096 and the 16 bytes
	// of BTH and ICRC around them.
	Size int
	// Packets is how many datagrams to send, or round trips to make;
	// default 100,000.
	Packets int
	// Window bounds the bytes on the way, so that the receive buffer is not
	// overrun; default 256 KiB.
	Window int
}

func (c FloorConfig) withDefaults() (FloorConfig, error) {
	if c.Size == 0 {
		c.Size = 4096 + 16
	}
	if c.Packets == 0 {
		c.Packets = 100_000
	}
	if c.Window == 0 {
		c.Window = 256 << 10
	}
	if c.Size < qpnLowByte+1 || c.Size > BufferSize || c.Packets < 0 || c.Window < c.Size {
		return c, fmt.Errorf("udp4791: floor: size %d (%d to %d), packets %d, window %d (at least one packet)",
			c.Size, qpnLowByte+1, BufferSize, c.Packets, c.Window)
	}
	return c, nil
}

// FloorResult is what was measured.
type FloorResult struct {
	Packets int   // received datagrams, or round trips
	Lost    int   // sent and not received
	Bytes   int64 // received UDP payload
	Elapsed time.Duration
	// Median and P99 are round trip times, of FloorPingPong only.
	Median, P99 time.Duration
}

// floorStall is how long nothing may come, while the receiver looks and finds
// nothing, before what is missing counts as lost.
const floorStall = 20 * time.Millisecond

// floorCount is what the two sides tell each other.
type floorCount struct {
	got   atomic.Int64 // datagrams received
	empty atomic.Int64 // times the receiver found nothing
	stop  atomic.Bool
}

// Floor measures what plain sendmmsg and recvmmsg carry from tx's first
// address to rx's: two goroutines on threads of their own, headers prepared
// once, nothing looked at. It is what a benchmark compares the adapter with, in
// the same run on the same sockets. Both groups must be idle and have one
// worker; they may be of different network namespaces.
func Floor(tx, rx *Group, cfg FloorConfig) (FloorResult, error) {
	cfg, f, err := newFloor(tx, rx, cfg)
	if err != nil {
		return FloorResult{}, err
	}
	defer f.close()
	var c floorCount
	done := make(chan error, 1)
	start := time.Now()
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		done <- f.drain(&c)
	}()
	err = f.pump(cfg.Packets, &c)
	elapsed := time.Since(start)
	c.stop.Store(true)
	err = errors.Join(err, <-done)
	n := int(c.got.Load())
	return FloorResult{Packets: n, Lost: cfg.Packets - n, Bytes: int64(n) * int64(cfg.Size), Elapsed: elapsed}, err
}

// FloorPingPong measures the round trip of one datagram of cfg.Size bytes, both
// sides polling and yielding. The groups are as for Floor.
func FloorPingPong(a, b *Group, cfg FloorConfig) (FloorResult, error) {
	cfg, there, err := newFloor(a, b, cfg)
	if err != nil {
		return FloorResult{}, err
	}
	defer there.close()
	_, back, err := newFloor(b, a, cfg)
	if err != nil {
		return FloorResult{}, err
	}
	defer back.close()
	var stop atomic.Bool
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		done <- echo(there, back, &stop)
	}()
	rtt, lost, err := pings(there, back, cfg.Packets)
	stop.Store(true)
	err = errors.Join(err, <-done)
	res := FloorResult{Packets: len(rtt), Lost: lost, Bytes: int64(len(rtt)) * int64(cfg.Size)}
	for _, d := range rtt {
		res.Elapsed += d
	}
	if slices.Sort(rtt); len(rtt) > 0 {
		res.Median, res.P99 = rtt[len(rtt)/2], rtt[len(rtt)*99/100]
	}
	return res, err
}

// floor is one direction: a send socket with a batch of prepared headers, and
// the receive socket it leads to.
type floor struct {
	e, r   *Endpoint
	flow   FlowID
	fd     int
	window int // in datagrams
}

func newFloor(tx, rx *Group, cfg FloorConfig) (FloorConfig, *floor, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return cfg, nil, err
	}
	if len(tx.endpoints) != 1 || len(rx.endpoints) != 1 || len(tx.endpoints[0].recv) == 0 || len(rx.endpoints[0].recv) == 0 {
		return cfg, nil, errors.New("udp4791: floor: both groups must be open and have one worker")
	}
	f := &floor{e: tx.Endpoint(0), r: rx.Endpoint(0), window: cfg.Window / cfg.Size}
	if f.flow, _, err = f.e.OpenFlow(tx.cfg.Addrs[0], 0, 0); err != nil {
		return cfg, nil, err
	}
	f.fd = f.e.WriteFD(f.flow)
	slots := make([]SendSlot, tx.cfg.Batch)
	for i := range slots {
		slots[i] = SendSlot{Flow: f.flow, Dst: rx.cfg.Addrs[0], Buf: make([]byte, cfg.Size)}
	}
	if n, errno := f.e.prepare(f.e.lookup(f.flow), slots); n != len(slots) {
		f.close()
		return cfg, nil, &SendError{errno}
	}
	return cfg, f, nil
}

func (f *floor) close() {
	f.e.tx.release(len(f.e.tx.hdrs))
	f.e.CloseFlow(f.flow)
}

// send sends up to n prepared datagrams; 0 means that the socket is full.
func (f *floor) send(n int) (int, error) {
	k, errno := sendmmsg(f.fd, f.e.tx.hdrs[:min(n, len(f.e.tx.hdrs))])
	switch errno {
	case 0:
		return k, nil
	case unix.EAGAIN, unix.ENOBUFS, unix.EINTR:
		return 0, nil
	}
	return 0, &SendError{errno}
}

// receive takes what waits and returns the number of datagrams.
func (f *floor) receive() (int, error) {
	b := &f.r.rx
	n, errno := recvmmsg(f.r.recv[0], b.hdrs)
	switch errno {
	case 0:
		for i := range n {
			b.reset(i)
		}
		return n, nil
	case unix.EAGAIN, unix.EINTR:
		return 0, nil
	}
	return 0, recvError(f.r.g.locals[0], errno)
}

// pump sends datagrams within the window and waits until all came or are
// given up.
func (f *floor) pump(packets int, c *floorCount) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var y yielder
	sent, lost := 0, 0
	seen, empty, since := int64(-1), int64(0), time.Time{}
	for {
		got := c.got.Load()
		in := int(got) + lost
		if in >= packets {
			return nil
		}
		if n := min(packets-sent, f.window-(sent-in)); n > 0 {
			k, err := f.send(n)
			if err != nil {
				return err
			}
			if sent += k; k > 0 {
				seen = -1
				continue
			}
		}
		if got != seen {
			seen, empty, since = got, c.empty.Load(), time.Now()
		} else if c.empty.Load() > empty+1 && time.Since(since) > floorStall {
			lost, seen = sent-int(got), -1
		}
		y.yield()
	}
}

// drain receives until told to stop.
func (f *floor) drain(c *floorCount) error {
	var y yielder
	for !c.stop.Load() {
		n, err := f.receive()
		if err != nil {
			return err
		}
		if n == 0 {
			c.empty.Add(1)
			y.yield()
			continue
		}
		c.got.Add(int64(n))
	}
	return nil
}

// echo answers each datagram of there on back.
func echo(there, back *floor, stop *atomic.Bool) error {
	var y yielder
	for !stop.Load() {
		n, err := there.receive()
		if err != nil {
			return err
		}
		if n == 0 {
			y.yield()
			continue
		}
		if _, err := back.send(n); err != nil {
			return err
		}
	}
	return nil
}

// pings makes n round trips, one at a time.
func pings(there, back *floor, n int) (rtt []time.Duration, lost int, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var y yielder
	rtt = make([]time.Duration, 0, n)
	for range n {
		start := time.Now()
		if _, err := there.send(1); err != nil {
			return rtt, lost, err
		}
		for {
			k, err := back.receive()
			if err != nil {
				return rtt, lost, err
			}
			d := time.Since(start)
			if k > 0 {
				rtt = append(rtt, d)
				break
			}
			if d > floorStall {
				lost++
				break
			}
			y.yield()
		}
	}
	return rtt, lost, nil
}

// yielder gives the processor to whoever waits for it. For a goroutine locked
// to its thread runtime.Gosched costs two thread switches, but without it
// nothing else runs where GOMAXPROCS is 1: it is called now and then.
type yielder int

const goschedEvery = 32

func (y *yielder) yield() {
	if *y++; *y%goschedEvery == 0 {
		runtime.Gosched()
	}
	_, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
}
