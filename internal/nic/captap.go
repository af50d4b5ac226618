package nic

import (
	"fmt"
	"strings"

	"github.com/softroce/softroce/internal/capture"
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/transport"
	"github.com/softroce/softroce/pkg/udp4791"
)

// taps are those who get the adapter's packets. It never changes; there is
// another one when somebody comes or goes.
type taps struct {
	file    *capture.Writer // of the adapter's configuration; nil: none
	streams []*capStream
}

// A sighting is a packet as it is captured.
type sighting struct {
	capture.Packet
	note capture.Note
	q    *qp // whose packet it is; nil: nobody's
}

// write hands a packet to everyone who may see it and asked for it.
func (w *worker) write(t *taps, s *sighting) {
	if t.file != nil {
		p := s.Packet
		p.Comment = string(s.note.Append(nil))
		if err := t.file.WritePacket(p); err != nil {
			w.a.tapFailed(err)
		}
	}
	for _, c := range t.streams {
		if c.wants(s) {
			c.queue.Put(s.Packet, s.note)
		}
	}
}

// received is a received packet with what is known of its headers.
func (w *worker) received(q *qp, meta *udp4791.RecvMeta, buf []byte, v *icrcVerdict, verdict string) *sighting {
	s := &sighting{
		Packet: capture.Packet{
			Time: w.now, Src: meta.Src.Addr(), Dst: meta.Dst, SrcPort: meta.Src.Port(), DstPort: udp4791.Port,
			TOS: meta.TOS, TTL: meta.TTL, ID: v.id, IDKnown: v.idKnown, Payload: buf,
		},
		note: capture.Note{Verdict: verdict},
		q:    q,
	}
	if q != nil {
		s.note.QPN, s.note.HasQP = q.qpn, true
	}
	return s
}

// deliverSeen is deliver while somebody captures: it looks up the work request
// that a packet is about.
func (w *worker) deliverSeen(t *taps, q *qp, meta *udp4791.RecvMeta, buf []byte, v *icrcVerdict) {
	info := w.pkt.Info
	var wrid uint64
	var op string
	if !info.Request { // the request may be gone afterwards
		wrid, op, _ = q.engine.RequestAt(w.pkt.BTH().PSN())
	}
	verdict := w.handTo(q)
	if verdict == transport.Accepted && info.Request && q.gsi == nil && takesReceive(info) {
		wrid, op = q.engine.LastReceive(), "RECV"
	}
	s := w.received(q, meta, buf, v, verdictWords(verdict))
	s.note.WR, s.note.Op = wrid, op
	w.write(t, s)
}

// takesReceive says whether a request packet uses a receive: those of a SEND, and
// the last of a WRITE with immediate data.
func takesReceive(i *bth.OpcodeInfo) bool {
	return i.Op == bth.OpSend || i.Op == bth.OpWrite && i.Headers&bth.HasImmDt != 0
}

// verdictWords is an engine's verdict as a comment has it.
func verdictWords(v transport.Verdict) string {
	if v.Dropped() {
		return capture.DroppedBecause(strings.TrimPrefix(v.String(), "drop_"))
	}
	return strings.ReplaceAll(v.String(), "_", " ")
}

// captureDrop writes a packet that no engine got.
func (w *worker) captureDrop(t *taps, meta *udp4791.RecvMeta, buf []byte, why string) {
	var q *qp
	if len(buf) >= bth.BTHLen {
		q = w.byQPN[bth.BTH(buf).DestQP()]
	}
	w.write(t, w.received(q, meta, buf, &icrcVerdict{}, capture.DroppedBecause(why)))
}

// captureGroup writes a packet to a multicast group, for every user that has a
// queue pair of this worker in it.
func (w *worker) captureGroup(t *taps, h *groupHere, meta *udp4791.RecvMeta, buf []byte, v *icrcVerdict, copies int) {
	s := w.received(nil, meta, buf, v, fmt.Sprintf("multicast to %d queue pairs", copies))
	if t.file != nil {
		w.write(&taps{file: t.file}, s)
	}
	for _, c := range t.streams {
		for _, s.q = range append([]*qp{nil}, h.qps...) {
			if c.wants(s) {
				c.queue.Put(s.Packet, s.note)
				break
			}
		}
	}
}

// captureOut writes a packet that left: that the kernel took, or that went to a
// queue pair of this adapter.
func (w *worker) captureOut(t *taps, p *outgoing, buf []byte) { w.write(t, w.sending(p, buf)) }

// sending is a packet of this adapter with the work request that it is of.
func (w *worker) sending(p *outgoing, buf []byte) *sighting {
	s := &sighting{
		Packet: capture.Packet{
			Time: w.now, Src: p.from(), Dst: p.route.dst, SrcPort: p.port, DstPort: udp4791.Port,
			TOS: p.tos, TTL: p.ttl, ID: p.id, IDKnown: p.route.dst.Is4(), Payload: buf, Outbound: true,
		},
		note: capture.Note{QPN: p.q.qpn, HasQP: true, Resend: p.resend},
		q:    p.q,
	}
	if bth.Opcode(buf[0]).Info().Request {
		s.note.WR, s.note.Op, _ = p.q.engine.RequestAt(bth.BTH(buf).PSN())
	}
	return s
}
