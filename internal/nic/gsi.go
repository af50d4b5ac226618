package nic

import (
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/softroce/softroce/internal/cm"
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/cq"
	"github.com/softroce/softroce/pkg/mrtable"
	"github.com/softroce/softroce/pkg/qpstate"
	"github.com/softroce/softroce/pkg/transport"
	"github.com/softroce/softroce/pkg/udp4791"
	"github.com/softroce/softroce/pkg/wq"
)

// Specification values: queue pair 1 is the general services interface (IBTA
// Vol 1 §3.9.2), its Q_Key is well known (§10.2.5), a management datagram has 256
// bytes (§13.4.1).
const (
	gsiQPN  bth.QPN  = 1
	gsiQKey bth.QKey = 0x80010000
	madLen           = 256
)

// Our own tuning of queue pair 1.
const (
	gsiRoom     = 40 + madLen // of a receive: network header and datagram
	gsiSends    = 16          // requests in its queue; one is in it at a time
	maxGSIPaths = 1024        // ways to peers that are kept
	ackDelay    = localCAAckDelay
	gsiPD       = 1 // in a table of its own
)

// A gsi is queue pair 1 and the connection manager behind it, shared by all
// programs. It belongs to the goroutine of one worker, the one that its number
// steers to: others reach it by that worker's commands.
type gsi struct {
	a       *Adapter
	w       *worker
	q       *qp // on no list of a program's
	machine *cm.Machine

	keys   *mrtable.Table // of its own: no program's key is near it
	region *mrtable.Region
	in     mrtable.HeapMemory // the one receive
	got    uint32             // bytes in it
	out    [madLen]byte
	lost   uint64 // datagrams that could not go

	paths   map[gsiPathKey]uint32
	ways    map[uint32]*ahPath
	lastWay uint32

	cmState
	// awaited counts queue pairs whose first packet stands for the peer's word
	// that the connection is up; read by all workers.
	awaited atomic.Int32
}

// gsiPathKey tells the ways to peers apart.
type gsiPathKey struct {
	local, remote bth.GID
	label         uint32
	tos, hop      uint8
}

// newGSI makes queue pair 1 on the worker that it steers to, which does not run
// yet.
func newGSI(a *Adapter) (*gsi, error) {
	g := &gsi{
		a: a, w: a.workerOf(gsiQPN), keys: mrtable.New(mrtable.Config{MaxRegions: 1, Secret: random64()}), in: make(mrtable.HeapMemory, gsiRoom),
		paths: make(map[gsiPathKey]uint32), ways: make(map[uint32]*ahPath),
	}
	var secret [16]byte
	putRandom(secret[:])
	var err error
	g.machine, err = cm.New(cm.Config{
		GUID: a.guid, Secret: secret, AckDelay: ackDelay, MaxDepth: a.cfg.Limits.MaxRDAtomic,
		Limits: cm.Limits{Conns: int(min(a.cfg.Limits.Adapter.CMIDs, maxMachineIDs))},
	})
	if err != nil {
		return nil, fmt.Errorf("nic: connection manager: %w", err)
	}
	g.region, err = g.keys.Register(gsiPD, g.in, 0, gsiRoom, mrtable.AccessLocalWrite, random32())
	if err != nil {
		return nil, fmt.Errorf("nic: memory of queue pair 1: %w", err)
	}
	if err := g.build(); err != nil {
		return nil, fmt.Errorf("nic: queue pair 1: %w", err)
	}
	g.cmState.init()
	g.w.gsi = g
	return g, nil
}

