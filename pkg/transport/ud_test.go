package transport_test

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/cq"
	"github.com/softroce/softroce/pkg/qpstate"
	"github.com/softroce/softroce/pkg/transport"
	"github.com/softroce/softroce/pkg/wq"
)

// datagram is a request for a datagram of n bytes to the peer.
func (e *end) datagram(id uint64, to *end, n int) wq.SendWR {
	return wq.SendWR{WRID: id, Opcode: wq.Send, AH: 1, RemoteQPN: to.qpn, RemoteQKey: udKey, SGList: []wq.SGE{e.sge(0, n)}}
}

// TestUDPacket: what is in a datagram (IBTA Vol 1 §9.3.1, §9.8.3).
func TestUDPacket(t *testing.T) {
	a, b := connected(t, options{typ: qpstate.UD, psnA: 0xFFFFFF})
	wr := a.datagram(1, b, 5)
	wr.Flags = wq.SendSolicited | wq.SendFence
	wr.RemoteQPN = 0xFF123456 // more than 24 bits
	a.post(start, wr)
	wr.Opcode, wr.ImmData, wr.Flags = wq.SendWithImm, 0x12345678, wq.SendInline
	wr.Inline, wr.SGList = []byte{1, 2}, nil
	a.post(start, wr)
	wantTexts(t, "packets", texts(a.pollAll(start)),
		"UD SEND Only psn=0xffffff SE qpn=0x123456 qkey=0x11111111 src=0x11 data=5",
		"UD SEND Only with Immediate psn=0x0 qpn=0x123456 qkey=0x11111111 src=0x11 imm=12345678 data=2")
}

// TestUDHandle: each request goes where its address handle says, also when they
// take turns, and the ICRC is of that way.
func TestUDHandle(t *testing.T) {
	a, b := connected(t, options{typ: qpstate.UD})
	six := bth.GID{0: 0xFD, 15: 9}
	a.ahs[2] = &transport.Path{Src: a.gid, Dst: gid4(7), SrcPort: 0xC777, HopLimit: 3, TrafficClass: 5}
	a.ahs[3] = &transport.Path{Src: bth.GID{0: 0xFD, 15: 8}, Dst: six, SrcPort: 0xC777, NoICRC: true}
	for i := range 9 {
		wr := a.datagram(1, b, 8)
		wr.AH = uint32(1 + i%3)
		a.post(start, wr)
		n, tx := a.qp.PollTransmit(start, a.buf[:])
		path := a.ahs[wr.AH]
		h := bth.NetHeader{Src: path.Src, Dst: path.Dst, SrcPort: path.SrcPort, DstPort: 4791}
		want := bth.ICRC(h.Seed(n), a.buf[:n-bth.ICRCLen])
		if path.NoICRC {
			want = 0
		}
		if tx.Path != path || tx.ICRC != want || tx.PSN != bth.PSN(0x100+i) || tx.Resend {
			t.Errorf("handle %d: %+v, want path %p, ICRC %#x", wr.AH, tx, path, want)
		}
	}
}

// TestUDSendErrors: what cannot be sent completes in error, moves the queue pair
// to SQE and takes what is behind it along (IBTA Vol 1 §10.3.1.6; UD-11).
func TestUDSendErrors(t *testing.T) {
	for _, c := range []struct {
		name string
		edit func(a *end, wr *wq.SendWR)
		want string
	}{
		{"C10-93.1.1: longer than the path MTU", func(a *end, wr *wq.SendWR) { wr.SGList[0].Length = 1025 }, "2 LOC_LEN_ERR"},
		{"no such handle", func(_ *end, wr *wq.SendWR) { wr.AH = 9 }, "2 LOC_QP_OP_ERR"},
		{"memory of no region", func(_ *end, wr *wq.SendWR) { wr.SGList[0].LKey++ }, "2 LOC_PROT_ERR"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := connected(t, options{typ: qpstate.UD, sigAll: true})
			a.ahs[1].MTU = 1024
			b.postRecv(start, 1, b.sge(0x20000, 2000))
			b.postRecv(start, 2, b.sge(0x20000, 2000))
			a.postRecv(start, 9, a.sge(0x20000, 2000))
			a.post(start, a.datagram(1, b, 1024))
			wr := a.datagram(2, b, 10)
			c.edit(a, &wr)
			a.post(start, wr)
			a.post(start, a.datagram(3, b, 10))
			exchange(start, a, b)
			wantTexts(t, "completions", a.sendCQ.take(), "1 SUCCESS SEND len=1024", c.want, "3 WR_FLUSH_ERR")
			if a.qp.State() != qpstate.SQE {
				t.Fatalf("state %v, want SQE", a.qp.State())
			}
			ev, ok := a.qp.PollEvent()
			if _, more := a.qp.PollEvent(); !ok || more || ev.Kind != transport.NoteLocalFault || ev.Text() == "" {
				t.Errorf("events: %+v %v %v", ev, ok, more)
			}
			// It still receives, flushes what is posted, and comes back.
			a.post(start, a.datagram(4, b, 10))
			b.post(start, b.datagram(1, a, 10))
			exchange(start, a, b)
			wantTexts(t, "completions in SQE", a.sendCQ.take(), "4 WR_FLUSH_ERR")
			wantTexts(t, "receives in SQE", a.recvCQ.take(), "9 SUCCESS RECV len=50 src=0x22 grh")
			if err := a.qp.Modify(start, &qpstate.Attr{State: qpstate.RTS, CurState: qpstate.SQE}, qpstate.MaskState|qpstate.MaskCurState, nil); err != nil {
				t.Fatal(err)
			}
			a.post(start, a.datagram(5, b, 10))
			wantTexts(t, "packets", texts(a.pollAll(start)), "UD SEND Only psn=0x101 qpn=0x22 qkey=0x11111111 src=0x11 data=10")
			wantTexts(t, "completions in RTS", a.sendCQ.take(), "5 SUCCESS SEND len=10")
		})
	}
}

