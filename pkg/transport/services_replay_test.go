package transport_test

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/cq"
	"github.com/softroce/softroce/pkg/qpstate"
	"github.com/softroce/softroce/pkg/wq"
)

// message is what a capture's packets carried, whole.
type message struct {
	payload  []byte
	imm      uint32
	hasImm   bool
	src      bth.QPN
	solicits bool
	lost     bool // a packet of it
}

// TestKernelRXEMessages gives our responder the UC and UD packets of kernel rxe's
// captures: each message that lost no packet is delivered, once and in order. In
// uc_loss every fifth packet, from the third on, was lost behind the capture. The
// kernel's own responder lost more there: also the message behind one that was
// cut.
func TestKernelRXEMessages(t *testing.T) {
	for _, c := range []struct {
		name string
		typ  qpstate.Type
		qkey bth.QKey
		lost func(i int) bool
		want int
	}{
		{name: "uc_send", typ: qpstate.UC, want: 3},
		{name: "uc_loss", typ: qpstate.UC, lost: func(i int) bool { return i%5 == 2 }, want: 12},
		{name: "ud_send", typ: qpstate.UD, qkey: 0x11111111, want: 4},
		{name: "ud_send_ipv6", typ: qpstate.UD, qkey: 0x11111111, want: 4},
		{name: "ud_mckey", typ: qpstate.UD, qkey: 0x01234567, want: 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			pkts := readCapture(t, c.name)
			e := responderOf(t, c.typ, c.qkey, pkts)
			var all []message
			for i, p := range pkts {
				lost := c.lost != nil && c.lost(i)
				all = addPacket(t, all, p.roce, lost)
				if lost {
					continue
				}
				e.parsed.Src, e.parsed.Dst, e.parsed.TOS, e.parsed.TTL = p.src, p.dst, 0, 64
				e.parsed.ID = binary.BigEndian.Uint16(p.ip[4:])
				if err := e.parsed.Parse(p.roce); err != nil {
					t.Fatal(err)
				}
				e.qp.HandlePacket(start, &e.parsed)
				if c.typ == qpstate.UD {
					checkHeader(t, e, p.ip)
				}
			}
			if out := e.pollAll(start); len(out) > 0 {
				t.Errorf("says %v", texts(out))
			}
			checkMessages(t, e, all, c.want)
		})
	}
}

const replaySlot = 8 << 10

// responderOf makes a queue pair that the captured packets are for, with receives.
func responderOf(t *testing.T, typ qpstate.Type, qkey bth.QKey, pkts []captured) *end {
	t.Helper()
	o := options{typ: typ, qkey: qkey, psnB: bth.BTH(pkts[0].roce).PSN()}.withDefaults()
	e := newEnd(t, bth.BTH(pkts[0].roce).DestQP()&0xFFFF, 1, o)
	e.gid = pkts[0].dst
	e.to(qpstate.RTS, &end{qpn: 0x99, gid: pkts[0].src}, o)
	for i := range 32 {
		e.postRecv(start, uint64(i), e.sge(i*replaySlot, replaySlot))
	}
	return e
}

// addPacket adds a packet to the messages.
func addPacket(t *testing.T, all []message, roce []byte, lost bool) []message {
	t.Helper()
	var p bth.Packet
	if err := p.Parse(roce); err != nil {
		t.Fatal(err)
	}
	if p.Info.Position.Begins() {
		all = append(all, message{})
	}
	m := &all[len(all)-1]
	m.payload = append(m.payload, p.Payload...)
	m.lost = m.lost || lost
	m.solicits = p.BTH().Solicited()
	if p.Has(bth.HasImmDt) {
		d := p.ImmDt()
		m.hasImm, m.imm = true, binary.BigEndian.Uint32(d[:])
	}
	if d := p.DETH(); d != nil {
		m.src = d.SrcQP()
	}
	return all
}

// checkHeader: the newest receive begins with the packet's IP header.
func checkHeader(t *testing.T, e *end, ip []byte) {
	t.Helper()
	at := int(e.recvCQ.wcs[len(e.recvCQ.wcs)-1].WRID) * replaySlot
	if got := e.mem[at : at+40]; !bytes.Equal(got[40-len(ip):], ip) || !bytes.Equal(got[:40-len(ip)], make([]byte, 40-len(ip))) {
		t.Errorf("network header %x, in the capture %x", got, ip)
	}
}

