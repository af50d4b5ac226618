package transport

import (
	"time"

	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/cq"
	"github.com/softroce/softroce/pkg/mrtable"
	"github.com/softroce/softroce/pkg/qpstate"
	"github.com/softroce/softroce/pkg/wq"
)

// msnMask covers the 24 bits of a message sequence number.
const msnMask = 0xFFFFFF

// maxDMALength is the longest message in bytes (IBTA Vol 1 §9.7.7.3.. C9-94).
const maxDMALength = 1 << 31

// flushBatch is how many posted receives one call flushes; our own tuning.
const flushBatch = 64

// responder is the receiving side: which PSN is expected, the message in
// progress, the receive that it fills, what was promised to be replayed, and
// the answers that wait to be sent.
type responder struct {
	expected bth.PSN // ePSN
	newest   bth.PSN // last executed packet of a SEND or WRITE: what an ACK names
	msn      uint32
	heard    bool // a packet came while in RTR

	op    bth.Op // of the message in progress: OpSend, OpWrite, or OpReserved for none
	rkey  uint32
	va    uint64 // WRITE: where the next packet goes
	left  uint64 // WRITE: bytes to come
	total uint32 // WRITE: RETH's length; SEND: bytes so far

	recv     wq.RecvWR // the message's receive, when hasRecv
	room     uint64    // bytes of it
	hasRecv  bool
	flushing bool // in ERR: more receives may wait than one call flushed
	replays  replayRing
	answers  answers
	oosPSN   bth.PSN   // last packet that was dropped for a gap
	gapTold  bool      // a sequence NAK for expected was sent or waits
	rnrTold  bool      // an RNR NAK for expected was sent or waits
	rnrUntil time.Time // when the requester should have tried again; zero: not sent yet
}

// start makes the responder expect its first PSN.
func (r *responder) start(psn bth.PSN) {
	r.expected = psn
	r.newest = psn.Add(uint32(bth.PSNMask))
	r.msn = 0
}

// reset forgets everything and gives back the replay records.
func (r *responder) reset(q *QP) {
	r.replays.release(q)
	list := r.recv.SGList[:0]
	*r = responder{}
	r.recv.SGList = list
}

// handleRequest places a request by its PSN: expected, ahead or behind
// (IBTA Vol 1 §9.7.5.1.1).
func (q *QP) handleRequest(now time.Time, p *Packet) Verdict {
	r := &q.rsp
	psn := p.BTH().PSN()
	switch d := psn.Sub(r.expected); {
	case d > 0:
		return q.gap(now, psn)
	case d < 0:
		return q.duplicate(psn, p)
	}
	q.expectedCame()
	for _, check := range requestChecks {
		if f := check(q, p); f != faultNone {
			return q.refuse(f, p)
		}
	}
	if f := operations[p.Info.Op].execute(q, p); f != faultNone {
		return q.refuse(f, p)
	}
	return Accepted
}

// requestChecks are what a request with the expected PSN must pass, in this
// order (IBTA Vol 1 §9.7.4.1, figure of the responder's checks).
var requestChecks = [...]func(*QP, *Packet) fault{
	(*QP).checkSuccession,
	(*QP).checkEnabled,
	(*QP).checkReplaySpace,
	(*QP).checkRecv,
	(*QP).checkLength,
	(*QP).checkKey,
	(*QP).checkAlignment,
	(*QP).checkRoom,
}

// checkSuccession: First and Only begin a message, Middle and Last go on with
// the one in progress (IBTA Vol 1 §9.7.4.1.2).
func (q *QP) checkSuccession(p *Packet) fault {
	begins := p.Info.Position.Begins()
	if q.rsp.op == bth.OpReserved && begins || q.rsp.op == p.Info.Op && !begins {
		return faultNone
	}
	q.past().because(WhySuccession)
	return faultInvalid
}

