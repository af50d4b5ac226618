package rawudp

import (
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Our own tuning.
const (
	warmTrips = 100
	maxTrips  = 1 << 20
	// lostAfter bounds the wait for one answer.
	lostAfter = 2 * time.Second
)

// PingPong measures the round trip of one datagram of c.Size bytes. Both sides
// spin on their sockets, or both sleep in recvfrom.
func PingPong(c Config) (RTT, error) {
	c, err := c.withDefaults()
	if err != nil {
		return RTT{}, err
	}
	d, err := openDuo(c.Tx, c.Rx)
	if err != nil {
		return RTT{}, err
	}
	defer d.close()
	for _, k := range []*socket{d.tx, d.rx} { // a sleeper wakes to see that it is over
		tv := unix.NsecToTimeval((50 * time.Millisecond).Nanoseconds())
		if err := unix.SetsockoptTimeval(k.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
			return RTT{}, fmt.Errorf("rawudp: SO_RCVTIMEO: %w", err)
		}
	}
	var stop atomic.Bool
	there, back := newPinger(d.tx, d.rx, c), newPinger(d.rx, d.tx, c)
	var times []time.Duration
	waited, err := together(!c.Unpinned, func() (err error) {
		defer stop.Store(true)
		times, err = there.trips(c.Duration)
		return err
	}, func() error { return back.echo(&stop) })
	if err != nil {
		return RTT{}, err
	}
	slices.Sort(times)
	return RTT{Trips: len(times), Median: times[len(times)/2], P99: times[len(times)*99/100], Waited: waited}, nil
}

// pinger is one side.
type pinger struct {
	fd    int
	buf   []byte
	sa    *byte
	salen uint32
	block bool
}

func newPinger(from, to *socket, c Config) *pinger {
	p := &pinger{fd: from.fd, buf: make([]byte, c.Size), block: c.Block}
	p.sa, p.salen = to.sockaddr()
	return p
}

func (p *pinger) send() error {
	if e := sendto(p.fd, p.buf, p.sa, p.salen); e != 0 && !again(e) {
		return fmt.Errorf("rawudp: send: %w", e)
	}
	return nil
}

// receive waits for a datagram; false when stop says so.
func (p *pinger) receive(stop func(polls int) bool) (bool, error) {
	for i := 1; ; i++ {
		e := recvfrom(p.fd, p.buf, p.block)
		switch {
		case e == 0:
			return true, nil
		case !again(e):
			return false, fmt.Errorf("rawudp: receive: %w", e)
		case stop(i):
			return false, nil
		}
		spin()
	}
}

// echo answers until told to stop.
func (p *pinger) echo(stop *atomic.Bool) error {
	for {
		ok, err := p.receive(func(int) bool { return stop.Load() })
		if err != nil || !ok {
			return err
		}
		if err := p.send(); err != nil {
			return err
		}
	}
}

// trips makes round trips, at least one, and returns how long each took.
func (p *pinger) trips(d time.Duration) ([]time.Duration, error) {
	times := make([]time.Duration, 0, maxTrips)
	last := time.Now()
	lost := func(polls int) bool { return (p.block || polls%1024 == 0) && time.Since(last) > lostAfter }
	var begin time.Time
	for i := 0; ; i++ {
		if err := p.send(); err != nil {
			return nil, err
		}
		ok, err := p.receive(lost)
		if err != nil {
			return nil, err
		}
		if !ok {
			return nil, fmt.Errorf("rawudp: no answer within %v", lostAfter)
		}
		now := time.Now()
		if i > warmTrips {
			times = append(times, now.Sub(last))
		} else {
			begin = now
		}
		last = now
		if len(times) > 0 && (now.Sub(begin) >= d || len(times) == maxTrips) {
			return times, nil
		}
	}
}
