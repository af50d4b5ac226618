package nic

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/softroce/softroce/internal/capture"
	"github.com/softroce/softroce/internal/impair"
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/udp4791"
)

// Packets pass the adapter's rules (internal/impair) where a batch is sent, where
// a receive buffer was read, and between two queue pairs of this adapter. Where
// there are none that is one look a batch. Where there are some, each packet goes
// by itself, and what is to wait is copied into a queue of its worker.

// maxDelayed bounds the packets that wait on one worker, in each direction; our
// own tuning.
const maxDelayed = 4096

// impairments are the rules of an adapter. Its workers share them, so that the
// third packet is the third of all.
type impairments struct {
	on  atomic.Bool // there are rules
	mu  sync.Mutex
	set impair.Set
}

// impaired is what a worker knows of rules, and what waits on it.
type impaired struct {
	on    bool // in this turn
	out   impair.Queue[delayedOut]
	in    impair.Queue[delayedIn]
	batch []outgoing // scratch
}

// delayedOut is a packet that waits to be sent, delayedIn one that waits to be
// received.
type delayedOut struct {
	packet outgoing
	bytes  []byte
}

type delayedIn struct {
	meta  udp4791.RecvMeta
	bytes []byte
}

// judge asks the rules about a packet.
func (w *worker) judge(p *impair.Packet) impair.Verdict {
	m := &w.a.impair
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.set.Judge(w.now, p)
}

// lookAtRules begins a turn: it takes note of whether there are rules, and lets go
// what has waited long enough.
func (w *worker) lookAtRules() int {
	m := &w.impaired
	if on := w.a.impair.on.Load(); on != m.on {
		m.on = on
		w.batch.segments = !on && w.a.group.Segments()
		m.out.Limit, m.in.Limit = maxDelayed, maxDelayed
		w.setICRC()
	}
	if m.out.Len() == 0 && m.in.Len() == 0 {
		return 0
	}
	return w.letGoIn() + w.letGoOut()
}

// nextDelayed is when something that waits is due.
func (w *worker) nextDelayed() (time.Time, bool) {
	out, any := w.impaired.out.Next()
	if in, ok := w.impaired.in.Next(); ok && (!any || in.Before(out)) {
		return in, true
	}
	return out, any
}

// outStream and inStream tell packets apart that may be put behind each other:
// those of one queue pair and direction.
func outStream(p *outgoing) uint64 { return uint64(p.q.qpn) }

func inStream(b []byte) uint64 {
	if len(b) < bth.BTHLen {
		return 0
	}
	return uint64(bth.BTH(b).DestQP())
}

// impairBatch has the packets of the batch judged that were not yet, and puts into
// the batch what leaves now.
func (w *worker) impairBatch() {
	b, m := &w.batch, &w.impaired
	m.batch = m.batch[:0]
	for i := b.sent; i < len(b.packets); i++ {
		p := &b.packets[i]
		if p.judged {
			m.batch = append(m.batch, *p)
			continue
		}
		p.judged = true
		bytes := b.bytes(p)
		v := w.judge(&impair.Packet{Sent: true, Peer: p.route.dst, Local: p.q.qpn, Remote: destQP(bytes), Bytes: bytes})
		if v.Drop {
			w.lostOut(p, v.Rule)
			continue
		}
		v.Apply(bytes)
		for range 1 + v.Copies {
			if v.Held() {
				w.delayOut(p, bytes, &v)
				continue
			}
			m.batch = append(m.batch, *p)
			m.out.Passed(w.now, outStream(p))
			w.takeOut()
		}
	}
	clear(b.packets[b.sent:])
	b.packets = append(b.packets[:b.sent], m.batch...)
	clear(m.batch)
}

func destQP(b []byte) bth.QPN {
	if len(b) < bth.BTHLen {
		return 0
	}
	return bth.BTH(b).DestQP()
}

