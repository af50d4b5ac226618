package nic

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/raceorder"
	"github.com/softroce/softroce/pkg/udp4791"
)

// send hands the batch to the endpoint as far as it takes it, and returns how
// many packets went.
func (w *worker) send() int {
	b := &w.batch
	total := 0
	if w.impaired.on {
		w.impairBatch()
	}
	for b.sent < len(b.packets) {
		b.group()
		raceorder.Send()
		runs, err := w.ep.WriteBatch(b.runs)
		total += w.sentRuns(runs)
		if err == nil {
			continue
		}
		if errors.Is(err, udp4791.ErrWouldBlock) {
			b.refused = true
			w.stats.SendBlocked++
			return total
		}
		w.refusedRun(runs, err)
	}
	b.reset()
	return total
}

// sentRuns counts and captures the packets of the first runs, which went, and
// returns their number.
func (w *worker) sentRuns(runs int) int {
	b := &w.batch
	from := b.sent
	for _, n := range b.lens[:runs] {
		w.stats.Sends++
		p := &b.packets[b.sent]
		if n > 1 && p.way != wayNone {
			if next := &b.packets[b.sent+1]; next.q == p.q && next.way == p.way {
				p.q.trials[p.way].run(next.psn)
			}
		}
		b.sent += n
	}
	tap := w.a.tap.Load()
	for i := from; i < b.sent; i++ {
		p := &b.packets[i]
		w.stats.PacketsOut++
		w.stats.BytesOut += uint64(p.n)
		if tap != nil {
			w.captureOut(tap, p, b.bytes(p))
		}
	}
	return b.sent - from
}

// refusedRun deals with a run that the kernel refused for good. One of several
// packets is sent again one by one: the refusal may be about the segmentation,
// which is then off for the route. To the transport, a packet of its own that
// was refused is a loss.
func (w *worker) refusedRun(run int, err error) {
	b := &w.batch
	p := &b.packets[b.sent]
	var se *udp4791.SendError
	if b.lens[run] > 1 && errors.As(err, &se) && aboutSegments(se.Errno) {
		w.stopSegments(p.route, "the kernel refuses segmented sends", se)
		return
	}
	w.sendFailed(p, err)
	b.sent++
}

// aboutSegments says whether an errno may be about the segmentation of a send.
func aboutSegments(e syscall.Errno) bool {
	return e == unix.EIO || e == unix.EINVAL || e == unix.EMSGSIZE
}

// sendFailed counts one packet that the kernel refused for good.
func (w *worker) sendFailed(p *outgoing, err error) {
	w.stats.sendError(err)
	if n, ok := w.sendLog.allow(w.now); ok {
		w.a.log.Warn("a packet could not be sent", keyDst, p.route.dst.String(), keyBytes, p.n, keyErr, err, keySuppressed, n)
	}
}
