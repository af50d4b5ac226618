package tiny

import (
	"net/netip"

	"github.com/softroce/softroce/conformance/agent"
	"github.com/softroce/softroce/conformance/wire"
	"github.com/softroce/softroce/pkg/bth"
)

// ucRequest takes a packet of an unreliable connection (IBTA Vol 1 §9.8.2).
func (q *qp) ucRequest(p *packet) {
	t, info := q.t, p.Info
	if t.broken("uc-acks") && p.h.BTH.AckReq || t.broken("uc-acks-unasked") && !p.h.BTH.AckReq {
		defer q.ack(p.psn())
	}
	gap := p.psn() != q.epsn
	if gap && !info.Position.Begins() && !t.broken("uc-gap-ignored") {
		q.ucAbandon()
		if t.broken("uc-gap-completes-write") && p.Has(bth.HasImmDt) && info.Op == bth.OpWrite && q.hasRecv() {
			q.writeImmediate(p, &message{})
		}
		return
	}
	if gap && q.cur != nil && t.broken("uc-gap-loses-next") {
		q.ucAbandon()
		q.resync = false
		q.epsn = p.psn().Add(1)
		return
	}
	q.epsn = p.psn().Add(1)
	if info.Position.Begins() {
		cut := q.cur != nil
		q.ucAbandon()
		if cut && t.broken("uc-cut-loses-both") {
			return
		}
		q.resync = false
	} else if q.resync || q.cur == nil || q.cur.op != info.Op {
		q.ucAbandon()
		return
	}
	if !q.ucExecute(p) {
		q.ucAbandon()
		if t.broken("uc-error-kills") {
			q.toError()
		}
		return
	}
	if info.Position.Ends() {
		q.cur = nil
	}
}

// ucAbandon gives up the message in progress. Its receive is kept for the next SEND; one of an SRQ completes in error.
func (q *qp) ucAbandon() {
	q.resync = true
	if q.cur == nil {
		return
	}
	r := q.cur.recv
	q.cur = nil
	switch {
	case r == nil:
	case q.srq != nil:
		q.recvCQ.push(agent.WC{ID: r.ID, Status: "LOC_QP_OP_ERR", QPN: uint32(q.num)}, true)
	case q.t.broken("uc-gap-consumes"):
		q.recvCQ.push(agent.WC{ID: r.ID, Status: "LOC_QP_OP_ERR", QPN: uint32(q.num)}, true)
	default:
		q.rq = append([]recvWR{*r}, q.rq...)
	}
}

// ucExecute does what a packet asks for; false: drop the message.
func (q *qp) ucExecute(p *packet) bool {
	t, info, n := q.t, p.Info, uint64(len(p.Payload))
	if !info.Payload.Allows(int(n), q.mtu) || !p.Aligned() {
		return false
	}
	if info.ConsumesRecv && !q.hasRecv() {
		if t.broken("uc-no-recv-kills") {
			q.toError()
		}
		return false
	}
	if info.Op == bth.OpSend {
		return q.ucSend(p)
	}
	if q.access&remoteWrite == 0 && !t.broken("qp-write-right-ignored") {
		return false
	}
	if info.Position.Begins() {
		q.cur = &message{op: bth.OpWrite, va: p.h.RETH.VA, key: p.h.RETH.RKey, length: uint64(p.h.RETH.Length)}
	}
	m := q.cur
	if m.got+n > m.length || info.Position.Ends() && m.got+n < m.length || m.length > 1<<31 {
		return false
	}
	if n > 0 {
		mem, err := q.remoteMem(m.key, m.va+m.got, n, remoteWrite)
		if err != nil {
			if t.broken("uc-bad-key-nak") {
				q.nak(bth.NAKRemoteAccess, p.psn())
			}
			return false
		}
		copy(mem, p.Payload)
	}
	m.got += n
	if p.Has(bth.HasImmDt) {
		q.writeImmediate(p, m)
	}
	return true
}

func (q *qp) ucSend(p *packet) bool {
	if q.cur == nil || p.Info.Position.Begins() {
		q.cur = &message{op: bth.OpSend, recv: q.takeRecv()}
	}
	m, n := q.cur, uint64(len(p.Payload))
	if m.recv == nil {
		m.recv = q.takeRecv()
	}
	if m.recv == nil || m.got+n > m.recv.capacity() && !q.t.broken("recv-too-small-truncates") {
		return false
	}
	if err := q.scatter(m.recv.SGEs, m.got, p.Payload); err != nil {
		return false
	}
	m.got += n
	if p.Info.Position.Ends() {
		q.receiveDone(p)
	}
	return true
}

