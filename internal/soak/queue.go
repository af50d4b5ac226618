package soak

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/softroce/softroce/internal/scenario"
	"github.com/softroce/softroce/internal/simnet"
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/cq"
	"github.com/softroce/softroce/pkg/transport"
)

const (
	turnBytes = 64 << 10              // that a queue pair sends in its turn
	busyFor   = 30 * time.Microsecond // how long a socket takes nothing, at most
	runMost   = 40                    // packets of a run
	sgeMost   = 4                     // elements of a request
	runBuffer = 64 << 10              // bytes of a run
)

// user is what a queue pair belongs to, and is told what it does.
type user interface {
	sendDone(wc *cq.WC)
	recvDone(wc *cq.WC, solicited bool)
	event(e *transport.Event)
	String() string
}

// queue is a queue pair in its adapter.
type queue struct {
	a      *adapter
	qp     *transport.QP
	qpn    bth.QPN
	user   user
	listed bool      // in active
	armed  time.Time // of its alarm; zero: none
	closed bool
}

func (q *queue) String() string { return fmt.Sprintf("%v.%v %v", q.a.index, q.qpn, q.user) }

// newQueue makes a queue pair with a number that no other ever had.
func (a *adapter) newQueue(u user, cfg transport.Config) *queue {
	w := a.w
	w.nextQPN += bth.QPN(1 + w.rand.IntN(5))
	q := &queue{a: a, qpn: w.nextQPN, user: u}
	cfg.QPN, cfg.PD, cfg.Keys, cfg.Slab, cfg.Counters = q.qpn, 1, a.keys, a.slab, a.ctr
	if w.rand.IntN(2) == 0 {
		cfg.Stage = a.stage
	}
	cfg.SendCQ = sendSide{a.cqs[w.rand.IntN(len(a.cqs))]}
	cfg.RecvCQ = recvSide{a.cqs[w.rand.IntN(len(a.cqs))]}
	var err error
	if q.qp, err = transport.New(cfg); err != nil {
		w.fail("%v: %v", a, err)
		return nil
	}
	a.queues[q.qpn] = q
	return q
}

// close takes the queue pair away.
func (q *queue) close() {
	q.qp.Close()
	q.closed = true
	delete(q.a.queues, q.qpn)
}

// touch is called behind everything that is done with a queue pair: it stands in
// line to send, its events are told, and its deadline is looked at.
func (q *queue) touch() {
	if q.closed {
		return
	}
	if !q.listed {
		q.listed = true
		q.a.active = append(q.a.active, q)
	}
	q.tell()
}

// tell hands on events, and looks at the deadline.
func (q *queue) tell() {
	for q.qp.Flushing() {
		q.qp.PostRecv(q.a.w.now())
	}
	for e, ok := q.qp.PollEvent(); ok; e, ok = q.qp.PollEvent() {
		q.a.w.trace("%v event: %s", q, e.Text())
		q.user.event(&e)
	}
	q.arm()
}

// arm sets the alarm. It is not set again when the deadline moves further away;
// the alarm finds that out.
func (q *queue) arm() {
	if d := q.qp.NextTimeout(); !d.IsZero() && (q.armed.IsZero() || d.Before(q.armed)) {
		q.armed = d
		q.a.w.alarms.push(alarm{at: d, q: q})
	}
}

// due is the alarm.
func (q *queue) due(at time.Time) {
	if q.closed || !at.Equal(q.armed) {
		return
	}
	q.armed = time.Time{}
	now := q.a.w.now()
	d := q.qp.NextTimeout()
	switch {
	case d.IsZero():
	case d.After(now):
		q.arm()
	default:
		q.a.w.trace("%v timeout", q)
		q.qp.HandleTimeout(now)
		if again := q.qp.NextTimeout(); !again.IsZero() && !again.After(now) {
			q.a.w.fail("%v: HandleTimeout at %v leaves the deadline at %v", q, now.Sub(start), again.Sub(start))
		}
		q.touch()
	}
}

