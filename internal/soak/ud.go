package soak

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/cq"
	"github.com/softroce/softroce/pkg/mrtable"
	"github.com/softroce/softroce/pkg/qpstate"
	"github.com/softroce/softroce/pkg/transport"
	"github.com/softroce/softroce/pkg/wq"
)

const (
	grhLen    = 40
	udQKey    = 0x11112222
	groupFlow = -1 // the mark of a path to the group
	maxUD     = 4096
)

// group is the one multicast group.
var group = bth.GID{10: 0xFF, 11: 0xFF, 12: 239, 13: 1, 14: 1, 15: 1}

// handles are an adapter's address handles: number i+1 is of adapter i, the one
// behind them of the group.
type handles struct {
	a     *adapter
	paths []transport.Path
}

func newHandles(a *adapter, mtu uint32) *handles {
	h := &handles{a: a}
	for i, to := range a.w.adapters {
		h.paths = append(h.paths, transport.Path{Src: a.gid, Dst: to.gid, SrcPort: udpPort, HopLimit: 64, Flow: int32(i), MTU: mtu})
	}
	h.paths = append(h.paths, transport.Path{Src: a.gid, Dst: group, SrcPort: udpPort, HopLimit: 1, Flow: groupFlow, MTU: mtu})
	return h
}

// Path implements transport.AddressHandles.
func (h *handles) Path(ah uint32, _ mrtable.PD, _ bth.QPN) *transport.Path {
	if ah == 0 || int(ah) > len(h.paths) {
		return nil
	}
	return &h.paths[ah-1]
}

// port is a datagram queue pair with its model. When it died it is made again.
type port struct {
	w      *world
	a      *adapter
	index  int
	q      *queue
	recv   *wq.RecvQueue
	srq    *srq
	mr     *mrtable.Region
	mtu    int
	member bool // of the group
	lives  int

	base, size int
	source     int // what is sent; two slots, never changes
	receives   int // slots
	slot       int // bytes of a receive

	ops      []op
	self     *sender // in this life
	posted   []recv
	nextID   uint64
	nextRecv uint64
	unsigned int
	sendDead bool
	toErr    bool
	lastWQE  bool
	draining bool
}

func newPort(w *world, index int, a *adapter) *port {
	s := min(w.plan.slot, maxUD)
	p := &port{w: w, a: a, index: index, nextID: 1, nextRecv: 1, slot: s + grhLen, mtu: s}
	p.size = 2*s + recvSpare + slots*p.slot
	p.base = a.reserve(p.size)
	p.source = p.base
	p.receives = p.source + 2*s + recvSpare
	return p
}

func (p *port) String() string { return fmt.Sprintf("UD-%d", p.index) }

// begin makes the queue pair.
func (p *port) begin() {
	w := p.w
	p.lives++
	p.mr = p.a.register(p.base, p.size)
	p.ops, p.posted, p.self = nil, nil, &sender{p: p}
	p.sendDead, p.toErr, p.lastWQE, p.draining, p.unsigned = false, false, false, false, 0
	var source wq.RecvSource
	if p.srq = nil; len(p.a.srqs) > 0 && w.rand.IntN(2) == 0 {
		p.srq = p.a.srqs[w.rand.IntN(len(p.a.srqs))]
		source = p.srq.ring
	} else {
		p.recv = wq.NewRecvQueue(slots + 1)
		source = p.recv
	}
	p.q = p.a.newQueue(p, transport.Config{
		Type: qpstate.UD, Recv: source, SRQ: p.srq != nil, AHs: newHandles(p.a, uint32(p.mtu)),
		Cap: qpstate.Cap{MaxSendWR: maxPending + 1, MaxRecvWR: slots + 1, MaxSendSGE: sgeMost, MaxRecvSGE: sgeMost, MaxInlineData: inlineMost},
	})
	w.senders[uint32(p.q.qpn)] = p.self
	p.member = w.rand.IntN(2) == 0
	a := qpstate.Attr{PortNum: 1, QKey: udQKey, SQPSN: bth.PSNMask - bth.PSN(w.rand.IntN(200))}
	for i, m := range ways[qpstate.UD] {
		a.State = qpstate.Init + qpstate.State(i)
		p.modify(a, m|qpstate.MaskState)
	}
	for i := 0; p.srq == nil && i < slots; i++ {
		p.postRecv(i)
	}
	p.thinkLater()
}

// sender is a life of a datagram queue pair, and all that it sent: some of that
// may arrive when it is over.
type sender struct {
	p    *port
	sent []sentOp
}

func (p *port) modify(a qpstate.Attr, m qpstate.Mask) {
	if err := p.q.qp.Modify(p.w.now(), &a, m, nil); err != nil {
		p.w.fail("%v: %v", p.q, err)
	}
	p.q.touch()
}

func (p *port) postRecv(slot int) {
	off := p.receives + slot*p.slot
	wr := wq.RecvWR{WRID: p.nextRecv, SGList: p.w.cut(p.mr, off, p.slot)}
	if err := p.recv.Push(&wr); err != nil {
		p.w.fail("%v: post receive: %v", p.q, err)
	}
	p.posted = append(p.posted, recv{p.nextRecv, slot, off, p.slot})
	p.nextRecv++
	p.q.qp.PostRecv(p.w.now())
	p.q.touch()
}

