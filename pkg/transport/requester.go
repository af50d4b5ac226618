package transport

import (
	"time"

	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/cq"
	"github.com/softroce/softroce/pkg/qpstate"
	"github.com/softroce/softroce/pkg/wq"
)

// Words of a send queue entry that are ours.
const (
	userLength  = iota // payload in bytes
	userPackets        // PSNs that the request takes
	userDone           // 1: a local operation that was carried out
)

// requester is the sending side: which PSNs are out, and which request is next.
// PSNs of requests follow each other without a gap, so that the entries of the
// send queue need none of their own: una lies in the first entry, nxt in entry
// cur or at its start.
type requester struct {
	una     bth.PSN // oldest not acknowledged
	nxt     bth.PSN // next to send; behind max while sending again
	max     bth.PSN // one past the newest ever sent
	headPSN bth.PSN // first of entry 0
	curPSN  bth.PSN // first of entry cur
	cur     int     // entry that nxt lies in

	reads readWindow

	localErr  cq.Status // why entry cur cannot be sent; 0: it can
	drainTold bool

	// What is in flight: window is the queue pair's own limit, the shares are
	// those of the windows to the peer (window.go).
	window   uint32
	shares   [directions]share
	sinceAck uint32 // cost since the last packet that asked for an acknowledgement

	retries   uint8
	rnrLeft   uint8
	deferred  uint8 // expiries of the ACK timer that were put off in a row
	impliedBy bool  // a gap in the responses at una was obeyed
	rnrWait   bool

	ackDeadline time.Time
	armedAt     uint64 // total of the peer's flow when the ACK timer started
	rnrUntil    time.Time
	rnrPSN      bth.PSN // of the request that found no receive
}

// start makes the requester ready to send from the first PSN.
func (r *requester) start(q *QP) {
	psn := q.attr.SQPSN
	r.una, r.nxt, r.max, r.headPSN, r.curPSN = psn, psn, psn, psn, psn
	r.window = q.maxWindow()
	r.retries, r.rnrLeft = q.attr.RetryCnt, q.attr.RNRRetry
}

// stop ends all timers: the state is ERR.
func (r *requester) stop() {
	r.ackDeadline, r.rnrUntil, r.rnrWait = time.Time{}, time.Time{}, false
	r.localErr = 0
}

// packets is the number of PSNs that a message of n bytes takes.
func (q *QP) packets(n uint64) uint32 {
	if n == 0 {
		return 1
	}
	return uint32((n + uint64(q.mtu) - 1) / uint64(q.mtu))
}

func packetsOf(e *wq.WQE) uint32 { return uint32(e.User[userPackets]) }

// answered says whether a request is acknowledged by a response of its own
// kind only: READs and atomics.
func answered(op wq.Opcode) bool {
	return op == wq.RDMARead || op == wq.AtomicCmpAndSwp || op == wq.AtomicFetchAndAdd
}

// A plan is the next request packet.
type plan struct {
	e      *wq.WQE
	off    uint32 // PSNs of the request before it
	n      uint32 // PSNs that it takes
	bytes  uint32 // payload, of a READ that of its responses
	cost   uint32
	dir    direction // of the payload
	resend bool
}

// planNext finds the next request packet that may leave now, if the windows
// allow it. It changes nothing.
func (q *QP) planNext(p *plan) bool {
	r := &q.req
	if !q.state.SendsRequests() || r.rnrWait || r.localErr != 0 || r.cur >= q.sq.Len() {
		return false
	}
	p.e = q.sq.At(r.cur)
	if isLocal(p.e.Opcode) {
		return false
	}
	p.off = uint32(r.nxt.Sub(r.curPSN))
	p.resend = r.nxt.Before(r.max)
	if p.off == 0 && !q.mayStart(p) {
		return false
	}
	left := p.e.User[userLength] - uint64(p.off)*uint64(q.mtu)
	switch {
	case p.e.Opcode == wq.RDMARead:
		var ok bool
		if p.n, ok = q.planRead(p); !ok {
			return false
		}
		p.bytes = uint32(min(left, uint64(p.n)*uint64(q.mtu)))
	case answered(p.e.Opcode):
		if r.reads.sent >= q.readLimit() {
			return false
		}
		p.n, p.bytes = 1, 0
	default:
		p.n, p.bytes = 1, uint32(min(left, uint64(q.mtu)))
	}
	p.cost = p.bytes + p.n*packetCost
	p.dir = directionOf(p.e.Opcode)
	return true
}

// mayStart says whether entry cur may send its first packet: in SQD only what
// was started goes on, and a fence waits for earlier READs and atomics, and for
// nothing else (IBTA Vol 1 §10.8.3.3).
func (q *QP) mayStart(p *plan) bool {
	if !p.resend && !q.state.StartsRequests() {
		return false
	}
	return p.e.Flags&wq.SendFence == 0 || q.req.reads.sent == 0
}

// readLimit is the most READ and atomic requests in flight.
func (q *QP) readLimit() int { return int(q.attr.MaxRDAtomic) }

// pollRequest builds the next request packet.
func (q *QP) pollRequest(now time.Time, buf []byte, tx *Transmit) (n int) {
	var p plan
	for {
		q.passLocal()
		ok := q.planNext(&p)
		if !ok {
			q.checkStartable()
		}
		if !ok || !q.take(now, &p) {
			q.giveBack()
			return 0
		}
		var err error
		switch {
		case p.e.Opcode == wq.RDMARead:
			n, err = q.buildReadRequest(&p, buf, tx)
		case answered(p.e.Opcode):
			n, err = q.buildAtomic(&p, buf, tx)
		default:
			n, err = q.buildMessage(&p, buf, tx)
		}
		if err != nil {
			q.req.localErr = cq.LocProtErr
			q.settleLocal()
			continue
		}
		q.sent(now, &p)
		tx.Resend = p.resend
		return n
	}
}

