package nic

import (
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/udp4791"
)

// acceptMiddles takes the Middle packets that follow in a receive buffer the one
// that buf begins with, which a queue pair has just accepted: as many as are
// equal but for PSN and payload, rise by one, ask for nothing and are proven. It
// returns how many. meta.SegIndex is the place of the first of them.
func (w *worker) acceptMiddles(meta *udp4791.RecvMeta, buf []byte, n int) int {
	q := w.taken
	if meta.IDKnown || q.dead || len(buf) < 2*n || n < bth.BTHLen+bth.ICRCLen {
		return 0
	}
	before, rest := buf[:n], buf[n:]
	psn := bth.BTH(before).PSN().Add(1)
	count := countMiddles(before, rest, n, psn)
	if count == 0 {
		return 0
	}
	count = w.takeMiddles(q, meta, rest[:count*n], n, psn)
	if count > 0 {
		w.stats.PacketsIn += uint64(count)
		w.stats.BytesIn += uint64(count * n)
		w.active.push(q)
	}
	return count
}

// nearBytes is how much is proven before it is stored: what the nearest cache
// holds beside the rest; our own tuning.
const nearBytes = 16 << 10

// takeMiddles proves packets and hands them to the engine, a part at a time, as
// long as all of a part are right and taken.
func (w *worker) takeMiddles(q *qp, meta *udp4791.RecvMeta, run []byte, n int, psn bth.PSN) (taken int) {
	part, place := max(nearBytes/n, 1)*n, meta.SegIndex
	w.current = q
	for len(run) > 0 {
		b := run[:min(part, len(run))]
		proven := w.learner.proveRun(meta, b, n)
		k := q.engine.HandleMiddles(w.now, bth.Opcode(b[0]), psn, b[:proven*n], n)
		taken += k
		if k*n < len(b) {
			break
		}
		psn, meta.SegIndex, run = psn.Add(uint32(k)), meta.SegIndex+k, run[k*n:]
	}
	w.current, meta.SegIndex = nil, place
	return taken
}

// countMiddles is how many of the packets in rest, n bytes each, go on with the
// message of the one before: its Middle packets, PSN by PSN, that ask for no
// acknowledgement.
func countMiddles(before, rest []byte, n int, psn bth.PSN) (count int) {
	op := bth.Opcode(rest[0])
	if op.Info().Position != bth.Middle {
		return 0
	}
	for ; len(rest) >= n; rest = rest[n:] {
		h := bth.BTH(rest)
		if bth.Opcode(rest[0]) != op || [3]byte(rest[1:4]) != [3]byte(before[1:4]) || [3]byte(rest[5:8]) != [3]byte(before[5:8]) ||
			rest[8] != 0 || h.PSN() != psn {
			break
		}
		psn = psn.Add(1)
		count++
	}
	return count
}
