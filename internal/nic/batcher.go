package nic

import (
	"encoding/binary"
	"net/netip"

	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/transport"
	"github.com/softroce/softroce/pkg/udp4791"
)

// Our own tuning of a send batch.
const (
	batchPackets = 1024
	packetRoom   = 4096 + 256 // the largest RoCE packet and some
	batchBytes   = 64 * packetRoom
)

// batcher gathers the packets of a turn in one arena and hands them to the
// endpoint in runs: neighbours of equal length that go the same way are one
// send, which the kernel cuts. It owns the IPv4 identifications: packets come
// with the ICRC for identification 0, which is what an unconnected socket with
// don't-fragment set sends for a datagram of its own (Annex A17.3.3 covers
// the field); the packets of a run have 0, 1, 2 and so on, and get their ICRC
// patched when their place is final.
//
// A packet that was pulled counts as sent. What a full socket refuses stays
// here and goes first next time.
type batcher struct {
	arena    []byte
	used     int
	packets  []outgoing
	runs     []udp4791.SendSlot // of packets[sent:], made by group
	lens     []int              // packets of each run
	sent     int                // packets before this one are gone
	refused  bool               // the socket took no more
	segments bool               // the kernel cuts
	last     openRun
}

// openRun is the run that the last packet is in, as far as add sees it.
type openRun struct{ size, n, bytes int }

// extends says whether one more packet of the run's size would be part of it.
func (r *openRun) extends() bool {
	return r.n > 0 && r.n < udp4791.MaxSegments && r.bytes+r.size <= udp4791.MaxSegmented
}

// add takes a packet of n bytes in: it goes on with the run or begins one.
func (r *openRun) add(n int) {
	if n == r.size && r.extends() {
		r.n++
		r.bytes += n
		return
	}
	*r = openRun{n, 1, n}
}

// outgoing is a packet: its place in the arena and what is kept beside its
// bytes.
type outgoing struct {
	at, n  int
	q      *qp
	ah     *ahObject // UD: where it goes
	route  *route
	flow   udp4791.FlowID
	label  uint32
	psn    bth.PSN
	id     uint16 // the identification its ICRC stands for
	port   uint16 // UDP source port
	tos    uint8
	ttl    uint8
	key    uint8 // steering key of the destination
	way    way
	resend bool
	judged bool // by the rules that impair packets
}

func (b *batcher) init(segments bool) {
	b.arena = make([]byte, batchBytes)
	b.packets = make([]outgoing, 0, batchPackets)
	b.runs = make([]udp4791.SendSlot, 0, batchPackets)
	b.lens = make([]int, 0, batchPackets)
	b.segments = segments
}

// full says that no further packet has room.
func (b *batcher) full() bool {
	return len(b.packets) >= batchPackets || len(b.arena)-b.used < packetRoom
}

// blocked says that a socket refused packets that are still here.
func (b *batcher) blocked() bool { return b.refused }

// room is where the next packet is to be built: right behind the last one, so
// that those of a run are one piece of memory.
func (b *batcher) room() []byte { return b.arena[b.used : b.used+packetRoom : b.used+packetRoom] }

// add takes the packet of n bytes that was built in room.
func (b *batcher) add(q *qp, n int, tx *transport.Transmit) {
	p := tx.Path
	b.packets = append(b.packets, outgoing{
		at: b.used, n: n, q: q, route: q.route, flow: udp4791.FlowID(p.Flow), label: p.FlowLabel,
		psn: tx.PSN, port: p.SrcPort, tos: p.TrafficClass, ttl: p.HopLimit, key: b.arena[b.used+destKeyByte] & (steerKeys - 1),
		way: wayOf(tx.Opcode), resend: tx.Resend,
	})
	b.used += n
	b.last.add(n)
}

// addDatagram is add for a packet that goes the way of an address handle. Nobody
// acknowledges it: it says nothing of whether segments arrive.
func (b *batcher) addDatagram(q *qp, to *ahPath, n int, tx *transport.Transmit) {
	b.add(q, n, tx)
	p := &b.packets[len(b.packets)-1]
	p.ah, p.route, p.way = to.ah, to.route, wayNone
}

// from is the local address that a packet leaves from.
func (p *outgoing) from() netip.Addr {
	if p.ah != nil {
		return p.ah.local
	}
	return p.q.local
}

