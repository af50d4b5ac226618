package nic

import (
	"testing"

	"github.com/softroce/softroce/pkg/bth"
)

// seen is one datagram of a receive-offload buffer to the learner, and what it
// is to say.
type seen struct {
	index         int
	id            uint16
	ok, relearned bool
}

// see gives the learner the datagrams of one buffer.
func see(t *testing.T, l *learner, name string, buffer []seen) {
	t.Helper()
	l.solved = false // as for each buffer that is received
	for _, s := range buffer {
		b, m := sentPacket(peer4, host4, s.id, 40+s.index)
		m.SegIndex = s.index
		v := checkOne(t, l, b, &m)
		if v.ok != s.ok || v.relearned != s.relearned || v.ok && (v.id != s.id || !v.idKnown) {
			t.Errorf("%s: place %d, identification %d: got %+v, want ok %v, relearned %v", name, s.index, s.id, v, s.ok, s.relearned)
		}
	}
}

// rising are n datagrams of identifications from first on.
func rising(first uint16, n int, step uint16, relearned bool) (b []seen) {
	for i := range n {
		b = append(b, seen{i, first + uint16(i)*step, true, relearned && i == 0})
	}
	return b
}

// prove makes the peer's numbering proven.
func prove(t *testing.T, l *learner) {
	t.Helper()
	for range provenAt {
		see(t, l, "proving", []seen{{0, 0, true, false}})
	}
}

// The datagrams of one buffer are numbered by their place, or on from the first
// one's identification, or all alike; by what was learned before they may be
// numbered, too.
func TestLearnerInABuffer(t *testing.T) {
	for _, c := range []struct {
		name   string
		buffer []seen
	}{
		{"by their place", rising(0, 64, 1, false)},
		{"all 0", rising(0, 64, 0, false)},
		{"on from the first", rising(9000, 10, 1, true)},
		{"over the end of 16 bits", rising(65533, 6, 1, true)},
		{"all like the first", rising(9000, 10, 0, true)},
		{"by their place, the first is another worker's", rising(0, 5, 1, false)[1:]},
		{"on from the first, one was lost before it merged", []seen{{0, 500, true, true}, {1, 502, true, false}, {2, 503, true, false}}},
	} {
		var l learner
		l.init(false)
		see(t, &l, c.name, c.buffer)
		if n := l.peers[addrPair{peer4, host4}]; n != nil && n.doubted {
			t.Errorf("%s: the peer is doubted", c.name)
		}
	}
}

// From a peer whose numbering is proven, an outsider within a buffer is refused
// as any other is; what is right by the buffer is taken.
func TestLearnerRefusesAnOutsiderInABuffer(t *testing.T) {
	var l learner
	l.init(false)
	prove(t, &l)
	see(t, &l, "an outsider", []seen{
		{0, 0, true, false}, {1, 1, true, false}, {2, 30000, false, false}, {3, 3, true, false}, {4, 50000, false, false}, {5, 0, true, false},
	})
	// A proven peer begins to count: its buffer is refused, unless it goes on
	// from the first; then it is believed, as one without a buffer is.
	see(t, &l, "a new numbering", []seen{{0, 20000, false, false}, {1, 20001, true, true}, {2, 20002, true, false}, {3, 20003, true, false}})
	see(t, &l, "the next buffer", rising(20004, 4, 1, false))
}

// What was solved in one buffer says nothing in the next.
func TestLearnerForgetsABuffer(t *testing.T) {
	var l learner
	l.init(false)
	see(t, &l, "a buffer", rising(9000, 3, 1, true))
	prove(t, &l)
	for range provenAt { // far away from 9000
		_, m := sentPacket(peer4, host4, 0, 0)
		n := l.peer(&m)
		n.last = 100
	}
	see(t, &l, "the first of the next is refused", []seen{{0, 40000, false, false}, {2, 9002, false, false}})
}

// Strict believes the place in a buffer, whose first datagram has 0, and
// nothing that counts otherwise.
func TestLearnerStrictInABuffer(t *testing.T) {
	var l learner
	l.init(true)
	see(t, &l, "by their place", rising(0, 64, 1, false))
	see(t, &l, "all 0", rising(0, 5, 0, false))
	see(t, &l, "counting", []seen{{0, 7000, false, false}, {1, 7001, false, false}, {2, 2, true, false}, {3, 7003, false, false}})
	if len(l.peers) != 0 {
		t.Error("strict remembers peers")
	}
}

// IPv6 has no identification: a place in a buffer explains nothing.
func TestLearnerIPv6InABuffer(t *testing.T) {
	var l learner
	l.init(false)
	b, m := sentPacket(peer6, host6, 0, 40)
	m.SegIndex = 3
	if v := checkOne(t, &l, b, &m); !v.ok {
		t.Error("a right packet was refused")
	}
	n := len(b) - bth.ICRCLen
	bth.PutICRC(b[n:], bth.PatchICRC(uint32(b[n])|uint32(b[n+1])<<8|uint32(b[n+2])<<16|uint32(b[n+3])<<24, 0, 3, len(b)))
	if v := checkOne(t, &l, b, &m); v.ok {
		t.Error("an ICRC that only an identification of 3 would explain was accepted")
	}
}