// transmit serves those in line until nobody has anything to send, or the socket
// takes nothing.
func (a *adapter) transmit() {
	for !a.busy && a.up {
		for p := a.peers.TakeReady(); p != nil; p = a.peers.TakeReady() {
			if q := a.queues[p.QPN()]; q != nil && !q.listed {
				q.listed = true
				a.active = append(a.active, q)
			}
		}
		if len(a.active) == 0 {
			break
		}
		q := a.active[0]
		a.active = a.active[1:]
		q.listed = false
		if !q.closed {
			q.turn()
			a.w.harvest()
		}
	}
	a.stage.Forget()
}

// turn sends what a queue pair has to send, up to its share.
func (q *queue) turn() {
	a, w := q.a, q.a.w
	for sent := 0; ; {
		if w.plan.refuse && w.rand.IntN(200) == 0 {
			a.busy = true
			w.result.Faults[BusySocket]++
			w.after(w.upTo(busyFor), func() { a.busy = false })
			q.touch()
			return
		}
		n, tx := q.qp.PollTransmit(w.now(), w.buf[:])
		if n == 0 {
			break
		}
		w.send(q, &tx, w.buf[:n])
		if sent += n; tx.Path.Flow == nearFlow {
			sent += q.lendBehind(&tx)
		} else {
			sent += q.runBehind(&tx)
		}
		if sent >= turnBytes {
			q.touch()
			return
		}
	}
	q.tell()
}

// send puts a packet on the network.
func (w *world) send(q *queue, tx *transport.Transmit, b []byte) {
	if w.cfg.Trace != nil {
		w.trace("%v > %s", q, scenario.PacketText(b))
	}
	w.result.Packets++
	switch tx.Path.Flow {
	case nearFlow:
		w.near(q, b)
	case groupFlow:
		for i := range w.adapters {
			w.net.Send(q.a.index, i, b)
		}
	default:
		w.net.Send(q.a.index, int(tx.Path.Flow), b)
	}
}

// runBehind builds Middle packets behind the one that was sent, at random as an
// adapter does, and returns their length.
func (q *queue) runBehind(tx *transport.Transmit) (sent int) {
	w := q.a.w
	if p := tx.Opcode.Info().Position; p != bth.First && p != bth.Middle || w.rand.IntN(4) == 0 {
		return 0
	}
	size := q.qp.MiddleLen()
	n, first := q.qp.PollMiddles(w.now(), w.row[:w.rand.IntN(runBuffer)], w.rand.IntN(runMost))
	if n > 0 && first != tx.PSN.Add(1) {
		w.fail("%v: a run behind PSN %v begins with %v", q, tx.PSN, first)
	}
	for i := range n {
		w.send(q, tx, w.row[i*size:(i+1)*size])
	}
	return n * size
}

// deliver hands over what is due.
func (w *world) deliver() {
	for w.err == nil {
		d, ok := w.take()
		if !ok {
			return
		}
		w.packet(&d)
		w.harvest()
	}
}

// take is the next datagram that is due.
func (w *world) take() (simnet.Datagram, bool) {
	if len(w.ahead) == 0 {
		return w.net.Take()
	}
	d := w.ahead[0]
	w.ahead = w.ahead[1:]
	return d, true
}

// packet hands a datagram to its queue pair, as an adapter does.
func (w *world) packet(d *simnet.Datagram) {
	a := w.adapters[d.To]
	p := &w.parsed
	p.Src, p.Dst, p.TTL = w.adapters[d.From].gid, a.gid, 64
	switch err := p.Parse(d.Data); {
	case !a.up:
		w.result.Faults[HostDown]++
		return
	case err != nil, !w.proven(d):
		w.result.BadICRC++
		return
	case d.Damaged && d.Data[4] == 0: // byte 4 of the BTH is not covered
		w.fail("%v: a damaged packet passes the ICRC: %s", a, scenario.PacketText(d.Data))
		return
	}
	if p.BTH().DestQP() == bth.MulticastQPN {
		p.Dst = group
		for _, m := range w.ports {
			if m.a == a && m.member && m.q != nil {
				w.handle(m.q, d.Data)
			}
		}
		return
	}
	q := a.queues[p.BTH().DestQP()]
	if q == nil {
		w.result.NoQueue++
		return
	}
	if w.handle(q, d.Data) == transport.Accepted {
		w.takeRun(q, d)
	}
	q.touch()
}

