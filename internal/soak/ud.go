package soak

import (
	"errors"
	"fmt"
	"time"

	"github.com/softroce/softroce/pkg/bth"
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
