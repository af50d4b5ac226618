package soak

import (
	"github.com/softroce/softroce/internal/scenario"
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/transport"
)

// Two queue pairs of one adapter may meet in memory, as in a real one: each packet
// is handed over as soon as it was built, without an ICRC, and of rows of Middle
// packets only a reference to the payloads.

// nearFlow is the mark of a path within the adapter.
const nearFlow = -2

// near hands a packet over.
func (w *world) near(q *queue, b []byte) {
	p := &w.parsed
	p.Src, p.Dst, p.TTL = q.a.gid, q.a.gid, 64
	if err := p.Parse(b); err != nil {
		w.fail("%v: sent a packet that does not parse: %v", q, err)
		return
	}
	to := q.a.queues[p.BTH().DestQP()]
	if to == nil {
		w.result.NoQueue++
		return
	}
	w.handle(to, b)
}

// lendBehind hands over the Middle packets behind the one that was sent, at random
// as an adapter does: by reference, and those that the peer does not take so one by
// one. It returns their length.
func (q *queue) lendBehind(tx *transport.Transmit) int {
	w := q.a.w
	if w.rand.IntN(4) == 0 {
		return 0
	}
	head := w.lent[:]
	n, payload := q.qp.LendMiddles(w.now(), head, w.rand.IntN(runMost), w.rand.IntN(2) == 0)
	if n == 0 {
		return 0
	}
	w.result.Packets += uint64(n)
	size := len(payload) / n
	head = head[:bth.BTHLen+bth.ICRCLen]
	if first := bth.BTH(head).PSN(); first != tx.PSN.Add(1) || len(payload) != n*size {
		w.fail("%v: lends %d bytes for %d packets from PSN %v on, behind %v", q, len(payload), n, first, tx.PSN)
	}
	if w.cfg.Trace != nil {
		w.trace("%v > %s, %d of %d bytes lent", q, scenario.PacketText(head), n, size)
	}
	took := 0
	if to := q.a.queues[bth.BTH(head).DestQP()]; to != nil && w.rand.IntN(8) > 0 {
		p := &w.parsed
		p.Src, p.Dst, p.TTL = q.a.gid, q.a.gid, 64
		if err := p.Parse(head); err != nil {
			w.fail("%v: the head of a lent run: %v", q, err)
			return 0
		}
		if took = to.qp.HandleLent(w.now(), p, payload, size); took < 0 || took > n {
			w.fail("%v: took %d packets of a lent run of %d", to, took, n)
			return 0
		}
		to.heard(transport.Accepted, p.Info.Response && took > 0)
		to.touch()
	}
	for k := took; k < n; k++ {
		b := w.row[:transport.TransmitSpace]
		m := transport.BuildLent(b, head, k, payload[k*size:(k+1)*size])
		w.near(q, b[:m])
	}
	return n * size
}