// checkEnabled: the operation exists here and qp_access_flags allow it
// (IBTA Vol 1 §9.7.4.1.3).
func (q *QP) checkEnabled(p *Packet) fault { return q.checkEnabledOp(p.Info.Op) }

func (q *QP) checkEnabledOp(op bth.Op) fault {
	o := &operations[op]
	if o.execute == nil || mrtable.Access(q.attr.AccessFlags)&o.need != o.need {
		q.past().disabled(o, q.attr.AccessFlags)
		return faultInvalid
	}
	return faultNone
}

// checkReplaySpace: a READ or an atomic needs one of max_dest_rd_atomic replay
// records whose answer has left (IBTA Vol 1 §9.7.4.1.4).
func (q *QP) checkReplaySpace(p *Packet) fault {
	if operations[p.Info.Op].remembered && !q.rsp.replays.hasSpace() {
		q.past().because(WhyReadsFull)
		return faultInvalid
	}
	return faultNone
}

// checkRecv takes a receive where the message needs one (IBTA Vol 1 §9.7.4.1.5).
// A SEND takes it with its first packet, a WRITE with Immediate with its last.
func (q *QP) checkRecv(p *Packet) fault {
	if p.Info.ConsumesRecv && !q.holdRecv() {
		return faultNotReady
	}
	return faultNone
}

// holdRecv takes a receive, unless one is held: a service without
// acknowledgements keeps that of a message that it dropped.
func (q *QP) holdRecv() bool {
	r := &q.rsp
	if !r.hasRecv && q.cfg.Recv.TakeRecv(&r.recv) {
		r.hasRecv, r.room = true, r.recv.Length()
	}
	return r.hasRecv
}

// checkLength: payload and pad against opcode and path MTU, DMA length against
// 2^31 and against the payload (IBTA Vol 1 §9.7.4.1.6).
func (q *QP) checkLength(p *Packet) fault {
	n := len(p.Payload)
	if !p.Info.Payload.Allows(n, int(q.mtu)) {
		q.noteMTU(p)
		return faultLength
	}
	if p.Pad != int(bth.PadLen(n)) {
		return faultLength
	}
	left := q.rsp.left
	if p.Info.Headers.Has(bth.HasRETH) {
		if left = uint64(p.RETH().Length()); left > maxDMALength {
			return faultLength
		}
	}
	if p.Info.Op != bth.OpWrite {
		return faultNone
	}
	if ends := p.Info.Position.Ends(); ends && left != uint64(n) || !ends && left <= uint64(n) {
		return faultLength
	}
	return faultNone
}

// noteMTU tells when a packet's length shows that the peer has another path MTU.
func (q *QP) noteMTU(p *Packet) {
	n := len(p.Payload)
	q.past().PeerMTU = 0
	mtu, ok := bth.MTUFromBytes(n)
	switch p.Info.Position {
	case bth.First, bth.Middle:
		if ok {
			q.past().PeerMTU = mtu.Bytes()
			q.noteOnce(Event{Kind: NoteMTU, OwnMTU: int(q.mtu), PeerMTU: mtu.Bytes()})
		}
	case bth.Last, bth.Only:
		if n > int(q.mtu) && n <= maxMTU {
			for mtu = q.attr.PathMTU; mtu.Bytes() < n; mtu++ {
			}
			q.past().PeerMTU = mtu.Bytes()
			q.noteOnce(Event{Kind: NoteMTU, OwnMTU: int(q.mtu), PeerMTU: mtu.Bytes()})
		}
	case bth.None:
	}
}

