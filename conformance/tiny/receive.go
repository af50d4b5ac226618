package tiny

import (
	"github.com/softroce/softroce/conformance/agent"
	"github.com/softroce/softroce/pkg/bth"
)

// send takes a packet of a SEND.
func (q *qp) send(p *packet) {
	t := q.t
	if p.Info.Position.Begins() {
		q.cur = &message{op: bth.OpSend, recv: q.takeRecv()}
	}
	m := q.cur
	if m.recv == nil {
		m.recv = q.takeRecv()
	} else if t.broken("recv-per-packet") && !p.Info.Position.Begins() {
		if m.recv = q.takeRecv(); m.recv == nil {
			q.cur = nil
			q.receiverNotReady(p)
			return
		}
	}
	if m.recv == nil {
		q.refuse(p, bth.NAKInvalidRequest, "QP_REQ_ERR")
		return
	}
	if m.got+uint64(len(p.Payload)) > m.recv.capacity() && !t.broken("recv-too-small-truncates") {
		q.failRecv(p, bth.NAKInvalidRequest, "LOC_LEN_ERR")
		return
	}
	if err := q.scatter(m.recv.SGEs, m.got, q.delivered(p)); err != nil && !t.broken("recv-lkey-ignored") {
		q.failRecv(p, bth.NAKRemoteOperational, "LOC_PROT_ERR")
		return
	}
	m.got += uint64(len(p.Payload))
	if t.broken("ack-before-completion") && p.Info.Position.Ends() {
		q.ackTwoStep(p)
		return
	}
	if p.Info.Position.Ends() && !q.receiveDone(p) {
		return
	}
	q.executed(p)
}

// delivered is the payload as it is placed.
func (q *qp) delivered(p *packet) []byte {
	if q.t.broken("pad-delivered") {
		return append(append([]byte(nil), p.Payload...), p.PadBytes()...)
	}
	if q.t.broken("payload-bit-flipped") && len(p.Payload) > 0 {
		b := append([]byte(nil), p.Payload...)
		b[len(b)-1] ^= 1
		return b
	}
	return p.Payload
}

// ackTwoStep acknowledges a SEND and completes it at the next one.
func (q *qp) ackTwoStep(p *packet) {
	m := *q.cur
	q.executed(p)
	go func() {
		<-laterThan()
		q.t.mu.Lock()
		defer q.t.mu.Unlock()
		q.cur = &m
		q.receiveDone(p)
		q.cur = nil
	}()
}

// failRecv refuses a SEND that its receive cannot take: the receive completes in error.
func (q *qp) failRecv(p *packet, s bth.Syndrome, status string) {
	r := q.cur.recv
	q.cur.recv = nil
	if q.t.broken("bad-recv-kept") {
		q.rq = append([]recvWR{*r}, q.rq...)
	} else {
		q.recvCQ.push(agent.WC{ID: r.ID, Status: status, QPN: uint32(q.num)}, true)
	}
	q.nak(s, p.psn())
	if !q.t.broken("bad-recv-tolerated") {
		q.toError()
	} else {
		q.cur = nil
	}
}

// receiveDone completes the receive of the message in progress; false: its invalidation failed and the queue pair is dead.
func (q *qp) receiveDone(p *packet) bool {
	t, m := q.t, q.cur
	wc := agent.WC{
		ID: m.recv.ID, Status: "SUCCESS", Op: "RECV", ByteLen: uint32(m.got), QPN: uint32(q.num), SrcQP: uint32(q.dest),
	}
	if t.broken("byte-len-of-last") {
		wc.ByteLen = uint32(len(p.Payload))
	}
	q.immediate(&wc, p)
	if p.Has(bth.HasIETH) {
		key := p.h.IETH.RKey
		if err := q.invalidate(key); err != nil {
			q.cur = nil
			q.recvCQ.push(agent.WC{ID: wc.ID, Status: "LOC_QP_OP_ERR", QPN: wc.QPN}, true)
			if t.broken("invalidate-error-nak") {
				q.nak(bth.NAKRemoteAccess, p.psn())
			}
			q.toError()
			return false
		}
		wc.WithInv, wc.Inv = true, key
		if t.broken("invalidated-key-missing") {
			wc.WithInv, wc.Inv = false, 0
		}
	}
	q.recvCQ.push(wc, q.solicited(p))
	return true
}

// solicited reports whether the completion of a message is a solicited one.
func (q *qp) solicited(p *packet) bool {
	return p.h.BTH.Solicited && !q.t.broken("solicited-ignored")
}

// immediate puts immediate data into a completion.
func (q *qp) immediate(wc *agent.WC, p *packet) {
	t := q.t
	if !p.Has(bth.HasImmDt) || t.broken("immediate-missing") {
		return
	}
	d := p.h.ImmDt
	wc.WithImm, wc.Imm = true, uint32(d[0])<<24|uint32(d[1])<<16|uint32(d[2])<<8|uint32(d[3])
	if t.broken("immediate-swapped") {
		wc.Imm = uint32(d[3])<<24 | uint32(d[2])<<16 | uint32(d[1])<<8 | uint32(d[0])
	}
}

// scatter places bytes at an offset of a list of SGEs.
func (q *qp) scatter(sges []agent.SGE, off uint64, b []byte) error {
	for _, s := range sges {
		if s.Length == 0 {
			if q.t.broken("empty-sge-ends") {
				return nil
			}
			continue
		}
		if off >= uint64(s.Length) {
			off -= uint64(s.Length)
			continue
		}
		if len(b) == 0 && off == 0 {
			break
		}
		mem, err := q.local(s, localWrite)
		if err != nil {
			return err
		}
		n := copy(mem[off:], b)
		b, off = b[n:], 0
	}
	return nil
}
