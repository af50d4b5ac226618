package trace

import (
	"fmt"
	"slices"
	"time"

	"github.com/softroce/softroce/pkg/bth"
)

// Kind is a kind of event.
type Kind string

// Kinds of events.
const (
	KindGap     Kind = "gap"       // PSNs that are not in the capture
	KindLost    Kind = "lost"      // a packet that did not arrive
	KindResend  Kind = "re-sent"   // packets that are sent again
	KindTimeout Kind = "timeout"   // the same, because no answer came
	KindRNR     Kind = "rnr"       // no receive was posted
	KindNAK     Kind = "nak"       // a request that is refused
	KindDup     Kind = "dup"       // an answer that came before
	KindStall   Kind = "stall"     // nothing on the way for long
	KindDropped Kind = "dropped"   // by an adapter, with its reason
	KindBad     Kind = "bad"       // malformed, or a wrong ICRC
	KindSilent  Kind = "no answer" // requests that are open at the end
	KindCNP     Kind = "cnp"       // congestion notification
)

// Event is something worth seeing.
type Event struct {
	Kind   Kind
	Packet int // place in Trace.Packets of the packet that shows it
	At     time.Duration
	For    time.Duration // how long it lasted, where that is known
	N      int           // packets that it is about
	FromB  bool          // it is about what B asked
	PSN    bth.PSN
	Text   string
}

// Dir is what one end asks of the other.
type Dir struct {
	Sent      int // request packets
	Bytes     uint64
	Messages  int // requests whose last packet was seen
	Resent    int // request packets that were sent before
	Missing   int // PSNs that are not in the capture
	Lost      int // request packets that did not arrive, as far as it shows
	Answers   int // packets
	ReAnswers int // answers that were given before
	Acks      int
	RNRs      int
	RNRWait   time.Duration
	SeqNAKs   int
	Refusal   string // the fatal NAK
	Timeouts  int
	Waited    time.Duration   // for them
	LostAns   int             // READ responses that did not arrive
	Open      int             // PSNs without an answer at the end
	Tries     int             // of the oldest of them
	RTTs      []time.Duration // sorted
	MostPos   int64           // one past the highest
	began     bool
}

// RTT is the middle of the round-trip times, and whether there is one.
func (d *Dir) RTT() (time.Duration, bool) {
	if len(d.RTTs) == 0 {
		return 0, false
	}
	return d.RTTs[len(d.RTTs)/2], true
}

// machine follows the PSNs of one direction.
type machine struct {
	t    *Trace
	c    *Conn
	dir  *Dir
	b    bool // B asks
	ref  bth.PSN
	next int64 // one past the newest asked
	una  int64 // oldest that is not answered
	resp int64 // next response of a READ

	slots map[int64]*slot
	gaps  []gap

	lastEnd   int64         // one past what the request packet before takes
	lastAgain bool          // it was sent before
	againAt   time.Duration // when something was sent again: round trips that span it say nothing
	trouble   Kind          // what the last answer was about, when it was trouble
	troubleAt time.Duration
	burst     *burst
	progress  time.Duration // of the last packet that brought something new
}

// slot is a PSN that was asked.
type slot struct {
	packet int // the newest that carries it
	first  int
	times  int
	n      int64 // PSNs that it takes
}

// gap is PSNs that are not in the capture.
type gap struct{ from, to int64 }

// burst is packets that are sent again in a row.
type burst struct {
	event int // in Conn.Events
	last  int64
	done  bool
}

// rel is the place of a PSN near the newest one.
func (m *machine) rel(p bth.PSN) int64 { return m.next - 1 + int64(p.Sub(m.ref)) }

// advance makes pos, which has PSN p and takes n PSNs, the newest if it is.
func (m *machine) advance(pos, n int64, p bth.PSN) {
	if pos+n > m.next {
		m.next = pos + n
		m.ref = p.Add(uint32(n - 1))
	}
}

func (m *machine) event(k Kind, i int, format string, args ...any) *Event {
	p := &m.t.Packets[i]
	m.c.Events = append(m.c.Events, Event{Kind: k, Packet: i, At: p.At, FromB: m.b, PSN: p.PSN, N: 1, Text: fmt.Sprintf(format, args...)})
	return &m.c.Events[len(m.c.Events)-1]
}