// checkKey: key, domain, rights and bounds of the whole message. A length of 0
// is not checked (IBTA Vol 1 §9.7.4.1.7, C9-88).
func (q *QP) checkKey(p *Packet) fault {
	var err error
	switch {
	case p.Info.Headers.Has(bth.HasRETH):
		h, need := p.RETH(), mrtable.AccessRemoteWrite
		if p.Info.Op == bth.OpReadRequest {
			need = mrtable.AccessRemoteRead
		}
		_, err = q.remote(h.RKey(), h.VA(), uint64(h.Length()), need)
	case p.Info.Headers.Has(bth.HasAtomicETH):
		h := p.AtomicETH()
		_, err = q.remote(h.RKey(), h.VA(), atomicLen, mrtable.AccessRemoteAtomic)
	}
	if err != nil {
		return faultAccess
	}
	return faultNone
}

// checkAlignment: an atomic's address is a multiple of 8 (IBTA Vol 1 §9.7.4.1.8).
func (q *QP) checkAlignment(p *Packet) fault {
	if p.Info.Headers.Has(bth.HasAtomicETH) && p.AtomicETH().VA()%atomicLen != 0 {
		return faultAlign
	}
	return faultNone
}

// checkRoom: a SEND fits its receive (IBTA Vol 1 §9.7.4.1.6).
func (q *QP) checkRoom(p *Packet) fault {
	r := &q.rsp
	if p.Info.Op == bth.OpSend && uint64(r.total)+uint64(len(p.Payload)) > r.room {
		return faultRecvShort
	}
	return faultNone
}

// operation is what the responder knows of an operation.
type operation struct {
	need       mrtable.Access // in qp_access_flags
	remembered bool           // takes a replay record
	execute    func(*QP, *Packet) fault
	again      func(*QP, bth.PSN, *Packet) Verdict // a duplicate
}

// operations is the table of what the responder carries out; the others are not
// supported.
var operations = [bth.OpCNP + 1]operation{
	bth.OpSend:        {0, false, (*QP).executeSend, (*QP).acknowledgeAgain},
	bth.OpWrite:       {mrtable.AccessRemoteWrite, false, (*QP).executeWrite, (*QP).acknowledgeAgain},
	bth.OpReadRequest: {mrtable.AccessRemoteRead, true, (*QP).acceptRead, (*QP).replayRead},
	bth.OpCmpSwap:     {mrtable.AccessRemoteAtomic, true, (*QP).executeAtomic, (*QP).replayAtomic},
	bth.OpFetchAdd:    {mrtable.AccessRemoteAtomic, true, (*QP).executeAtomic, (*QP).replayAtomic},
}

// executeSend stores a packet of a SEND in its receive.
func (q *QP) executeSend(p *Packet) fault {
	r := &q.rsp
	ends := p.Info.Position.Ends()
	if q.scatter(r.recv.SGList, uint64(r.total), p.Payload, ends) != nil {
		return faultScatter
	}
	r.total += uint32(len(p.Payload))
	if p.Info.Headers.Has(bth.HasIETH) && q.invalidateFor(p.IETH().RKey()) != nil {
		return faultInvalidate
	}
	if ends {
		q.completeRecv(p, cq.Recv, r.total)
	}
	q.executed(p)
	return faultNone
}

// executeWrite stores a packet of a WRITE. The range of each packet is looked
// up anew: its key may have gone since the message began.
func (q *QP) executeWrite(p *Packet) fault {
	r := &q.rsp
	if p.Info.Headers.Has(bth.HasRETH) {
		h := p.RETH()
		r.rkey, r.va, r.total, r.left = h.RKey(), h.VA(), h.Length(), uint64(h.Length())
	}
	n := uint64(len(p.Payload))
	ends := p.Info.Position.Ends()
	seg, err := q.remote(r.rkey, r.va, n, mrtable.AccessRemoteWrite)
	if err == nil {
		if err = store(&seg, 0, p.Payload, ends); err != nil {
			q.doubtful(r.rkey, r.va, n, mrtable.AccessRemoteWrite, err)
		}
	}
	if err != nil {
		return faultAccess
	}
	r.va += n
	r.left -= n
	if p.Info.CompletesRecv {
		q.completeRecv(p, cq.RecvRDMAWithImm, r.total)
	}
	q.executed(p)
	return faultNone
}