// build makes the engine and brings it to RTS.
func (g *gsi) build() error {
	w := g.w
	link := &programLink{slab: wq.NewSlab(0), ahs: ahPaths{w: w}}
	g.q = &qp{qpn: gsiQPN, gsi: g, link: link, worker: w, datagrams: true, timerPos: -1}
	var err error
	g.q.engine, err = transport.New(transport.Config{
		Type: qpstate.UD, QPN: gsiQPN, PD: gsiPD, Keys: g.keys, SendCQ: gsiSink{}, RecvCQ: gsiSink{g}, Recv: g, SRQ: true, AHs: g,
		Cap:  qpstate.Cap{MaxSendWR: gsiSends, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInlineData: madLen},
		Slab: link.slab, Stage: &w.stage, Counters: &w.counters,
	})
	if err != nil {
		return err
	}
	for _, step := range []struct {
		mask qpstate.Mask
		attr qpstate.Attr
	}{
		{qpstate.MaskPKeyIndex | qpstate.MaskPort | qpstate.MaskQKey, qpstate.Attr{State: qpstate.Init, PortNum: 1, QKey: gsiQKey}},
		{0, qpstate.Attr{State: qpstate.RTR}},
		{qpstate.MaskSQPSN, qpstate.Attr{State: qpstate.RTS, SQPSN: bth.PSN(random32()) & bth.PSNMask}},
	} {
		if err := g.q.engine.Modify(time.Time{}, &step.attr, step.mask|qpstate.MaskState, nil); err != nil {
			return err
		}
	}
	return nil
}

// TakeRecv implements wq.RecvSource: there is always the one receive.
func (g *gsi) TakeRecv(dst *wq.RecvWR) bool {
	dst.SGList = append(dst.SGList[:0], wq.SGE{Length: gsiRoom, LKey: g.region.LKey()})
	return true
}

// gsiSink takes the completions of queue pair 1. Its sends have none that matter:
// what is lost is sent again by who waits for an answer.
type gsiSink struct{ g *gsi }

// Complete implements transport.Sink.
func (s gsiSink) Complete(wc *cq.WC, _ bool) {
	if s.g != nil && wc.Status == cq.Success {
		s.g.got = wc.ByteLen
	}
}

// acceptMAD takes a packet to queue pair 1. What is no datagram of 256 bytes is
// dropped, as is one without the right keys.
func (w *worker) acceptMAD(meta *udp4791.RecvMeta, buf []byte, from origin) {
	if from == fromLocal { // of a connected queue pair
		w.drop(meta, buf, DropMAD)
		return
	}
	v := w.checkICRC(meta, buf)
	if !v.ok {
		return
	}
	if w.pkt.Opcode != bth.UDSendOnly || len(w.pkt.Payload) != madLen {
		w.drop(meta, buf, DropMAD)
		return
	}
	g := w.gsi
	g.got = 0
	w.setSource(meta, v.id)
	w.deliver(g.q, meta, buf, &v)
	if g.got == gsiRoom {
		g.machine.HandleMAD(w.now, g.wayBack(&w.pkt), g.in[gsiRoom-madLen:])
		g.settle()
	}
}

// wayBack is the way to the sender of a packet.
func (g *gsi) wayBack(p *transport.Packet) cm.Path {
	back := cm.Path{
		Local: p.Dst, Remote: p.Src, FlowLabel: p.FlowLabel, TrafficClass: p.TOS, HopLimit: defaultHopLimit,
	}
	for i, e := range g.a.gids.load() {
		if e.addr.IsValid() && e.gid == p.Dst {
			back.SGIDIndex = uint8(i)
			break
		}
	}
	return back
}

// settle does what the machine wants after a call: events to programs, datagrams
// to peers, a deadline.
func (g *gsi) settle() {
	for {
		ev, ok := g.machine.PollEvent()
		if !ok {
			break
		}
		g.event(&ev)
	}
	g.writeEvents()
	g.w.active.push(g.q)
	g.w.rearm(g.q)
}

// nextTimeout is when handleTimeout is to be called, zero for never.
func (g *gsi) nextTimeout() time.Time {
	d := g.machine.NextTimeout()
	if !g.retryAt.IsZero() && (d.IsZero() || g.retryAt.Before(d)) {
		d = g.retryAt
	}
	return d
}

