package soak

import (
	"bytes"
	"encoding/binary"
	"time"

	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/cq"
	"github.com/softroce/softroce/pkg/qpstate"
	"github.com/softroce/softroce/pkg/transport"
	"github.com/softroce/softroce/pkg/wq"
)

// udStatus is how a bad datagram ends.
var udStatus = map[wrong]cq.Status{badRange: cq.LocQPOpErr, tooLong: cq.LocLenErr, badLKey: cq.LocProtErr}

// sendDone: datagrams complete in order; after an error the others are flushed.
func (p *port) sendDone(wc *cq.WC) {
	w := p.w
	for len(p.ops) > 0 {
		o := p.ops[0]
		p.ops = p.ops[1:]
		bad := udStatus[o.bad] // Success when nothing is wrong with it here
		switch {
		case o.id != wc.WRID && (o.signaled || p.sendDead || bad != cq.Success):
			w.fail("%v: completion of request %d, expected that of %s", p.q, wc.WRID, &o)
		case o.id != wc.WRID:
			continue
		case wc.Status == cq.WRFlushErr && (p.sendDead || p.toErr):
			p.sendDead = true
		case wc.Status != bad || p.sendDead || wc.Opcode != cq.Send || bad == cq.Success && (!o.signaled || int(wc.ByteLen) != o.n):
			w.fail("%v: %s: %s; bad %d, in error before it %v", p.q, &o, wcText(wc), o.bad, p.sendDead)
		case bad != cq.Success:
			p.sendDead = true
			if st := p.q.qp.State(); st != qpstate.SQE {
				w.fail("%v: is in %v behind %v", p.q, st, wc.Status)
			}
		}
		return
	}
	w.fail("%v: completion of request %d, which was not posted or is done", p.q, wc.WRID)
}

// recvDone: the receive holds a network header and a datagram that somebody sent
// here.
func (p *port) recvDone(wc *cq.WC, solicited bool) {
	w := p.w
	r, ok := p.claim(wc)
	switch {
	case !ok:
		w.fail("%v: receive %d completes, posted are %v", p.q, wc.WRID, p.posted)
		return
	case wc.Status == cq.WRFlushErr && p.toErr:
		if p.srq != nil {
			p.srq.again(r.slot)
		}
		return
	case wc.Status != cq.Success:
		w.fail("%v: receive %d: %s", p.q, wc.WRID, wcText(wc))
		return
	}
	from := w.senders[uint32(wc.SrcQP)]
	if from == nil || wc.Flags&cq.GRH == 0 || wc.ByteLen < grhLen {
		w.fail("%v: receive %d: %s", p.q, wc.WRID, wcText(wc))
		return
	}
	n := int(wc.ByteLen) - grhLen
	data := p.a.mem[r.off+grhLen : r.off+grhLen+n]
	toGroup := bytes.Equal(p.a.mem[r.off+grhLen-4:r.off+grhLen], group[12:])
	s := find(from.sent, func(s *sentOp) bool {
		hasImm := s.code == wq.SendWithImm
		return s.bad == nothing && s.n == n && s.solicit == solicited && hasImm == (wc.Flags&cq.WithImm != 0) && (!hasImm || wc.ImmData == s.imm) &&
			(s.to == uint32(p.q.qpn) && !toGroup || s.to == uint32(bth.MulticastQPN) && toGroup && p.member) && bytes.Equal(data, s.data)
	}, w, p.q)
	if s == nil {
		w.fail("%v: receive %d holds what %v did not send here, or one that came too often: %s", p.q, wc.WRID, from.p, wcText(wc))
		return
	}
	p.header(p.a.mem[r.off:r.off+grhLen], from.p.a, s)
	copy(p.a.model[r.off:], p.a.mem[r.off:r.off+grhLen])
	p.a.arrived(r.off+grhLen, s.data)
	w.result.UDReceived++
	if p.srq != nil {
		p.srq.again(r.slot)
		return
	}
	life := p.lives
	w.lately(func() {
		if p.lives == life && p.q != nil {
			p.postRecv(r.slot)
		}
	})
}