// executed moves on behind a packet of a SEND or WRITE.
func (q *QP) executed(p *Packet) {
	r := &q.rsp
	r.newest = r.expected
	r.expected = r.expected.Add(1)
	if p.Info.Position.Ends() {
		r.endMessage()
		r.msn = (r.msn + 1) & msnMask
		q.stats.RcvdMsgs++
	} else {
		r.op = p.Info.Op
	}
	if p.BTH().AckReq() && q.cfg.Type == qpstate.RC {
		r.answers.ack = true
	}
}

// endMessage: no message is in progress.
func (r *responder) endMessage() { r.op, r.total, r.left = bth.OpReserved, 0, 0 }

// completeRecv gives the message's receive its completion.
func (q *QP) completeRecv(p *Packet, op cq.Opcode, length uint32) {
	r := &q.rsp
	q.wc = cq.WC{WRID: r.recv.WRID, Opcode: op, QPN: q.cfg.QPN, ByteLen: length}
	if p.Info.Headers.Has(bth.HasDETH) {
		q.wc.Flags, q.wc.SrcQP = cq.GRH, p.DETH().SrcQP()
	}
	if p.Info.Headers.Has(bth.HasImmDt) {
		d := p.ImmDt()
		q.wc.Flags |= cq.WithImm
		q.wc.ImmData = uint32(d[0])<<24 | uint32(d[1])<<16 | uint32(d[2])<<8 | uint32(d[3])
	}
	if p.Info.Headers.Has(bth.HasIETH) {
		q.wc.Flags |= cq.WithInv
		q.wc.InvalidatedRKey = p.IETH().RKey()
	}
	r.hasRecv = false
	q.cfg.Counters.RDMARecvs++
	q.cfg.RecvCQ.Complete(&q.wc, p.BTH().Solicited())
}

// failRecv completes the message's receive in error.
func (q *QP) failRecv(status cq.Status) {
	r := &q.rsp
	r.hasRecv = false
	q.wc = cq.WC{WRID: r.recv.WRID, Status: status, Opcode: cq.Recv, QPN: q.cfg.QPN}
	q.cfg.RecvCQ.Complete(&q.wc, true)
}

// flushRecv completes the receive in progress, then those that are posted, with
// WR_FLUSH_ERR; those of a shared queue are not its own. It stops after
// flushBatch, since a hostile program posts as fast as they are flushed.
func (q *QP) flushRecv() {
	r := &q.rsp
	if r.hasRecv {
		q.failRecv(cq.WRFlushErr)
	}
	r.flushing = false
	if q.cfg.SRQ {
		return
	}
	for range flushBatch {
		if !q.cfg.Recv.TakeRecv(&r.recv) {
			return
		}
		q.failRecv(cq.WRFlushErr)
	}
	r.flushing = true
}

// Flushing says that the queue pair is in ERR and did not come to the end of
// the posted receives: PostRecv is to be called again.
func (q *QP) Flushing() bool { return q.rsp.flushing && q.state.FlushesRecv() }

// refuse reacts to a fault as the table says: a NAK, a completion in error or an
// event, and the end of the connection. The NAK goes out also when no receive
// was there to complete.
func (q *QP) refuse(f fault, p *Packet) Verdict {
	r := &q.rsp
	do := &reactions[f]
	switch {
	case f == faultNotReady:
		q.tellNotReady()
	case do.fatal:
		q.requestTrouble(f, p)
		if do.syndrome != 0 && q.cfg.Type == qpstate.RC {
			r.answers.nak, r.answers.nakPSN = do.syndrome, r.expected
		}
		if r.hasRecv {
			q.failRecv(do.recv)
		} else {
			q.event(Event{Kind: do.event})
		}
		q.state = qpstate.Err
		q.becomeErr(true)
	}
	return do.verdict
}