// psns is how many PSNs a request packet takes.
func (m *machine) psns(p *Packet) int64 {
	if p.ReadLen == 0 || m.c.MTU == 0 {
		return 1
	}
	const most = 1 << 23 // half of all PSNs: no more can be open
	return min(max(1, (int64(p.ReadLen)+int64(m.c.MTU)-1)/int64(m.c.MTU)), most)
}

// begin starts at the first packet of the direction that is seen.
func (m *machine) begin(p bth.PSN, at time.Duration) {
	if m.dir.began {
		return
	}
	m.dir.began, m.ref, m.progress = true, p.Add(uint32(bth.PSNMask)), at
	m.againAt = -1
}

// request takes a request packet.
func (m *machine) request(i int) {
	p := &m.t.Packets[i]
	m.begin(p.PSN, p.At)
	m.dir.Sent++
	n := m.psns(p)
	pos := m.rel(p.PSN)
	p.Pos = pos
	info := p.Info()
	known := m.slots[pos]
	switch {
	case pos < 0 && known == nil: // before the capture's first
		m.slots[pos] = &slot{packet: i, first: i, times: 1, n: n}
		m.again(i, pos, false)
	case pos >= m.next:
		if pos > m.next {
			m.missing(i, pos)
		}
		m.fresh(i, pos, n)
	case known == nil && !p.Note.Resend && m.inGap(pos):
		p.Flags |= Late
		p.What = "fills a gap: overtaken on its way, or sent again"
		m.slots[pos] = &slot{packet: i, first: i, times: 2, n: n}
		m.dir.Bytes += uint64(p.Len)
	default:
		m.again(i, pos, known != nil)
		if known == nil {
			known = &slot{first: i, n: n}
			m.slots[pos] = known
		}
		known.packet = i
		known.times++
	}
	if info.Position == bth.Last || info.Position == bth.Only || info.Position == bth.None {
		if p.Flags&Resent == 0 {
			m.dir.Messages++
		}
	}
	m.lastEnd, m.lastAgain = pos+n, p.Flags&Resent != 0
}

// fresh is a packet that was not sent before.
func (m *machine) fresh(i int, pos, n int64) {
	p := &m.t.Packets[i]
	m.slots[pos] = &slot{packet: i, first: i, times: 1, n: n}
	m.advance(pos, n, p.PSN)
	m.dir.Bytes += uint64(p.Len)
	m.burst = nil
	m.progress = p.At
}

// missing notes that the capture has a hole before packet i.
func (m *machine) missing(i int, pos int64) {
	p := &m.t.Packets[i]
	n := pos - m.next
	p.Flags |= AfterGap
	m.dir.Missing += int(n)
	m.gaps = append(m.gaps, gap{m.next, pos})
	e := m.event(KindGap, i, "%s before PSN %v not in the capture: lost before it was taken, or not captured", plural(int(n), "PSN is", "PSNs are"), p.PSN)
	e.N = int(n)
}

func (m *machine) inGap(pos int64) bool {
	return slices.ContainsFunc(m.gaps, func(g gap) bool { return g.from <= pos && pos < g.to })
}

