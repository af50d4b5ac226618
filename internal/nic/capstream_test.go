package nic

import (
	"net/netip"
	"os"
	"testing"

	"github.com/softroce/softroce/internal/capture"
)

// A program sees the packets of its user's queue pairs, and those alone that it
// asked for; root and the adapter's own user see all.
func TestWhoSeesPackets(t *testing.T) {
	self := uint32(os.Geteuid())
	const user, other = 5001, 5002
	of := func(uid uint32) *qp { return &qp{qpn: 0x11, prog: &program{uid: uid}} }
	peer, stranger := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	for _, c := range []struct {
		name string
		c    capStream
		q    *qp
		want bool
	}{
		{"its own", capStream{owner: &program{uid: user}}, of(user), true},
		{"another user's", capStream{owner: &program{uid: user}}, of(other), false},
		{"nobody's", capStream{owner: &program{uid: user}}, nil, false},
		{"of queue pair 1", capStream{owner: &program{uid: user}}, &qp{qpn: 1, gsi: &gsi{}}, false},
		{"the adapter's user", capStream{owner: &program{uid: self}}, of(other), true},
		{"root", capStream{owner: &program{uid: 0}}, nil, true},
		{"users without a number", capStream{owner: &program{uid: overflowUID}}, of(overflowUID), false},
		{"that queue pair", capStream{owner: &program{uid: user}, qpns: []uint32{0x10, 0x11}}, of(user), true},
		{"another queue pair", capStream{owner: &program{uid: user}, qpns: []uint32{0x12}}, of(user), false},
		{"that peer", capStream{owner: &program{uid: user}, peer: peer}, of(user), true},
		{"another peer", capStream{owner: &program{uid: user}, peer: stranger}, of(user), false},
		{"queue pair of nobody", capStream{owner: &program{uid: 0}, qpns: []uint32{0x11}}, nil, true},
	} {
		for _, out := range []bool{false, true} {
			b, m := numbered(1)
			s := &sighting{Packet: capture.Packet{Src: peer, Dst: m.Dst, Payload: b, Outbound: out}, q: c.q}
			if out {
				s.Src, s.Dst = s.Dst, s.Src
			}
			if c.q != nil {
				s.note = capture.Note{QPN: c.q.qpn, HasQP: true}
			} else if out {
				continue // somebody's always
			}
			c.c.all = c.c.owner.seesAll()
			if got := c.c.wants(s); got != c.want {
				t.Errorf("%s, sent %v: %v", c.name, out, got)
			}
		}
	}
}