// TestUDQueueKey: which Q_Key is sent and which is taken (IBTA Vol 1 §10.2.5,
// C10-15; UD-03, UD-12).
func TestUDQueueKey(t *testing.T) {
	for _, c := range []struct {
		name      string
		own, wr   bth.QKey
		wire      bth.QKey
		delivered bool
	}{
		{"the request's", 0x22222222, 0x11111111, 0x11111111, true},
		{"wrong", 0x22222222, 0x11111112, 0x11111112, false},
		{"bit 31: the queue pair's own", 0x11111111, 0x80000000, 0x11111111, true},
		{"bit 31: the queue pair's own, which the peer does not have", 0x22222222, 0x91111111, 0x22222222, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, _ := connected(t, options{typ: qpstate.UD, qkey: c.own})
			_, b := connected(t, options{typ: qpstate.UD})
			b.postRecv(start, 1, b.sge(0, 100))
			wr := a.datagram(1, b, 4)
			wr.RemoteQKey = c.wr
			a.post(start, wr)
			p := a.poll(start)
			if k := bth.DETH(p[bth.BTHLen:]).QKey(); k != c.wire {
				t.Errorf("Q_Key %#x, want %#x", k, c.wire)
			}
			want := transport.DropQKey
			if c.delivered {
				want = transport.Accepted
			}
			if v := b.handle(start, p, a.gid); v != want || b.ctr.Verdicts[want] != 1 {
				t.Errorf("%v, want %v; counted %d", v, want, b.ctr.Verdicts[want])
			}
			if got := len(b.recvCQ.wcs); got != int(b.ctr.Verdicts[transport.Accepted]) {
				t.Errorf("%d completions", got)
			}
		})
	}
	// A new Q_Key holds for later packets.
	a, b := connected(t, options{typ: qpstate.UD})
	b.postRecv(start, 1, b.sge(0, 100))
	a.post(start, a.datagram(1, b, 4))
	p := a.poll(start)
	if err := b.qp.Modify(start, &qpstate.Attr{QKey: 5}, qpstate.MaskQKey, nil); err != nil {
		t.Fatal(err)
	}
	if v := b.handle(start, p, a.gid); v != transport.DropQKey {
		t.Errorf("after a change of the Q_Key: %v", v)
	}
}