func (p *port) claim(wc *cq.WC) (r recv, ok bool) {
	if p.srq != nil {
		return p.srq.claim(wc)
	}
	if len(p.posted) == 0 || p.posted[0].id != wc.WRID {
		return r, false
	}
	r = p.posted[0]
	p.posted = p.posted[1:]
	return r, true
}

// header looks at the network header in a receive: twenty zero bytes, then IPv4's
// (Annex A17).
func (p *port) header(g []byte, from *adapter, s *sentOp) {
	to := p.a.gid
	if s.to == uint32(bth.MulticastQPN) {
		to = group
	}
	const ipv4, udp, deth = 20, 8, 8
	length := ipv4 + udp + bth.BTHLen + deth + (s.n+3)&^3 + bth.ICRCLen
	if s.code == wq.SendWithImm {
		length += 4
	}
	h, sum := g[grhLen-ipv4:], uint32(0)
	for i := 0; i < ipv4; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(h[i:]))
	}
	if sum = sum>>16 + sum&0xFFFF; sum>>16+sum&0xFFFF != 0xFFFF || !bytes.Equal(g[:grhLen-ipv4], make([]byte, grhLen-ipv4)) ||
		h[0] != 0x45 || int(binary.BigEndian.Uint16(h[2:])) != length || h[9] != 17 ||
		!bytes.Equal(h[12:16], from.gid[12:]) || !bytes.Equal(h[16:20], to[12:]) {
		p.w.fail("%v: network header %x of %s from %v", p.q, g, &s.op, from)
	}
}

// event is what the queue pair tells of itself.
func (p *port) event(ev *transport.Event) {
	switch {
	case ev.Kind == transport.SQDrained:
		life := p.lives
		p.w.after(p.w.upTo(time.Millisecond), func() {
			if p.lives == life && p.q != nil && p.q.qp.State() == qpstate.SQD {
				p.draining = false
				p.modify(qpstate.Attr{State: qpstate.RTS}, qpstate.MaskState)
			}
		})
	case ev.Kind == transport.LastWQE:
		p.lastWQE = true
	case ev.Kind == transport.QPFatal, ev.Kind == transport.QPReqErr, ev.Kind == transport.QPAccessErr:
		p.w.fail("%v: %s", p.q, ev.Text())
	}
}

// kill moves the queue pair to ERR, looks at the flush, and closes it.
func (p *port) kill() {
	w := p.w
	p.toErr = true
	p.modify(qpstate.Attr{State: qpstate.Err}, qpstate.MaskState)
	w.harvest()
	for len(p.ops) > 0 && !p.ops[0].signaled && !p.sendDead {
		p.ops = p.ops[1:] // done, and not to be told
	}
	if len(p.ops) > 0 || len(p.posted) > 0 || p.lastWQE != (p.srq != nil) {
		w.fail("%v is in ERR: %d requests and %d receives did not complete; has a shared queue %v, event of the last request %v", p.q, len(p.ops), len(p.posted), p.srq != nil, p.lastWQE)
		return
	}
	p.a.deregister(p.mr)
	p.q.close()
	p.q = nil
}

// vanish is the end of the adapter's life.
func (p *port) vanish() {
	p.q, p.ops, p.posted = nil, nil, nil
}

// idle says whether everything posted is done.
func (p *port) idle() bool { return p.q == nil || !p.waits() && !p.draining }

// waits says whether something posted is not known to be done, as for an end.
func (p *port) waits() bool {
	if !p.a.poor {
		return len(p.ops) > 0
	}
	for i := range p.ops {
		if p.ops[i].signaled {
			return true
		}
	}
	return false
}

// look finds requests that take too long.
func (p *port) look() {
	if p.q != nil && p.waits() && p.w.now().Sub(p.ops[0].at) > p.w.plan.patience {
		p.w.fail("%v is stuck: %s was posted at %v; state %v", p.q, &p.ops[0], p.ops[0].at.Sub(start), p.q.qp.State())
	}
}