// handle hands a packet to a queue pair.
func (w *world) handle(q *queue, b []byte) transport.Verdict {
	p := &w.parsed
	v := q.qp.HandlePacket(w.now(), p)
	if w.cfg.Trace != nil {
		w.trace("%v < %s: %v", q, scenario.PacketText(b), v)
	}
	q.heard(v, p.Info.Response)
	q.touch()
	return v
}

// proven checks the ICRC.
func (w *world) proven(d *simnet.Datagram) bool {
	to := w.adapters[d.To].gid
	if len(d.Data) >= bth.BTHLen && bth.BTH(d.Data).DestQP() == bth.MulticastQPN {
		to = group
	}
	h := bth.NetHeader{Src: w.adapters[d.From].gid, Dst: to, SrcPort: udpPort, DstPort: 4791}
	n := len(d.Data) - bth.ICRCLen
	return n >= bth.BTHLen && bth.ICRC(h.Seed(len(d.Data)), d.Data[:n]) == binary.LittleEndian.Uint32(d.Data[n:])
}

// takeRun hands over the Middle packets that came right behind d at once, or some
// of them, as an adapter does.
func (w *world) takeRun(q *queue, d *simnet.Datagram) {
	info := w.parsed.Info
	if info.Position != bth.First && info.Position != bth.Middle || w.rand.IntN(8) == 0 {
		return
	}
	op, ok := middles[info.Op]
	if !ok || info.Class != bth.ClassRC {
		return
	}
	size := bth.BTHLen + len(w.parsed.Payload) + bth.ICRCLen
	first, k := w.parsed.BTH().PSN().Add(1), 0
	lead := append(w.lead[:0], d.Data[:bth.BTHLen-3]...)
	lead[0], lead[4], lead[8] = byte(op), 0, 0
	run := w.row[:0]
	for most := 1 + w.rand.IntN(runMost); k < most && len(run)+size <= cap(run) && w.peek(k); k++ {
		n := &w.ahead[k]
		if n.To != d.To || n.From != d.From || len(n.Data) != size || !bytes.HasPrefix(n.Data, lead) ||
			bth.BTH(n.Data).PSN() != first.Add(uint32(k)) || !w.proven(n) {
			break
		}
		run = append(run, n.Data...)
	}
	if k == 0 {
		return
	}
	took := q.qp.HandleMiddles(w.now(), op, first, run, size)
	if took < 0 || took > k {
		w.fail("%v: took %d packets of a run of %d", q, took, k)
		return
	}
	if w.cfg.Trace != nil {
		w.trace("%v < %d more", q, took)
	}
	w.ahead = w.ahead[took:]
}

var middles = map[bth.Op]bth.Opcode{
	bth.OpSend: bth.RCSendMiddle, bth.OpWrite: bth.RCWriteMiddle, bth.OpReadResponse: bth.RCReadResponseMiddle,
}

// peek says whether there is a datagram k places behind the one that is handled.
func (w *world) peek(k int) bool {
	if k < len(w.ahead) {
		return true
	}
	d, ok := w.net.Take()
	if ok {
		d.Data = append([]byte(nil), d.Data...)
		w.ahead = append(w.ahead, d)
	}
	return ok
}

// heard notes the last time that the peer answered.
func (q *queue) heard(v transport.Verdict, response bool) {
	if e, ok := q.user.(*end); ok && response && v == transport.Accepted {
		e.answered = q.a.w.now()
	}
}
