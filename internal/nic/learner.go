package nic

import (
	"net/netip"

	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/udp4791"
)

// Our own bounds of the learner.
const (
	// forwardWindow is how far after the last proven identification of a peer
	// the next may lie.
	forwardWindow = 1024
	// maxPeers bounds the peers that are remembered.
	maxPeers = 4096
)

// learner checks the ICRC of packets whose IPv4 identification the socket
// does not show (Annex A17.3.3: the ICRC covers it). The CRC is linear, so
// the identification that would explain an ICRC can be computed; it is
// believed when it is one that this peer may be expected to use: 0, the
// packet's place in a receive-offload buffer, or one of the forwardWindow
// identifications after the last proven one. Any other starts the learning
// anew and is counted; strict refuses it. IPv6 and packets of known
// identification get the full 32-bit check.
type learner struct {
	strict bool
	last   map[netip.Addr]uint16
}

func (l *learner) init(strict bool) {
	l.strict = strict
	l.last = make(map[netip.Addr]uint16)
}

// icrcVerdict is what the check of one packet found.
type icrcVerdict struct {
	ok        bool
	relearned bool
	id        uint16
	idKnown   bool
	want, got uint32 // want is for identification 0 unless it is known
}

// check verifies the ICRC of p, which came with meta and is n bytes long.
func (l *learner) check(meta *udp4791.RecvMeta, p *bth.Packet, dst bth.GID) (v icrcVerdict) {
	raw := p.Bytes()
	h := bth.NetHeader{
		Src: bth.GIDFromAddr(meta.Src.Addr()), Dst: dst,
		SrcPort: meta.Src.Port(), DstPort: udp4791.Port,
	}
	v4 := h.Dst.Is4()
	if v4 && meta.IDKnown {
		h.ID, v.id, v.idKnown = meta.ID, meta.ID, true
	}
	v.want, v.got = bth.ICRC(h.Seed(len(raw)), raw[:len(raw)-4]), p.ICRC()
	if v.want == v.got {
		v.ok, v.idKnown = true, v4
		return v
	}
	if !v4 || meta.IDKnown {
		return v
	}
	id, ok := bth.SolveID(v.got, v.want, len(raw))
	if !ok {
		return v
	}
	l.learn(&v, meta, id)
	return v
}

// learn decides about an identification other than 0 that explains the ICRC.
func (l *learner) learn(v *icrcVerdict, meta *udp4791.RecvMeta, id uint16) {
	if meta.SegIndex != 0 && int(id) == meta.SegIndex {
		v.ok, v.id, v.idKnown = true, id, true
		return
	}
	if l.strict {
		return
	}
	peer := meta.Src.Addr()
	last, known := l.last[peer]
	v.relearned = !known || id-last-1 >= forwardWindow
	if !known && len(l.last) >= maxPeers {
		for k := range l.last {
			delete(l.last, k)
			break
		}
	}
	l.last[peer] = id
	v.ok, v.id, v.idKnown = true, id, true
}
