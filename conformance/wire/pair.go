package wire

import (
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"
)

// maxWaiting bounds what waits to be received at an end of a Pair, or what a link on sockets has read ahead.
const maxWaiting = 1 << 16

// pairMTU is that of a Pair: a packet of the largest path MTU fits.
const pairMTU = 4096 + 256

// Addresses of a Pair.
var (
	pair4 = [2]netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")}
	pair6 = [2]netip.Addr{netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2")}
)

// Pair returns two links in memory that are each other's peer: what one sends, the other receives, with nothing between them
// that judges it (Frame.Deliverable says what a host would). They are IPv4; Pair6 is the like over IPv6.
func Pair() (a, b Link) { return newPair(pair4) }

// Pair6 is Pair over IPv6.
func Pair6() (a, b Link) { return newPair(pair6) }

func newPair(addrs [2]netip.Addr) (Link, Link) {
	a := &memory{local: addrs[0], remote: addrs[1], in: make(chan *Frame, maxWaiting), closed: make(chan struct{})}
	b := &memory{local: addrs[1], remote: addrs[0], in: make(chan *Frame, maxWaiting), closed: make(chan struct{})}
	a.peer, b.peer = b, a
	return a, b
}

// memory is an end of a Pair.
type memory struct {
	local, remote netip.Addr
	peer          *memory
	in            chan *Frame
	recorder      recorder
	closing       sync.Once
	closed        chan struct{}
}

func (m *memory) Local() netip.Addr     { return m.local }
func (m *memory) Remote() netip.Addr    { return m.remote }
func (m *memory) MTU() int              { return pairMTU }
func (m *memory) Record(f func(*Frame)) { m.recorder.set(f) }

func (m *memory) Send(p *Packet) error {
	return m.send(Build(p, m.local, m.remote), p)
}

func (m *memory) SendRaw(ip []byte) error { return m.send(ip, &Packet{}) }

func (m *memory) send(ip []byte, p *Packet) error {
	if err := closedErr("send", m.closed); err != nil {
		return err
	}
	if len(ip) > pairMTU {
		return fmt.Errorf("send a packet of %d bytes: the link's MTU is %d", len(ip), pairMTU)
	}
	now := time.Now()
	f := described(ip, p, now, Sent)
	m.recorder.mu.Lock() // so that no answer is recorded before this is
	defer m.recorder.mu.Unlock()
	select {
	case m.peer.in <- described(ip, p, now, Received):
		m.recorder.locked(f)
		return nil
	default:
		return fmt.Errorf("send: %d packets wait at the peer", maxWaiting)
	}
}

// described returns the frame that has ip and what p says of Ethernet's part.
func described(ip []byte, p *Packet, now time.Time, dir Direction) *Frame {
	f := ParseIP(append(append([]byte(nil), ip...), p.Extra...))
	f.Time, f.Dir = now, dir
	f.Tagged, f.VLAN = p.tagged(), uint16(p.VLAN)
	return f
}

func (p *Packet) tagged() bool { return p.Tagged || p.VLAN != 0 }

func (m *memory) Receive(deadline time.Time) (*Frame, bool, error) {
	if err := closedErr("receive", m.closed); err != nil {
		return nil, false, err
	}
	select {
	case f := <-m.in:
		return m.received(f)
	default:
	}
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	select {
	case f := <-m.in:
		return m.received(f)
	case <-timer.C:
		return nil, false, nil
	case <-m.closed:
		return nil, false, closedErr("receive", m.closed)
	}
}

func (m *memory) received(f *Frame) (*Frame, bool, error) {
	m.recorder.frame(f)
	return f, true, nil
}

func (m *memory) Close() error {
	m.closing.Do(func() { close(m.closed) })
	return nil
}

// closedErr is net.ErrClosed once closed is.
func closedErr(op string, closed chan struct{}) error {
	select {
	case <-closed:
		return fmt.Errorf("%s on a link: %w", op, net.ErrClosed)
	default:
		return nil
	}
}

// recorder hands frames to whoever records them, one at a time.
type recorder struct {
	mu sync.Mutex
	to func(*Frame)
}

func (r *recorder) set(f func(*Frame)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.to = f
}

func (r *recorder) frame(f *Frame) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.locked(f)
}

// locked is frame for whoever holds mu.
func (r *recorder) locked(f *Frame) {
	if r.to != nil {
		r.to(f)
	}
}
