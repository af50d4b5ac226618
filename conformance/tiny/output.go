package tiny

import (
	"encoding/binary"
	"math/rand/v2"

	"github.com/softroce/softroce/conformance/wire"
	"github.com/softroce/softroce/pkg/bth"
)

// aeth fills in an acknowledgement's header.
func (q *qp) aeth(w *wire.Packet, s bth.Syndrome) {
	if q.srq != nil && s == bth.AckNoCredit && q.t.broken("srq-credits") {
		s = bth.AckSyndrome(3)
	}
	w.AETH = bth.AETHFields{Syndrome: s, MSN: q.msn & 0xFFFFFF}
}

// ack acknowledges requests up to psn.
func (q *qp) ack(psn bth.PSN) {
	t := q.t
	switch {
	case t.broken("ack-silent"):
		return
	case t.broken("ack-psn-off-by-one"):
		psn = psn.Add(1)
	}
	w := q.packetTo(bth.RCAcknowledge, psn)
	q.aeth(w, bth.AckNoCredit)
	if t.broken("ack-as-nak") {
		w.AETH.Syndrome = bth.NAKInvalidRequest
	}
	q.out(w)
}

// nak refuses, or asks for another try.
func (q *qp) nak(s bth.Syndrome, psn bth.PSN) {
	t := q.t
	w := q.packetTo(bth.RCAcknowledge, psn)
	q.aeth(w, s)
	switch {
	case t.broken("nak-silent") && s.IsNAK():
		return
	case t.broken("nak-msn-wrong"):
		w.AETH.MSN = (w.AETH.MSN + 1) & 0xFFFFFF
	case t.broken("nak-wrong-qpn"):
		w.BTH.DestQP++
	case t.broken("nak-requests-ack"):
		w.BTH.AckReq = true
	}
	q.out(w)
}

// breakOutput holds what is broken about every packet that leaves.
func (t *Target) breakOutput(q *qp, w *wire.Packet) {
	b := &w.BTH
	response := b.Opcode.Info().Response
	switch {
	case t.broken("destination-port-wrong"):
		w.DstPort = wire.Port - 1
	case t.broken("reply-to-source-port"):
		w.DstPort = q.peerPort
	case t.broken("source-port-varies"):
		t.floods++
		w.SrcPort = 0xC000 + uint16(t.floods)&0x3FFF
	case t.broken("fragmentable"):
		w.FragSet = true
	case t.broken("ip-sum-wrong"):
		w.BadIPSum = true
	case t.broken("ttl-one"):
		w.TTL = 1
	case t.broken("udp-length-without-icrc"):
		w.UDPLen = -bth.ICRCLen
	case t.broken("tver-one"):
		b.TVer = 1
	case t.broken("pkey-zero"):
		b.PKey = 0
	case t.broken("reserved-bits-set"):
		b.Resv7 = 1
	case t.broken("reserved-six-set"):
		b.Resv6 = 1
	case t.broken("response-solicited") && response:
		b.Solicited = true
	case t.broken("response-asks-ack") && response:
		b.AckReq = true
	case t.broken("response-qpn-wrong") && response:
		b.DestQP ^= 0x10
	case t.broken("own-qpn-as-destination"):
		b.DestQP = q.num
	case t.broken("icrc-big-endian"):
		w.ICRC = func(right uint32) []byte { return binary.BigEndian.AppendUint32(nil, right) }
	case t.broken("icrc-wrong"):
		w.ICRC = func(right uint32) []byte { return binary.LittleEndian.AppendUint32(nil, right+1) }
	}
}

// out sends a packet.
func (q *qp) out(w *wire.Packet) {
	t := q.t
	n := (4 - len(w.Payload)%4) % 4
	switch {
	case n == 0:
	case t.broken("pad-missing"):
		w.Pad = []byte{}
	case t.broken("pad-dirty"):
		w.Pad, w.BTH.Pad = []byte{0xEE, 0xEE, 0xEE}[:n], uint8(n)
	case t.broken("pad-count-zero"):
		w.Pad = make([]byte, n)
	}
	t.counts["sent"]++
	_ = t.link.Send(w)
}

// flood answers a packet with very many others.
func (t *Target) flood(p *packet) bool {
	q := t.byNum[p.h.BTH.DestQP]
	if t.broken("junk") {
		t.junk(p)
	}
	if !t.broken("flood") || q == nil {
		return false
	}
	for i := range 300 {
		q.ack(p.psn().Add(uint32(i) * 7))
	}
	return true
}

// junk sends random bytes, some of which look like a packet to the peer.
func (t *Target) junk(p *packet) {
	r := rand.New(rand.NewPCG(uint64(p.psn()), 1))
	for n := range 20 {
		roce := make([]byte, 7*n+r.IntN(5))
		for i := range roce {
			roce[i] = byte(r.Uint32())
		}
		if q := t.byNum[p.h.BTH.DestQP]; q != nil && n > 5 {
			roce = append((&bth.BTHFields{Opcode: bth.Opcode(r.IntN(32)), PKey: bth.DefaultPKey, DestQP: q.dest}).Append(nil), roce...)
		}
		_ = t.link.Send(&wire.Packet{Roce: roce})
	}
}

// stray answers a packet for a queue pair that is not there.
func (t *Target) stray(p *packet) {
	w := &wire.Packet{Dst: p.src}
	w.BTH = bth.BTHFields{Opcode: bth.RCAcknowledge, PKey: bth.DefaultPKey, DestQP: p.h.BTH.DestQP, PSN: p.psn()}
	for _, q := range t.qps {
		w.BTH.DestQP = q.dest
	}
	w.AETH.Syndrome = bth.NAKInvalidRequest
	_ = t.link.Send(w)
}

// killAll moves every queue pair to ERR, as a crash would.
func (t *Target) killAll() {
	for _, q := range t.qps {
		q.toError()
	}
}