// checkStartable fails a READ or an atomic on a connection that allows none:
// it would wait for ever, and everything behind it.
func (q *QP) checkStartable() {
	r := &q.req
	if q.readLimit() == 0 && q.state.StartsRequests() && r.localErr == 0 && r.cur < q.sq.Len() && answered(q.sq.At(r.cur).Opcode) {
		r.localErr = cq.LocQPOpErr
		q.past().because(WhyNoReads)
		q.settleLocal()
	}
}

// sent moves on behind a packet that was built.
func (q *QP) sent(now time.Time, p *plan) {
	r := &q.req
	q.countSend(p)
	if answered(p.e.Opcode) {
		r.reads.push(r.nxt, p.n, p.resend)
	}
	if p.resend {
		q.cfg.Counters.Retransmits++
		q.stats.Retransmits++
	}
	q.depart(p)
	r.nxt = r.nxt.Add(p.n)
	if r.nxt.After(r.max) {
		r.max = r.nxt
	}
	if p.off+p.n == packetsOf(p.e) {
		r.cur++
		r.curPSN = r.nxt
	}
	if r.ackDeadline.IsZero() {
		q.armAckTimer(now)
	}
}

// countSend counts a SEND that begins.
func (q *QP) countSend(p *plan) {
	if op := p.e.Opcode; !p.resend && p.off == 0 && (op == wq.Send || op == wq.SendWithImm || op == wq.SendWithInv) {
		q.cfg.Counters.RDMASends++
	}
}

// settleLocal completes entry cur with its local error once everything before
// it is done; the entries before it may still succeed.
func (q *QP) settleLocal() {
	r := &q.req
	if r.localErr == 0 || r.cur != 0 {
		return
	}
	q.event(Event{Kind: NoteLocalFault, PSN: r.nxt, Status: r.localErr, Op: q.sq.At(0).Opcode})
	q.headTrouble(Trouble{Kind: TroubleLocal, Status: r.localErr})
	q.failHead(r.localErr)
}

// opcodesOf holds a message's packet opcodes by first and last packet.
type opcodesOf struct{ first, middle, last, only bth.Opcode }

func (o *opcodesOf) at(first, last bool) bth.Opcode {
	switch {
	case first && last:
		return o.only
	case first:
		return o.first
	case last:
		return o.last
	}
	return o.middle
}

// messageTable holds packet opcodes by send operation.
type messageTable [wq.SendWithInv + 1]opcodesOf

// messageOpcodes is the table of RC.
var messageOpcodes = messageTable{
	wq.Send:             {bth.RCSendFirst, bth.RCSendMiddle, bth.RCSendLast, bth.RCSendOnly},
	wq.SendWithImm:      {bth.RCSendFirst, bth.RCSendMiddle, bth.RCSendLastImmediate, bth.RCSendOnlyImmediate},
	wq.SendWithInv:      {bth.RCSendFirst, bth.RCSendMiddle, bth.RCSendLastInvalidate, bth.RCSendOnlyInvalidate},
	wq.RDMAWrite:        {bth.RCWriteFirst, bth.RCWriteMiddle, bth.RCWriteLast, bth.RCWriteOnly},
	wq.RDMAWriteWithImm: {bth.RCWriteFirst, bth.RCWriteMiddle, bth.RCWriteLastImmediate, bth.RCWriteOnlyImmediate},
}

// buildMessage builds a packet of a SEND or a WRITE. The error is a local
// protection error.
func (q *QP) buildMessage(p *plan, buf []byte, tx *Transmit) (int, error) {
	e, r := p.e, &q.req
	last := p.off+1 == packetsOf(e)
	op := q.msgs[e.Opcode].at(p.off == 0, last)
	info := op.Info()
	acked := q.cfg.Type == qpstate.RC
	ask := acked && (last || q.asksForAck(p))
	solicited := info.CompletesRecv && e.Flags&wq.SendSolicited != 0
	b := q.header(buf[:0], op, r.nxt, int(p.bytes), ask, solicited)
	if info.Headers.Has(bth.HasRETH) {
		h := bth.RETHFields{VA: e.RemoteAddr, RKey: uint32(e.RKey), Length: uint32(e.User[userLength])}
		b = h.Append(b)
	}
	if info.Headers.Has(bth.HasImmDt) {
		b = immDt(e.ImmData).Append(b)
	}
	if info.Headers.Has(bth.HasIETH) {
		h := bth.IETHFields{RKey: uint32(e.InvalidateRKey)}
		b = h.Append(b)
	}
	place, reg := q.body(b, int(p.bytes))
	if err := q.gather(e, uint64(p.off)*uint64(q.mtu), place, &reg); err != nil {
		return 0, err
	}
	n, icrc := seal(buf, len(b)+int(p.bytes), int(p.bytes), reg)
	switch {
	case ask:
		r.sinceAck = 0
	case acked:
		r.sinceAck += p.cost
	}
	tx.ICRC, tx.Opcode, tx.PSN = icrc, op, r.nxt
	return n, nil
}

// asksForAck says whether a packet inside a message asks for an
// acknowledgement: every quarter of a window, and when no window has room for
// the next one (IBTA Vol 1 §9.7.3). Where it does not ask, the room for the next
// one is taken already, so that the others of the same peer cannot leave it with
// packets that nobody acknowledges.
func (q *QP) asksForAck(p *plan) bool {
	r := &q.req
	f := &q.peer.flows[p.dir]
	both := p.cost + q.mtu + packetCost
	return r.sinceAck+p.cost >= min(r.window/4, f.window/4, maxUnasked) ||
		r.inflight()+both > r.window || !f.take(q, &r.shares[p.dir], both)
}
