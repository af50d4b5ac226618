package nic

import (
	"encoding/binary"
	"errors"
	"net/netip"

	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/transport"
	"github.com/softroce/softroce/pkg/udp4791"
)

// Our own tuning of a send batch.
const (
	batchPackets = 64
	packetRoom   = 4096 + 256 // the largest RoCE packet and some
)

// batcher gathers the packets of a turn in one arena and hands them to the
// endpoint in one call. It owns the IPv4 identifications: packets come with
// the ICRC for identification 0, which is what an unconnected socket with
// don't-fragment set sends for a datagram of its own (Annex A17.3.3 covers
// the field); a packet whose place in a segmented send is another gets its
// ICRC patched when that place is final.
//
// A packet that was pulled counts as sent. What a full socket refuses stays
// here and goes first next time.
type batcher struct {
	arena   []byte
	used    int
	slots   []udp4791.SendSlot
	meta    []outgoing
	sent    int  // slots before this one are gone
	refused bool // the socket took no more
}

// outgoing is what is kept of a packet beside its bytes.
type outgoing struct {
	q  *qp
	id uint16 // the identification its ICRC stands for
	tx outInfo
}

// outInfo is for the capture of a sent packet.
type outInfo struct {
	src     netip.Addr
	srcPort uint16
	resend  bool
}

func (b *batcher) init() {
	b.arena = make([]byte, batchPackets*packetRoom)
	b.slots = make([]udp4791.SendSlot, 0, batchPackets)
	b.meta = make([]outgoing, 0, batchPackets)
}

// full says that no further packet has room.
func (b *batcher) full() bool {
	return len(b.slots) == batchPackets || len(b.arena)-b.used < packetRoom
}

// blocked says that a socket refused packets that are still here.
func (b *batcher) blocked() bool { return b.refused }

// room is where the next packet is to be built.
func (b *batcher) room() []byte { return b.arena[b.used : b.used+packetRoom : b.used+packetRoom] }

// add takes the packet of n bytes that was built in room.
func (b *batcher) add(q *qp, n int, tx *transport.Transmit) {
	p := tx.Path
	b.slots = append(b.slots, udp4791.SendSlot{
		Flow: udp4791.FlowID(p.Flow), Dst: p.Dst.Addr(), TOS: p.TrafficClass, TTL: p.HopLimit,
		FlowLabel: p.FlowLabel, Buf: b.arena[b.used : b.used+n : b.used+n],
	})
	b.meta = append(b.meta, outgoing{q: q, tx: outInfo{src: p.Src.Addr(), srcPort: p.SrcPort, resend: tx.Resend}})
	b.used += (n + 63) &^ 63
}

// holds says whether packets of q are refused and wait here.
func (b *batcher) holds(q *qp) bool {
	if !b.refused {
		return false
	}
	for i := b.sent; i < len(b.meta); i++ {
		if b.meta[i].q == q {
			return true
		}
	}
	return false
}

// setID makes slot i a packet of identification id.
func (b *batcher) setID(i int, id uint16) {
	m := &b.meta[i]
	if m.id == id {
		return
	}
	buf := b.slots[i].Buf
	n := len(buf)
	v := binary.LittleEndian.Uint32(buf[n-4:]) // as the ICRC lies on the wire
	bth.PutICRC(buf[n-4:], bth.PatchICRC(v, m.id, id, n))
	m.id = id
}

// reset forgets everything that was sent.
func (b *batcher) reset() {
	clear(b.slots)
	clear(b.meta)
	b.slots, b.meta, b.used, b.sent, b.refused = b.slots[:0], b.meta[:0], 0, 0, false
}

// drop takes out the packets of a queue pair that is gone.
func (b *batcher) drop(q *qp) {
	k := b.sent
	for i := b.sent; i < len(b.slots); i++ {
		if b.meta[i].q != q {
			b.slots[k], b.meta[k] = b.slots[i], b.meta[i]
			k++
		}
	}
	clear(b.slots[k:])
	clear(b.meta[k:])
	b.slots, b.meta = b.slots[:k], b.meta[:k]
}

// send hands the batch to the endpoint as far as it takes it, and returns how
// many packets went.
func (w *worker) send() int {
	b := &w.batch
	total := 0
	for b.sent < len(b.slots) {
		for i := b.sent; i < len(b.slots); i++ {
			b.setID(i, 0)
		}
		wireSend()
		n, err := w.ep.WriteBatch(b.slots[b.sent:])
		w.sentPackets(b.sent, n)
		b.sent += n
		total += n
		if err == nil {
			continue
		}
		if errors.Is(err, udp4791.ErrWouldBlock) {
			b.refused = true
			w.stats.SendBlocked++
			return total
		}
		w.sendFailed(&b.slots[b.sent], err)
		b.sent++
	}
	b.reset()
	return total
}

// sentPackets counts and captures n packets from slot i on.
func (w *worker) sentPackets(i, n int) {
	tap := w.a.tap.Load()
	for ; n > 0; i, n = i+1, n-1 {
		s := &w.batch.slots[i]
		w.stats.PacketsOut++
		w.stats.BytesOut += uint64(len(s.Buf))
		if tap != nil {
			w.captureOut(tap, s, &w.batch.meta[i])
		}
	}
}

// sendFailed counts one packet that the kernel refused for good: to the
// transport it is a loss.
func (w *worker) sendFailed(s *udp4791.SendSlot, err error) {
	w.stats.sendError(err)
	if n, ok := w.sendLog.allow(w.now); ok {
		w.a.log.Warn("a packet could not be sent", keyDst, s.Dst.String(), keyBytes, len(s.Buf), keyErr, err, keySuppressed, n)
	}
}
