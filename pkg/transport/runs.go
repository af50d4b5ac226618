package transport

import (
	"encoding/binary"
	"math/bits"
	"time"

	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/mrtable"
	"github.com/softroce/softroce/pkg/wq"
)

// A run is a row of Middle packets: all as long as the path MTU makes them, and
// equal but for the PSN and the payload. What holds for all of them is looked at
// once. A run changes nothing that its packets, sent one by one with
// PollTransmit, would not change, and ends where one of them would do more.

// middleLen is the length of a Middle packet as a UDP payload.
func (q *QP) middleLen() int { return bth.BTHLen + int(q.mtu) + bth.ICRCLen }

// sentLast is what PollTransmit or PollMiddles gave last.
type sentLast struct {
	psn    bth.PSN
	op     bth.Opcode
	resend bool
}

// before says whether the packet was of the same message as a Middle packet with
// this PSN, opcode and fate, and the one before it.
func (l *sentLast) before(psn bth.PSN, o *opcodesOf, resend bool) bool {
	return l.psn.Add(1) == psn && (l.op == o.middle || l.op == o.first) && l.resend == resend
}

// PollMiddles goes on behind a packet that PollTransmit just gave, with the
// Middle packets that it would give next: at most so many, one right behind the
// other in buf, all equally long and none of them asking for an acknowledgement.
// It counts them as sent, and returns their number and the PSN of the first. They
// are of the message that the packet before began or went on with, and like that
// are sent for the first time or again. 0: what comes next is something
// else, or not simple, and PollTransmit is to build it.
func (q *QP) PollMiddles(now time.Time, buf []byte, most int) (n int, first bth.PSN) {
	if q.peer == nil {
		return 0, 0
	}
	most = min(most, len(buf)/q.middleLen())
	switch {
	case most <= 0 || q.rsp.acknowledges():
		return 0, 0
	case q.rsp.replays.waiting > 0:
		n, first = q.pollResponseRun(buf, most)
	default:
		n, first = q.pollRequestRun(now, buf, most)
	}
	if n == 0 {
		return 0, 0
	}
	c, sent := q.cfg.Counters, uint64(n)*uint64(q.middleLen())
	c.SentPkts += uint64(n)
	c.SentBytes += sent
	q.stats.SentPkts += uint64(n)
	q.stats.SentBytes += sent
	q.last.psn, q.last.op = first.Add(uint32(n-1)), bth.Opcode(buf[0])
	return n, first
}

// pollRequestRun builds Middle packets of the SEND or WRITE in progress.
func (q *QP) pollRequestRun(now time.Time, buf []byte, most int) (int, bth.PSN) {
	var p plan
	if q.line.on != nil || !q.planNext(&p) || p.off == 0 || answered(p.e.Opcode) || p.e.Flags&wq.SendInline != 0 {
		return 0, 0
	}
	r, ops := &q.req, &messageOpcodes[p.e.Opcode]
	if !q.last.before(r.nxt, ops, p.resend) {
		return 0, 0
	}
	most = min(most, int(packetsOf(p.e)-1-p.off))
	if p.resend {
		most = min(most, int(r.max.Sub(r.nxt)))
	}
	src := q.mapped(p.e.SGList, uint64(p.off)*uint64(q.mtu), most)
	n := q.departRun(&p, len(src)/int(q.mtu))
	if n == 0 {
		return 0, 0
	}
	psn := r.nxt
	q.buildMiddles(buf, ops.middle, psn, src[:n*int(q.mtu)])
	if p.resend {
		q.cfg.Counters.Retransmits += uint64(n)
		q.stats.Retransmits += uint64(n)
	}
	r.nxt = psn.Add(uint32(n))
	if r.nxt.After(r.max) {
		r.max = r.nxt
	}
	if r.ackDeadline.IsZero() {
		q.armAckTimer(now)
	}
	return n, psn
}

// mapped is the memory of at most n packets from off bytes into a list of
// buffers, as far as it lies in one buffer; nil when it is not mapped or not all
// is as it should be.
func (q *QP) mapped(list []wq.SGE, off uint64, n int) []byte {
	mtu := uint64(q.mtu)
	for i := range list {
		s := &list[i]
		if off >= uint64(s.Length) {
			off -= uint64(s.Length)
			continue
		}
		size := min(uint64(max(n, 0)), (uint64(s.Length)-off)/mtu) * mtu
		if size == 0 {
			return nil
		}
		seg, err := q.cfg.Keys.Local(s.LKey, q.cfg.PD, s.Addr, uint64(s.Length), 0)
		if err != nil {
			return nil
		}
		return seg.Bytes(off, size)
	}
	return nil
}

