package nic

import (
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/transport"
	"github.com/softroce/softroce/pkg/udp4791"
)

// maxRoutes bounds the destinations whose facts a worker keeps.
const maxRoutes = 4096

// A route is what a worker knows of the way to one address. It outlives the
// queue pairs that use it.
type route struct {
	dst      netip.Addr
	numbered bool // IPv4: packets have an identification
	segments bool // equal packets may go as one send
	trial    bool // segmentation may yet turn out not to work
}

// route gives the route to an address.
func (w *worker) route(dst netip.Addr) *route {
	if r := w.routes[dst]; r != nil {
		return r
	}
	if len(w.routes) >= maxRoutes {
		for k := range w.routes {
			delete(w.routes, k) // queue pairs that use it keep it
			break
		}
	}
	r := &route{dst: dst, numbered: dst.Is4()}
	w.beginSegments(r)
	w.routes[dst] = r
	return r
}

// beginSegments has segmentation tried on a route.
func (w *worker) beginSegments(r *route) {
	r.segments = true
	r.trial = w.a.cfg.Offload == udp4791.OffloadAuto && r.dst.Is4() && !r.dst.IsLoopback()
}

// retrySegments has segmentation tried again where it was given up: the port is
// another one, and what was refused may have been longer than its link carried.
func (a *Adapter) retrySegments() {
	for _, w := range a.workers {
		w.post(func() {
			for _, r := range w.routes {
				w.beginSegments(r)
			}
		})
	}
}

// stopSegments ends segmentation on a route.
func (w *worker) stopSegments(r *route, why string, err error) {
	r.segments, r.trial = false, false
	w.stats.SegmentsStopped++
	if errors.Is(err, unix.EMSGSIZE) {
		w.a.tooLong.Store(true)
	}
	if n, ok := w.sendLog.allow(w.now); ok {
		w.a.log.Warn("segmentation offload is off for this peer: "+why+" (--gso=on|off decides it for all)",
			keyDst, r.dst.String(), keyErr, err, keySuppressed, n)
	}
}

// way tells a queue pair's streams of PSNs apart: its own requests, and the
// responses to its peer's READs.
type way uint8

const (
	wayRequest way = iota
	wayResponse
	wayNone // packets that make no runs
	ways    = wayNone
)

func wayOf(op bth.Opcode) way {
	switch info := op.Info(); {
	case info.Request:
		return wayRequest
	case info.Op == bth.OpReadResponse:
		return wayResponse
	}
	return wayNone
}

// maxDoubts is how often running only the first packet of a run may arrive
// before segmentation is taken to be the reason: under loss that happens by
// chance, and rarely so often.
const maxDoubts = 3

// A trial watches whether the packets of runs arrive. A device that cuts a
// send, and numbers its packets otherwise than 0, 1, 2, makes the ICRC of all
// but the first wrong: then the first of a run arrives, all others are
// dropped, and the queue pair goes back to the second.
type trial struct {
	last, second bth.PSN // sent last; the second of the first run since going back
	begun        bool
	haveRun      bool
	doubts       uint8
}

// packet takes a packet that is to be sent; it reports that the trial failed.
func (t *trial) packet(psn bth.PSN) (failed bool) {
	if t.begun && !psn.After(t.last) { // going back
		if t.haveRun && psn == t.second {
			t.doubts++
		} else {
			t.doubts = 0
		}
		t.haveRun = false
	}
	t.begun, t.last = true, psn
	return t.doubts >= maxDoubts
}

// run takes the PSN of the second packet of a run that was sent. It is not the
// one after the first's where that is a READ request, whose answer may be lost
// behind its first packet and is then asked for again from there.
func (t *trial) run(second bth.PSN) {
	if !t.haveRun {
		t.haveRun, t.second = true, second
	}
}

// watchSegments looks at a packet that is to be sent, while segmentation on its
// route is on trial.
func (w *worker) watchSegments(q *qp, tx *transport.Transmit) {
	if !q.route.trial {
		return
	}
	if k := wayOf(tx.Opcode); k != wayNone && q.trials[k].packet(tx.PSN) {
		w.stopSegments(q.route, "of segmented sends only the first packets arrive", nil)
	}
}
