package nic

import (
	"fmt"
	"net/netip"
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
	w.links = append(w.links, l)
	return nil
}

// removeProgram forgets a program; its queue pairs have been removed.
func (w *worker) removeProgram(l *programLink) {
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
	w.timers.remove(q)
	w.batch.drop(q)
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
	var path *transport.Path
	var flow udp4791.FlowID
	if m&qpstate.MaskAV != 0 {
		p, f, err := w.resolve(q, a, m)
		if err != nil {
			return err
		}
		path, flow = p, f
	}
	w.current = q
	err := q.engine.Modify(w.now, a, m, path)
	w.current = nil
	if path != nil {
		if err != nil {
			w.ep.CloseFlow(flow)
		} else {
			w.closeFlow(q)
			q.path, q.flow, q.hasFlow = *path, flow, true
			q.local, q.route = path.Src.Addr(), w.route(path.Dst.Addr())
		}
	}
	if err != nil {
		return err
	}
	if q.engine.State() == qpstate.Reset {
		w.batch.drop(q)
		q.sq.Skip()
		q.rq.Skip()
		q.sqWaits, q.warned = false, 0
	}
	w.active.push(q)
	return nil
}

// resolve turns an address vector into the path of a connected queue pair.
func (w *worker) resolve(q *qp, a *qpstate.Attr, m qpstate.Mask) (*transport.Path, udp4791.FlowID, error) {
	gid, local, err := w.sourceOf(&a.AH)
	if err != nil {
		return nil, 0, err
	}
	remote := a.DestQPN
	if m&qpstate.MaskDestQPN == 0 {
		var cur qpstate.Attr
		q.engine.Query(&cur)
		remote = cur.DestQPN
	}
	flow, port, err := w.ep.OpenFlow(local, uint8(remote&7), sourcePort(q.qpn, remote, a.AH.FlowLabel))
	if err != nil {
		return nil, 0, err
	}
	hop := a.AH.HopLimit
	if hop == 0 {
		hop = defaultHopLimit
	}
	return &transport.Path{
		Src: gid, Dst: a.AH.DGID, SrcPort: port, TrafficClass: a.AH.TrafficClass, HopLimit: hop,
		FlowLabel: a.AH.FlowLabel, Flow: int32(flow),
	}, flow, nil
}

// sourceOf gives the local address of an address vector, or says in the
// field's words what is wrong with it.
func (w *worker) sourceOf(ah *qpstate.AHAttr) (bth.GID, netip.Addr, error) {
	gid, local, ok := w.a.gid(int(ah.SGIDIndex))
	if !ok {
		return gid, local, refuse(unix.EINVAL, "sgid_index %d: the adapter's GID table has no such entry (see softroce devinfo)", ah.SGIDIndex)
	}
	if ah.DGID.IsZero() || ah.DGID.IsMulticast() || ah.DGID.Is4() && noPeer4(ah.DGID.Addr()) {
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