func (g *gsi) handleTimeout(now time.Time) {
	g.machine.HandleTimeout(now)
	g.settle()
}

// post gives the engine the next datagram; false when there is none.
func (g *gsi) post(now time.Time) bool {
	if g.q.engine.State() == qpstate.SQE { // a way went before its datagram
		attr := qpstate.Attr{State: qpstate.RTS}
		_ = g.q.engine.Modify(now, &attr, qpstate.MaskState, nil) // always allowed (IBTA Vol 1 §10.3.1)
	}
	for {
		to, mad, ok := g.machine.PollSend()
		if !ok {
			return false
		}
		ah := g.wayTo(&to)
		if ah == 0 || len(mad) != madLen {
			g.lost++
			continue
		}
		copy(g.out[:], mad)
		wr := wq.SendWR{
			Opcode: wq.Send, Flags: wq.SendInline, Inline: g.out[:], AH: ah, RemoteQPN: gsiQPN, RemoteQKey: gsiQKey,
		}
		if err := g.q.engine.PostSend(now, &wr); err != nil {
			g.lost++
			continue
		}
		return true
	}
}

// Path implements transport.AddressHandles.
func (g *gsi) Path(ah uint32, _ mrtable.PD, _ bth.QPN) *transport.Path {
	c := g.ways[ah]
	if c == nil {
		return nil
	}
	g.q.link.ahs.last = c
	return &c.path
}

// wayTo is the number of a way, 0 when there is none. Ways are dropped between
// two datagrams only: one that was posted finds its own.
func (g *gsi) wayTo(p *cm.Path) uint32 {
	key := gsiPathKey{local: p.Local, remote: p.Remote, label: p.FlowLabel, tos: p.TrafficClass, hop: p.HopLimit}
	if n := g.paths[key]; n != 0 {
		return n
	}
	local, ok := g.localOf(p.Local)
	if !ok || p.Remote.IsZero() || p.Remote.IsMulticast() || p.Local.Is4() != p.Remote.Is4() || p.Remote.Is4() && noPeer4(p.Remote.Addr()) {
		return 0
	}
	if len(g.ways) >= maxGSIPaths {
		g.forgetAll()
	}
	flow, port, err := g.w.ep.OpenFlow(local, uint8(gsiQPN), sourcePortOfAH(p.FlowLabel))
	if err != nil {
		return 0
	}
	hop := p.HopLimit
	if hop == 0 {
		hop = defaultHopLimit
	}
	c := &ahPath{ah: &ahObject{src: p.Local, local: local}, flow: flow, route: g.w.routeOf(p.Remote.Addr())}
	c.path = transport.Path{
		Src: p.Local, Dst: p.Remote, SrcPort: port, TrafficClass: p.TrafficClass, HopLimit: hop, FlowLabel: p.FlowLabel,
		Flow: int32(flow),
	}
	g.lastWay = max(g.lastWay+1, 1)
	g.ways[g.lastWay], g.paths[key] = c, g.lastWay
	return g.lastWay
}

// localOf is the adapter's own address of a GID, with its zone.
func (g *gsi) localOf(gid bth.GID) (netip.Addr, bool) {
	for _, e := range g.a.gids.load() {
		if e.addr.IsValid() && e.gid == gid {
			return e.addr, true
		}
	}
	return netip.Addr{}, false
}

// forget gives back the ways from a local address: it went, or came back.
func (g *gsi) forget(addr netip.Addr) {
	for key, n := range g.paths {
		if c := g.ways[n]; c.ah.local == addr {
			g.w.ep.CloseFlow(c.flow)
			delete(g.paths, key)
			delete(g.ways, n)
		}
	}
	g.q.link.ahs.last = nil
}

func (g *gsi) forgetAll() {
	for _, c := range g.ways {
		g.w.ep.CloseFlow(c.flow)
	}
	clear(g.paths)
	clear(g.ways)
	g.q.link.ahs.last = nil
}