// lostOut captures a packet that a rule dropped before it was sent: it left the
// engine, and nobody else sees it again.
func (w *worker) lostOut(p *outgoing, rule int) {
	if tap := w.a.tap.Load(); tap != nil {
		s := w.sending(p, w.batch.bytes(p))
		s.note.Verdict = capture.DroppedBecause(impairedBy(rule))
		w.write(tap, s)
	}
}

// impairedBy is the reason in a capture's comment of a drop on purpose.
func impairedBy(rule int) string { return fmt.Sprintf("%v by rule %d", DropImpaired, rule) }

func (w *worker) delayOut(p *outgoing, bytes []byte, v *impair.Verdict) {
	d := delayedOut{packet: *p, bytes: append([]byte(nil), bytes...)}
	if !w.impaired.out.Push(w.now.Add(v.Delay), outStream(p), v.Behind, d) {
		w.stats.ImpairFull++
	}
}

// takeOut puts packets that have waited behind those that leave now, as far as
// there is room.
func (w *worker) takeOut() (n int) {
	b, m := &w.batch, &w.impaired
	for !b.full() && len(m.batch) < batchPackets {
		d, ok := m.out.Pop(w.now)
		if !ok {
			break
		}
		d.packet.at = b.used
		b.used += copy(b.room(), d.bytes)
		m.batch = append(m.batch, d.packet)
		n++
	}
	return n
}

// letGoOut moves packets that have waited into the batch.
func (w *worker) letGoOut() int {
	m := &w.impaired
	m.batch = m.batch[:0]
	n := w.takeOut()
	w.batch.packets = append(w.batch.packets, m.batch...)
	clear(m.batch)
	return n
}

// letGoIn has packets received that have waited.
func (w *worker) letGoIn() (n int) {
	for ; n < batchPackets; n++ {
		d, ok := w.impaired.in.Pop(w.now)
		if !ok {
			break
		}
		w.learner.solved = false
		w.accept(&d.meta, d.bytes, fromWire)
	}
	return n
}

// acceptImpaired is acceptSlot under rules.
func (w *worker) acceptImpaired(s *udp4791.RecvSlot) {
	size := s.Segment
	if size == 0 {
		size = len(s.Buf)
	}
	for buf := s.Buf; ; s.Meta.SegIndex++ {
		n := min(size, len(buf))
		w.impairIn(&s.Meta, buf[:n:n], w.judgeIn(&s.Meta, buf[:n], w.remoteOf(buf[:n])))
		if buf = buf[n:]; len(buf) == 0 {
			return
		}
	}
}

// judgeIn asks the rules about a packet that came from a queue pair.
func (w *worker) judgeIn(meta *udp4791.RecvMeta, buf []byte, remote bth.QPN) impair.Verdict {
	return w.judge(&impair.Packet{Peer: meta.Src.Addr(), Local: destQP(buf), Remote: remote, Bytes: buf})
}

// remoteOf is the queue pair that a packet from the wire comes from, as far as it
// is known: a packet says it of datagrams only.
func (w *worker) remoteOf(buf []byte) bth.QPN {
	if q := w.byQPN[destQP(buf)]; q != nil && q.remote != 0 {
		return q.remote
	}
	if w.pkt.Parse(buf) == nil && w.pkt.Has(bth.HasDETH) {
		return w.pkt.DETH().SrcQP()
	}
	return 0
}

// impairIn carries out what was said of a packet that came.
func (w *worker) impairIn(meta *udp4791.RecvMeta, buf []byte, v impair.Verdict) {
	if v.Drop {
		w.stats.Drops[DropImpaired]++
		w.captureImpaired(meta, buf, v.Rule)
		return
	}
	v.Apply(buf)
	stream := inStream(buf)
	for range 1 + v.Copies {
		if v.Held() {
			d := delayedIn{meta: *meta, bytes: append([]byte(nil), buf...)}
			if !w.impaired.in.Push(w.now.Add(v.Delay), stream, v.Behind, d) {
				w.stats.ImpairFull++
			}
			continue
		}
		w.accept(meta, buf, fromWire)
		w.impaired.in.Passed(w.now, stream)
		w.letGoIn()
	}
}

