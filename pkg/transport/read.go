package transport

import (
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/cq"
	"github.com/softroce/softroce/pkg/mrtable"
	"github.com/softroce/softroce/pkg/wq"
)

// maxReadShare is the number of parts that a window is cut into for READs, at
// most: one part a request (our own tuning).
const maxReadShare = 4

// mostRead is how much of a message one READ asks for, where the window is no
// larger than that for each of max_rd_atomic requests: each costs a First and a
// Last, which end a segmented send (our own tuning).
const mostRead = 256 << 10

// readReq is a READ or atomic request that was sent.
type readReq struct {
	psn bth.PSN
	n   uint32 // PSNs
}

// readWindow remembers where the READ and atomic requests begin and end that
// are not answered: a READ of a long message is several requests, and each is
// repeated as it was, or its tail. It never holds more than max_rd_atomic.
type readWindow struct {
	ring []readReq
	head int
	len  int
	sent int // of them sent since the last going back: they count as in flight
}

func (w *readWindow) at(i int) *readReq { return &w.ring[(w.head+i)%len(w.ring)] }

// push takes a request that was sent, or sent again.
func (w *readWindow) push(psn bth.PSN, n uint32, resend bool) {
	w.sent++
	if !resend {
		*w.at(w.len) = readReq{psn, n}
		w.len++
	}
}

// answered takes the response with this PSN; the last one ends its request.
func (w *readWindow) answered(psn bth.PSN) {
	if w.len == 0 {
		return
	}
	if e := w.at(0); psn == e.psn.Add(e.n-1) {
		w.head = (w.head + 1) % len(w.ring)
		w.len--
		if w.sent > 0 {
			w.sent--
		}
	}
}

// growReads makes room for n requests in flight.
func (r *requester) growReads(n int) {
	w := &r.reads
	if n <= len(w.ring) {
		return
	}
	ring := make([]readReq, n)
	for i := 0; i < w.len; i++ {
		ring[i] = *w.at(i)
	}
	w.ring, w.head = ring, 0
}

// planRead says how many PSNs the next READ request takes: when sent again what
// is left of it, else the rest of the message or a share of the window.
func (q *QP) planRead(p *plan) (n uint32, ok bool) {
	r := &q.req
	w := &r.reads
	if w.sent >= q.readLimit() {
		return 0, false
	}
	if p.resend {
		e := w.at(w.sent)
		return uint32(e.psn.Add(e.n).Sub(r.nxt)), true
	}
	f := &q.peer.flows[inbound]
	window := min(r.window, f.window)
	share := window / uint32(min(q.readLimit(), maxReadShare))
	// What is lost is asked for again to the request's end: not more than is
	// needed to fill the window.
	share = min(share, max(window/uint32(q.readLimit()), mostRead))
	if f.first != nil {
		share = min(share, f.quantum())
	}
	return min(packetsOf(p.e)-p.off, max(share/(q.mtu+packetCost), 1)), true
}

// buildReadRequest builds a READ Request. The error is a local protection
// error.
func (q *QP) buildReadRequest(p *plan, buf []byte, tx *Transmit) (int, error) {
	if err := q.checkWritable(p.e.SGList); err != nil {
		return 0, err
	}
	psn := q.req.nxt
	b := q.header(buf[:0], bth.RCReadRequest, psn, 0, true, false)
	h := bth.RETHFields{VA: p.e.RemoteAddr + uint64(p.off)*uint64(q.mtu), RKey: uint32(p.e.RKey), Length: p.bytes}
	b = h.Append(b)
	_, reg := q.body(b, 0)
	n, icrc := seal(buf, len(b), 0, reg)
	q.req.sinceAck = 0
	tx.ICRC, tx.Opcode, tx.PSN = icrc, bth.RCReadRequest, psn
	return n, nil
}

