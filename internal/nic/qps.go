package nic

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/qpstate"
	"github.com/softroce/softroce/pkg/transport"
	"github.com/softroce/softroce/pkg/udp4791"
)

// defaultHopLimit replaces an address vector's hop limit of 0, which no
// packet survives.
const defaultHopLimit = 64

// The functions below run on the worker's goroutine (inside do).

// addProgram starts serving a program's doorbells.
func (w *worker) addProgram(l *programLink) error {
	if err := w.poller.Add(l.eventfd.FD(), tokenProgram+uint64(l.eventfd.FD())); err != nil {
		return fmt.Errorf("watch a program's doorbell: %w", err)
	}
	l.ahs = ahPaths{w: w, table: &l.owner.ahs}
	w.links = append(w.links, l)
	return nil
}

// removeProgram forgets a program; its queue pairs have been removed.
func (w *worker) removeProgram(l *programLink) {
	l.ahs.close()
	for i, x := range w.links {
		if x == l {
			w.links = append(w.links[:i], w.links[i+1:]...)
			_ = w.poller.Remove(l.eventfd.FD()) // fails only when it was never added
			return
		}
	}
}

// addQP takes a queue pair in. Its doorbell index must be free in its link.
func (w *worker) addQP(q *qp) error {
	if w.byQPN[q.qpn] != nil {
		return fmt.Errorf("queue pair number %#x is in use", uint32(q.qpn))
	}
	q.worker, q.timerPos = w, -1
	for int(q.index) >= len(q.link.qps) {
		q.link.qps = append(q.link.qps, nil)
	}
	q.link.doorbell.Limit(uint32(len(q.link.qps)))
	q.link.qps[q.index] = q
	if q.datagrams {
		q.link.datagrams = append(q.link.datagrams, q)
	}
	w.byQPN[q.qpn] = q
	return nil
}

// removeQP ends a queue pair's life here: no packet, no timer, no doorbell
// reaches it any more, and what a full socket still holds of it is dropped.
func (w *worker) removeQP(q *qp) {
	if q.removed {
		return
	}
	q.removed = true
	q.engine.Close()
	delete(w.byQPN, q.qpn)
	w.lastQP = nil
	if int(q.index) < len(q.link.qps) && q.link.qps[q.index] == q {
		q.link.qps[q.index] = nil
	}
	if i := slices.Index(q.link.datagrams, q); i >= 0 {
		q.link.datagrams = slices.Delete(q.link.datagrams, i, i+1)
	}
	w.timers.remove(q)
	w.batch.drop(q)
	w.forgetDelayed(q)
	w.closeFlow(q)
}

func (w *worker) closeFlow(q *qp) {
	if q.hasFlow {
		w.ep.CloseFlow(q.flow)
		q.hasFlow = false
	}
}

// modifyQP resolves the address vector to a path, if there is one, and hands
// the change to the engine. The errors are those of qpstate (EINVAL).
func (w *worker) modifyQP(q *qp, a *qpstate.Attr, m qpstate.Mask) error {
	if q.dead {
		return refuse(unix.EIO, "queue pair %#x was ended by a memory fault or a corrupt ring", uint32(q.qpn))
	}
	var to *connection
	var path *transport.Path
	if m&qpstate.MaskAV != 0 {
		var err error
		if to, err = w.resolve(q, a, m); err != nil {
			return err
		}
		path = &to.path
	}
	w.current = q
	err := q.engine.Modify(w.now, a, m, path)
	w.current = nil
	switch {
	case err != nil && to != nil:
		w.ep.CloseFlow(to.flow)
		return err
	case err != nil:
		return err
	case to != nil:
		w.closeFlow(q)
		q.connection, q.hasFlow = *to, true
	}
	if q.engine.State() == qpstate.Reset {
		w.batch.drop(q)
		w.forgetDelayed(q)
		q.sq.Skip()
		if q.rq != nil {
			q.rq.Skip()
		}
		q.sqWaits, q.warned = false, 0
	}
	w.active.push(q)
	return nil
}

