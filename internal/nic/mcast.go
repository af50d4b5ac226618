package nic

import (
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/softroce/softroce/internal/uapi"
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/qpstate"
	"github.com/softroce/softroce/pkg/udp4791"
)

// Our own tuning: how many groups an adapter joins, a descriptor each, and how
// many queue pairs one group has, a copy of each packet each.
const (
	maxMcastGroups   = 4096
	maxMcastAttached = 1024
)

// An mcastGroup is a multicast group with at least one queue pair attached. Its
// one socket is read by its home worker, which hands a copy to every other worker
// that has queue pairs attached.
type mcastGroup struct {
	addr     netip.Addr
	sock     *udp4791.Multicast
	home     *worker
	attached int                              // queue pairs; the table's lock guards it
	members  [udp4791.MaxWorkers]atomic.Int32 // of them by worker
}

// An mcastTable holds an adapter's multicast groups. The lock is the control
// plane's: workers have what they need in their own maps.
type mcastTable struct {
	mu     sync.Mutex
	groups map[netip.Addr]*mcastGroup
}

// groupHere is a group as a worker sees it that reads its socket, or has or had
// queue pairs attached. It belongs to the worker's goroutine.
type groupHere struct {
	*mcastGroup
	qps []*qp
}

// attachMcast attaches a UD queue pair to a multicast group; a second time
// changes nothing (ibv_attach_mcast(3)).
func (p *program) attachMcast(m *uapi.McastRequest) (reply, error) {
	o, err := p.mcastQP(m)
	if err != nil || o.groups[m.GID] {
		return reply{}, err
	}
	if err := p.account.charge(ResourceMcast, 1); err != nil {
		return reply{}, err
	}
	if err := p.a.attach(o.qp, m.GID.Addr()); err != nil {
		p.account.release(ResourceMcast, 1)
		return reply{}, err
	}
	if o.groups == nil {
		o.groups = make(map[bth.GID]bool)
	}
	o.groups[m.GID] = true
	return reply{}, nil
}

// mcastQP checks what attaching and detaching have in common.
func (p *program) mcastQP(m *uapi.McastRequest) (*qpObject, error) {
	o, ok := p.qps.lookup(m.QP)
	switch {
	case !ok:
		return nil, errHandle("queue pair", m.QP)
	case o.kind != qpstate.UD:
		return nil, refuse(syscall.EINVAL, "queue pair %#x is of type %v: only UD has multicast", uint32(o.qp.qpn), o.kind)
	case !m.GID.IsMulticast():
		return nil, refuse(syscall.EINVAL, "gid %s is no multicast group (ff00::/8 or ::ffff:224.0.0.0/100)", m.GID)
	}
	return o, nil
}

func (p *program) detachMcast(m *uapi.McastRequest) (reply, error) {
	o, err := p.mcastQP(m)
	switch {
	case err != nil:
		return reply{}, err
	case !o.groups[m.GID]:
		return reply{}, refuse(syscall.EINVAL, "queue pair %#x is not attached to %s", uint32(o.qp.qpn), m.GID)
	}
	p.detach(o, m.GID)
	return reply{}, nil
}

func (p *program) detach(o *qpObject, gid bth.GID) {
	p.a.detach(o.qp, gid.Addr())
	delete(o.groups, gid)
	p.account.release(ResourceMcast, 1)
}

// attach gives a queue pair the packets to a group, which is joined when it is
// the first one's.
func (a *Adapter) attach(q *qp, addr netip.Addr) error {
	t := &a.mcast
	t.mu.Lock()
	defer t.mu.Unlock()
	g := t.groups[addr]
	if g == nil {
		var err error
		if g, err = a.joinGroup(addr, q.worker); err != nil {
			return err
		}
	}
	if g.attached >= maxMcastAttached {
		return refuse(syscall.ENOMEM, "group %s has %d queue pairs attached, the most it takes", addr, g.attached)
	}
	w := q.worker
	if !w.do(func() { h := w.groupHere(g); h.qps = append(h.qps, q) }) {
		if g.attached == 0 {
			a.leaveGroup(g)
		}
		return a.errStopped()
	}
	g.attached++
	g.members[w.index].Add(1)
	return nil
}

