package trace

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/softroce/softroce/internal/capture"
	"github.com/softroce/softroce/pkg/bth"
)

// End is one end of a connection.
type End struct {
	Addr  netip.Addr
	QPN   bth.QPN
	Known bool // QPN is
}

// Conn is two queue pairs that talk to each other. A is the one that asked first.
type Conn struct {
	Ends    [2]End
	Service bth.Class
	Dirs    [2]Dir // what A asks of B, and B of A
	Events  []Event
	First   time.Duration
	Last    time.Duration
	MTU     int // path MTU; 0: no packet tells it
	CNPs    int // congestion notifications
	Stalls  time.Duration
	packets []int // in Trace.Packets
}

// Packets are the places of the connection's packets in Trace.Packets.
func (c *Conn) Packets() []int { return c.packets }

// flowKey tells one direction of packets: they name who they go to, and only
// datagrams say from whom.
type flowKey struct {
	src, dst netip.Addr
	qpn      bth.QPN
	from     bth.QPN // of datagrams
	datagram bool
}

// flow is the packets of one direction.
type flow struct {
	key     flowKey
	class   bth.Class
	packets []int
	conn    int // -1: none yet
	asks    bool
	fromB   bool // of its connection
}

// pairing finds which two flows are one connection.
type pairing struct {
	t     *Trace
	flows []*flow
	byKey map[flowKey]int
}

// pair makes connections of the packets. Two flows belong together, best first:
// where an adapter's comment names the sender's queue pair; where the one answers
// PSNs that the other asked; where there are no others between two hosts.
func (t *Trace) pair() {
	g := &pairing{t: t, byKey: make(map[flowKey]int)}
	for i := range t.Packets {
		g.put(i)
	}
	g.byNotes()
	g.byAnswers()
	g.byElimination()
	for i, f := range g.flows {
		if f.conn < 0 {
			g.join(i, -1)
		}
	}
	for i := range t.Packets {
		p := &t.Packets[i]
		f := g.flows[g.byKey[keyOf(p)]]
		p.Conn = f.conn
		c := t.Conns[f.conn]
		c.packets = append(c.packets, i)
		if f.fromB {
			p.Flags |= FromB
		}
		if info := p.Info(); info.Request && info.Op != bth.OpCNP {
			p.Flags |= Request
		}
	}
}

func keyOf(p *Packet) flowKey {
	return flowKey{src: p.Src.Addr(), dst: p.Dst.Addr(), qpn: p.QPN, from: p.SrcQP, datagram: p.Info().Class == bth.ClassUD}
}

func (g *pairing) put(i int) {
	p := &g.t.Packets[i]
	k := keyOf(p)
	n, ok := g.byKey[k]
	if !ok {
		n = len(g.flows)
		g.byKey[k] = n
		g.flows = append(g.flows, &flow{key: k, class: p.Info().Class, conn: -1})
	}
	f := g.flows[n]
	f.packets = append(f.packets, i)
	if p.Info().Request {
		f.asks = true
	}
	if p.Info().Op != bth.OpCNP {
		f.class = p.Info().Class
	}
}

// join makes a connection of two flows; y is -1 when the other one is not there.
func (g *pairing) join(x, y int) {
	if y >= 0 && (g.flows[x].conn >= 0 || g.flows[y].conn >= 0 || x == y) {
		return
	}
	a := g.flows[x]
	if y >= 0 && g.first(y) < g.first(x) {
		x, y = y, x
		a = g.flows[x]
	}
	c := &Conn{Service: a.class}
	c.Ends = [2]End{{Addr: a.key.src, QPN: a.key.from, Known: a.key.datagram}, {Addr: a.key.dst, QPN: a.key.qpn, Known: true}}
	a.conn = len(g.t.Conns)
	if y >= 0 {
		b := g.flows[y]
		b.conn, b.fromB = a.conn, true
		c.Ends[0].QPN, c.Ends[0].Known = b.key.qpn, true
	}
	if !a.asks { // only answers are in the capture, or they are there first
		c.Ends[0], c.Ends[1] = c.Ends[1], c.Ends[0]
		a.fromB = true // and there is no b that asks, or it were a
		if y >= 0 {
			g.flows[y].fromB = false
		}
	}
	g.t.Conns = append(g.t.Conns, c)
}

// first is the place of a flow's first request, or of its first packet behind all
// requests.
func (g *pairing) first(i int) int {
	f := g.flows[i]
	if !f.asks {
		return len(g.t.Packets) + f.packets[0]
	}
	for _, k := range f.packets {
		if g.t.Packets[k].Info().Request {
			return k
		}
	}
	return f.packets[0]
}

func (g *pairing) byNotes() {
	for i, f := range g.flows {
		if f.conn >= 0 {
			continue
		}
		back := f.key
		back.src, back.dst = f.key.dst, f.key.src
		if f.key.datagram {
			back.qpn, back.from = f.key.from, f.key.qpn
			if y, ok := g.byKey[back]; ok {
				g.join(i, y)
			}
			continue
		}
		for _, k := range f.packets {
			if p := &g.t.Packets[k]; p.Way == capture.Outbound && p.Note.HasQP {
				back.qpn = p.Note.QPN
				if y, ok := g.byKey[back]; ok {
					g.join(i, y)
				}
				break
			}
		}
	}
}

// pairSamples is how many answers of a flow are looked up (our own choice).
const pairSamples = 64

// byAnswers counts for two flows how many of the one's answers have PSNs that the
// other asked.
func (g *pairing) byAnswers() {
	type hosts struct{ src, dst netip.Addr }
	asked := make(map[hosts]map[bth.PSN][]int)
	for i, f := range g.flows {
		if f.conn >= 0 || f.key.datagram {
			continue
		}
		h := hosts{f.key.src, f.key.dst}
		if asked[h] == nil {
			asked[h] = make(map[bth.PSN][]int)
		}
		for _, k := range f.packets {
			p := &g.t.Packets[k]
			if who := asked[h][p.PSN]; p.Info().Request && !slices.Contains(who, i) && len(who) < pairSamples {
				asked[h][p.PSN] = append(who, i)
			}
		}
	}
	type couple struct{ x, y int }
	score := make(map[couple]int)
	for y, f := range g.flows {
		samples := 0
		for _, k := range f.packets {
			p := &g.t.Packets[k]
			if f.conn >= 0 || !p.HasAETH || samples == pairSamples {
				continue
			}
			samples++
			for _, x := range asked[hosts{f.key.dst, f.key.src}][p.PSN] {
				score[couple{min(x, y), max(x, y)}]++
			}
		}
	}
	best := make([]couple, 0, len(score))
	for c := range score {
		best = append(best, c)
	}
	slices.SortFunc(best, func(a, b couple) int {
		return cmp.Or(score[b]-score[a], a.x-b.x, a.y-b.y)
	})
	for _, c := range best {
		g.join(c.x, c.y)
	}
}

// byElimination joins the two flows that are left between two hosts.
func (g *pairing) byElimination() {
	type hosts struct{ src, dst netip.Addr }
	left := make(map[hosts][]int)
	for i, f := range g.flows {
		if f.conn < 0 && !f.key.datagram {
			h := hosts{f.key.src, f.key.dst}
			left[h] = append(left[h], i)
		}
	}
	for i, f := range g.flows {
		there, back := left[hosts{f.key.src, f.key.dst}], left[hosts{f.key.dst, f.key.src}]
		if f.conn < 0 && !f.key.datagram && len(there) == 1 && len(back) == 1 && g.flows[back[0]].class == f.class && f.key.src != f.key.dst {
			g.join(i, back[0])
		}
	}
}