func checkMessages(t *testing.T, e *end, all []message, want int) {
	t.Helper()
	i := 0
	for _, m := range all {
		if m.lost {
			continue
		}
		if i == len(e.recvCQ.wcs) {
			t.Fatalf("%d messages delivered", i)
		}
		wc, grh := e.recvCQ.wcs[i], 0
		if m.src != 0 {
			grh = 40
		}
		flags := cq.Flags(0)
		if m.hasImm {
			flags |= cq.WithImm
		}
		if grh > 0 {
			flags |= cq.GRH
		}
		w := cq.WC{WRID: uint64(i), Opcode: cq.Recv, QPN: e.qpn, ByteLen: uint32(len(m.payload) + grh), Flags: flags, ImmData: m.imm, SrcQP: m.src}
		if wc != w || e.recvCQ.solicited[i] != m.solicits {
			t.Errorf("message %d: %+v, want %+v", i, wc, w)
		}
		if got := e.mem[i*replaySlot+grh:][:len(m.payload)]; !bytes.Equal(got, m.payload) {
			t.Errorf("message %d: data differs", i)
		}
		i++
	}
	if len(e.recvCQ.wcs) != want || i != want {
		t.Errorf("%d messages delivered of %d that are whole, want %d", len(e.recvCQ.wcs), i, want)
	}
}

// TestKernelRXERequests: asked for the messages of kernel rxe's captures, our
// requester builds the same packets, but for the M bit, which rxe clears.
func TestKernelRXERequests(t *testing.T) {
	for _, c := range []struct {
		name string
		typ  qpstate.Type
		qkey bth.QKey
	}{
		{"uc_send", qpstate.UC, 0},
		{"uc_loss", qpstate.UC, 0},
		{"ud_send", qpstate.UD, 0x11111111},
		{"ud_send_ipv6", qpstate.UD, 0x11111111},
		{"ud_mckey", qpstate.UD, 0x01234567},
	} {
		t.Run(c.name, func(t *testing.T) {
			pkts := readCapture(t, c.name)
			first := bth.BTH(pkts[0].roce)
			o := options{typ: c.typ}.withDefaults()
			o.psnA = first.PSN()
			qpn := bth.QPN(0x99)
			if c.typ == qpstate.UD {
				qpn = bth.DETH(pkts[0].roce[bth.BTHLen:]).SrcQP()
			}
			e := newEnd(t, qpn, 1, o)
			e.gid = pkts[0].src
			e.to(qpstate.RTS, &end{qpn: first.DestQP(), gid: pkts[0].dst}, o)
			var all []message
			for _, p := range pkts {
				all = addPacket(t, all, p.roce, false)
			}
			for _, m := range all {
				wr := wq.SendWR{Opcode: wq.Send, AH: 1, RemoteQPN: first.DestQP(), RemoteQKey: c.qkey, Flags: wq.SendSignaled}
				if m.hasImm {
					wr.Opcode, wr.ImmData = wq.SendWithImm, m.imm
				}
				if m.solicits {
					wr.Flags |= wq.SendSolicited
				}
				copy(e.mem, m.payload)
				wr.SGList = []wq.SGE{e.sge(0, len(m.payload))}
				e.post(start, wr)
				checkPackets(t, e, &pkts)
			}
			if len(pkts) > 0 {
				t.Errorf("%d packets were not built", len(pkts))
			}
		})
	}
}

// checkPackets compares what the queue pair sends with the next of the capture.
func checkPackets(t *testing.T, e *end, pkts *[]captured) {
	t.Helper()
	for _, got := range e.pollAll(start) {
		if len(*pkts) == 0 {
			t.Fatalf("one too many: %s", packetText(got))
		}
		want := append([]byte(nil), (*pkts)[0].roce...)
		*pkts = (*pkts)[1:]
		want[1] |= 0x40 // M
		if n := len(want) - bth.ICRCLen; !bytes.Equal(got[:len(got)-bth.ICRCLen], want[:n]) {
			t.Errorf("got %s\nkernel %s\n%x\n%x", packetText(got), packetText(want), got, want)
		}
	}
}