// A connection is where the packets of a queue pair go, and what goes with it.
type connection struct {
	path   transport.Path
	local  netip.Addr // path.Src
	flow   udp4791.FlowID
	route  *route
	remote bth.QPN
	here   bool             // the peer is on this adapter
	meta   udp4791.RecvMeta // of a packet to a peer that is
}

// resolve turns an address vector into the connection of a queue pair, whose
// flow is to be closed.
func (w *worker) resolve(q *qp, a *qpstate.Attr, m qpstate.Mask) (*connection, error) {
	gid, local, err := w.a.sourceOf(&a.AH, false)
	if err != nil {
		return nil, err
	}
	c := &connection{local: gid.Addr(), remote: a.DestQPN}
	if m&qpstate.MaskDestQPN == 0 {
		var cur qpstate.Attr
		q.engine.Query(&cur)
		c.remote = cur.DestQPN
	}
	flow, port, err := w.ep.OpenFlow(local, uint8(c.remote&7), sourcePort(q.qpn, c.remote, a.AH.FlowLabel))
	if err != nil {
		return nil, err
	}
	hop := a.AH.HopLimit
	if hop == 0 {
		hop = defaultHopLimit
	}
	dst := a.AH.DGID.Addr()
	c.flow, c.route, c.here = flow, w.route(dst), w.a.isLocal(dst)
	c.path = transport.Path{
		Src: gid, Dst: a.AH.DGID, SrcPort: port, TrafficClass: a.AH.TrafficClass, HopLimit: hop,
		FlowLabel: a.AH.FlowLabel, Flow: int32(flow), NoICRC: c.here && w.omitICRC(), Near: c.here,
	}
	if !c.here {
		c.path.Peers = w.peers
	}
	c.meta = udp4791.RecvMeta{
		Src: netip.AddrPortFrom(c.local, port), Dst: dst, TOS: a.AH.TrafficClass, TTL: hop, IDKnown: true,
	}
	return c, nil
}

// sourceOf gives the local address of an address vector, or says in the
// field's words what is wrong with it. Only a datagram can go to a group.
func (a *Adapter) sourceOf(ah *qpstate.AHAttr, groups bool) (bth.GID, netip.Addr, error) {
	gid, local, ok := a.gid(int(ah.SGIDIndex))
	if !ok {
		return gid, local, a.noGID(int(ah.SGIDIndex))
	}
	if ah.DGID.IsZero() || ah.DGID.IsMulticast() && !groups || ah.DGID.Is4() && noPeer4(ah.DGID.Addr()) {
		return gid, local, refuse(unix.EINVAL, "dgid %s is no address of a peer", ah.DGID)
	}
	if gid.Is4() != ah.DGID.Is4() {
		return gid, local, refuse(unix.EINVAL, "sgid_index %d is %s, of another address family than the peer's GID %s", ah.SGIDIndex, gid, ah.DGID)
	}
	return gid, local, nil
}

// noPeer4 says that an IPv4 address is nobody's: the kernel would take 0.0.0.0
// for this host, and refuses each single packet to 255.255.255.255.
func noPeer4(a netip.Addr) bool {
	return a.IsUnspecified() || a == netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

// sourcePort is the UDP source port that a flow label asks for, in the
// dynamic range, the same in both directions of a connection when neither
// side sets a label.
func sourcePort(local, remote bth.QPN, label uint32) uint16 {
	label &= 0xFFFFF
	if label == 0 {
		v := uint64(local) * uint64(remote)
		v ^= v >> 20
		v ^= v >> 40
		label = uint32(v & 0xFFFFF)
	}
	return 0xC000 | uint16(label&0x3FFF^label>>14)
}

// CloseSockets closes the adapter's sockets and leaves everything else alive,
// as when its network is gone for good: packets go nowhere and none come. For
// tests; Close still has to be called.
func (a *Adapter) CloseSockets() error {
	var paused, release sync.WaitGroup
	paused.Add(len(a.workers))
	release.Add(1)
	for _, w := range a.workers {
		if !w.post(func() { paused.Done(); release.Wait() }) {
			paused.Done()
		}
	}
	paused.Wait()
	defer release.Done()
	return a.group.Close()
}