// departRun puts at most n packets in flight that are like p: as many as the
// windows take and as ask for no acknowledgement; see take and asksForAck.
func (q *QP) departRun(p *plan, n int) int {
	r := &q.req
	f, s := &q.peer.flows[p.dir], &r.shares[p.dir]
	both := p.cost + q.mtu + packetCost
	quiet := min(r.window/4, f.window/4, maxUnasked)
	out := uint32(r.nxt.Sub(r.una))
	k := 0
	for ; k < n; k++ {
		in := r.inflight()
		switch {
		case in == 0 || in+both > r.window || out+uint32(k) >= maxOutstanding || r.sinceAck+p.cost >= quiet:
			return k
		case s.credit < both && (s.round != f.round || s.credit < p.cost || !f.take(q, s, both)):
			return k
		}
		q.depart(p)
		r.sinceAck += p.cost
	}
	return k
}

// pollResponseRun builds Middle packets of the READ response in progress. It
// does so only when no request may leave, which would take its turn.
func (q *QP) pollResponseRun(buf []byte, most int) (int, bth.PSN) {
	var p plan
	r := &q.req
	idle := r.cur >= q.sq.Len()
	if !idle && (q.readLimit() == 0 || q.planNext(&p) && q.fits(&p)) {
		return 0, 0
	}
	s := q.rsp.replays.pending()
	if s == nil || s.op != bth.OpReadRequest || s.next == s.from || !q.last.before(s.next, &readResponses, s.again) {
		return 0, 0
	}
	off := uint64(s.next.Sub(s.psn)) * uint64(q.mtu)
	left := uint64(s.limit) - off
	n := min(most, int(s.end.Sub(s.next))-1)
	if n <= 0 {
		return 0, 0
	}
	seg, err := q.cfg.Keys.Remote(mrtable.RKey(s.rkey), q.cfg.PD, s.va+off, left, mrtable.AccessRemoteRead)
	if err != nil {
		return 0, 0
	}
	src := seg.Bytes(0, uint64(n)*uint64(q.mtu))
	if src == nil {
		return 0, 0
	}
	q.giveBack()
	psn := s.next
	q.buildMiddles(buf, readResponses.middle, psn, src)
	s.next = psn.Add(uint32(n))
	if s.again {
		q.cfg.Counters.Replays += uint64(n)
	}
	return n, psn
}

// buildMiddles builds a Middle packet for each path MTU of src, from PSN psn on.
// Memory is read once, as in gather.
func (q *QP) buildMiddles(buf []byte, op bth.Opcode, psn bth.PSN, src []byte) {
	mtu, size := int(q.mtu), q.middleLen()
	hdr := q.header(buf[:0], op, psn, mtu, false, false)
	begin := binary.LittleEndian.Uint64(hdr)
	if q.path.NoICRC {
		for ; len(src) >= mtu; src, buf, psn = src[mtu:], buf[size:], psn.Add(1) {
			b := buf[:size]
			binary.LittleEndian.PutUint64(b, begin)
			binary.BigEndian.PutUint32(b[8:], uint32(psn))
			copy(b[bth.BTHLen:], src[:mtu])
			bth.PutICRC(b[bth.BTHLen+mtu:], 0)
		}
		return
	}
	state := bth.BeginState(q.seed(size), hdr)
	for ; len(src) >= mtu; src, buf, psn = src[mtu:], buf[size:], psn.Add(1) {
		b := buf[:size]
		binary.LittleEndian.PutUint64(b, begin)
		binary.BigEndian.PutUint32(b[8:], uint32(psn))
		v := bth.WordState(state, bits.ReverseBytes32(uint32(psn)))
		v = bth.CopyICRC(v, b[bth.BTHLen:bth.BTHLen+mtu], src[:mtu])
		bth.PutICRC(b[bth.BTHLen+mtu:], bth.FinishICRC(v))
	}
}