// captureImpaired captures a packet that a rule dropped.
func (w *worker) captureImpaired(meta *udp4791.RecvMeta, buf []byte, rule int) {
	if tap := w.a.tap.Load(); tap != nil {
		w.captureDrop(tap, meta, buf, impairedBy(rule))
	}
}

// pullImpaired is pullLocal under rules: a packet passes them as sent and then as
// received, is proven as if it came from the wire, and may wait here.
func (w *worker) pullImpaired(q *qp, to *worker, budget int) (sent int, more bool) {
	h := &w.here
	h.loan = loan{}
	defer func() {
		if w.current != q { // the peer's memory faulted: q itself goes on
			w.active.push(q)
		}
	}()
	for sent < budget {
		if to != w && w.laneTo(to).room() == nil {
			w.waiting = append(w.waiting, q)
			return sent, false
		}
		n, ok := w.next(q, h.buf[:])
		if !ok {
			return w.spent(q, sent)
		}
		sent += n
		w.carry(q, h.buf[:n:n])
		w.current = q
	}
	return sent, true
}

// carry takes a packet from one queue pair of this adapter to another.
func (w *worker) carry(q *qp, buf []byte) {
	meta := q.meta
	out := w.judge(&impair.Packet{Sent: true, Peer: meta.Dst, Local: q.qpn, Remote: q.remote, Bytes: buf})
	if out.Drop {
		w.captureImpaired(&meta, buf, out.Rule)
		return
	}
	out.Apply(buf)
	for range 1 + out.Copies {
		in := w.judgeIn(&meta, buf, q.qpn)
		in.Delay += out.Delay
		in.Behind = max(in.Behind, out.Behind)
		w.learner.solved = false
		w.impairIn(&meta, buf, in)
	}
}

// forgetDelayed drops what a queue pair has that waits to be sent.
func (w *worker) forgetDelayed(q *qp) {
	w.impaired.out.Remove(func(d delayedOut) bool { return d.packet.q == q })
}

// Impair puts rules in place, in the words of internal/impair: instead of those
// there are, or, with add, behind them. It returns their numbers, and every packet
// of what is posted from then on passes them. Not to be called from a worker.
func (a *Adapter) Impair(rules []impair.Rule, add bool) ([]int, error) {
	ids, err := a.putRules(rules, add)
	if err == nil {
		a.quiesce() // a turn that has begun does not look again
	}
	return ids, err
}

func (a *Adapter) putRules(rules []impair.Rule, add bool) ([]int, error) {
	m := &a.impair
	m.mu.Lock()
	defer m.mu.Unlock()
	next := m.set
	if !add {
		next.Clear()
	}
	ids, err := next.Add(time.Now(), rules...)
	if err != nil {
		return nil, err
	}
	m.set = next
	a.rulesChanged()
	return ids, nil
}

// Unimpair takes a rule away; false when there is none of that number.
func (a *Adapter) Unimpair(id int) bool {
	m := &a.impair
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.set.Remove(id) {
		return false
	}
	a.rulesChanged()
	return true
}

// rulesChanged tells the workers, and the operator: an adapter that loses packets
// on purpose must not be taken for a broken one.
func (a *Adapter) rulesChanged() {
	n := a.impair.set.Len()
	a.impair.on.Store(n > 0)
	for _, w := range a.workers {
		w.signal()
	}
	if n == 0 {
		a.log.Warn("packets are no longer impaired", keyAdapter, a.cfg.Name)
		return
	}
	a.log.Warn("packets are impaired on purpose", keyAdapter, a.cfg.Name, keyRules, n)
}

// RuleStatus is a rule in place, for those who only read a snapshot.
type RuleStatus = impair.Status

// Impairments lists the rules in place.
func (a *Adapter) Impairments() []RuleStatus {
	m := &a.impair
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.set.Status(time.Now())
}

// impairActions is how often rules did something, by action.
func (a *Adapter) impairActions() [impair.NumActions]uint64 {
	m := &a.impair
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.set.Actions
}
