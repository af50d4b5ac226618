package main

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// headerArea is what the network header takes in front of a datagram in a receive.
const headerArea = 40

// rightQKey is the Q_Key of every queue pair of datagrams here.
const rightQKey = 0x1234_5678

// A headerDue is a header area that a datagram must have filled.
type headerDue struct {
	off      int
	from, to string // GIDs
}

// behindHeader is what is left of a receive for the payload: the area lies in its first piece.
func behindHeader(sges []span) []span {
	if len(sges) == 0 || sges[0][1] < headerArea {
		failf("a receive for datagrams without a piece for the header area: %v", sges)
	}
	return append([]span{{sges[0][0] + headerArea, sges[0][1] - headerArea}}, sges[1:]...)
}

// judgeHeaders checks the header areas in the bytes of the region and takes them over into the model, which cannot know all
// of their fields.
func (s *side) judgeHeaders(mem []byte) {
	for _, h := range s.headers {
		b := mem[h.off:][:headerArea]
		if why := wrongHeader(b, h.from, h.to); why != "" {
			failf("%s: the header area at offset %d: %s: % x", s.name, h.off, why, b)
		}
		copy(s.mem[h.off:], b)
	}
	s.headers = nil
}

// wrongHeader says what is wrong with a header area of a datagram between two GIDs, or "".
func wrongHeader(b []byte, from, to string) string {
	src, err1 := netip.ParseAddr(from)
	dst, err2 := netip.ParseAddr(to)
	if err1 != nil || err2 != nil {
		return fmt.Sprintf("GIDs %s and %s cannot be read", from, to)
	}
	if src.Is4In6() {
		return wrongHeader4(b, src.Unmap(), dst.Unmap())
	}
	switch {
	case b[0]>>4 != 6:
		return "not an IPv6 header"
	case b[6] != 17:
		return "the next header is not UDP"
	case netip.AddrFrom16([16]byte(b[8:])) != src || netip.AddrFrom16([16]byte(b[24:])) != dst:
		return "other addresses than " + from + " and " + to
	}
	return ""
}

func wrongHeader4(b []byte, src, dst netip.Addr) string {
	ip := b[20:]
	var sum uint32
	for i := 0; i < len(ip); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	switch {
	case ip[0] != 0x45:
		return "not an IPv4 header"
	case (sum>>16+sum)&0xffff != 0xffff:
		return "the IPv4 header's checksum is wrong"
	case ip[9] != 17:
		return "the protocol is not UDP"
	case netip.AddrFrom4([4]byte(ip[12:])) != src || netip.AddrFrom4([4]byte(ip[16:])) != dst:
		return fmt.Sprintf("other addresses than %v and %v", src, dst)
	}
	return ""
}

// recvDatagram posts a receive for a datagram of n bytes; its offset.
func (s *side) recvDatagram(n int) int {
	at := s.take(headerArea + n)
	s.recv(at)
	return at[0]
}

// postLost posts a datagram that its sender completes and nobody takes.
func (s *side) postLost(w sendWR) {
	s.hand([]sendWR{w})
	s.want = append(s.want, completion{ID: s.lastID, Op: wcOpcode[w.Op]})
}

// address aims a datagram elsewhere than at the peer's queue pair.
func (w sendWR) address(ah int, qpn, qkey uint32) sendWR {
	w.AH, w.RemoteQPN, w.QKey = ah, qpn, qkey
	return w
}

// datagramLengths end at the path MTU of the lab.
var datagramLengths = []int{0, 1, 2, 3, 4, 5, 63, 64, 65, 1023, 1024, 1025, 2048, 4095, 4096}

// caseDatagrams sends every size; then the receiver answers, by an address handle made of what it received.
func caseDatagrams(l *link) {
	q, r := l.req, l.resp
	var first headerDue
	for i, n := range datagramLengths {
		off := r.recvDatagram(n + i%3)
		if i == 0 {
			first.off = off
		}
	}
	id := r.recvs[0].ID
	var batch []sendWR
	for i, n := range datagramLengths {
		w := q.sendWR(q.take(n))
		if i%2 == 1 {
			w.Op, w.Imm = opSendImm, 0xa1b2c3d0+uint32(i)
		}
		batch = append(batch, w)
	}
	q.post(batch...)
	l.settle()
	ah, err := r.end.Answer(id, first.off)
	must(err)
	for i := range 3 {
		q.recvDatagram(1000)
		answer := r.sendImmWR(uint32(i), r.take(1000*i/2)).address(ah, q.id.QPNs[0], rightQKey)
		r.post(answer)
	}
	l.settle()
}

// caseQKey sends with Q_Keys that are not the receiver's between some that are. One with the highest bit means the sender's
// own key, which is the receiver's here; rxe sends it as it is, so it is lost.
func caseQKey(l *link) {
	q, r := l.req, l.resp
	for range 4 {
		r.recvDatagram(100)
	}
	qpn := r.id.QPNs[0]
	send := func(key uint32) sendWR { return q.sendWR(q.take(100)).address(q.ah, qpn, key) }
	q.post(send(rightQKey))
	for _, key := range []uint32{rightQKey + 1, 0, rightQKey ^ 1<<30} {
		q.postLost(send(key))
	}
	q.post(send(rightQKey))
	if w := send(1<<31 | 5); q.isRxe() {
		q.postLost(w)
	} else {
		q.post(w)
	}
	q.post(send(rightQKey))
	l.settle()
	r.noneYet(100)
}

// groupQPN is the queue pair number that datagrams to a group carry.
const groupQPN = 0xffffff

// caseGroup sends to a multicast group before the receiver is attached, while it is, and afterwards.
func caseGroup(group string) func(l *link) {
	return func(l *link) {
		q, r := l.req, l.resp
		ah, err := q.end.Handle(group)
		must(err)
		send := func(i int) sendWR {
			return q.sendImmWR(uint32(i), q.take(500*i)).address(ah, groupQPN, rightQKey)
		}
		for range 4 {
			r.recvDatagram(4096)
		}
		q.postLost(send(1))
		l.settle()
		r.noneYet(100)
		must(r.end.Group(group, true))
		for i := range 3 {
			q.postGroup(send(i+1), group)
			l.settle()
		}
		wrongKey := send(2)
		wrongKey.QKey++
		q.postLost(wrongKey)
		l.settle()
		r.noneYet(100)
		must(r.end.Group(group, false))
		q.postLost(send(3))
		l.settle()
		r.noneYet(100)
		q.post(q.sendWR(q.take(77)))
		l.settle()
	}
}

// postGroup posts a datagram to a group that the peer belongs to.
func (s *side) postGroup(w sendWR, group string) {
	s.hand([]sendWR{w})
	w.ID = s.lastID
	r := s.peer.recvs[0]
	s.peer.recvs = s.peer.recvs[1:]
	d := delivery{w: w, payload: s.gather(w.SGEs), qpn: s.peer.id.QPNs[0], to: group}
	s.peer.want = append(s.peer.want, s.peer.deliver(r, d))
	s.want = append(s.want, completion{ID: w.ID, Op: wcSend})
}
