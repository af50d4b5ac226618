package transport

import (
	"encoding/binary"
	"math/bits"
	"time"

	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/mrtable"
	"github.com/softroce/softroce/pkg/qpstate"
	"github.com/softroce/softroce/pkg/wq"
)

// A run is a row of Middle packets: all as long as the path MTU makes them, and
// equal but for the PSN and the payload. What holds for all of them is looked at
// once. A run changes nothing that its packets, sent one by one with
// PollTransmit, would not change, and ends where one of them would do more.

// MiddleLen is the length of a Middle packet as a UDP payload.
func (q *QP) MiddleLen() int { return bth.BTHLen + int(q.mtu) + bth.ICRCLen }

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
	r := q.nextRun(now, min(most, len(buf)/q.MiddleLen()))
	if r.n > 0 {
		q.buildMiddles(buf, &r)
	}
	return r.n, r.psn
}

// A run is Middle packets that are to be sent: n of them, from PSN psn on, whose
// payloads are in src.
type run struct {
	op  bth.Opcode
	psn bth.PSN
	n   int
	src []byte
}

// nextRun chooses the Middle packets that PollTransmit would give next, at most
// so many, and counts them as sent.
func (q *QP) nextRun(now time.Time, most int) (r run) {
	switch {
	case q.cfg.Type == qpstate.UC && most > 0:
		r = q.nextUnacknowledgedRun(most)
	case q.peer == nil || most <= 0 || q.rsp.acknowledges():
		return r
	case q.rsp.replays.waiting > 0:
		r = q.nextResponseRun(most)
	default:
		r = q.nextRequestRun(now, most)
	}
	if r.n == 0 {
		return r
	}
	c, sent := q.cfg.Counters, uint64(r.n)*uint64(q.MiddleLen())
	c.SentPkts += uint64(r.n)
	c.SentBytes += sent
	q.stats.SentPkts += uint64(r.n)
	q.stats.SentBytes += sent
	q.last.psn, q.last.op = r.psn.Add(uint32(r.n-1)), r.op
	return r
}

// nextRequestRun chooses Middle packets of the SEND or WRITE in progress.
func (q *QP) nextRequestRun(now time.Time, most int) (next run) {
	var p plan
	if q.line.on != nil {
		return next
	}
	r := &q.req
	op, src := q.planRun(&p, most)
	n := q.departRun(&p, len(src)/int(q.mtu))
	if n == 0 {
		return next
	}
	next = run{op, r.nxt, n, src[:n*int(q.mtu)]}
	if p.resend {
		q.cfg.Counters.Retransmits += uint64(n)
		q.stats.Retransmits += uint64(n)
	}
	r.nxt = next.psn.Add(uint32(n))
	if r.nxt.After(r.max) {
		r.max = r.nxt
	}
	if r.ackDeadline.IsZero() {
		q.armAckTimer(now)
	}
	return next
}

