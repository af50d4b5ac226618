package cases

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/softroce/softroce/conformance/suite"
	"github.com/softroce/softroce/conformance/wire"
	"github.com/softroce/softroce/pkg/bth"
)

var framingCases = []suite.Case{
	{ID: "FRM-01", Run: replyPort},
	{ID: "FRM-02", Run: anySourcePort},
	{ID: "FRM-03", Run: constantSourcePort},
	{ID: "FRM-04", Run: func(t *suite.T) { only4(t); udpSum(t, wire.SumZero) }},
	{ID: "FRM-05", Run: func(t *suite.T) { only6(t); udpSum(t, wire.SumZero) }},
	{ID: "FRM-06", Run: func(t *suite.T) { udpSum(t, wire.SumRight) }},
	{ID: "FRM-07", Run: ipv4Header},
	{ID: "FRM-08", Run: lengthsAgree},
	{ID: "FRM-09", Run: trailingBytes},
	{ID: "FRM-10", Run: cutDatagram},
	{ID: "FRM-11", Run: func(t *suite.T) { p := t.Connect(suite.Options{}); w := p.Write(0, nil); w.UDPLen = 8; p.Dropped(w) }},
	{ID: "FRM-12", Run: padTooLong},
	{ID: "FRM-13", Run: fragment},
	{ID: "FRM-14", Run: ipOptions},
	{ID: "FRM-15", Run: otherDestination},
	{ID: "FRM-16", Run: otherSource},
	{ID: "FRM-17", Run: congested},
	{ID: "FRM-18", Run: anyTTL},
	{ID: "FRM-19", Run: ipv6Fields},
	{ID: "FRM-20", Run: priorityTag},
}

func only4(t *suite.T) {
	if t.Link.Remote().Unmap().Is6() {
		t.Skipf("the run is over IPv6")
	}
}

func only6(t *suite.T) {
	if !t.Link.Remote().Unmap().Is6() {
		t.Skipf("the run is over IPv4")
	}
}

// exchange makes the target send every kind of answer and a request of its own, and returns all that it sent.
func exchange(t *suite.T) (p *suite.Peer, frames []*wire.Frame) {
	p = t.Connect(suite.Options{})
	ask := func(w *wire.Packet, answers int) {
		p.Request(w)
		for range answers {
			frames = append(frames, p.Next("an answer"))
		}
	}
	ask(p.Write(0, t.Bytes(5)), 1)
	ask(p.Read(0, 3*p.MTU), 3)
	ask(p.Read(0, 1), 1)
	ask(p.FetchAdd(0, 1), 1)
	p.PostSend(p.SendWR(1, "SEND", 0, p.MTU+1))
	for _, op := range []bth.Opcode{bth.RCSendFirst, bth.RCSendLast} {
		frames = append(frames, p.Requested(op))
	}
	p.MSN++
	p.PutAck(p.TargetPSN.Add(^uint32(0)))
	p.Sent(1)
	return p, frames
}

func replyPort(t *suite.T) {
	_, frames := exchange(t)
	for _, f := range frames {
		if f.DstPort != wire.Port {
			t.Failed(fmt.Sprintf("UDP destination port %d", wire.Port), fmt.Sprintf("%d in %s", f.DstPort, suite.Describe(f)))
		}
	}
}

func anySourcePort(t *suite.T) {
	p := t.Connect(suite.Options{})
	for _, port := range []uint16{1, 0, wire.Port, 65535} {
		w := p.Write(0, nil)
		w.SrcPort, w.SrcPortZero = port, port == 0
		p.Request(w)
		if f := p.Ack(w.BTH.PSN); f.DstPort != wire.Port {
			t.Failed(fmt.Sprintf("the answer to a request from port %d at port %d", port, wire.Port), fmt.Sprintf("it at port %d", f.DstPort))
		}
	}
}

func constantSourcePort(t *suite.T) {
	_, frames := exchange(t)
	port := frames[0].SrcPort
	for _, f := range frames {
		if f.SrcPort != port {
			t.Failed(fmt.Sprintf("every packet of the queue pair from UDP port %d", port), fmt.Sprintf("one from %d", f.SrcPort))
		}
	}
	if port < 0xC000 {
		t.Notef("the source port %d is below 0xC000, from where on the specification recommends it", port)
	}
}

func udpSum(t *suite.T, sum wire.UDPSum) {
	t.Connect(suite.Options{}).Alive(func(w *wire.Packet) { w.UDPSum = sum })
}

func ipv4Header(t *suite.T) {
	only4(t)
	_, frames := exchange(t)
	for _, f := range frames {
		if f.IP[0] != 0x45 || f.IP[9] != 17 {
			t.Failed("IPv4, a header of 20 bytes, protocol 17", fmt.Sprintf("first byte %#x, protocol %d", f.IP[0], f.IP[9]))
		}
		if f.Frag != 0x4000 {
			t.Failed("don't fragment set, no more fragments, offset 0", fmt.Sprintf("flags and offset %#04x", f.Frag))
		}
		if sum := onesSum(f.IP[:20]); sum != 0xFFFF {
			t.Failed("a right header checksum", fmt.Sprintf("the header's sum %#04x in place of 0xffff", sum))
		}
	}
}

func onesSum(b []byte) uint16 {
	var sum uint32
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	for sum > 0xFFFF {
		sum = sum&0xFFFF + sum>>16
	}
	return uint16(sum)
}