// takeReadResponse stores the response due at una. After a retry a response may
// begin anew with First or Only, or go on with Middle or Last, as kernel rxe's
// does: only the end and the length are held to what was asked for.
func (q *QP) takeReadResponse(e *wq.WQE, p *Packet) cq.Status {
	r := &q.req
	w := &r.reads
	if w.len == 0 {
		return cq.BadRespErr
	}
	req := w.at(0)
	last := r.una == req.psn.Add(req.n-1)
	off := uint64(r.una.Sub(r.headPSN)) * uint64(q.mtu)
	want := min(e.User[userLength]-off, uint64(q.mtu))
	if uint64(len(p.Payload)) != want {
		if mtu, ok := bth.MTUFromBytes(len(p.Payload)); ok && p.Info.Position != bth.Last && p.Info.Position != bth.Only {
			q.past().because(WhyMTU)
			q.past().PeerMTU = mtu.Bytes()
			q.noteOnce(Event{Kind: NoteMTU, OwnMTU: int(q.mtu), PeerMTU: mtu.Bytes()})
		}
		return cq.BadRespErr
	}
	if p.Info.Position.Ends() != last {
		return cq.BadRespErr
	}
	if err := q.scatter(e.SGList, off, p.Payload, last); err != nil {
		return cq.LocProtErr
	}
	return cq.Success
}

// acceptRead executes a READ request: it remembers it, and the responses are
// made from memory one by one. The request takes all their PSNs at once.
func (q *QP) acceptRead(p *Packet) fault {
	h := p.RETH()
	n := q.packets(uint64(h.Length()))
	s := q.rsp.remember(q)
	if s == nil {
		return faultResource
	}
	r := &q.rsp
	r.msn = (r.msn + 1) & msnMask
	q.stats.RcvdMsgs++
	*s = replay{
		op: bth.OpReadRequest, psn: r.expected, n: n, msn: r.msn,
		va: h.VA(), rkey: h.RKey(), length: h.Length(),
	}
	r.expected = r.expected.Add(n)
	r.schedule(s, s.psn, n, h.Length(), false)
	return faultNone
}

// replayRead serves a READ request again: memory is read anew, for the same
// PSNs. It may ask for the tail of the first one, or any part of it.
func (q *QP) replayRead(psn bth.PSN, p *Packet) Verdict {
	h := p.RETH()
	s := q.rsp.find(psn)
	if s == nil || s.op != bth.OpReadRequest {
		return DropDuplicate
	}
	off := uint64(psn.Sub(s.psn)) * uint64(q.mtu)
	n := q.packets(uint64(h.Length()))
	switch {
	case h.RKey() != s.rkey, h.VA() != s.va+off, off > uint64(s.length),
		uint64(h.Length()) > uint64(s.length)-off, h.Length() == 0 && s.length != 0, len(p.Payload) != 0:
		return DropDuplicate
	}
	q.rsp.schedule(s, psn, n, uint32(off)+h.Length(), true)
	return Duplicate
}

// buildReadResponse builds the next response of s. The error is that of the
// memory, whose key may have gone meanwhile.
func (q *QP) buildReadResponse(s *replay, buf []byte) (int, Transmit, error) {
	k := uint32(s.next.Sub(s.psn))
	off := uint64(k) * uint64(q.mtu)
	size := int(min(uint64(s.limit)-off, uint64(q.mtu)))
	op := readResponses.at(s.next == s.from, s.next.Add(1) == s.end)
	b := q.header(buf[:0], op, s.next, size, false, false)
	if op != bth.RCReadResponseMiddle {
		b = q.aeth(b, bth.AckNoCredit, s.answerMSN(&q.rsp))
	}
	place, reg := q.body(b, size)
	if size > 0 {
		left := uint64(s.limit) - off // the rest of the answer may be read ahead
		seg, err := q.remote(s.rkey, s.va+off, left, mrtable.AccessRemoteRead)
		if err != nil {
			return 0, Transmit{}, err
		}
		if err = q.copySegment(s.rkey, s.va+off, &seg, 0, place, &reg); err != nil {
			return 0, Transmit{}, err
		}
	}
	n, icrc := seal(buf, len(b)+size, size, reg)
	return n, Transmit{ICRC: icrc, Opcode: op, PSN: s.next, Resend: s.again}, nil
}

var readResponses = opcodesOf{
	bth.RCReadResponseFirst, bth.RCReadResponseMiddle, bth.RCReadResponseLast, bth.RCReadResponseOnly,
}
