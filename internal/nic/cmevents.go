package nic

import (
	"slices"
	"time"

	"github.com/softroce/softroce/internal/cm"
	"github.com/softroce/softroce/internal/shm"
	"github.com/softroce/softroce/internal/uapi"
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/qpstate"
)

// Our own tuning of events to programs.
const (
	// cmRetryMin and cmRetryMax are how long a channel that is full waits until
	// it is tried again; the wait doubles while nothing goes.
	cmRetryMin, cmRetryMax = time.Millisecond, 100 * time.Millisecond
	// maxCMWaiting is how many events of an identifier may wait when a call asks
	// for one more.
	maxCMWaiting = 32
	// maxMachineIDs bounds the machine's table, with what lingers in time-wait.
	maxMachineIDs = 1 << 20
)

// cmState is what queue pair 1 knows of programs.
type cmState struct {
	byComm     map[cm.CommID]*cmID
	byListener map[cm.ListenerID]*cmID
	byQPN      map[bth.QPN]*cmID // that wait for the peer's word
	ports      portTable

	waiting  []*cmChannel // with events that were not written
	retryAt  time.Time    // zero: no channel is full
	retryGap time.Duration
	record   []byte

	events, held uint64 // written; of those, some time after they happened
}

func (s *cmState) init() {
	s.byComm = make(map[cm.CommID]*cmID)
	s.byListener = make(map[cm.ListenerID]*cmID)
	s.byQPN = make(map[bth.QPN]*cmID)
	s.ports = newPortTable(random32())
}

// A cmChannel is an event channel: a pipe, and what it did not take. The queue
// is bounded by the identifiers on it, each of which has a handful of events.
type cmChannel struct {
	pipe   *shm.RecordWriter
	users  int // identifiers
	queue  []cmPending
	listed bool // among those that wait
	full   bool // the pipe took no more
}

// A cmPending is an event on its way. of is the identifier that it counts for;
// fresh is the new one of a CONNECT_REQUEST, which counts for the listener.
type cmPending struct {
	rec   uapi.CMRecord
	of    *cmID
	fresh *cmID
}

// tell queues an event of an identifier, with its addresses.
func (g *gsi) tell(id *cmID, rec *uapi.CMRecord) {
	rec.ID, rec.Own, rec.Peer = id.handle, cmAddr(id.own), cmAddr(id.peer)
	g.enqueue(id.ch, cmPending{rec: *rec, of: id})
}

func (g *gsi) enqueue(ch *cmChannel, e cmPending) {
	e.of.waiting++
	ch.queue = append(ch.queue, e)
	if !ch.listed {
		ch.listed = true
		g.waiting = append(g.waiting, ch)
	}
}

// writeEvents writes what waits, as far as the pipes take it.
func (g *gsi) writeEvents() {
	if len(g.waiting) == 0 {
		return
	}
	due := !g.retryAt.IsZero() && !g.w.now.Before(g.retryAt)
	progress := false
	left := g.waiting[:0]
	for _, ch := range g.waiting {
		if !ch.full || due {
			wrote := g.writeChannel(ch)
			progress = progress || ch.full && wrote > 0
			ch.full = len(ch.queue) > 0
		}
		if ch.listed = ch.full; ch.listed {
			left = append(left, ch)
		}
	}
	clear(g.waiting[len(left):])
	g.waiting = left
	switch {
	case len(left) == 0:
		g.retryAt, g.retryGap = time.Time{}, 0
	case due || g.retryAt.IsZero():
		g.retryGap = min(2*g.retryGap, cmRetryMax)
		if g.retryGap == 0 || progress {
			g.retryGap = cmRetryMin
		}
		g.retryAt = g.w.now.Add(g.retryGap)
	}
}

// writeChannel writes the events of one channel until its pipe is full, and
// returns how many went.
func (g *gsi) writeChannel(ch *cmChannel) (n int) {
	for n < len(ch.queue) {
		e := &ch.queue[n]
		g.record = e.rec.Append(g.record[:0])
		if !ch.pipe.Write(g.record) {
			break
		}
		if n++; ch.full {
			g.held++
		}
		g.events++
		e.of.waiting--
		e.of.written++
		if e.fresh != nil {
			_ = g.machine.Taken(e.fresh.comm) // fails only for one that is over
		}
	}
	ch.queue = slices.Delete(ch.queue, 0, n)
	return n
}

// forgetEvents drops the events of an identifier that its program has not got.
// Whoever asked a listener then, and nobody knows, is refused.
func (g *gsi) forgetEvents(id *cmID) {
	var fresh []*cmID
	id.ch.queue = slices.DeleteFunc(id.ch.queue, func(e cmPending) bool {
		if e.of == id && e.fresh != nil {
			fresh = append(fresh, e.fresh)
		}
		return e.of == id
	})
	id.waiting = 0
	for _, f := range fresh {
		g.destroy(f)
	}
}

