package transport_test

import (
	"testing"
	"time"

	"github.com/softroce/softroce/internal/simnet"
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/qpstate"
	"github.com/softroce/softroce/pkg/transport"
	"github.com/softroce/softroce/pkg/wq"
)

// A fleet is many queue pairs between two hosts on one network, served as an
// adapter's worker serves them: those that may have something to send stand in
// line, and each gets a share of bytes in its turn.
type fleet struct {
	t     testing.TB
	net   *simnet.Net
	hosts [2]fleetHost
	op    wq.Opcode
	size  int // of a message
	done  []uint64
	total uint64 // bytes of completed messages
	deaf  int
	posts int
	look  time.Time // when to look at the timers next
	twin  *twin     // nil: nothing is compared
}

type fleetHost struct {
	ends   []*end
	active []*end
	listed map[*end]bool
	peers  *transport.Peers
}

// fleetConfig is what a test asks for.
type fleetConfig struct {
	net    simnet.Config
	qps    int
	op     wq.Opcode
	size   int
	alone  bool // each queue pair has a window of its own
	window int
	mtu    bth.MTU
	deaf   int  // so many of the second host's queue pairs get nothing,
	noTime bool // and nobody has an ACK timer
}

const (
	fleetTurn = 64 << 10
	fleetTick = 200 * time.Microsecond // how exactly timers are served
)

func newFleet(t testing.TB, c fleetConfig) *fleet {
	f := &fleet{t: t, net: simnet.New(c.net, start), look: start, op: c.op, size: c.size, deaf: c.deaf, done: make([]uint64, c.qps)}
	o := options{mtu: bth.MTU4096, memSize: max(c.size, 1<<12), window: c.window, timeout: 14, noTimeout: c.noTime}
	if c.mtu != 0 {
		o.mtu = c.mtu
	}
	if !c.alone {
		o.peers = [2]*transport.Peers{transport.NewPeers(0), transport.NewPeers(0)}
	}
	o = o.withDefaults()
	for h := range f.hosts {
		f.hosts[h].peers, f.hosts[h].listed = o.peers[h], make(map[*end]bool)
	}
	for i := range c.qps {
		a, b := newEnd(t, bth.QPN(2*i+2), 1, o), newEnd(t, bth.QPN(2*i+3), 2, o)
		a.to(qpstate.RTS, b, o)
		b.to(qpstate.RTS, a, o)
		for h, e := range []*end{a, b} {
			e.qp.OmitICRC(true)
			f.hosts[h].ends = append(f.hosts[h].ends, e)
		}
	}
	return f
}

// end is the queue pair of a number on a host.
func (f *fleet) end(h int, qpn bth.QPN) *end { return f.hosts[h].ends[(int(qpn)-2)/2] }

func (h *fleetHost) wake(e *end) {
	if !h.listed[e] {
		h.listed[e] = true
		h.active = append(h.active, e)
	}
}

// keepPosted keeps two messages in the send queue of each of the first host's
// queue pairs.
func (f *fleet) keepPosted(e *end, i int) {
	for k := range e.sendCQ.wcs {
		if e.sendCQ.wcs[k].Status != 0 {
			continue
		}
		f.done[i] += uint64(f.size)
		f.total += uint64(f.size)
	}
	for k := range e.sendCQ.wcs {
		if s := e.sendCQ.wcs[k].Status; i < f.deaf {
			continue
		} else if s != 0 {
			f.t.Fatalf("queue pair %d: %s", i, wcText(&e.sendCQ.wcs[k]))
		}
		f.post(e, i)
	}
	e.sendCQ.take0()
}

func (f *fleet) post(e *end, i int) {
	peer := f.hosts[1].ends[i]
	wr := wq.SendWR{Opcode: f.op, RemoteAddr: memBase, RKey: peer.mr.RKey(), Flags: wq.SendSignaled, SGList: []wq.SGE{e.sge(0, f.size)}}
	if err := e.qp.PostSend(f.net.Now(), &wr); err != nil {
		f.t.Fatal(err)
	}
	f.hosts[0].wake(e)
}

// transmit serves a host's line until nobody has anything to send.
func (f *fleet) transmit(h int) {
	host, now := &f.hosts[h], f.net.Now()
	for {
		if host.peers != nil {
			for q := host.peers.TakeReady(); q != nil; q = host.peers.TakeReady() {
				host.wake(f.end(h, q.QPN()))
			}
		}
		if len(host.active) == 0 {
			return
		}
		e := host.active[0]
		host.active = host.active[1:]
		host.listed[e] = false
		for sent := 0; ; {
			n, _ := e.qp.PollTransmit(now, e.buf[:])
			if n == 0 {
				f.twin.note(e)
				break
			}
			f.net.Send(h, 1-h, e.buf[:n])
			f.twin.built(e, e.buf[:n])
			sent += f.twin.pollRun(e, now, n, fleetTurn-sent-n, func(b []byte) { f.net.Send(h, 1-h, b) })
			if sent += n; sent >= fleetTurn {
				host.wake(e)
				break
			}
		}
	}
}

// run lets the fleet work until bytes have been acknowledged in all, or the time
// is over. It returns the virtual time that it took.
func (f *fleet) run(bytes uint64, limit time.Duration) time.Duration {
	f.t.Helper()
	begin, from := f.net.Now(), f.total
	if f.posts == 0 {
		for i, e := range f.hosts[0].ends {
			f.posts++
			f.post(e, i)
			f.post(e, i)
		}
	}
	for f.total-from < bytes && f.net.Now().Sub(begin) < limit {
		for h := range f.hosts {
			f.transmit(h)
		}
		at, ok := f.net.Next()
		if !ok || f.look.Before(at) {
			at = f.look
		}
		f.net.Advance(at)
		f.deliver()
		if !f.net.Now().Before(f.look) {
			f.timeouts()
			f.look = f.net.Now().Add(fleetTick)
		}
	}
	return f.net.Now().Sub(begin)
}

func (f *fleet) deliver() {
	for {
		d, ok := f.twin.take(f.net)
		if !ok {
			return
		}
		var p bth.Packet
		if err := p.Parse(d.Data); err != nil {
			f.t.Fatal(err)
		}
		e := f.end(d.To, p.BTH().DestQP())
		if d.To == 1 && int(e.qpn) < 2*f.deaf+2 {
			continue
		}
		e.parsed.Src, e.parsed.Dst, e.parsed.Packet = gid4(byte(1+d.From)), e.gid, p
		v := e.qp.HandlePacket(f.net.Now(), &e.parsed)
		f.twin.handled(e, d.Data, v)
		f.twin.takeRun(f.net, e, &d, v, true)
		f.hosts[d.To].wake(e)
		if d.To == 0 {
			f.keepPosted(e, (int(e.qpn)-2)/2)
		}
	}
}

func (f *fleet) timeouts() {
	now := f.net.Now()
	for h := range f.hosts {
		for i, e := range f.hosts[h].ends {
			if d := e.qp.NextTimeout(); !d.IsZero() && !d.After(now) {
				e.qp.HandleTimeout(now)
				f.hosts[h].wake(e)
				if h == 0 {
					f.keepPosted(e, i)
				}
			}
		}
	}
}

// fleetCounts are sums over all queue pairs of the first host.
type fleetCounts struct{ sent, resent, timeouts, naks uint64 }

func (f *fleet) counts() (c fleetCounts) {
	for _, e := range f.hosts[0].ends {
		s := e.qp.Stats()
		c.sent += s.SentPkts
		c.resent += s.Retransmits
		c.timeouts += s.Timeouts
		c.naks += s.SeqNAKsRcvd
	}
	return c
}
