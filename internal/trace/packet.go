package trace

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"net/netip"
	"slices"
	"time"

	"github.com/softroce/softroce/internal/capture"
	"github.com/softroce/softroce/pkg/bth"
)

// ErrNoPackets says that the file is a capture, but of nothing that is RoCEv2.
var ErrNoPackets = errors.New("no RoCEv2 packets")

// DefaultMax is how many packets are kept (our own choice): a kilobyte each.
const DefaultMax = 500_000

// Options choose what is read. The zero value is everything, up to DefaultMax.
type Options struct {
	QPNs []uint32   // only connections with one of these queue pairs at an end
	Peer netip.Addr // only connections with this address at an end
	Max  int        // packets that are kept; 0: DefaultMax
}

// Flags say what a packet was in its connection's story.
type Flags uint32

// Flags of packets.
const (
	Request     Flags = 1 << iota // travels from the requester
	FromB                         // sent by end B of its connection
	Resent                        // its PSN was sent before
	Lost                          // the other end did not get it, as what follows shows
	AfterGap                      // PSNs before it are not in the capture
	Late                          // fills a gap: overtaken on its way
	Duplicate                     // an answer that was given before
	RNR                           // the other end had no receive posted
	SequenceNAK                   // the other end misses packets
	FatalNAK                      // the other end refuses the request
	Dropped                       // an adapter dropped it, as its comment says
	Bad                           // malformed, or a wrong ICRC
	AfterStall                    // nothing was on the way for long before it
	Response                      // carries data that a READ or an atomic asked for
	Last                          // of a connection that then fell silent with requests open
)

// Packet is one RoCEv2 packet.
type Packet struct {
	Number   int           // in the file, from 1
	At       time.Duration // since the first packet
	Src, Dst netip.AddrPort
	Op       bth.Opcode
	QPN      bth.QPN // destination
	SrcQP    bth.QPN // of a datagram
	PSN      bth.PSN
	Len      int // bytes of message data
	Ack      bool
	Syndrome bth.Syndrome
	HasAETH  bool
	ReadLen  uint32 // of a READ request
	Way      capture.Direction
	Note     capture.Note  // of the one who sent it, or who captured it
	Got      *capture.Note // of the receiver, when the capture has it as well
	GotAt    time.Duration
	Headers  string // all header fields in words
	Bad      string // why it is malformed

	Flags Flags
	Conn  int   // index in Trace.Conns
	Pos   int64 // place of its PSN among those of its requester, from 0 at the first one seen
	What  string
}

// Info is what the specification knows of the opcode.
func (p *Packet) Info() *bth.OpcodeInfo { return p.Op.Info() }

// Trace is a capture and its stories.
type Trace struct {
	Packets  []Packet
	Conns    []*Conn
	Start    time.Time // of the first packet; zero when the file does not say
	Length   time.Duration
	Frames   int // in the file
	Left     int // RoCEv2 packets that were over Options.Max
	Unread   int // cut too short, or malformed before their BTH ends
	Warnings []string
}

// Read reads a pcap or pcapng and tells its stories. A file that is broken behind
// its first packets gives those, with a warning. Errors: ErrNoPackets, and those of
// capture.Decode.
func Read(r io.Reader, o Options) (*Trace, error) {
	if o.Max <= 0 {
		o.Max = DefaultMax
	}
	t := &Trace{}
	g := gatherer{t: t, o: &o, twins: make(map[uint64]int)}
	frames, err := capture.DecodeAll(r, g.add)
	t.Frames = frames
	if len(t.Packets) == 0 {
		switch {
		case err != nil:
			return nil, err
		case t.Unread > 0:
			return nil, fmt.Errorf("%w that can be read: all %d are cut before their headers end (capture with a larger snap length, as tcpdump -s 128)", ErrNoPackets, t.Unread)
		}
		return nil, fmt.Errorf("%w among the %d frames of the capture: RoCEv2 is UDP to port 4791", ErrNoPackets, frames)
	}
	if err != nil {
		t.warn("The file is not read to its end: %v. What comes before is shown.", err)
	}
	if t.Left > 0 {
		t.warn("Only the first %d packets are shown, %d more are left out: choose a queue pair or a shorter capture.", len(t.Packets), t.Left)
	}
	if t.Unread > 0 {
		t.warn("%d packets are cut or malformed before their headers end and are left out.", t.Unread)
	}
	if g.lost > 0 {
		t.warn("The capture itself lost %d packets: gaps may be its own.", g.lost)
	}
	t.orderDropped()
	t.pair()
	t.choose(&o)
	if len(t.Packets) == 0 {
		return nil, fmt.Errorf("%w of the chosen queue pairs or peer", ErrNoPackets)
	}
	for _, c := range t.Conns {
		c.analyse(t)
	}
	return t, nil
}

