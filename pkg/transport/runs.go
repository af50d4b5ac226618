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
	if q.peer == nil {
		return 0, 0
	}
	most = min(most, len(buf)/q.MiddleLen())
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
	c, sent := q.cfg.Counters, uint64(n)*uint64(q.MiddleLen())
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
	mtu, size := int(q.mtu), q.MiddleLen()
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
	run = run[:len(run)/size*size]
	switch {
	case op == bth.RCReadResponseMiddle:
		n = q.takeResponseRun(now, psn, run)
	case !q.inMessage(psn):
	case op == bth.RCSendMiddle && q.rsp.op == bth.OpSend:
		n = q.takeSendRun(run)
	case op == bth.RCWriteMiddle && q.rsp.op == bth.OpWrite:
		n = q.takeWriteRun(run)
	}
	if n == 0 {
		return 0
	}
	c, got := q.cfg.Counters, uint64(n)*uint64(size)
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
func (q *QP) takeSendRun(run []byte) int {
	r := &q.rsp
	fit := (r.room - min(uint64(r.total), r.room)) / uint64(q.mtu)
	n := q.scatterRun(r.recv.SGList, uint64(r.total), q.atMost(run, fit))
	r.total += uint32(n) * q.mtu
	return q.executedRun(n)
}

// takeWriteRun stores Middle packets of a WRITE: as many as leave something to
// the Last. Their range is looked up anew, as in executeWrite.
func (q *QP) takeWriteRun(run []byte) int {
	r, mtu := &q.rsp, uint64(q.mtu)
	if q.checkEnabledOp(bth.OpWrite) != faultNone || r.left == 0 {
		return 0
	}
	run = q.atMost(run, (r.left-1)/mtu)
	most := uint64(len(run) / q.MiddleLen())
	seg, err := q.cfg.Keys.Remote(mrtable.RKey(r.rkey), q.cfg.PD, r.va, most*mtu, mrtable.AccessRemoteWrite)
	if err != nil {
		return 0
	}
	n := q.storeRun(&seg, 0, run)
	r.va += uint64(n) * mtu
	r.left -= uint64(n) * mtu
	return q.executedRun(n)
}

// takeResponseRun stores Middle packets of the READ response due at una; see
// takeReadResponse and advance. The window counts each by itself.
func (q *QP) takeResponseRun(now time.Time, psn bth.PSN, run []byte) int {
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
	n := q.scatterRun(e.SGList, off, q.atMost(run, fit))
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

// atMost is a run without the packets behind the n-th.
func (q *QP) atMost(run []byte, n uint64) []byte {
	size := q.MiddleLen()
	return run[:min(n, uint64(len(run)/size))*uint64(size)]
}

// scatterRun is scatter for the payloads of a run, from offset off of a list of
// buffers on. It returns how many were stored.
func (q *QP) scatterRun(list []wq.SGE, off uint64, run []byte) (n int) {
	mtu, size := uint64(q.mtu), q.MiddleLen()
	for len(list) > 0 && len(run) > 0 {
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
			k = q.storeRun(&seg, off, q.atMost(run, fit))
		} else if q.scatter(list, off, run[bth.BTHLen:size-bth.ICRCLen], false) == nil {
			k = 1
		}
		if k == 0 {
			return n
		}
		n += k
		off += uint64(k) * mtu
		run = run[k*size:]
	}
	return n
}

// storeRun writes the payloads of a run at off bytes into a segment, and returns
// how many were written.
func (q *QP) storeRun(seg *mrtable.Segment, off uint64, run []byte) (n int) {
	size := q.MiddleLen()
	for ; len(run) >= size; run = run[size:] {
		if store(seg, off, run[bth.BTHLen:size-bth.ICRCLen], false) != nil {
			break
		}
		off += uint64(q.mtu)
		n++
	}
	return n
}
