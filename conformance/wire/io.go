package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/raceorder"
)

const etherLen = 14

func (l *wired) Send(p *Packet) error { return l.send(Build(p, l.local, l.remote), p) }

func (l *wired) SendRaw(ip []byte) error { return l.send(ip, &Packet{}) }

// send sends an IP packet in the frame that p describes. What had come before is recorded before it.
func (l *wired) send(ip []byte, p *Packet) error {
	if err := closedErr("send", l.closed); err != nil {
		return err
	}
	if err := l.readAhead(); err != nil {
		return err
	}
	before := 0
	if l.vnet {
		before = vnetLen
	}
	b := l.appendFrame(make([]byte, before, before+etherLen+4+len(ip)+len(p.Extra)), ip, p)
	b = append(append(b, ip...), p.Extra...)
	f := l.zoned(described(ip, p, time.Now(), Sent))
	l.mu.Lock() // so that no answer is read before this is recorded
	defer l.mu.Unlock()
	raceorder.Send()
	var err error
	ctrl := l.raw.Write(func(fd uintptr) bool {
		_, err = unix.Write(int(fd), b)
		return !errors.Is(err, unix.EAGAIN)
	})
	if err = errors.Join(ctrl, err); err != nil {
		return fmt.Errorf("send a frame of %d bytes on %s, MTU %d: %w", len(b)-before, l.way.iface, l.way.mtu, err)
	}
	l.recorder.frame(f)
	return nil
}

// appendFrame appends the Ethernet header of a packet.
func (l *wired) appendFrame(b, ip []byte, p *Packet) []byte {
	b = append(append(b, l.way.macFor(ip)...), l.way.own...)
	if p.tagged() {
		b = be.AppendUint16(be.AppendUint16(b, unix.ETH_P_8021Q), uint16(p.VLAN))
	}
	if len(ip) > 0 && ip[0]>>4 == 6 {
		return be.AppendUint16(b, unix.ETH_P_IPV6)
	}
	return be.AppendUint16(b, unix.ETH_P_IP)
}

func (l *wired) Receive(deadline time.Time) (*Frame, bool, error) {
	defer raceorder.Receive()
	if f, err := l.next(); f != nil || err != nil {
		return f, f != nil, err
	}
	if deadline.IsZero() {
		deadline = time.Unix(0, 1) // no time, where the zero value would be all of it
	}
	if err := l.file.SetReadDeadline(deadline); err != nil {
		return nil, false, l.receiveErr(err)
	}
	var f *Frame
	var err error
	ctrl := l.raw.Read(func(uintptr) bool {
		f, err = l.next()
		return f != nil || err != nil
	})
	switch {
	case f != nil || err != nil:
		return f, f != nil, err
	case ctrl == nil || errors.Is(ctrl, os.ErrDeadlineExceeded):
		return nil, false, nil
	}
	return nil, false, l.receiveErr(ctrl)
}

// next returns the next frame that is there, nil when none is.
func (l *wired) next() (*Frame, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.waiting) == 0 {
		got, err := l.read()
		if !got || err != nil {
			return nil, err
		}
	}
	f := l.waiting[0]
	l.waiting = l.waiting[1:]
	return f, nil
}

// readAhead reads and records what has come, so that the record has it before what comes later. It leaves an error of the
// socket that lost frames to Receive.
func (l *wired) readAhead() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for n := 0; n < maxAhead && len(l.waiting) < maxWaiting; n++ {
		if got, err := l.readQueue(); !got || err != nil {
			return err
		}
	}
	return nil
}

// read is readQueue that first asks whether frames were lost.
func (l *wired) read() (bool, error) {
	var stats *unix.TpacketStats
	var err error
	ctrl := l.raw.Control(func(fd uintptr) {
		stats, err = unix.GetsockoptTpacketStats(int(fd), unix.SOL_PACKET, unix.PACKET_STATISTICS)
	})
	if err = errors.Join(ctrl, err); err != nil {
		return false, l.receiveErr(err)
	}
	if stats.Drops > 0 {
		return false, fmt.Errorf("receive on %s: %d frames lost: %w", l.way.iface, stats.Drops, ErrDropped)
	}
	return l.readQueue()
}

// readQueue reads one frame of the kernel's, if there is one, and puts what it holds behind what waits.
func (l *wired) readQueue() (got bool, err error) {
	var n, oobn int
	ctrl := l.raw.Control(func(fd uintptr) {
		n, oobn, _, _, err = unix.Recvmsg(int(fd), l.buf, l.oob, unix.MSG_DONTWAIT)
	})
	switch err = errors.Join(ctrl, err); {
	case errors.Is(err, unix.EAGAIN):
		return false, nil
	case errors.Is(err, unix.EINTR):
		return true, nil
	case err != nil:
		return false, l.receiveErr(err)
	}
	facts := factsOf(l.oob[:oobn])
	off := facts.offload
	b := l.buf[:n]
	if l.vnet {
		if n < vnetLen {
			return true, nil
		}
		off, b = offloadOf(b), b[vnetLen:]
	}
	if facts.net == 0 || facts.net > len(b) {
		return true, nil
	}
	ip := append([]byte(nil), b[facts.net:]...)
	if !l.vnet {
		off.size = guessSize(ip)
	}
	for _, p := range whole(off, ip) {
		l.take(p, facts)
	}
	return true, nil
}

func (l *wired) receiveErr(err error) error {
	if closed := closedErr("receive", l.closed); closed != nil {
		return closed
	}
	return fmt.Errorf("receive on %s: %w", l.way.iface, err)
}

// take records a packet and lets it wait, if it is of interest.
func (l *wired) take(ip []byte, facts facts) {
	f := ParseIP(ip)
	if !f.Src.IsValid() {
		return // not even an IP header
	}
	f.Time, f.Dir, f.Tagged, f.VLAN = facts.time, Received, facts.tagged, facts.tci
	if f.NotUDP && !f.isError() && !f.isFragment() {
		return
	}
	l.recorder.frame(l.zoned(f))
	l.waiting = append(l.waiting, f)
}

// zoned gives link-local addresses the link's zone, so that they equal Local and Remote.
func (l *wired) zoned(f *Frame) *Frame {
	zone := l.remote.Zone()
	for _, a := range []*netip.Addr{&f.Src, &f.Dst} {
		if zone != "" && a.Is6() && a.IsLinkLocalUnicast() {
			*a = a.WithZone(zone)
		}
	}
	return f
}

// facts are what the kernel says beside a frame.
type facts struct {
	time   time.Time
	net    int // where the IP header begins
	tagged bool
	tci    uint16

	offload offload // as far as it is told there
}

func factsOf(oob []byte) (f facts) {
	f.time = time.Now()
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return f
	}
	ne := binary.NativeEndian
	for _, m := range msgs {
		switch {
		case m.Header.Level == unix.SOL_PACKET && m.Header.Type == unix.PACKET_AUXDATA && len(m.Data) >= 20:
			f.net = int(ne.Uint16(m.Data[14:]))
			f.offload.partial = ne.Uint32(m.Data)&unix.TP_STATUS_CSUMNOTREADY != 0
			f.tagged = ne.Uint32(m.Data)&unix.TP_STATUS_VLAN_VALID != 0
			f.tci = ne.Uint16(m.Data[16:])
		case m.Header.Level == unix.SOL_SOCKET && m.Header.Type == unix.SCM_TIMESTAMPNS && len(m.Data) >= 16:
			f.time = time.Unix(int64(ne.Uint64(m.Data)), int64(ne.Uint64(m.Data[8:])))
		}
	}
	if !f.tagged {
		f.tci = 0
	}
	return f
}
