package nic

import (
	"errors"

	"github.com/softroce/softroce/internal/raceorder"
	"github.com/softroce/softroce/internal/uapi"
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/qpstate"
	"github.com/softroce/softroce/pkg/transport"
	"github.com/softroce/softroce/pkg/udp4791"
)

// receive takes one batch of datagrams from the endpoint, or what is left of the
// last, and gives each to its queue pair.
func (w *worker) receive() int {
	slots, err := w.rest, error(nil)
	if len(slots) == 0 {
		slots, err = w.ep.ReadBatch()
		w.stats.Receives += uint64(len(slots))
	}
	if err != nil {
		w.stats.RecvErrors++
		if n, ok := w.recvLog.allow(w.now); ok {
			w.a.log.Warn("receive failed", keyWorker, w.index, keyErr, err, keySuppressed, n)
		}
		return 0
	}
	if len(slots) > 0 {
		raceorder.Receive()
	}
	before := w.stats.PacketsIn
	w.rest, w.full = nil, false
	w.canWait = w.unsteered && !w.impaired.on // rules are not asked a second time about a packet
	for i := range slots {
		if w.acceptSlot(&slots[i]); w.full {
			w.rest = slots[i:]
			break
		}
	}
	w.canWait = false
	w.got = w.stats.PacketsIn - before
	return len(slots)
}

// acceptSlot takes the datagrams of one receive buffer. When a lane is full that has
// to be waited for (full), the slot keeps what is left.
func (w *worker) acceptSlot(s *udp4791.RecvSlot) {
	w.learner.solved = false
	if w.impaired.on {
		w.acceptImpaired(s)
		return
	}
	if s.Segment == 0 {
		w.accept(&s.Meta, s.Buf, fromWire)
		return
	}
	for buf := s.Buf; len(buf) > 0; {
		n := min(s.Segment, len(buf))
		w.taken = nil
		if w.accept(&s.Meta, buf[:n:n], fromWire); w.full {
			s.Buf = buf
			return
		}
		s.Meta.SegIndex++
		if w.taken != nil {
			more := w.acceptMiddles(&s.Meta, buf, s.Segment)
			s.Meta.SegIndex += more
			n += more * s.Segment
		}
		buf = buf[n:]
	}
}

// accept runs the checks that need no queue pair, in the order of
// IBTA Vol 1 §9.6.1 (length, version, destination, ICRC), and hands the packet
// to its engine. Everything that fails is dropped in silence and counted.
func (w *worker) accept(meta *udp4791.RecvMeta, buf []byte, from origin) {
	w.stats.PacketsIn++
	w.stats.BytesIn += uint64(len(buf))
	if meta.Truncated {
		w.drop(meta, buf, DropTruncated)
		return
	}
	if meta.Fault != udp4791.FaultNone {
		w.drop(meta, buf, dropOfFault(meta.Fault))
		return
	}
	if err := w.pkt.Parse(buf); err != nil {
		w.drop(meta, buf, dropOfParse(err))
		return
	}
	qpn := w.pkt.BTH().DestQP()
	if qpn == bth.MulticastQPN || meta.Dst.IsMulticast() {
		w.acceptMulticast(meta, buf, from)
		return
	}
	if to := w.a.workerOf(qpn); to != w {
		handed := from == fromWire && w.handOver(to, meta, buf, fromOther)
		w.full = !handed && w.canWait
		if !handed && !w.full {
			w.drop(meta, buf, DropHandover)
			return
		}
		w.stats.PacketsIn--
		w.stats.BytesIn -= uint64(len(buf))
		if handed {
			w.stats.Handovers++
		}
		return
	}
	q := w.find(qpn)
	if q == nil && qpn == gsiQPN {
		w.acceptMAD(meta, buf, from)
		return
	}
	if q == nil || q.dead {
		w.drop(meta, buf, DropNoQP)
		return
	}
	v := icrcVerdict{ok: true, idKnown: meta.Dst.Is4()}
	if from != fromLocal {
		if v = w.checkICRC(meta, buf); !v.ok {
			return
		}
	}
	w.setSource(meta, v.id)
	w.deliver(q, meta, buf, &v)
}

// checkICRC drops the parsed packet when its ICRC is wrong.
func (w *worker) checkICRC(meta *udp4791.RecvMeta, buf []byte) icrcVerdict {
	v := w.learner.check(w.now, meta, &w.pkt.Packet)
	if v.relearned {
		w.stats.Relearned++
	}
	if !v.ok {
		w.badICRC(meta, buf, &v)
	}
	return v
}

// find is the queue pair of this worker with the number; nil: none.
func (w *worker) find(qpn bth.QPN) *qp {
	if q := w.lastQP; q != nil && q.qpn == qpn {
		return q
	}
	w.lastQP = w.byQPN[qpn]
	return w.lastQP
}