// again is a request packet that was sent before.
func (m *machine) again(i int, pos int64, seen bool) {
	p := &m.t.Packets[i]
	p.Flags |= Resent
	m.dir.Resent++
	m.againAt = p.At
	p.What = "sent again"
	waited := p.At - m.progress
	if b := m.burst; b != nil && pos > b.last && (!b.done || m.trouble == "" && pos == m.lastEnd && waited < burstPause) {
		b.last = pos
		m.c.Events[b.event].N++
		return
	}
	m.burst = &burst{event: len(m.c.Events), last: pos}
	switch t := m.trouble; {
	case t == KindRNR:
		m.dir.RNRWait += p.At - m.troubleAt
		e := m.event(KindResend, i, "sent again from PSN %v, %s after the RNR NAK", p.PSN, short(p.At-m.troubleAt))
		e.For = p.At - m.troubleAt
	case t == KindLost:
		if s := m.slots[pos]; s != nil && seen {
			m.lose(s.packet)
		}
		m.event(KindResend, i, "sent again from PSN %v, %s after the NAK that asked for it", p.PSN, short(p.At-m.troubleAt))
	case t == KindGap:
		m.event(KindResend, i, "asked again from PSN %v, as an answer is missing", p.PSN)
	case t == "" && waited < burstPause:
		m.event(KindResend, i, "sent again from PSN %v; why cannot be seen", p.PSN)
	default:
		m.dir.Timeouts++
		m.dir.Waited += waited
		p.What = fmt.Sprintf("sent again after %s without an answer", short(waited))
		e := m.event(KindTimeout, i, "no answer for %s: sent again from PSN %v", short(waited), p.PSN)
		e.For = waited
		if s := m.slots[pos]; s != nil {
			e.Text += fmt.Sprintf(", the %s time", ordinal(s.times+1))
		}
	}
	m.trouble = ""
	m.progress = p.At
}

// lose marks a request packet that did not arrive.
func (m *machine) lose(i int) {
	p := &m.t.Packets[i]
	if p.Flags&(Lost|Dropped) != 0 {
		return
	}
	p.Flags |= Lost
	p.What = "lost: the other end asked for it again"
	m.dir.Lost++
	m.event(KindLost, i, "PSN %v was lost on its way", p.PSN)
}

// answer takes a response packet.
func (m *machine) answer(i int) {
	p := &m.t.Packets[i]
	m.dir.Answers++
	if !m.dir.began { // the request is not in the capture
		m.begin(p.PSN, p.At)
		m.advance(0, 1, p.PSN)
	}
	pos := m.rel(p.PSN)
	p.Pos = pos
	switch {
	case p.Flags&Dropped != 0: // it had no effect
		if p.Info().Op != bth.OpAck {
			p.Flags |= Response
		}
	case p.HasAETH && p.Syndrome.IsRNR():
		m.rnr(i, pos)
	case p.HasAETH && p.Syndrome == bth.NAKSequence:
		m.sequenceNAK(i, pos)
	case p.HasAETH && !p.Syndrome.IsACK():
		p.Flags |= FatalNAK
		p.What = refusalWords(p.Syndrome)
		m.dir.Refusal = p.Syndrome.String()
		m.trouble, m.troubleAt = KindNAK, p.At
		m.settle(pos-1, i, false)
		m.event(KindNAK, i, "%v for PSN %v: %s", p.Syndrome, p.PSN, refusalWords(p.Syndrome))
	case p.Info().Op == bth.OpAck:
		m.dir.Acks++
		m.ack(i, pos)
	default:
		p.Flags |= Response
		m.response(i, pos)
	}
}

// ack takes an acknowledgement.
func (m *machine) ack(i int, pos int64) {
	p := &m.t.Packets[i]
	if pos < m.una-1 || pos == m.una-1 && pos >= 0 && m.una > 0 && m.slots[pos] != nil && m.slots[pos].times < 2 {
		p.Flags |= Duplicate
		p.What = "acknowledges again what was acknowledged"
		m.dir.ReAnswers++
		return
	}
	if b := m.burst; b != nil && !b.done && pos >= b.last {
		b.done = true
		if e := &m.c.Events[b.event]; e.Kind == KindTimeout && pos > b.last {
			e.Text += "; an acknowledgement was lost, not a request: later ones are acknowledged at once"
		}
	}
	p.What = "acknowledges all up to its PSN"
	m.settle(pos, i, true)
}

// settle takes everything up to pos as answered.
func (m *machine) settle(pos int64, i int, sample bool) {
	p := &m.t.Packets[i]
	if s := m.slots[pos]; sample && s != nil && s.times == 1 && m.t.Packets[s.packet].At > m.againAt {
		m.dir.RTTs = append(m.dir.RTTs, p.At-m.t.Packets[s.packet].At)
	}
	if pos >= m.next {
		m.advance(pos, 1, p.PSN)
	}
	if pos+1 > m.una {
		m.una = pos + 1
		m.resp = max(m.resp, m.una)
		m.progress = p.At
		m.trouble = ""
	}
}

