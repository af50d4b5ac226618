package adapter_test

import (
	"bytes"
	"testing"

	"github.com/softroce/softroce/internal/nic"
	"github.com/softroce/softroce/pkg/adapter"
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/transport"
	"github.com/softroce/softroce/pkg/verbs"
)

// A malformedTarget is a live adapter that a rawPeer talks to.
type malformedTarget struct {
	t   *testing.T
	h   *host
	p   *program
	raw *rawPeer
	psn bth.PSN
}

func newMalformedTarget(t *testing.T) *malformedTarget {
	h := start(t, func(c *adapter.Config) {
		c.StrictICRC = true
		if c.Backend == adapter.BackendTUN {
			c.Workers = 1 // a link does not steer: floods between workers may not fit
		}
	})
	p, raw := rawPair(t, h, shape{}, verbs.RCConfig{})
	return &malformedTarget{t: t, h: h, p: p, raw: raw, psn: 100}
}

// good sends a WRITE that must be answered and executed.
func (m *malformedTarget) good() {
	m.t.Helper()
	data := []byte{byte(m.psn), 1, 2, 3, 4}
	m.raw.send(m.raw.write(m.psn, m.p.mr.Addr(), m.p.mr.RKey(), data))
	m.raw.acked(m.psn, ack)
	if !bytes.Equal(m.p.mr.Bytes()[:5], data) {
		m.t.Fatalf("after PSN %v memory is % x, want % x", m.psn, m.p.mr.Bytes()[:5], data)
	}
	m.psn = m.psn.Add(1)
}

// only sends one packet and checks that one counter moves, by one.
func (m *malformedTarget) only(name string, b []byte, want nic.Drop) {
	m.t.Helper()
	before := m.h.workers().Stats
	m.raw.send(b)
	eventually(m.t, name+" is counted", func() bool { return m.h.workers().Stats.PacketsIn > before.PacketsIn })
	after := m.h.workers().Stats.Drops
	before.Drops[want]++
	if after != before.Drops {
		m.t.Errorf("%s: drops %v, want %v (one more %v)", name, after, before.Drops, want)
	}
	m.good()
}

// Field cases F2 and F3, one packet each: dropped, counted by reason, and the
// next good packet is answered.
func TestF2F3OneMalformedPacket(t *testing.T) {
	m := newMalformedTarget(t)
	m.good()
	evil := bytes.Repeat([]byte{0xFF}, 48)
	evil[1] = 0xF0 // TVer 0
	m.only("48 bytes of 0xFF", evil, nic.DropOpcode)
	evil[1] = 0xFF
	m.only("the same with TVer 15", evil, nic.DropVersion)
	evil[0], evil[1] = byte(bth.RCSendOnly), 0xF0
	m.only("SEND to QP 0xFFFFFF, which is that of groups", evil, nic.DropNoGroup)
	m.only("one byte", evil[:1], nic.DropShort)
	m.only("a BTH without ICRC", evil[:15], nic.DropShort)
	send := bth.Headers{BTH: bth.BTHFields{Opcode: bth.RCSendOnly, PSN: m.psn}}
	// F3: the headers, the pad and the ICRC are required first.
	m.only("SEND with PadCnt 3 and no payload", m.raw.packet(send, nil, 3), nic.DropPad)
	m.only("SEND with PadCnt 2 and one byte", m.raw.packet(send, []byte{1}, 2), nic.DropPad)
	m.only("a datagram longer than any packet", m.raw.packet(send, make([]byte, 6000), -1), nic.DropTruncated)
	write := m.raw.write(m.psn, m.p.mr.Addr(), m.p.mr.RKey(), nil)
	m.only("WRITE cut in its RETH", write[:len(write)-1], nic.DropShort)
	stranger := bth.Headers{BTH: bth.BTHFields{Opcode: bth.RCSendOnly, DestQP: m.raw.qpn + 8}}
	m.only("a queue pair that is not there", m.raw.packet(stranger, nil, -1), nic.DropNoQP)
	ack := m.raw.write(m.psn, m.p.mr.Addr(), m.p.mr.RKey(), []byte{1, 2, 3, 4})
	ack[len(ack)-6] ^= 1
	m.only("a flipped bit", ack, nic.DropICRC)
}

// Field case F2, the whole kind: all 256 opcodes, lengths 0..100, PadCnt 0..3
// to a live queue pair. Each is dropped for the one reason that the table of
// opcodes gives, none is lost from the count, and after each opcode a good
// packet is answered.
func TestF2EveryOpcodeLengthAndPad(t *testing.T) {
	m := newMalformedTarget(t)
	before := m.h.workers()
	var want [nic.NumDrops]uint64
	sent := uint64(0)
	for op := range 256 {
		for n := range 101 {
			for pad := range 4 {
				b := make([]byte, n)
				for i := range b {
					b[i] = byte(op + n*3 + i)
				}
				h := bth.BTHFields{Opcode: bth.Opcode(op), Pad: uint8(pad), DestQP: m.raw.qpn, PSN: m.psn, PKey: bth.DefaultPKey}
				copy(b, h.Append(nil))
				if n >= 16 { // never the right ICRC
					bth.PutICRC(b[n-4:], m.raw.icrc(b[:n-4])^0x5A5A5A5A)
				}
				want[reasonOf(bth.Opcode(op).Info(), n, pad)]++
				sent++
				m.raw.send(b)
			}
			if n%25 == 0 { // no burst that the receive buffer does not hold
				eventually(t, "packets arrive", func() bool { return m.h.workers().Stats.PacketsIn == before.Stats.PacketsIn+sent })
			}
		}
		m.good()
		sent++
	}
	after := m.h.workers()
	for d := range nic.NumDrops {
		if got := after.Stats.Drops[d] - before.Stats.Drops[d]; got != want[d] {
			t.Errorf("dropped as %v: %d, want %d", d, got, want[d])
		}
	}
	if got := after.Transport.Verdicts[transport.Accepted] - before.Transport.Verdicts[transport.Accepted]; got != 256 {
		t.Errorf("%d packets accepted, want the 256 good ones", got)
	}
}

// reasonOf is why a packet of n bytes with a wrong ICRC is dropped, in the
// order that the adapter checks in (IBTA Vol 1 §9.6.1).
func reasonOf(o *bth.OpcodeInfo, n, pad int) nic.Drop {
	switch {
	case n < bth.BTHLen+bth.ICRCLen:
		return nic.DropShort
	case !o.Defined:
		return nic.DropOpcode
	case n < o.HeaderLen+bth.ICRCLen:
		return nic.DropShort
	case n < o.HeaderLen+bth.ICRCLen+pad:
		return nic.DropPad
	}
	return nic.DropICRC
}
