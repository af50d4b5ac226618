package transport

import (
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/cq"
	"github.com/softroce/softroce/pkg/wq"
)

// The unreliable connection (IBTA Vol 1 §9.8.2): SENDs and WRITEs as on a
// reliable one, but nothing is acknowledged and nothing is sent again. A packet
// that is lost takes its message with it, and no other.

// ucMessageOpcodes is the table of UC packet opcodes by send operation.
var ucMessageOpcodes = messageTable{
	wq.Send:             {bth.UCSendFirst, bth.UCSendMiddle, bth.UCSendLast, bth.UCSendOnly},
	wq.SendWithImm:      {bth.UCSendFirst, bth.UCSendMiddle, bth.UCSendLastImmediate, bth.UCSendOnlyImmediate},
	wq.RDMAWrite:        {bth.UCWriteFirst, bth.UCWriteMiddle, bth.UCWriteLast, bth.UCWriteOnly},
	wq.RDMAWriteWithImm: {bth.UCWriteFirst, bth.UCWriteMiddle, bth.UCWriteLastImmediate, bth.UCWriteOnlyImmediate},
}

// pollUnacknowledged builds the next packet of a SEND or WRITE. There is no
// window: what bounds the sender is who pulls the packets.
func (q *QP) pollUnacknowledged(buf []byte, tx *Transmit) int {
	var p plan
	if q.passLocal(); !q.planNext(&p) {
		return 0
	}
	n, err := q.buildMessage(&p, buf, tx)
	if err != nil {
		q.failLocal(cq.LocProtErr)
		return 0
	}
	q.handedOut(&p)
	return n
}

// failLocal ends the oldest request, which cannot be carried out. A message of
// which packets have left stays without an end: its next one begins another.
func (q *QP) failLocal(status cq.Status) {
	q.req.localErr = status
	q.settleLocal()
}

// handedOut moves on behind packets that nobody acknowledges: those of plan p.
// A request is done when its last packet left (IBTA Vol 1 §9.8.2).
func (q *QP) handedOut(p *plan) {
	r := &q.req
	q.countSend(p)
	r.nxt = r.nxt.Add(p.n)
	r.una, r.max = r.nxt, r.nxt
	if p.off+p.n == packetsOf(p.e) {
		if q.cfg.Stage != nil {
			q.cfg.Stage.Forget() // from now on the program may change its memory
		}
		q.popHead(cq.Success)
	}
	q.checkDrained()
}

// nextUnacknowledgedRun chooses Middle packets of the message in progress, which
// nothing but the caller bounds.
func (q *QP) nextUnacknowledgedRun(most int) (next run) {
	var p plan
	op, src := q.planRun(&p, most)
	n := len(src) / int(q.mtu)
	if n == 0 {
		return next
	}
	next = run{op, q.req.nxt, n, src}
	p.n = uint32(n)
	q.handedOut(&p)
	return next
}

// unacknowledgedChecks are what a request must pass, in this order. A receive
// is taken when nothing else can be wrong with the packet.
var unacknowledgedChecks = [...]func(*QP, *Packet) fault{
	(*QP).checkEnabled,
	(*QP).checkLength,
	(*QP).checkKey,
	(*QP).checkRecv,
	(*QP).checkRoom,
}

// handleUnacknowledged takes a request (IBTA Vol 1 §9.8.2.2). A First or Only
// begins a message, whatever its PSN; anything else must go on with the message
// in progress, at the expected PSN, or it is dropped with that message.
func (q *QP) handleUnacknowledged(p *Packet) Verdict {
	r := &q.rsp
	psn := p.BTH().PSN()
	if psn != r.expected {
		q.cfg.Counters.OutOfSeqRequest++
	}
	switch {
	case p.Info.Position.Begins():
		q.dropMessage(cq.RemInvReqErr)
		r.expected = psn
	case psn != r.expected || r.op != p.Info.Op:
		q.dropMessage(cq.RemInvReqErr)
		r.expected = psn.Add(1)
		return DropMessage
	}
	for _, check := range unacknowledgedChecks {
		if f := check(q, p); f != faultNone {
			return q.refuseUnacknowledged(f, p)
		}
	}
	if f := operations[p.Info.Op].execute(q, p); f != faultNone {
		return q.refuseUnacknowledged(f, p)
	}
	return Accepted
}

// refuseUnacknowledged drops the message of a packet that has a fault, without a
// word to its sender. A fault of this side's own memory ends the queue pair.
func (q *QP) refuseUnacknowledged(f fault, p *Packet) Verdict {
	do := &unacknowledged[f]
	if do.verdict == Accepted { // not in the table
		return q.refuse(f, p)
	}
	if q.rsp.op == bth.OpReserved {
		q.cfg.Counters.DroppedMessages++
	}
	q.dropMessage(do.shared)
	q.rsp.expected = q.rsp.expected.Add(1)
	return do.verdict
}

// dropMessage gives up the message in progress, if there is one. Its receive
// waits for the next message, but one that came from a shared queue completes
// with status (fault classes D1 and E).
func (q *QP) dropMessage(status cq.Status) {
	r := &q.rsp
	if r.op != bth.OpReserved {
		q.cfg.Counters.DroppedMessages++
	}
	r.endMessage()
	if r.hasRecv && q.cfg.SRQ {
		q.failRecv(status)
	}
}