// datagram takes a packet of the unreliable datagram service (IBTA Vol 1 §9.8.3).
func (q *qp) datagram(p *packet) {
	t, n := q.t, len(p.Payload)
	key := bth.QKey(q.qkey)
	if q.typ == "GSI" {
		key = bth.GSIQKey
	}
	switch {
	case p.h.DETH.QKey != key && !t.broken("qkey-ignored"):
		t.counts["bad_qkey"]++
		return
	case n > t.portMTU(), !p.Aligned(),
		t.broken("ud-psn-checked") && p.psn() != q.epsn,
		t.broken("ud-source-checked") && p.src != t.link.Remote(),
		t.broken("ud-empty-dropped") && n == 0,
		t.broken("ud-full-dropped") && n == t.portMTU():
		return
	case !q.hasRecv():
		if t.broken("ud-no-recv-kills") {
			q.toError()
		}
		return
	}
	q.epsn = p.psn().Add(1)
	if t.broken("ud-acks") && p.h.BTH.AckReq {
		w := q.packetTo(bth.RCAcknowledge, p.psn())
		w.Dst, w.BTH.DestQP = p.src, p.h.DETH.SrcQP
		q.out(w)
	}
	r := q.takeRecv()
	if r.capacity() < uint64(40+n) && t.broken("ud-overrun-kills") {
		q.toError()
		return
	}
	if r.capacity() < uint64(40+n) && !t.broken("ud-overrun") {
		q.recvCQ.push(agent.WC{ID: r.ID, Status: "LOC_LEN_ERR", QPN: uint32(q.num)}, true)
		return
	}
	wc := agent.WC{
		ID: r.ID, Status: "SUCCESS", Op: "RECV", ByteLen: uint32(40 + n), QPN: uint32(q.num), SrcQP: uint32(p.h.DETH.SrcQP), GRH: true,
	}
	switch {
	case t.broken("ud-src-qp"):
		wc.SrcQP = 0
	case t.broken("ud-byte-len"):
		wc.ByteLen -= 40
	}
	if err := q.scatter(r.SGEs, 0, append(q.grh(p), p.Payload...)); err != nil {
		wc = agent.WC{ID: r.ID, Status: "LOC_PROT_ERR", QPN: uint32(q.num)}
	}
	q.immediate(&wc, p)
	q.recvCQ.push(wc, q.solicited(p))
}

// grh is the forty bytes before a datagram's payload (Annex A17).
func (q *qp) grh(p *packet) []byte {
	t := q.t
	b := make([]byte, 40)
	switch {
	case t.broken("grh-zero"):
	case t.broken("v6-grh-without-addresses") && p.ipHeaderLen() == 40:
		copy(b, p.ip[:8])
	case p.ipHeaderLen() == 40, t.broken("grh4-at-zero"):
		copy(b, p.ip[:p.ipHeaderLen()])
	default:
		copy(b[20:], p.ip[:20])
	}
	return b
}

// sendDatagram sends a UD request; done says that it needs nothing more.
func (q *qp) sendDatagram(w *wqe) {
	t := q.t
	w.done = true
	if len(w.data) > t.portMTU() && !t.broken("ud-long-sent") {
		w.status = "LOC_LEN_ERR"
		return
	}
	ah := t.ahs[w.wr.AH]
	if ah == nil || ah.pd != q.pd {
		w.status = "LOC_QP_OP_ERR"
		return
	}
	op := bth.UDSendOnly
	if w.wr.Op == "SEND_WITH_IMM" {
		op = bth.UDSendOnlyImmediate
	}
	out := q.packetTo(op, q.ud)
	q.ud = q.ud.Add(1)
	out.Dst, _ = netip.ParseAddr(ah.path.Addr)
	out.TOS, out.TTL = uint8(ah.path.TClass), uint8(ah.path.HopLimit)
	out.BTH.DestQP = bth.QPN(w.wr.RemoteQPN)
	out.BTH.Solicited = w.has("SOLICITED")
	key := w.wr.RemoteQKey
	if key&(1<<31) != 0 && q.typ != "GSI" && !t.broken("ud-controlled-qkey-sent") {
		key = q.qkey
	}
	out.DETH = bth.DETHFields{QKey: bth.QKey(key), SrcQP: q.num}
	if t.broken("deth-qkey-own") {
		out.DETH.QKey = bth.QKey(q.qkey) + 1
	}
	q.setImmediate(w, out)
	out.Payload = w.data
	q.out(out)
}

// setImmediate writes a request's immediate data.
func (q *qp) setImmediate(w *wqe, out *wire.Packet) {
	v := w.wr.Imm
	if q.t.broken("immediate-sent-swapped") {
		v = v<<24 | v&0xFF00<<8 | v>>8&0xFF00 | v>>24
	}
	out.ImmDt = bth.ImmDt{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)}
}
