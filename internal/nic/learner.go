package nic

import (
	"encoding/binary"
	"net/netip"
	"time"

	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/udp4791"
)

// Our own bounds of the learner.
const (
	// forwardWindow is how far after the last proven identification of a peer
	// the next may lie, and backWindow how far before it a packet that was
	// overtaken or doubled may: kernel rxe has up to 128 packets of a queue pair
	// under way, and one that jumps a queue overtakes them all.
	forwardWindow = 1024
	backWindow    = 256
	// provenAt is how many packets make a peer's numbering proven.
	provenAt = 16
	// maxPeers bounds the peers that are remembered.
	maxPeers = 4096
)

// learner checks the ICRC of packets whose IPv4 identification the socket
// does not show (Annex A17.3.3: the ICRC covers it). The CRC is linear, so
// the identification that would explain an ICRC can be computed; it is
// believed when it is one that this peer may be expected to use: 0, the
// packet's place in a receive-offload buffer, or one near the last proven one.
// Linux adds up to one for each tick of its clock that has passed since it
// numbered the last packet, so the window grows by one a millisecond.
//
// Any other starts the learning anew and is counted. From a peer whose
// numbering is not proven yet it is accepted at once; from one that is proven
// it is refused, and a second one that continues it is accepted. So a packet
// that was damaged on its way passes with a chance of about one in 2^22 from
// a proven peer and one in 2^16 before. Strict refuses whatever is not 0 or
// the place in a buffer. IPv6 and packets of known identification get the full
// 32-bit check.
//
// The datagrams of one receive-offload buffer were numbered one after the other
// or all alike: once the first one's identification is known, the others' are.
// Where one was lost before the others merged they are as those of any packet.
type learner struct {
	strict bool
	peers  map[addrPair]*numbering
	seeds  [seedSlots]seed
	first  uint16 // identification of the buffer's first datagram
	solved bool   // first is known

	lastPair addrPair // whose numbering was looked at last
	lastPeer *numbering
}

// seedSlots is the size of the cache of header CRCs; our own tuning, a power of
// two.
const seedSlots = 64

// seed is the CRC register after the IP and UDP headers of datagrams of one
// length from one sender, with identification 0.
type seed struct {
	src   netip.AddrPort
	dst   netip.Addr
	n     int
	state uint32
}

// seed gives the register for a datagram of n bytes.
func (l *learner) seed(meta *udp4791.RecvMeta, n int) uint32 {
	s := &l.seeds[(n>>2^int(meta.Src.Port()))&(seedSlots-1)]
	if s.n != n || s.src != meta.Src || s.dst != meta.Dst {
		h := bth.NetHeader{
			Src: bth.GIDFromAddr(meta.Src.Addr()), Dst: bth.GIDFromAddr(meta.Dst),
			SrcPort: meta.Src.Port(), DstPort: udp4791.Port,
		}
		*s = seed{meta.Src, meta.Dst, n, h.Seed(n)}
	}
	return s.state
}

// numbering is what is known of one peer's identifications towards one address.
type numbering struct {
	last    uint16
	at      time.Time // when last was proven; zero: never
	proven  int       // packets that were as expected, up to provenAt
	suspect uint16    // an identification that was refused
	doubted bool      // suspect is set
}

func (l *learner) init(strict bool) {
	l.strict = strict
	l.peers = make(map[addrPair]*numbering)
}

// icrcVerdict is what the check of one packet found.
type icrcVerdict struct {
	ok        bool
	relearned bool
	id        uint16
	idKnown   bool
	want, got uint32 // want is for identification 0 unless it is known
}

// check verifies the ICRC of p, which came with meta.
func (l *learner) check(now time.Time, meta *udp4791.RecvMeta, p *bth.Packet) (v icrcVerdict) {
	raw := p.Bytes()
	n := len(raw)
	v4 := meta.Dst.Is4()
	v.want, v.got = bth.ICRC(l.seed(meta, n), raw[:n-bth.ICRCLen]), p.ICRC()
	if v4 && meta.IDKnown {
		v.seen(meta, n)
	}
	if v.want == v.got {
		v.ok, v.idKnown = true, v4
		if v4 && !meta.IDKnown {
			l.solve(meta, 0)
			if !l.strict {
				l.peer(meta).prove()
			}
		}
		return v
	}
	if !v4 || meta.IDKnown {
		return v
	}
	id, ok := bth.SolveID(v.got, v.want, n)
	if !ok {
		return v
	}
	l.learn(now, &v, meta, id)
	if v.ok {
		l.solve(meta, id)
	}
	return v
}