// TestUDTaken: what a datagram queue pair takes, and what it drops without a
// word (IBTA Vol 1 §9.6, §9.8.3; UD-06 to UD-08, UD-13, UD-16, UD-18).
func TestUDTaken(t *testing.T) {
	for _, c := range []struct {
		packet string
		from   byte
		recv   int // bytes; 0: none
		want   transport.Verdict
	}{
		{"UD SEND Only psn=0x12345 A data=4", 2, 44, transport.Accepted},
		{"UD SEND Only psn=0 data=0", 9, 40, transport.Accepted},
		{"UD SEND Only psn=0 M0 resv pkey=0x7fff qpn=0xffffff data=4", 9, 44, transport.Accepted},
		{"UD SEND Only psn=0 data=4", 2, 0, transport.DropNoRecv},
		{"UD SEND Only psn=0 data=4", 2, 43, transport.DropLength},
		{"UD SEND Only psn=0 data=0", 2, 39, transport.DropLength},
		{"UD SEND Only psn=0 data=5 pad=2", 2, 100, transport.DropLength},
		{"UD SEND Only psn=0 data=4100", 2, 5000, transport.DropLength},
		{"UD SEND Only psn=0 pkey=0x8001 data=4", 2, 44, transport.DropPKey},
		{"UC SEND Only psn=0 data=4", 2, 44, transport.DropOpcodeClass},
		{"RC SEND Only psn=0 data=4", 2, 44, transport.DropOpcodeClass},
	} {
		_, b := connected(t, options{typ: qpstate.UD})
		p, err := craft(c.packet+" qkey=0x11111111", 0)
		if err != nil {
			t.Fatal(err)
		}
		if c.recv > 0 {
			b.postRecv(start, 1, b.sge(0x1000, c.recv))
		}
		before := append([]byte(nil), b.mem...)
		if v := b.handle(start, p, gid4(c.from)); v != c.want {
			t.Errorf("%s: %v, want %v", c.packet, v, c.want)
		}
		if out := b.pollAll(start); len(out) != 0 || b.qp.State() != qpstate.RTS {
			t.Errorf("%s: says %v, state %v", c.packet, texts(out), b.qp.State())
		}
		if got := len(b.recvCQ.wcs); (got == 1) != (c.want == transport.Accepted) {
			t.Errorf("%s: %d completions", c.packet, got)
		}
		if c.want != transport.Accepted && !bytes.Equal(before, b.mem) {
			t.Errorf("%s: memory changed", c.packet)
		}
		if !bytes.Equal(before[0x1000+c.recv:], b.mem[0x1000+c.recv:]) || !bytes.Equal(before[:0x1000], b.mem[:0x1000]) {
			t.Errorf("%s: memory outside the receive changed", c.packet)
		}
	}
}

// TestUDTooSmall: a receive that is too small stays for the next datagram, and a
// human is told once.
func TestUDTooSmall(t *testing.T) {
	a, b := connected(t, options{typ: qpstate.UD})
	b.postRecv(start, 1, b.sge(0x1000, 60))
	for _, n := range []int{21, 22, 20} {
		a.post(start, a.datagram(1, b, n))
	}
	exchange(start, a, b)
	wantTexts(t, "receives", b.recvCQ.take(), "1 SUCCESS RECV len=60 src=0x11 grh")
	ev, ok := b.qp.PollEvent()
	if _, more := b.qp.PollEvent(); !ok || more || ev.Kind != transport.NoteRecvShort || ev.Count != 61 || ev.Text() == "" {
		t.Errorf("event %+v, %v, more %v", ev, ok, more)
	}
}

// TestUDReceiveFault: a receive whose memory is not its own ends the queue pair
// (fault class A), and nothing is said to the sender.
func TestUDReceiveFault(t *testing.T) {
	a, b := connected(t, options{typ: qpstate.UD})
	sge := b.sge(0x1000, 100)
	sge.LKey++
	b.postRecv(start, 1, sge)
	b.postRecv(start, 2, b.sge(0x1000, 100))
	a.post(start, a.datagram(1, b, 10))
	a.post(start, a.datagram(2, b, 10))
	exchange(start, a, b)
	wantTexts(t, "receives", b.recvCQ.take(), "1 LOC_PROT_ERR", "2 WR_FLUSH_ERR")
	if b.qp.State() != qpstate.Err || b.ctr.Verdicts[transport.DropState] != 1 || b.ctr.SentPkts != 0 {
		t.Errorf("state %v, %d dropped, %d sent", b.qp.State(), b.ctr.Verdicts[transport.DropState], b.ctr.SentPkts)
	}
}

// TestUDNetworkHeader: the forty bytes before a datagram's payload (Annex A17;
// UD-01, UD-02).
func TestUDNetworkHeader(t *testing.T) {
	roce, err := craft("UD SEND Only psn=0 qkey=0x11111111 data=4", 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		p    transport.Packet
	}{
		{"IPv4", transport.Packet{Src: gid4(1), Dst: gid4(2), TOS: 0xB8, TTL: 63, ID: 0xFFFE}},
		{"IPv4 without identification", transport.Packet{Src: gid4(1), Dst: gid4(2), TTL: 1}},
		{"IPv4 multicast", transport.Packet{Src: gid4(1), Dst: bth.GID{10: 0xFF, 11: 0xFF, 12: 239, 13: 77, 15: 1}, TTL: 1}},
		{"IPv6", transport.Packet{Src: bth.GID{0: 0xFD, 15: 1}, Dst: bth.GID{0: 0xFF, 15: 2}, TOS: 0xB9, TTL: 255, FlowLabel: 0xFABCDE}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, b := connected(t, options{typ: qpstate.UD})
			b.postRecv(start, 1, b.sge(0x1000, 7), b.sge(0x1007, 30), b.sge(0x1025, 60))
			if err := c.p.Parse(roce); err != nil {
				t.Fatal(err)
			}
			if v := b.qp.HandlePacket(start, &c.p); v != transport.Accepted {
				t.Fatal(v)
			}
			g := b.mem[0x1000:0x1028]
			if want := []byte{0, 1, 2, 3}; !bytes.Equal(b.mem[0x1028:0x102C], want) {
				t.Errorf("payload %x", b.mem[0x1028:0x102C])
			}
			if c.p.Src.Is4() {
				checkGRH4(t, g, &c.p)
			} else {
				checkGRH6(t, g, &c.p)
			}
		})
	}
}