func (t *Trace) warn(format string, args ...any) {
	t.Warnings = append(t.Warnings, fmt.Sprintf(format, args...))
}

// gatherer takes packets in.
type gatherer struct {
	t     *Trace
	o     *Options
	twins map[uint64]int // packets that left, by their bytes: they may arrive in the same file
	roce  bth.Packet
	buf   []byte
	lost  uint64
}

// add takes a record in. A packet that left and arrived at two queue pairs of one
// adapter is one packet here.
func (g *gatherer) add(r capture.Record) {
	t := g.t
	p := Packet{
		Number: r.Number, Src: r.Src, Dst: r.Dst, Op: r.Opcode, QPN: r.QPN, PSN: r.PSN,
		Way: r.Way, Note: capture.ParseNote(r.Comment), Bad: r.Malformed,
	}
	g.lost += p.Note.Lost
	if !g.parse(&r, &p) {
		t.Unread++
		return
	}
	if t.Start.IsZero() {
		t.Start = r.Time
	}
	if !r.Time.IsZero() {
		p.At = r.Time.Sub(t.Start)
	}
	key := g.hash(&r)
	if i, ok := g.twins[key]; ok && r.Way == capture.Inbound {
		n := p.Note
		t.Packets[i].Got, t.Packets[i].GotAt = &n, p.At
		delete(g.twins, key)
		return
	}
	if len(t.Packets) >= g.o.Max {
		t.Left++
		return
	}
	if r.Way == capture.Outbound {
		g.twins[key] = len(t.Packets)
	}
	t.Length = max(t.Length, p.At)
	t.Packets = append(t.Packets, p)
}

func (g *gatherer) hash(r *capture.Record) uint64 {
	h := fnv.New64a()
	a, b := r.Src.Addr().As16(), r.Dst.Addr().As16()
	for _, s := range [][]byte{a[:], b[:], r.Raw} {
		_, _ = h.Write(s) // never fails
	}
	return h.Sum64()
}

// parse reads the headers. Of a packet that the capture cut, what is missing is
// filled with zeros, so that lengths are right; its headers must be whole.
func (g *gatherer) parse(r *capture.Record, p *Packet) bool {
	raw := r.Raw
	if r.Name == "" || len(raw) < r.Opcode.Info().HeaderLen {
		return false
	}
	if r.Cut && r.Wire > len(raw) {
		g.buf = append(g.buf[:0], raw...)
		g.buf = append(g.buf, make([]byte, r.Wire-len(raw))...)
		raw = g.buf
	}
	if g.roce.Parse(raw) != nil {
		return false
	}
	h := &g.roce
	p.Len, p.Ack = len(h.Payload), h.BTH().AckReq()
	if a := h.AETH(); a != nil {
		p.Syndrome, p.HasAETH = a.Syndrome(), true
	}
	if e := h.RETH(); e != nil && h.Info.Op == bth.OpReadRequest {
		p.ReadLen = e.Length()
	}
	if d := h.DETH(); d != nil {
		p.SrcQP = d.SrcQP()
	}
	p.Headers = headersOf(r, p)
	if r.ICRC == capture.ICRCWrong && p.Bad == "" {
		p.Bad = fmt.Sprintf("wrong ICRC: %08x instead of %08x", r.GotICRC, r.WantICRC)
	}
	if p.Bad != "" {
		p.Flags |= Bad
	}
	if _, dropped := p.Note.Dropped(); dropped {
		p.Flags |= Dropped
	}
	return true
}