// middles is where the Middle packets go that follow the last packet, and how
// many may be of one run with it. like says that the last one is as long as they
// are.
func (b *batcher) middles(like bool) (buf []byte, most int) {
	most, bytes := udp4791.MaxSegments, udp4791.MaxSegmented
	if like {
		most, bytes = most-b.last.n, bytes-b.last.bytes
	}
	if !b.segments {
		most = noRunMiddles
	}
	return b.arena[b.used:min(b.used+bytes, len(b.arena))], min(most, batchPackets-len(b.packets))
}

// noRunMiddles is how many Middle packets are built together where they are sent
// one by one; our own tuning.
const noRunMiddles = 8

// addMiddles takes count packets of n bytes each that were built in middles:
// they go the way of the last packet.
func (b *batcher) addMiddles(count, n int, first bth.PSN) {
	p := b.packets[len(b.packets)-1]
	p.n, p.id = n, 0
	for k := range count {
		p.at, p.psn = b.used, first.Add(uint32(k))
		b.packets = append(b.packets, p)
		b.used += n
		b.last.add(n)
	}
}

// unfinished says that what comes next may be part of the last packet's run:
// it is worth a little more than the budget.
func (b *batcher) unfinished() bool { return b.segments && b.last.n > 1 && b.last.extends() }

// destKeyByte is the low byte of the destination QPN in the BTH, whose low bits
// are the steering key (IBTA Vol 1 §9.2).
const destKeyByte = 7

// bytes are a packet's.
func (b *batcher) bytes(p *outgoing) []byte { return b.arena[p.at : p.at+p.n : p.at+p.n] }

// holds says whether packets of q are refused and wait here.
func (b *batcher) holds(q *qp) bool {
	if !b.refused {
		return false
	}
	for i := b.sent; i < len(b.packets); i++ {
		if b.packets[i].q == q {
			return true
		}
	}
	return false
}

// group makes the runs of what was not sent yet.
func (b *batcher) group() {
	b.runs, b.lens = b.runs[:0], b.lens[:0]
	for i := b.sent; i < len(b.packets); {
		p := &b.packets[i]
		n, bytes := 1, p.n
		if b.segments && p.route.segments {
			n, bytes = b.runFrom(i)
		}
		s := udp4791.SendSlot{Flow: p.flow, Dst: p.route.dst, TOS: p.tos, TTL: p.ttl, FlowLabel: p.label}
		s.Buf = b.arena[p.at : p.at+bytes : p.at+bytes]
		if n > 1 {
			s.Segment = p.n
		}
		for k := 0; k < n && p.route.numbered; k++ {
			b.setID(&b.packets[i+k], uint16(k))
		}
		b.runs, b.lens = append(b.runs, s), append(b.lens, n)
		i += n
	}
}

// runFrom is the length of the run that packet i begins, in packets and bytes.
// Only its last packet may be shorter. All destination QPs share a steering
// key, since the receiving kernel hands a merged buffer to the socket that its
// first packet points to.
func (b *batcher) runFrom(i int) (n, bytes int) {
	first := &b.packets[i]
	n, bytes = 1, first.n
	for last := first; i+n < len(b.packets) && n < udp4791.MaxSegments; n++ {
		p := &b.packets[i+n]
		if last.n != first.n || p.n > first.n || p.at != last.at+last.n ||
			bytes+p.n > udp4791.MaxSegmented || !p.sameWay(first) {
			break
		}
		bytes += p.n
		last = p
	}
	return n, bytes
}

// sameWay says whether two packets have all but their bytes in common.
func (p *outgoing) sameWay(o *outgoing) bool {
	return p.route == o.route && p.flow == o.flow && p.key == o.key && p.tos == o.tos && p.ttl == o.ttl && p.label == o.label
}

// setID makes p a packet of identification id.
func (b *batcher) setID(p *outgoing, id uint16) {
	if p.id == id {
		return
	}
	buf := b.bytes(p)
	n := len(buf)
	v := binary.LittleEndian.Uint32(buf[n-bth.ICRCLen:]) // as the ICRC lies on the wire
	bth.PutICRC(buf[n-bth.ICRCLen:], bth.PatchICRC(v, p.id, id, n))
	p.id = id
}

// reset forgets everything that was sent.
func (b *batcher) reset() {
	clear(b.packets)
	b.packets, b.used, b.sent, b.refused, b.last = b.packets[:0], 0, 0, false, openRun{}
}

// drop takes out the packets of a queue pair that is gone.
func (b *batcher) drop(q *qp) {
	k := b.sent
	for i := b.sent; i < len(b.packets); i++ {
		if b.packets[i].q != q {
			b.packets[k] = b.packets[i]
			k++
		}
	}
	clear(b.packets[k:])
	b.packets = b.packets[:k]
}