func (p *port) thinkLater() {
	life := p.lives
	p.w.after(p.w.upTo(p.w.plan.think), func() {
		if p.lives == life && p.q != nil {
			p.think()
		}
	})
}

// think is what the program does.
func (p *port) think() {
	w := p.w
	switch st := p.q.qp.State(); {
	case w.toPost <= 0:
		if n := len(p.ops); n == 0 {
			return
		} else if !p.ops[n-1].signaled && n < maxPending {
			p.post(true)
		}
		if st == qpstate.SQE {
			p.recover()
		}
	case st == qpstate.SQE:
		p.recover()
	case w.chance(w.plan.toErr):
		w.log.note(ToERR, "%v", p.q)
		p.kill()
		if w.err == nil && w.toPost > 0 {
			p.again()
		}
		return
	case st == qpstate.RTS && w.chance(w.plan.drain):
		w.log.note(Drain, "%v", p.q)
		p.draining = true
		p.modify(qpstate.Attr{State: qpstate.SQD, EnSQDAsyncNotify: true}, qpstate.MaskState|qpstate.MaskEnSQDAsyncNotify)
	default:
		for k := 1 + w.rand.IntN(burst); k > 0 && w.err == nil && len(p.ops) < maxPending; k-- {
			p.post(false)
		}
	}
	w.harvest()
	p.thinkLater()
}

// recover goes on behind an error in the send queue.
func (p *port) recover() {
	p.sendDead = false
	p.modify(qpstate.Attr{State: qpstate.RTS}, qpstate.MaskState)
}

// again makes the queue pair anew after a while.
func (p *port) again() {
	life := p.lives
	p.w.after(p.w.upTo(time.Millisecond), func() {
		if p.lives == life && p.q == nil && p.a.up && p.w.toPost > 0 {
			p.begin()
		}
	})
}

// post posts a datagram to anybody.
func (p *port) post(signaled bool) {
	w, r := p.w, &p.w.rand
	to := w.ports[r.IntN(len(w.ports))]
	if to.q == nil {
		return
	}
	n := min([]int{r.IntN(5), r.IntN(p.mtu + 1), r.IntN(300), p.mtu - r.IntN(4)}[r.IntN(4)], p.mtu)
	o := op{id: p.nextID, code: wq.Send, imm: uint32(r.Uint64()), n: n, cell: -1, at: w.now(), solicit: r.IntN(2) == 0}
	if r.IntN(2) == 0 {
		o.code = wq.SendWithImm
	}
	o.signaled = signaled || r.IntN(3) > 0 || p.unsigned >= slots-1
	wr := wq.SendWR{WRID: o.id, Opcode: o.code, ImmData: o.imm, AH: uint32(to.a.index) + 1, RemoteQPN: to.q.qpn, RemoteQKey: udQKey}
	if r.IntN(8) == 0 {
		wr.AH, wr.RemoteQPN = uint32(len(w.adapters))+1, bth.MulticastQPN
	}
	if o.signaled {
		wr.Flags |= wq.SendSignaled
	}
	if o.solicit {
		wr.Flags |= wq.SendSolicited
	}
	off := p.source + r.IntN(p.mtu+1)
	if w.chance(w.plan.bad) && !signaled {
		p.spoil(&o, &wr)
	}
	o.data = p.a.mem[off : off+o.n]
	if o.n <= inlineMost && o.bad != badLKey && r.IntN(2) == 0 {
		wr.Flags |= wq.SendInline
		wr.Inline = append([]byte(nil), o.data...)
	} else {
		wr.SGList = w.cut(p.mr, off, o.n)
	}
	if o.bad == badLKey {
		for i := range wr.SGList {
			wr.SGList[i].LKey ^= 0x5A00
		}
	}
	p.give(&o, &wr)
}

// spoil makes a request bad.
func (p *port) spoil(o *op, wr *wq.SendWR) {
	k := nothing + 1 + wrong(p.w.rand.IntN(int(wrongs-1)))
	switch {
	case k == badKey:
		wr.RemoteQKey++
	case k == badRange:
		wr.AH = 0
	case k == tooLong:
		o.n = p.mtu + 1 + p.w.rand.IntN(recvSpare-1)
	case k == badLKey:
		if o.n == 0 {
			return
		}
	default:
		return
	}
	o.bad = k
}

func (p *port) give(o *op, wr *wq.SendWR) {
	w := p.w
	p.nextID++
	w.toPost--
	w.result.Requests++
	w.result.UDSent++
	p.ops = append(p.ops, *o)
	p.self.sent = append(p.self.sent, sentOp{op: *o, to: uint32(wr.RemoteQPN)})
	if o.bad != nothing {
		w.log.note(BadRequest, "%v %s: %d", p.q, o, o.bad)
	}
	if w.cfg.Trace != nil {
		w.trace("%v post %s, signaled %v, bad %d", p.q, o, o.signaled, o.bad)
	}
	if err := p.q.qp.PostSend(w.now(), wr); errors.Is(err, wq.ErrSlab) && p.a.poor {
		w.result.Faults[NoMemory]++
		p.ops = p.ops[:len(p.ops)-1]
		return
	} else if err != nil {
		w.fail("%v: post %s: %v", p.q, o, err)
		return
	}
	if p.unsigned++; o.signaled {
		p.unsigned = 0
	}
	p.q.touch()
}

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
