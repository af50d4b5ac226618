package transport

import (
	"encoding/binary"

	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/cq"
	"github.com/softroce/softroce/pkg/wq"
)

// The unreliable datagram (IBTA Vol 1 §9.8.3): messages of one packet, each to
// the queue pair that its request names.

const (
	// grhLen is what the network header takes of a receive, in bytes (Annex A17).
	grhLen = 40
	// privilegedQKey is the bit of a request's Q_Key that stands for the queue
	// pair's own (IBTA Vol 1 C10-15).
	privilegedQKey bth.QKey = 1 << 31
)

// pollDatagram builds the datagram of the oldest request, which is done with it.
func (q *QP) pollDatagram(buf []byte, tx *Transmit) int {
	if !q.state.StartsRequests() || q.sq.Len() == 0 {
		return 0
	}
	p := plan{e: q.sq.At(0), n: 1}
	path := q.cfg.AHs.Path(p.e.AH, q.cfg.PD, p.e.RemoteQPN)
	if path == nil {
		q.past().noAH(p.e.AH)
		q.failLocal(cq.LocQPOpErr)
		return 0
	}
	if p.e.User[userLength] > datagramMTU(path) {
		q.past().because(WhyDatagram)
		q.failLocal(cq.LocLenErr)
		return 0
	}
	q.takePath(path)
	n, err := q.buildDatagram(p.e, buf, tx)
	if err != nil {
		q.failLocal(cq.LocProtErr)
		return 0
	}
	tx.Path = path
	q.handedOut(&p)
	return n
}

// datagramMTU is the largest payload that goes a way.
func datagramMTU(p *Path) uint64 {
	if p.MTU == 0 {
		return maxMTU
	}
	return uint64(min(p.MTU, maxMTU))
}

// takePath makes the way of the next packet the queue pair's.
func (q *QP) takePath(p *Path) {
	if p.Src != q.path.Src || p.Dst != q.path.Dst || p.SrcPort != q.path.SrcPort {
		q.seeds = seedCache{}
	}
	q.path = *p
}

// buildDatagram builds a request's packet. The error is a local protection error.
func (q *QP) buildDatagram(e *wq.WQE, buf []byte, tx *Transmit) (int, error) {
	size := int(e.User[userLength])
	op := bth.UDSendOnly
	if e.Opcode == wq.SendWithImm {
		op = bth.UDSendOnlyImmediate
	}
	f := bth.BTHFields{
		Opcode: op, Solicited: e.Flags&wq.SendSolicited != 0, MigReq: true, Pad: bth.PadLen(size),
		PKey: bth.DefaultPKey, DestQP: e.RemoteQPN & bth.QPNMask, PSN: q.req.nxt,
	}
	h := bth.DETHFields{QKey: q.queueKey(e.RemoteQKey), SrcQP: q.cfg.QPN}
	b := h.Append(f.Append(buf[:0]))
	if op == bth.UDSendOnlyImmediate {
		b = immDt(e.ImmData).Append(b)
	}
	place, reg := q.body(b, size)
	if err := q.gather(e, 0, place, &reg); err != nil {
		return 0, err
	}
	n, icrc := seal(buf, len(b)+size, size, reg)
	tx.ICRC, tx.Opcode, tx.PSN = icrc, op, q.req.nxt
	return n, nil
}

// queueKey is the Q_Key that a request's datagram carries.
func (q *QP) queueKey(k bth.QKey) bth.QKey {
	if k&privilegedQKey != 0 {
		return q.attr.QKey
	}
	return k
}

// handleDatagram takes a datagram: from anybody who knows the Q_Key, with any
// PSN. Where it does not fit, or nothing was posted, it is dropped without a word
// (IBTA Vol 1 §9.8.3).
func (q *QP) handleDatagram(p *Packet) Verdict {
	n := len(p.Payload)
	switch {
	case !bth.DefaultPKey.Match(p.BTH().PKey()):
		return DropPKey
	case p.DETH().QKey() != q.attr.QKey:
		return DropQKey
	case n > maxMTU || p.Pad != int(bth.PadLen(n)):
		return DropLength
	case !q.holdRecv():
		return DropNoRecv
	}
	if need := uint64(grhLen + n); need > q.rsp.room {
		q.noteOnce(Event{Kind: NoteRecvShort, Count: int(need)})
		if q.cfg.SRQ {
			q.failRecv(cq.LocLenErr)
		}
		return DropLength
	}
	return q.storeDatagram(p)
}

// storeDatagram stores the network header and the payload, and completes the
// receive.
func (q *QP) storeDatagram(p *Packet) Verdict {
	list := q.rsp.recv.SGList
	q.grh = networkHeader(p)
	if q.scatter(list, 0, q.grh[:], false) != nil || q.scatter(list, grhLen, p.Payload, true) != nil {
		return q.refuse(faultScatter, p)
	}
	q.stats.RcvdMsgs++
	q.completeRecv(p, cq.Recv, uint32(grhLen+len(p.Payload)))
	return Accepted
}

// networkHeader is the packet's IP header as it stands in a receive (Annex A17):
// IPv6's, or twenty zero bytes and IPv4's with its checksum.
func networkHeader(p *Packet) (g [grhLen]byte) {
	const udpHeader, udp, ipv4Len = 8, 17, 20
	length := udpHeader + len(p.Bytes())
	if !p.Src.Is4() || !p.Dst.Is4() {
		binary.BigEndian.PutUint32(g[:], 6<<28|uint32(p.TOS)<<20|p.FlowLabel&0xFFFFF)
		binary.BigEndian.PutUint16(g[4:], uint16(length))
		g[6], g[7] = udp, p.TTL
		copy(g[8:24], p.Src[:])
		copy(g[24:], p.Dst[:])
		return g
	}
	h := g[grhLen-ipv4Len:]
	h[0], h[1] = 0x45, p.TOS
	binary.BigEndian.PutUint16(h[2:], uint16(ipv4Len+length))
	binary.BigEndian.PutUint16(h[4:], p.ID)
	h[6] = 0x40 // don't fragment, as the ICRC has it
	h[8], h[9] = p.TTL, udp
	copy(h[12:16], p.Src[12:])
	copy(h[16:20], p.Dst[12:])
	var sum uint32
	for i := 0; i < ipv4Len; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(h[i:]))
	}
	sum = sum>>16 + sum&0xFFFF
	binary.BigEndian.PutUint16(h[10:], ^uint16(sum+sum>>16))
	return g
}
