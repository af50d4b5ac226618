package transport

import (
	"time"

	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/qpstate"
)

// Two queue pairs of one process need no copy of a payload between them: the
// sender lends the memory that it lies in, and the receiver stores it from there.

// LendMiddles goes on, as PollMiddles does, behind the packet that was given
// last, whoever asked for it. But it does not build the Middle packets: it gives
// their payloads, one right behind the other, in the memory of the region that
// they are sent from, and builds in buf the first one without its payload, from
// BTH to ICRC. It counts them as sent; 0: PollTransmit is to be asked.
//
// The caller hands both to the HandleLent of the peer, in this order with the
// other packets, or builds the packets and copies the payloads itself, and must do
// so before the region's memory goes: the region may end its life before, and
// then no call of this queue pair uses it any more. Whoever reads the payload
// reads it once. There is an ICRC for none of it, so it is for a path without.
//
// soon says that the payload is read before the next call of this queue pair. Of
// an unreliable connection nothing is lent otherwise: a request is done when its
// last packet was given, and its program may then write other things there.
func (q *QP) LendMiddles(now time.Time, buf []byte, most int, soon bool) (n int, payload []byte) {
	if p := q.last.op.Info().Position; p != bth.First && p != bth.Middle {
		return 0, nil
	}
	if !q.path.NoICRC || len(buf) < bth.BTHLen+bth.ICRCLen || !soon && q.cfg.Type != qpstate.RC {
		return 0, nil
	}
	r := q.nextRun(now, most)
	if r.n == 0 {
		return 0, nil
	}
	q.header(buf[:0], r.op, r.psn, int(q.mtu), false, false)
	bth.PutICRC(buf[bth.BTHLen:], 0)
	return r.n, r.src
}

// HandleLent takes Middle packets that the peer's LendMiddles gave: p is the
// first of them without its payload, and payload has all payloads, size bytes
// each. It returns how many it took: those have had the effect that HandlePacket
// gives them, and were accepted. The others had none, and HandlePacket is to have
// them. A panic while it reads payload leaves the queue pair as it was.
// Neither p nor payload is kept.
func (q *QP) HandleLent(now time.Time, p *Packet, payload []byte, size int) (n int) {
	switch {
	case size != int(q.mtu) || len(payload) < size || p.Info == nil || p.Info.Class != classes[q.cfg.Type],
		p.Src != q.path.Dst || p.Dst != q.path.Src || !bth.DefaultPKey.Match(p.BTH().PKey()) || p.BTH().AckReq():
		return 0
	}
	return q.takeRun(now, p.Opcode, p.BTH().PSN(), payloads{payload, len(payload) / size, size})
}

// BuildLent builds packet k of those that LendMiddles gave, for a peer that takes
// them one by one: first is the first of them without its payload, payload is
// that of packet k, and buf has TransmitSpace bytes. It returns the length.
func BuildLent(buf, first []byte, k int, payload []byte) (n int) {
	h := bth.BTH(first).Fields()
	h.PSN = h.PSN.Add(uint32(k))
	n = len(h.Append(buf[:0]))
	n += copy(buf[n:], payload)
	bth.PutICRC(buf[n:n+bth.ICRCLen], 0)
	return n + bth.ICRCLen
}