// joinGroup opens a group's socket and has a worker read it. The table's lock is
// held.
func (a *Adapter) joinGroup(addr netip.Addr, home *worker) (*mcastGroup, error) {
	t := &a.mcast
	if len(t.groups) >= maxMcastGroups {
		return nil, refuse(syscall.ENOMEM, "limit of multicast groups of this adapter reached: %d joined", len(t.groups))
	}
	sock, err := a.group.OpenMulticast(addr)
	if err != nil {
		return nil, refuse(errnoOf(err, syscall.EINVAL), "%v", err)
	}
	g := &mcastGroup{addr: addr, sock: sock, home: home}
	if !home.do(func() { err = home.listen(g) }) {
		err = a.errStopped()
	}
	if err != nil {
		_ = sock.Close() // the first error is the one to report
		return nil, err
	}
	if t.groups == nil {
		t.groups = make(map[netip.Addr]*mcastGroup)
	}
	t.groups[addr] = g
	return g, nil
}

// detach ends what attach began; the last one of a group leaves it.
func (a *Adapter) detach(q *qp, addr netip.Addr) {
	t := &a.mcast
	t.mu.Lock()
	defer t.mu.Unlock()
	g := t.groups[addr]
	if g == nil {
		return
	}
	w := q.worker
	g.members[w.index].Add(-1)
	w.do(func() { w.groupHere(g).remove(q) })
	if g.attached--; g.attached == 0 {
		a.leaveGroup(g)
	}
}

// leaveGroup closes a group's socket. The table's lock is held.
func (a *Adapter) leaveGroup(g *mcastGroup) {
	g.home.do(func() { g.home.unlisten(g) })
	for _, w := range a.workers {
		w.do(func() { delete(w.groups, g.addr) })
	}
	_ = g.sock.Close() // a descriptor of our own, at the end
	delete(a.mcast.groups, g.addr)
}

func (h *groupHere) remove(q *qp) {
	for i, x := range h.qps {
		if x == q {
			h.qps = append(h.qps[:i], h.qps[i+1:]...)
			return
		}
	}
}

// The functions below run on the worker's goroutine.

func (w *worker) groupHere(g *mcastGroup) *groupHere {
	h := w.groups[g.addr]
	if h == nil {
		h = &groupHere{mcastGroup: g}
		w.groups[g.addr] = h
	}
	return h
}

func (w *worker) listen(g *mcastGroup) error {
	if err := w.poller.Add(g.sock.FD(), tokenSocket); err != nil {
		return fmt.Errorf("watch a multicast socket: %w", err)
	}
	w.ep.Listen(g.sock)
	w.groupHere(g)
	return nil
}

func (w *worker) unlisten(g *mcastGroup) {
	w.ep.Unlisten(g.sock)
	_ = w.poller.Remove(g.sock.FD()) // fails only when it was never added
}

// acceptMulticast takes a packet to a multicast group: a copy for every attached
// queue pair, here and, when it comes from the socket, on the other workers
// (IBTA Vol 1 §10.5.2). One to a group that nobody joined, or with a destination
// QPN that does not go with the address, is dropped.
func (w *worker) acceptMulticast(meta *udp4791.RecvMeta, buf []byte, from origin) {
	h := w.groups[meta.Dst]
	if from == fromGroup { // counted, checked and captured by the worker that had it
		w.stats.PacketsIn--
		w.stats.BytesIn -= uint64(len(buf))
		if h != nil {
			w.deliverAll(h, meta, &icrcVerdict{id: meta.ID, idKnown: meta.IDKnown})
		}
		return
	}
	if h == nil || w.pkt.BTH().DestQP() != bth.MulticastQPN {
		w.drop(meta, buf, DropNoGroup)
		return
	}
	v := w.checkICRC(meta, buf)
	if !v.ok {
		return
	}
	copies := len(h.qps) + w.spread(h.mcastGroup, meta, buf, &v)
	if tap := w.a.tap.Load(); tap != nil {
		w.captureGroup(tap, h, meta, buf, &v, copies)
	}
	w.deliverAll(h, meta, &v)
}

// deliverAll gives the parsed packet to the group's queue pairs here.
func (w *worker) deliverAll(h *groupHere, meta *udp4791.RecvMeta, v *icrcVerdict) {
	w.setSource(meta, v.id)
	for _, q := range h.qps {
		if !q.dead {
			w.handTo(q)
		}
	}
}

// spread hands a packet to the other workers that have queue pairs of its group,
// and returns how many those are.
func (w *worker) spread(g *mcastGroup, meta *udp4791.RecvMeta, buf []byte, v *icrcVerdict) (copies int) {
	for i, to := range w.a.workers {
		n := int(g.members[i].Load())
		if n == 0 || to == w {
			continue
		}
		copies += n
		m := *meta
		m.ID, m.IDKnown = v.id, v.idKnown
		if !w.handOver(to, &m, buf, fromGroup) {
			w.stats.Drops[DropHandover]++
			continue
		}
		w.stats.Handovers++
	}
	return copies
}