// planRun finds the Middle packets of the message in progress that may leave now,
// as far as the windows are not asked: what they are, the plan of the first, and
// their payloads, which are at most so many.
func (q *QP) planRun(p *plan, most int) (op bth.Opcode, src []byte) {
	if !q.planNext(p) || p.off == 0 || answered(p.e.Opcode) || p.e.Flags&wq.SendInline != 0 {
		return 0, nil
	}
	r, ops := &q.req, &q.msgs[p.e.Opcode]
	if !q.last.before(r.nxt, ops, p.resend) {
		return 0, nil
	}
	most = min(most, int(packetsOf(p.e)-1-p.off))
	if p.resend {
		most = min(most, int(r.max.Sub(r.nxt)))
	}
	return ops.middle, q.mapped(p.e.SGList, uint64(p.off)*uint64(q.mtu), most)
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

// nextResponseRun chooses Middle packets of the READ response in progress. It
// does so only when no request may leave, which would take its turn.
func (q *QP) nextResponseRun(most int) (next run) {
	var p plan
	r := &q.req
	idle := r.cur >= q.sq.Len()
	if !idle && (q.readLimit() == 0 || q.localReady() || q.planNext(&p) && q.fits(&p)) {
		return next
	}
	s := q.rsp.replays.pending()
	if s == nil || s.op != bth.OpReadRequest || s.next == s.from || !q.last.before(s.next, &readResponses, s.again) {
		return next
	}
	off := uint64(s.next.Sub(s.psn)) * uint64(q.mtu)
	left := uint64(s.limit) - off
	n := min(most, int(s.end.Sub(s.next))-1)
	if n <= 0 {
		return next
	}
	seg, err := q.remote(s.rkey, s.va+off, left, mrtable.AccessRemoteRead)
	if err != nil {
		return next
	}
	src := seg.Bytes(0, uint64(n)*uint64(q.mtu))
	if src == nil {
		return next
	}
	q.giveBack()
	next = run{readResponses.middle, s.next, n, src}
	s.next = s.next.Add(uint32(n))
	if s.again {
		q.cfg.Counters.Replays += uint64(n)
	}
	return next
}

// buildMiddles builds the packets of a run. Memory is read once, as in gather.
func (q *QP) buildMiddles(buf []byte, r *run) {
	mtu, size, psn, src := int(q.mtu), q.MiddleLen(), r.psn, r.src
	hdr := q.header(buf[:0], r.op, psn, mtu, false, false)
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

// HandleMiddles takes Middle packets that follow a First or Middle packet which
// HandlePacket accepted, or HandleMiddles took: run has them one right behind
// the other, from BTH to ICRC, size bytes each; op is the opcode of all, psn
// the PSN of the first, and each has the PSN after the one before. The caller
// knows that of the rest of their BTHs everything but the bits that the ICRC does
// not cover is as in the packet before, that none asks for an acknowledgement,
// that they have the same addresses, and that each one's ICRC is right. It
// returns how many it took: those have had the effect that HandlePacket gives
// them, and were accepted. The others had none, and HandlePacket is to have them.
// run is not kept.
func (q *QP) HandleMiddles(now time.Time, op bth.Opcode, psn bth.PSN, run []byte, size int) (n int) {
	if size != q.MiddleLen() || len(run) < size {
		return 0
	}
	return q.takeRun(now, op, psn, payloads{run[bth.BTHLen:], len(run) / size, size})
}

// payloads are those of a run of Middle packets: n of them, a path MTU each, that
// begin stride bytes apart.
type payloads struct {
	b      []byte
	n      int
	stride int
}

// first is a run's payloads without those behind the n-th.
func (l payloads) first(n uint64) payloads {
	l.n = int(min(n, uint64(l.n)))
	return l
}

// behind is a run's payloads without the first k.
func (l payloads) behind(k int) payloads {
	if l.n -= k; l.n > 0 {
		l.b = l.b[k*l.stride:]
	}
	return l
}

// takeRun is HandleMiddles for packets that are as long as the path MTU makes
// them.
func (q *QP) takeRun(now time.Time, op bth.Opcode, psn bth.PSN, l payloads) (n int) {
	switch {
	case op == bth.RCReadResponseMiddle:
		n = q.takeResponseRun(now, psn, l)
	case !q.inMessage(psn):
	case op == q.msgs[wq.Send].middle && q.rsp.op == bth.OpSend:
		n = q.takeSendRun(l)
	case op == q.msgs[wq.RDMAWrite].middle && q.rsp.op == bth.OpWrite:
		n = q.takeWriteRun(l)
	}
	if n == 0 {
		return 0
	}
	c, got := q.cfg.Counters, uint64(n)*uint64(q.MiddleLen())
	c.RcvdPkts += uint64(n)
	c.RcvdBytes += got
	q.stats.RcvdPkts += uint64(n)
	q.stats.RcvdBytes += got
	c.Verdicts[Accepted] += uint64(n)
	return n
}

// inMessage says whether a request with this PSN may go on with a message.
func (q *QP) inMessage(psn bth.PSN) bool {
	return q.state.ReceivesRequests() && psn == q.rsp.expected && (q.rsp.heard || q.state != qpstate.RTR)
}

// executedRun moves on behind n Middle packets of a SEND or WRITE.
func (q *QP) executedRun(n int) int {
	if n > 0 {
		r := &q.rsp
		q.expectedCame()
		r.newest = r.expected.Add(uint32(n - 1))
		r.expected = r.expected.Add(uint32(n))
	}
	return n
}

// takeSendRun stores Middle packets of a SEND: as many as fit its receive.
func (q *QP) takeSendRun(l payloads) int {
	r := &q.rsp
	fit := (r.room - min(uint64(r.total), r.room)) / uint64(q.mtu)
	n := q.scatterRun(r.recv.SGList, uint64(r.total), l.first(fit))
	r.total += uint32(n) * q.mtu
	return q.executedRun(n)
}

// takeWriteRun stores Middle packets of a WRITE: as many as leave something to
// the Last. Their range is looked up anew, as in executeWrite.
func (q *QP) takeWriteRun(l payloads) int {
	r, mtu := &q.rsp, uint64(q.mtu)
	if q.checkEnabledOp(bth.OpWrite) != faultNone || r.left == 0 {
		return 0
	}
	l = l.first((r.left - 1) / mtu)
	seg, err := q.remote(r.rkey, r.va, uint64(l.n)*mtu, mrtable.AccessRemoteWrite)
	if err != nil {
		return 0
	}
	n := q.storeRun(&seg, 0, l)
	r.va += uint64(n) * mtu
	r.left -= uint64(n) * mtu
	return q.executedRun(n)
}

// takeResponseRun stores Middle packets of the READ response due at una; see
// takeReadResponse and advance. The window counts each by itself.
func (q *QP) takeResponseRun(now time.Time, psn bth.PSN, l payloads) int {
	r, w := &q.req, &q.req.reads
	if q.state != qpstate.RTS || psn != r.una || r.localErr != 0 || q.sq.Len() == 0 || w.len == 0 {
		return 0
	}
	e, req := q.sq.At(0), w.at(0)
	last := req.psn.Add(req.n - 1)
	if e.Opcode != wq.RDMARead || !psn.Before(last) || last.After(r.max) {
		return 0
	}
	off := uint64(psn.Sub(r.headPSN)) * uint64(q.mtu)
	fit := min(uint64(last.Sub(psn)), (e.User[userLength]-off)/uint64(q.mtu))
	n := q.scatterRun(e.SGList, off, l.first(fit))
	if n == 0 {
		return 0
	}
	for range n {
		r.una = r.una.Add(1)
		q.arrived(inbound, q.mtu+packetCost, r.una)
	}
	if r.una.After(r.nxt) {
		r.nxt = r.una
	}
	q.progress(r.una)
	q.armAckTimer(now)
	return n
}

// scatterRun is scatter for the payloads of a run, from offset off of a list of
// buffers on. It returns how many were stored.
func (q *QP) scatterRun(list []wq.SGE, off uint64, l payloads) (n int) {
	mtu := uint64(q.mtu)
	for len(list) > 0 && l.n > 0 {
		s := &list[0]
		if off >= uint64(s.Length) {
			off -= uint64(s.Length)
			list = list[1:]
			continue
		}
		k := 0
		if fit := (uint64(s.Length) - off) / mtu; fit > 0 {
			seg, err := q.cfg.Keys.Local(s.LKey, q.cfg.PD, s.Addr, uint64(s.Length), mrtable.AccessLocalWrite)
			if err != nil {
				return n
			}
			k = q.storeRun(&seg, off, l.first(fit))
		} else if q.scatter(list, off, l.b[:mtu], false) == nil {
			k = 1
		}
		if k == 0 {
			return n
		}
		n += k
		off += uint64(k) * mtu
		l = l.behind(k)
	}
	return n
}

// storeRun writes the payloads of a run at off bytes into a segment, and returns
// how many were written. Those that lie one right behind the other are one piece:
// it is written or it is not.
func (q *QP) storeRun(seg *mrtable.Segment, off uint64, l payloads) (n int) {
	mtu := int(q.mtu)
	if l.stride == mtu {
		if store(seg, off, l.b[:l.n*mtu], false) != nil {
			return 0
		}
		return l.n
	}
	for b := l.b; n < l.n; n++ {
		if store(seg, off, b[n*l.stride:][:mtu], false) != nil {
			break
		}
		off += uint64(mtu)
	}
	return n
}