func checkGRH4(t *testing.T, g []byte, p *transport.Packet) {
	t.Helper()
	h := g[20:]
	var sum uint32
	for i := 0; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(h[i:]))
	}
	for sum>>16 != 0 {
		sum = sum>>16 + sum&0xFFFF
	}
	want := []byte{0x45, p.TOS, 0, byte(28 + len(p.Bytes())), byte(p.ID >> 8), byte(p.ID), 0x40, 0, p.TTL, 17, h[10], h[11]}
	want = append(append(want, p.Src[12:]...), p.Dst[12:]...)
	if sum != 0xFFFF || !bytes.Equal(h, want) || !bytes.Equal(g[:20], make([]byte, 20)) {
		t.Errorf("%x, want %x behind zeros; the checksum's sum is %#x", g, want, sum)
	}
}

func checkGRH6(t *testing.T, g []byte, p *transport.Packet) {
	t.Helper()
	want := []byte{0x6B, 0x9A, 0xBC, 0xDE, 0, byte(8 + len(p.Bytes())), 17, p.TTL}
	want = append(append(want, p.Src[:]...), p.Dst[:]...)
	if !bytes.Equal(g, want) {
		t.Errorf("%x, want %x", g, want)
	}
}

// TestUDStates: datagrams are taken from RTR on and sent in RTS only
// (IBTA Vol 1 §10.3.1).
func TestUDStates(t *testing.T) {
	o := options{typ: qpstate.UD, sigAll: true}.withDefaults()
	a, b := newEnd(t, 0x11, 1, o), newEnd(t, 0x22, 2, o)
	a.to(qpstate.RTS, b, o)
	send := func(want transport.Verdict) {
		t.Helper()
		a.post(start, a.datagram(1, b, 4))
		if v := b.handle(start, a.poll(start), a.gid); v != want {
			t.Errorf("in %v: %v, want %v", b.qp.State(), v, want)
		}
	}
	wr := b.datagram(1, a, 4)
	send(transport.DropState)
	b.to(qpstate.Init, a, o)
	for range 4 {
		b.postRecv(start, 1, b.sge(0, 100))
	}
	send(transport.DropState)
	b.to(qpstate.RTR, a, o)
	send(transport.Accepted)
	if err := b.qp.PostSend(start, &wr); err == nil {
		t.Error("a request was taken in RTR")
	}
	if ev, ok := b.qp.PollEvent(); ok {
		t.Errorf("event %+v", ev)
	}
	b.to(qpstate.RTS, a, o)
	send(transport.Accepted)
	modify := func(s qpstate.State, m qpstate.Mask) {
		t.Helper()
		if err := b.qp.Modify(start, &qpstate.Attr{State: s, EnSQDAsyncNotify: true}, m|qpstate.MaskState, nil); err != nil {
			t.Fatal(err)
		}
	}
	modify(qpstate.SQD, qpstate.MaskEnSQDAsyncNotify)
	if ev, ok := b.qp.PollEvent(); !ok || ev.Kind != transport.SQDrained {
		t.Errorf("event %+v, %v", ev, ok)
	}
	send(transport.Accepted)
	b.post(start, wr)
	if out := b.pollAll(start); len(out) > 0 {
		t.Errorf("in SQD: %v", texts(out))
	}
	modify(qpstate.RTS, 0)
	if out := b.pollAll(start); len(out) != 1 {
		t.Errorf("in RTS again: %v", texts(out))
	}
	modify(qpstate.SQD, 0)
	b.post(start, wr)
	b.recvCQ.take()
	b.sendCQ.take()
	modify(qpstate.Err, 0)
	send(transport.DropState)
	wantTexts(t, "send queue", b.sendCQ.take(), "1 WR_FLUSH_ERR")
	wantTexts(t, "receives", b.recvCQ.take(), "1 WR_FLUSH_ERR")
	modify(qpstate.Reset, 0)
	b.to(qpstate.RTS, a, o)
	b.postRecv(start, 7, b.sge(0, 100))
	send(transport.Accepted)
	b.post(start, wr)
	wantTexts(t, "packets of the second life", texts(b.pollAll(start)), "UD SEND Only psn=0x200 qpn=0x11 qkey=0x11111111 src=0x22 data=4")
	if wc := b.recvCQ.wcs[0]; wc.Status != cq.Success || wc.WRID != 7 {
		t.Errorf("receive of the second life: %+v", wc)
	}
}