// setSource says of the parsed packet what the network said; id is 0 when it is
// not known.
func (w *worker) setSource(meta *udp4791.RecvMeta, id uint16) {
	w.pkt.Src, w.pkt.Dst = bth.GIDFromAddr(meta.Src.Addr()), bth.GIDFromAddr(meta.Dst)
	w.pkt.TOS, w.pkt.TTL, w.pkt.ID = meta.TOS, meta.TTL, id
}

// deliver gives a proven packet to the engine.
func (w *worker) deliver(q *qp, meta *udp4791.RecvMeta, buf []byte, v *icrcVerdict) {
	if tap := w.a.tap.Load(); tap != nil {
		w.deliverSeen(tap, q, meta, buf, v)
		return
	}
	if verdict := w.handTo(q); verdict == transport.Accepted {
		w.taken = q
	}
}

// handTo gives the parsed packet to a queue pair's engine.
func (w *worker) handTo(q *qp) transport.Verdict {
	w.current = q
	verdict := q.engine.HandlePacket(w.now, &w.pkt)
	w.current = nil
	if q.awaited && verdict == transport.Accepted {
		q.awaited = false
		w.a.gsi.firstPacket(q.qpn)
	}
	w.accepted(q)
	return verdict
}

// accepted has a queue pair go on that took something in.
func (w *worker) accepted(q *qp) {
	if q.sqWaits && q.engine.State() != qpstate.Err {
		w.current = q
		w.drainSQ(q)
		w.current = nil
	}
	w.active.push(q)
}

func (w *worker) drop(meta *udp4791.RecvMeta, buf []byte, why Drop) {
	w.stats.Drops[why]++
	if tap := w.a.tap.Load(); tap != nil {
		w.captureDrop(tap, meta, buf, why.String())
	}
}

// badICRC drops a packet and says, at most once a second, what was seen.
func (w *worker) badICRC(meta *udp4791.RecvMeta, buf []byte, v *icrcVerdict) {
	w.drop(meta, buf, DropICRC)
	if n, ok := w.icrcLog.allow(w.now); ok {
		w.a.log.Warn("bad ICRC, packet dropped", keySrc, meta.Src.String(), keyDst, meta.Dst.String(),
			keyQPN, w.pkt.BTH().DestQP().String(), keyGot, hex32(v.got), keyWant, hex32(v.want), keyBytes, len(buf), keySuppressed, n)
	}
}

// dropOfParse names the reason of a parse error.
func dropOfParse(err error) Drop {
	switch {
	case errors.Is(err, bth.ErrShort):
		return DropShort
	case errors.Is(err, bth.ErrVersion):
		return DropVersion
	case errors.Is(err, bth.ErrReserved):
		return DropOpcode
	case errors.Is(err, bth.ErrPad):
		return DropPad
	default:
		return DropMalformed
	}
}

// event passes an engine's event to the program, or writes a diagnostic once
// per queue pair and kind.
func (w *worker) event(q *qp, ev transport.Event) {
	if q.gsi != nil {
		return // nobody's
	}
	if !ev.Kind.IsNote() {
		if t, ok := asyncOf(ev.Kind); ok {
			q.prog.postAsync(t, uapi.ElementQP, q.handle)
		}
		return
	}
	bit := uint32(1) << (uint32(ev.Kind) & 31)
	if q.warned&bit != 0 {
		return
	}
	q.warned |= bit
	// A program makes queue pairs as fast as it likes.
	if n, ok := w.noteLog.allowSome(w.now, logBurst); ok {
		w.a.log.Warn(ev.Text(), keyQPN, q.qpn.String(), keyPeer, q.path.Dst.String(), keyPID, q.prog.pid, keySuppressed, n)
	}
}

// asyncOf is the verbs' number of an engine's event.
func asyncOf(k transport.EventKind) (uapi.AsyncEvent, bool) {
	switch k {
	case transport.QPFatal:
		return uapi.EventQPFatal, true
	case transport.QPReqErr:
		return uapi.EventQPReqErr, true
	case transport.QPAccessErr:
		return uapi.EventQPAccessErr, true
	case transport.CommEst:
		return uapi.EventCommEst, true
	case transport.SQDrained:
		return uapi.EventSQDrained, true
	case transport.LastWQE:
		return uapi.EventQPLastWQEReached, true
	case transport.NoteRNRTimer, transport.NoteMTU, transport.NoteRetryExceeded, transport.NoteRNRRetryExceeded,
		transport.NoteRemoteNAK, transport.NoteLocalFault, transport.NoteRecvShort, transport.NoteLongRNRTimer:
		// Not of the verbs: for people.
	}
	return 0, false
}
