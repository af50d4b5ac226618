package trace

import (
	"fmt"
	"slices"
	"time"

	"github.com/softroce/softroce/internal/capture"
	"github.com/softroce/softroce/pkg/bth"
)

// String names the connection.
func (c *Conn) String() string { return fmt.Sprintf("%v %v > %v", c.Service, c.Ends[0], c.Ends[1]) }

// String names the end.
func (e End) String() string {
	if !e.Known {
		return fmt.Sprintf("%v QP ?", e.Addr)
	}
	return fmt.Sprintf("%v QP %v", e.Addr, e.QPN)
}

// analyse tells the connection's story.
func (c *Conn) analyse(t *Trace) {
	first, last := &t.Packets[c.packets[0]], &t.Packets[c.packets[len(c.packets)-1]]
	c.First, c.Last = first.At, last.At
	c.learnMTU(t)
	var ms [2]*machine
	for k := range ms {
		ms[k] = &machine{t: t, c: c, dir: &c.Dirs[k], b: k == 1, slots: make(map[int64]*slot)}
	}
	busy := make([]bool, len(c.packets)) // something is open behind the packet
	for n, i := range c.packets {
		c.take(t, ms, i)
		busy[n] = ms[0].open()+ms[1].open() > 0
	}
	for _, m := range ms {
		m.end()
	}
	if c.Service == bth.ClassRC {
		c.stalls(t, busy)
	}
	slices.SortStableFunc(c.Events, func(a, b Event) int { return a.Packet - b.Packet })
}

// take takes one packet.
func (c *Conn) take(t *Trace, ms [2]*machine, i int) {
	p := &t.Packets[i]
	asks := 0
	if p.Flags&FromB != 0 {
		asks = 1
	}
	c.noteFate(t, i, asks == 1)
	info := p.Info()
	switch {
	case info.Op == bth.OpCNP:
		c.CNPs++
		p.What = "asks the other end to send more slowly"
	case !info.Defined || p.Flags&Bad != 0:
	case c.Service == bth.ClassUD:
		c.datagram(p, &c.Dirs[asks])
	case c.Service == bth.ClassUC:
		c.unacknowledged(t, ms[asks], i)
	case info.Request:
		ms[asks].request(i)
	default:
		ms[1-asks].answer(i)
	}
}

// noteFate says what an adapter's comment, or the packet itself, says of its end.
func (c *Conn) noteFate(t *Trace, i int, fromB bool) {
	p := &t.Packets[i]
	why, dropped := p.Note.Dropped()
	if p.Got != nil {
		if w, d := p.Got.Dropped(); d {
			why, dropped = w, true
		}
	}
	e := Event{Packet: i, At: p.At, FromB: fromB, PSN: p.PSN, N: 1}
	switch {
	case dropped:
		p.Flags |= Dropped
		where := "by the adapter that got it"
		if p.Way == capture.Outbound && p.Got == nil {
			where = "before it left"
		}
		p.What = fmt.Sprintf("dropped %s: %s", where, why)
		e.Kind, e.Text = KindDropped, fmt.Sprintf("PSN %v was dropped %s: %s", p.PSN, where, why)
	case p.Bad != "":
		e.Kind, e.Text = KindBad, fmt.Sprintf("PSN %v: %s", p.PSN, p.Bad)
	default:
		return
	}
	c.Events = append(c.Events, e)
}

func (c *Conn) datagram(p *Packet, d *Dir) {
	d.Sent++
	d.Messages++
	d.Bytes += uint64(p.Len)
	p.Pos = int64(d.Sent - 1)
	d.MostPos = int64(d.Sent)
}

// unacknowledged takes a packet of an unreliable connection: what is missing is
// missing.
func (c *Conn) unacknowledged(t *Trace, m *machine, i int) {
	p := &t.Packets[i]
	m.request(i)
	if p.Flags&AfterGap != 0 {
		e := &c.Events[len(c.Events)-1]
		e.Kind, e.Text = KindLost, fmt.Sprintf("%s lost before PSN %v: the message is lost with them", plural(e.N, "packet is", "packets are"), p.PSN)
		m.dir.Lost += e.N
	}
	m.una = m.next
}

// learnMTU finds the path MTU: each packet but the last of a message is as long.
func (c *Conn) learnMTU(t *Trace) {
	for _, i := range c.packets {
		p := &t.Packets[i]
		if pos := p.Info().Position; p.Flags&Bad == 0 && (pos == bth.First || pos == bth.Middle) && p.Len > c.MTU {
			c.MTU = p.Len
		}
	}
}

// Our own idea of a stall: so many round trips, and at least so long.
const (
	stallTrips = 50
	stallLeast = time.Millisecond
	stallBlind = 10 * time.Millisecond // no round trip is known
)

// stalls finds the times in which something was open and nothing on the way.
func (c *Conn) stalls(t *Trace, busy []bool) {
	least := stallBlind
	for k := range c.Dirs {
		if rtt, ok := c.Dirs[k].RTT(); ok {
			least = min(least, max(stallLeast, stallTrips*rtt))
		}
	}
	for n := 1; n < len(c.packets); n++ {
		p := &t.Packets[c.packets[n]]
		d := p.At - t.Packets[c.packets[n-1]].At
		if !busy[n-1] || d < least {
			continue
		}
		p.Flags |= AfterStall
		c.Stalls += d
		c.Events = append(c.Events, Event{
			Kind: KindStall, Packet: c.packets[n], At: p.At, For: d, N: 1, FromB: p.Flags&FromB != 0, PSN: p.PSN,
			Text: fmt.Sprintf("nothing on the way for %s while requests were open; it went on with PSN %v, %s", short(d), p.PSN, whatNext(p)),
		})
	}
}

// whatNext says what ended a stall.
func whatNext(p *Packet) string {
	switch {
	case p.Flags&Resent != 0:
		return "which was sent again"
	case p.Flags&Request != 0:
		return "a new request"
	case p.Flags&RNR != 0:
		return "an RNR NAK"
	}
	return "an answer that came late"
}