func lengthsAgree(t *suite.T) {
	_, frames := exchange(t)
	for _, f := range frames {
		header := 20
		if f.Src.Unmap().Is6() {
			header = 40
		}
		if f.IPLen != header+int(f.UDPLen) || f.IPLen != len(f.IP) {
			t.Failed("IP and UDP length that agree", fmt.Sprintf("IP %d, UDP %d in a packet of %d bytes", f.IPLen, f.UDPLen, len(f.IP)))
		}
		if f.TTL < 2 {
			t.Failed("a TTL above 1", fmt.Sprint(f.TTL))
		}
	}
}

func trailingBytes(t *suite.T) {
	p := t.Connect(suite.Options{})
	extra := func(w *wire.Packet) { w.Extra = []byte{1, 2, 3, 4, 5, 6} }
	p.Alive(extra)
	p.PostSend(p.SendWR(1, "SEND", 0, 4))
	f := p.Requested(bth.RCSendOnly)
	ack := p.Answer(bth.RCAcknowledge, f.RoCE.BTH().PSN())
	extra(ack)
	p.Put(ack)
	p.Sent(1)
}

func cutDatagram(t *suite.T) {
	p := t.Connect(suite.Options{})
	whole := p.Write(0, nil).Append(nil)
	for n := range whole {
		w := p.Write(0, nil)
		w.Roce = whole[:n:n]
		if n == 0 {
			w.Roce = []byte{}
		}
		p.Put(w)
	}
	p.Alive()
}

func padTooLong(t *suite.T) {
	p := t.Connect(suite.Options{})
	before := p.Memory(0, 16)
	w := p.Write(0, nil)
	w.BTH.Pad, w.Pad = 3, []byte{}
	p.Put(w)
	switch f := p.NextOrNone(); {
	case f == nil:
		p.Alive()
	case f.RoCE.Opcode != bth.RCAcknowledge || f.RoCE.AETH().Syndrome() != bth.NAKInvalidRequest:
		t.Failed("a NAK invalid request or nothing", suite.Describe(f))
	}
	p.Holds(0, before)
}

func fragment(t *suite.T) {
	only4(t)
	p := t.Connect(suite.Options{})
	w := p.Write(0, t.Bytes(16))
	w.FragSet, w.Frag, w.ID = true, 0x2000, uint16(t.Rand.Uint32())
	p.Dropped(w)
	p.Holds(0, make([]byte, 16))
}

func ipOptions(t *suite.T) {
	only4(t)
	p := t.Connect(suite.Options{})
	data := t.Bytes(16)
	w := p.Write(0, data)
	w.Options = []byte{1, 1, 1, 0} // no operation three times, and the list's end
	p.Put(w)
	if f := p.NextOrNone(); f != nil {
		if f.RoCE.Opcode != bth.RCAcknowledge || !f.RoCE.AETH().Syndrome().IsACK() {
			t.Failed("an ACK or nothing", suite.Describe(f))
		}
		t.Notef("processed")
		p.PSN = p.PSN.Add(1)
		p.Holds(0, data)
	} else {
		t.Notef("dropped")
		p.Holds(0, make([]byte, 16))
	}
	p.Alive()
}

// neighbour returns an address beside a, on the same link most likely, that is neither of the link's.
func neighbour(t *suite.T, a netip.Addr) netip.Addr {
	for b := a.WithZone("").Next(); ; b = b.Next() {
		if b != t.Link.Local().WithZone("") && b != t.Link.Remote().WithZone("") {
			return b
		}
	}
}

func otherDestination(t *suite.T) {
	p := t.Connect(suite.Options{})
	remote := t.Link.Remote().Unmap().WithZone("")
	other := neighbour(t, remote)
	for _, g := range t.Hello.GIDs {
		if a, err := netip.ParseAddr(g.Addr); err == nil && a != remote && a.Is6() == remote.Is6() {
			other = a
			t.Notef("sent to the target's other address %v", a)
			break
		}
	}
	data := t.Bytes(16)
	w := p.Write(0, data)
	w.Dst = other
	p.Dropped(w)
	p.Holds(0, make([]byte, 16))
}

func otherSource(t *suite.T) {
	p := t.Connect(suite.Options{})
	w := p.Write(0, t.Bytes(16))
	w.Src = neighbour(t, t.Link.Local())
	p.Dropped(w)
	p.Holds(0, make([]byte, 16))
}

func congested(t *suite.T) {
	p := t.Connect(suite.Options{})
	w := p.Write(0, t.Bytes(16))
	w.TOS = 3
	p.Request(w)
	for {
		f := p.Next("an ACK")
		if f.RoCE.Opcode == bth.CNP {
			t.Notef("a CNP came, too")
			continue
		}
		if f.RoCE.Opcode != bth.RCAcknowledge || !f.RoCE.AETH().Syndrome().IsACK() || f.RoCE.BTH().PSN() != w.BTH.PSN {
			t.Failed("an ACK", suite.Describe(f))
		}
		return
	}
}

func anyTTL(t *suite.T) {
	p := t.Connect(suite.Options{})
	for _, ttl := range []uint8{1, 2, 64, 255} {
		p.Alive(func(w *wire.Packet) { w.TTL = ttl })
	}
}

func ipv6Fields(t *suite.T) {
	only6(t)
	p := t.Connect(suite.Options{})
	p.Alive(func(w *wire.Packet) { w.FlowLabel = 0xABCDE })
	p.Alive(func(w *wire.Packet) { w.TOS = 0xB8 })
}

func priorityTag(t *suite.T) {
	p := t.Connect(suite.Options{})
	w := p.Write(0, nil)
	w.Tagged, w.VLAN = true, 5<<13
	p.Request(w)
	p.Ack(w.BTH.PSN)
}