// moveEvents takes the waiting events of an identifier to another channel.
func (g *gsi) moveEvents(id *cmID, to *cmChannel) {
	moved := make([]cmPending, 0, id.waiting)
	id.ch.queue = slices.DeleteFunc(id.ch.queue, func(e cmPending) bool {
		if e.of == id {
			moved = append(moved, e)
		}
		return e.of == id
	})
	id.waiting = 0
	for _, e := range moved {
		if f := e.fresh; f != nil {
			f.ch.users--
			to.users++
			f.ch = to
		}
		g.enqueue(to, e)
	}
}

// event passes on what happened to a connection.
func (g *gsi) event(ev *cm.Event) {
	rec := uapi.CMRecord{
		Event: uapi.CMEvent(ev.Kind), Status: ev.Status, Param: cmParamOf(ev), Private: ev.Private[:ev.PrivateLen],
	}
	if ev.Kind == cm.ConnectRequest {
		g.requested(ev, &rec)
		return
	}
	id := g.byComm[ev.ID]
	if id == nil {
		return
	}
	g.unawait(id)
	rec.Private = slices.Clone(rec.Private)
	g.tell(id, &rec)
}

// requested makes an identifier of a peer's request and tells the listener's
// program. A program that may have no more refuses for want of resources.
func (g *gsi) requested(ev *cm.Event, rec *uapi.CMRecord) {
	l := g.byListener[ev.Listener]
	if l == nil {
		_ = g.machine.Destroy(g.w.now, ev.ID) // an event of ours: the id is there
		return
	}
	id, err := l.c.newID(l.ch, l.space)
	if err != nil {
		_ = g.machine.Reject(g.w.now, ev.ID, cm.RejNoResources, nil) // the same
		_ = g.machine.Destroy(g.w.now, ev.ID)
		return
	}
	id.stage, id.comm, id.own, id.peer, id.way, id.tos = cmRequested, ev.ID, ev.Local, ev.Remote, ev.Path, l.tos
	if !id.own.IsValid() { // no CMA header
		id.own, id.peer = addrPortOf(ev.Path.Local, ev.Service.Port()), addrPortOf(ev.Path.Remote, 0)
	}
	id.mtu = g.a.linkMTU(ev.Path.SGIDIndex)
	g.byComm[ev.ID] = id
	rec.ID, rec.Listen, rec.Own, rec.Peer = id.handle, l.handle, cmAddr(id.own), cmAddr(id.peer)
	rec.Private = slices.Clone(rec.Private)
	g.enqueue(l.ch, cmPending{rec: *rec, of: l, fresh: id})
}

// cmParamOf are the parameters of an event.
func cmParamOf(ev *cm.Event) uapi.CMParam {
	p := &ev.Param
	out := uapi.CMParam{
		QPN: p.QPN, QKey: p.QKey, ResponderResources: p.ResponderResources, InitiatorDepth: p.InitiatorDepth,
		FlowControl: p.FlowControl, RetryCount: p.RetryCount, RNRRetryCount: p.RNRRetry, SRQ: p.SRQ,
	}
	if ev.Type == qpstate.UD && !ev.Path.Remote.IsZero() {
		out.AH = vectorOf(&ev.Path)
	}
	return out
}

// vectorOf is the address vector of a way.
func vectorOf(p *cm.Path) qpstate.AHAttr {
	return qpstate.AHAttr{
		DGID: p.Remote, FlowLabel: p.FlowLabel, SGIDIndex: p.SGIDIndex, HopLimit: p.HopLimit, TrafficClass: p.TrafficClass,
		SL: p.SL, IsGlobal: true, PortNum: 1,
	}
}

// await has the first packet of a queue pair stand for the peer's word that the
// connection is up.
func (g *gsi) await(id *cmID, qpn bth.QPN) {
	g.unawait(id)
	id.qpn = qpn
	g.byQPN[qpn] = id
	g.awaited.Store(int32(len(g.byQPN)))
}

func (g *gsi) unawait(id *cmID) {
	if id.qpn != 0 && g.byQPN[id.qpn] == id {
		delete(g.byQPN, id.qpn)
		g.awaited.Store(int32(len(g.byQPN)))
	}
	id.qpn = 0
}

// firstPacket says, from any worker, that a queue pair took in its first packet.
func (g *gsi) firstPacket(qpn bth.QPN) {
	if g.awaited.Load() == 0 {
		return
	}
	g.w.post(func() {
		if id := g.byQPN[qpn]; id != nil {
			g.unawait(id)
			_ = g.machine.CommEstablished(g.w.now, id.comm) // nothing to say to one that is over
			g.settle()
		}
	})
}