func (m *machine) rnr(i int, pos int64) {
	p := &m.t.Packets[i]
	p.Flags |= RNR
	m.dir.RNRs++
	timer := bth.RNRTimerDuration(p.Syndrome.RNRTimer())
	p.What = fmt.Sprintf("no receive is posted: try again in %s", short(timer))
	m.settle(pos-1, i, false)
	m.trouble, m.troubleAt = KindRNR, p.At
	m.event(KindRNR, i, "no receive was posted for PSN %v: the sender is to wait %s", p.PSN, short(timer))
	m.endBurst(pos)
}

// burstPause is how long a sender that sends again may pause in between without
// another cause (our own choice).
const burstPause = time.Millisecond

// endBurst notes an answer: what is sent again behind it and above the last packet
// has a cause of its own.
func (m *machine) endBurst(pos int64) {
	if m.burst != nil && pos > m.burst.last {
		m.burst.done = true
	}
}

func (m *machine) sequenceNAK(i int, pos int64) {
	p := &m.t.Packets[i]
	p.Flags |= SequenceNAK
	m.dir.SeqNAKs++
	p.What = fmt.Sprintf("misses PSN %v and asks for all from there", p.PSN)
	m.settle(pos-1, i, false)
	m.endBurst(pos)
	if m.trouble == KindRNR {
		return // what came behind the request that found no receive
	}
	m.trouble, m.troubleAt = KindLost, p.At
}

// response takes a packet that carries data of a READ or an atomic.
func (m *machine) response(i int, pos int64) {
	p := &m.t.Packets[i]
	m.endBurst(pos)
	info := p.Info()
	switch {
	case pos < m.resp:
		p.Flags |= Duplicate
		p.What = "answers again what was answered"
		m.dir.ReAnswers++
		return
	case pos > m.resp && info.Op == bth.OpReadResponse && info.Position != bth.First && info.Position != bth.Only:
		n := int(pos - m.resp)
		p.Flags |= AfterGap
		m.dir.LostAns += n
		e := m.event(KindGap, i, "%s before PSN %v not in the capture", plural(n, "READ response is", "READ responses are"), p.PSN)
		e.N = n
		m.trouble, m.troubleAt = KindGap, p.At
	}
	p.What = "data that was asked for"
	trouble := m.trouble
	m.settle(pos, i, info.Position == bth.First || info.Position == bth.Only || info.Position == bth.None)
	if trouble == KindGap { // until it is asked again
		m.trouble = trouble
	}
	m.resp = pos + 1
}

// open is how many PSNs wait for an answer.
func (m *machine) open() int { return int(max(0, m.next-m.una)) }

// end says what is open when the capture ends.
func (m *machine) end() {
	d := m.dir
	d.MostPos = m.next
	slices.Sort(d.RTTs)
	if d.Open = m.open(); d.Open == 0 || m.c.Service != bth.ClassRC || d.Sent == 0 {
		return
	}
	if s := m.slots[m.una]; s != nil {
		if s.times > 1 && m.lastAgain {
			d.Tries = s.times
			m.t.Packets[s.packet].Flags |= Last
			m.event(KindSilent, s.packet, "PSN %v was sent %d times and is not answered: the sender may have given up (retry count exceeded)", m.t.Packets[s.packet].PSN, s.times)
		}
	}
}

// refusalWords say what a fatal NAK means for the one who asked.
func refusalWords(s bth.Syndrome) string {
	switch s {
	case bth.NAKInvalidRequest:
		return "the responder cannot take this request: larger than its receive or its maximum, more READs and atomics than it allows, or not enabled on its queue pair"
	case bth.NAKRemoteAccess:
		return "the key, the address range or the rights do not fit: a wrong or ended rkey, a range outside of the region, a right that it was not registered with"
	case bth.NAKRemoteOperational:
		return "the responder failed while it carried the request out: its memory or a local error there"
	}
	return "refused with a code that is reserved"
}