// seen puts the identification in that the backend saw: in a merged buffer the
// first one's, from which the others count up, or which they all have.
func (v *icrcVerdict) seen(meta *udp4791.RecvMeta, n int) {
	zero := v.want
	v.id, v.idKnown = meta.ID+uint16(meta.SegIndex), true
	v.want = bth.PatchICRC(zero, 0, v.id, n)
	if v.want != v.got && meta.SegIndex > 0 && bth.PatchICRC(zero, 0, meta.ID, n) == v.got {
		v.id, v.want = meta.ID, v.got
	}
}

// solve remembers the identification of a buffer's first datagram.
func (l *learner) solve(meta *udp4791.RecvMeta, id uint16) {
	if meta.SegIndex == 0 {
		l.first, l.solved = id, true
	}
}

// learn decides about an identification other than 0 that explains the ICRC.
func (l *learner) learn(now time.Time, v *icrcVerdict, meta *udp4791.RecvMeta, id uint16) {
	if k := uint16(meta.SegIndex); k != 0 && (id == k || l.solved && (id == l.first+k || id == l.first)) {
		v.ok, v.id, v.idKnown = true, id, true
		if id != k && !l.strict {
			l.peer(meta).came(now, id)
		}
		return
	}
	if l.strict {
		return
	}
	n := l.peer(meta)
	switch {
	case n.ahead(now, id):
		n.came(now, id)
	case n.behind(id):
	case n.proven < provenAt || n.doubted && id-n.suspect-1 < forwardWindow:
		v.relearned = true
		n.last, n.at, n.doubted = id, now, false
	default:
		n.suspect, n.doubted = id, true
		return
	}
	v.ok, v.id, v.idKnown = true, id, true
}

// addrPair is the way that a numbering belongs to.
type addrPair struct{ src, dst netip.Addr }

// peer gives what is known of a peer's numbering towards an address; the memory is
// bounded. Linux numbers what it sends to one address, a multicast group for
// example, apart from what it sends to another.
func (l *learner) peer(meta *udp4791.RecvMeta) *numbering {
	a := addrPair{meta.Src.Addr(), meta.Dst}
	if l.lastPeer != nil && l.lastPair == a {
		return l.lastPeer
	}
	n := l.peers[a]
	if n != nil {
		l.lastPair, l.lastPeer = a, n
		return n
	}
	if len(l.peers) >= maxPeers {
		for k := range l.peers {
			delete(l.peers, k)
			break
		}
	}
	n = &numbering{}
	l.peers[a] = n
	return n
}

// prove counts a packet that was as expected.
func (n *numbering) prove() { n.proven = min(n.proven+1, provenAt) }

// came takes an identification that continues the peer's.
func (n *numbering) came(now time.Time, id uint16) {
	n.last, n.at = id, now
	n.prove()
}

// ahead says whether id is one that the peer may have come to by now.
func (n *numbering) ahead(now time.Time, id uint16) bool {
	if n.at.IsZero() {
		return false
	}
	window := forwardWindow + max(now.Sub(n.at).Milliseconds(), 0)
	return int64(id-n.last-1) < window
}

// behind says whether id is the last one or one shortly before it.
func (n *numbering) behind(id uint16) bool { return !n.at.IsZero() && n.last-id < backWindow }

// proveRun checks the ICRCs of packets of one buffer that lie one behind the
// other, n bytes each, and returns how many are right from the first on. They
// differ in PSN and payload only; meta.SegIndex is the first one's place.
func (l *learner) proveRun(meta *udp4791.RecvMeta, run []byte, n int) (count int) {
	v4 := meta.Dst.Is4()
	state := bth.BeginState(l.seed(meta, n), run)
	for ; len(run) >= n; run = run[n:] {
		v := bth.WordState(state, binary.LittleEndian.Uint32(run[8:]))
		want := bth.FinishICRC(bth.UpdateCRC(v, run[bth.BTHLen:n-bth.ICRCLen]))
		got := binary.LittleEndian.Uint32(run[n-bth.ICRCLen:])
		k := uint16(meta.SegIndex + count)
		if v4 && meta.IDKnown {
			if bth.PatchICRC(want, 0, meta.ID+k, n) != got && bth.PatchICRC(want, 0, meta.ID, n) != got {
				break
			}
			count++
			continue
		}
		ok := want == got || v4 && bth.PatchICRC(want, 0, k, n) == got
		if !ok && v4 && l.solved && !l.strict {
			ok = bth.PatchICRC(want, 0, l.first+k, n) == got || bth.PatchICRC(want, 0, l.first, n) == got
		}
		if !ok {
			break
		}
		count++
	}
	return count
}