// headersOf lists all that the headers say, a blank between two fields.
func headersOf(r *capture.Record, p *Packet) string {
	s := fmt.Sprintf("ip.src=%v ip.dst=%v ip.tos=0x%02x ip.ttl=%d udp.srcport=%d udp.dstport=%d bth.opcode=0x%02x bth.destqp=%v bth.psn=%v %s payload=%d pad=%d",
		r.Src.Addr(), r.Dst.Addr(), r.TOS, r.TTL, r.Src.Port(), r.Dst.Port(), uint8(r.Opcode), r.QPN, r.PSN, r.Fields, p.Len, r.Pad)
	switch r.ICRC {
	case capture.ICRCRight:
		s += fmt.Sprintf(" icrc=%08x(right)", r.GotICRC)
	case capture.ICRCWrong:
		s += fmt.Sprintf(" icrc=%08x(WRONG, want %08x)", r.GotICRC, r.WantICRC)
	case capture.ICRCUnchecked:
		s += " icrc=unchecked"
	}
	if r.Cut {
		s += " cut=yes"
	}
	return s
}

// orderDropped puts packets in their place that an adapter dropped before they left:
// it notes them when they are made, and the others of the same turn, which have the
// same time, when they went.
func (t *Trace) orderDropped() {
	gone := func(p *Packet) bool { return p.Way == capture.Outbound && p.Flags&Dropped != 0 }
	for from := 0; from < len(t.Packets); {
		to, dropped := from, []Packet(nil)
		for ; to < len(t.Packets) && t.Packets[to].At == t.Packets[from].At; to++ {
			if gone(&t.Packets[to]) {
				dropped = append(dropped, t.Packets[to])
			}
		}
		if run := t.Packets[from:to]; len(dropped) > 0 {
			rest := slices.DeleteFunc(slices.Clone(run), func(p Packet) bool { return gone(&p) })
			merge(run, rest, dropped)
		}
		from = to
	}
}

// merge fills run with rest, and each of dropped before the first of its flow that
// has a later PSN. Those of a flow were made in the order of their PSNs.
func merge(run, rest, dropped []Packet) {
	type flow struct {
		key     flowKey
		request bool
	}
	flowOf := func(p *Packet) flow { return flow{keyOf(p), p.Info().Request} }
	waiting := make(map[flow][]int) // in dropped
	for i := range dropped {
		f := flowOf(&dropped[i])
		waiting[f] = append(waiting[f], i)
	}
	out := run[:0]
	placed := make([]bool, len(dropped))
	for i := range rest {
		p := &rest[i]
		f := flowOf(p)
		w := waiting[f]
		for len(w) > 0 && dropped[w[0]].PSN.Before(p.PSN) {
			out = append(out, dropped[w[0]])
			placed[w[0]] = true
			w = w[1:]
		}
		waiting[f] = w
		out = append(out, *p)
	}
	for i := range dropped {
		if !placed[i] {
			out = append(out, dropped[i]) // in run's memory
		}
	}
}

// choose leaves the connections that were asked for.
func (t *Trace) choose(o *Options) {
	if len(o.QPNs) == 0 && !o.Peer.IsValid() {
		return
	}
	keep := func(c *Conn) bool {
		ok := len(o.QPNs) == 0
		for _, e := range c.Ends {
			ok = ok || e.Known && slices.Contains(o.QPNs, uint32(e.QPN))
		}
		return ok && (!o.Peer.IsValid() || c.Ends[0].Addr == o.Peer || c.Ends[1].Addr == o.Peer)
	}
	var conns []*Conn
	where := make(map[int]int)
	for i, c := range t.Conns {
		if keep(c) {
			where[i] = len(conns)
			c.packets = nil
			conns = append(conns, c)
		}
	}
	t.Conns = conns
	var packets []Packet
	for _, p := range t.Packets {
		if k, ok := where[p.Conn]; ok {
			p.Conn = k
			conns[k].packets = append(conns[k].packets, len(packets))
			packets = append(packets, p)
		}
	}
	t.Packets = packets
}
