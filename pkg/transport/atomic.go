package transport

import (
	"encoding/binary"

	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/cq"
	"github.com/softroce/softroce/pkg/mrtable"
	"github.com/softroce/softroce/pkg/wq"
)

// atomicLen is the size of an atomic's operand in bytes.
const atomicLen = 8

// buildAtomic builds a CmpSwap or FetchAdd request. The error is a local
// protection error: the answer could not be stored.
func (q *QP) buildAtomic(p *plan, buf []byte, tx *Transmit) (int, error) {
	e := p.e
	if err := q.checkWritable(e.SGList); err != nil {
		return 0, err
	}
	op := bth.RCFetchAdd
	h := bth.AtomicETHFields{VA: e.RemoteAddr, RKey: uint32(e.RKey), Swap: e.CompareAdd}
	if e.Opcode == wq.AtomicCmpAndSwp {
		op = bth.RCCmpSwap
		h.Swap, h.Compare = e.Swap, e.CompareAdd
	}
	psn := q.req.nxt
	b := q.header(buf[:0], op, psn, 0, true, false)
	b = h.Append(b)
	_, reg := q.body(b, 0)
	n, icrc := seal(buf, len(b), 0, reg)
	q.req.sinceAck = 0
	tx.ICRC, tx.Opcode, tx.PSN = icrc, op, psn
	return n, nil
}

// takeAtomicAck stores the original value, in host byte order.
func (q *QP) takeAtomicAck(e *wq.WQE, p *Packet) cq.Status {
	if len(p.Payload) != 0 {
		return cq.BadRespErr
	}
	binary.NativeEndian.PutUint64(q.value[:], p.AtomicAckETH().Original())
	if q.scatter(e.SGList, 0, q.value[:], true) != nil {
		return cq.LocProtErr
	}
	return cq.Success
}

// executeAtomic changes memory once and remembers what was there.
func (q *QP) executeAtomic(p *Packet) fault {
	h := p.AtomicETH()
	r := &q.rsp
	seg, err := q.remote(h.RKey(), h.VA(), atomicLen, mrtable.AccessRemoteAtomic)
	if err != nil {
		return faultAccess
	}
	s := r.remember(q)
	if s == nil {
		return faultResource
	}
	var old uint64
	if p.Info.Op == bth.OpCmpSwap {
		old, err = seg.CompareSwap(0, h.Compare(), h.Swap())
	} else {
		old, err = seg.FetchAdd(0, h.Swap())
	}
	if err != nil {
		q.doubtful(h.RKey(), h.VA(), atomicLen, mrtable.AccessRemoteAtomic, err)
		r.replays.forget()
		return faultAccess
	}
	r.msn = (r.msn + 1) & msnMask
	q.stats.RcvdMsgs++
	*s = replay{
		op: p.Info.Op, psn: r.expected, n: 1, msn: r.msn, va: h.VA(), rkey: h.RKey(),
		swap: h.Swap(), compare: h.Compare(), old: old,
	}
	r.expected = r.expected.Add(1)
	r.schedule(s, s.psn, 1, 0, false)
	return faultNone
}

// replayAtomic answers an atomic again with what was remembered. It is never
// executed twice; one that is not remembered, or differs, is dropped.
func (q *QP) replayAtomic(psn bth.PSN, p *Packet) Verdict {
	h := p.AtomicETH()
	s := q.rsp.find(psn)
	if s == nil || s.op != p.Info.Op || s.va != h.VA() || s.rkey != h.RKey() || s.swap != h.Swap() ||
		s.op == bth.OpCmpSwap && s.compare != h.Compare() {
		return DropDuplicate
	}
	q.rsp.schedule(s, psn, 1, 0, true)
	return Duplicate
}

// buildAtomicAck builds the Atomic Acknowledge of s.
func (q *QP) buildAtomicAck(s *replay, buf []byte) (int, Transmit) {
	b := q.header(buf[:0], bth.RCAtomicAcknowledge, s.psn, 0, false, false)
	b = q.aeth(b, bth.AckNoCredit, s.answerMSN(&q.rsp))
	h := bth.AtomicAckETHFields{Original: s.old}
	b = h.Append(b)
	_, reg := q.body(b, 0)
	n, icrc := seal(buf, len(b), 0, reg)
	return n, Transmit{ICRC: icrc, Opcode: bth.RCAtomicAcknowledge, PSN: s.psn, Resend: s.again}
}
