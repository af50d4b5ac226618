package transport_test

import (
	"testing"

	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/qpstate"
	"github.com/softroce/softroce/pkg/transport"
	"github.com/softroce/softroce/pkg/wq"
)

// sharing makes two queue pairs with one receive queue, and a peer of each. Their
// keys are the same: both hosts have the same secret.
func sharing(t *testing.T, typ qpstate.Type) (srq *wq.RecvQueue, own, peers [2]*end) {
	t.Helper()
	srq = wq.NewRecvQueue(16)
	o := options{typ: typ, mtu: bth.MTU256, sigAll: true}.withDefaults()
	for i := range own {
		o.srq = nil
		peers[i] = newEnd(t, bth.QPN(0x30+i), 1, o)
		o.srq = srq
		own[i] = newEnd(t, bth.QPN(0x40+i), 2, o)
		peers[i].to(qpstate.RTS, own[i], o)
		own[i].to(qpstate.RTS, peers[i], o)
	}
	return srq, own, peers
}

func pushRecvs(t *testing.T, srq *wq.RecvQueue, e *end, from, to uint64, n int) {
	t.Helper()
	for id := from; id <= to; id++ {
		if err := srq.Push(&wq.RecvWR{WRID: id, SGList: []wq.SGE{e.sge(int(id)*0x1000, n)}}); err != nil {
			t.Fatal(err)
		}
	}
}

// sendTo posts a SEND of n bytes of any service.
func sendTo(a, b *end, n int) {
	wr := a.datagram(1, b, n)
	a.post(start, wr)
}

// TestSRQOrder: receives are taken in the order in which messages arrive,
// whoever takes them (IBTA Vol 1 §10.2.9; SRQ-01).
func TestSRQOrder(t *testing.T) {
	for _, typ := range []qpstate.Type{qpstate.RC, qpstate.UC, qpstate.UD} {
		t.Run(typ.String(), func(t *testing.T) {
			srq, own, peers := sharing(t, typ)
			pushRecvs(t, srq, own[0], 1, 3, 100)
			sendTo(peers[1], own[1], 4)
			exchange(start, peers[1], own[1])
			sendTo(peers[0], own[0], 5)
			exchange(start, peers[0], own[0])
			if got := own[0].recvCQ.wcs; len(got) != 1 || got[0].WRID != 2 || got[0].QPN != own[0].qpn {
				t.Errorf("the second message took %+v", got)
			}
			if srq.Len() != 1 {
				t.Errorf("%d receives are left, want 1", srq.Len())
			}
		})
	}
}

// TestSRQEmpty: RC says not ready and goes on later; UC and UD drop
// (SRQ-02, SRQ-03).
func TestSRQEmpty(t *testing.T) {
	for _, typ := range []qpstate.Type{qpstate.RC, qpstate.UC, qpstate.UD} {
		t.Run(typ.String(), func(t *testing.T) {
			srq, own, peers := sharing(t, typ)
			a, b := peers[0], own[0]
			sendTo(a, b, 4)
			v := b.handle(start, a.poll(start), a.gid)
			out := texts(b.pollAll(start))
			if typ != qpstate.RC {
				if v != transport.DropNoRecv || len(out) > 0 {
					t.Errorf("%v, says %v", v, out)
				}
				return
			}
			wantTexts(t, "answer", out, "RC Acknowledge psn=0x100 RNR NAK, 640µs msn=0")
			pushRecvs(t, srq, b, 1, 1, 100)
			a.handle(start, mustCraft(t, "RC Acknowledge psn=0x100 ack=rnr12 msn=0"), b.gid)
			now := a.qp.NextTimeout()
			a.qp.HandleTimeout(now)
			exchange(now, a, b)
			wantTexts(t, "receives", b.recvCQ.take(), "1 SUCCESS RECV len=4")
			wantTexts(t, "sends", a.sendCQ.take(), "1 SUCCESS SEND len=4")
		})
	}
}

func mustCraft(t *testing.T, line string) []byte {
	t.Helper()
	b, err := craft(line, 0)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestSRQErr: in ERR and in RESET what was not taken stays for others; what was
// taken is flushed, and the event tells that there is no more
// (IBTA Vol 1 §10.2.9.5; SRQ-06).
func TestSRQErr(t *testing.T) {
	for _, typ := range []qpstate.Type{qpstate.RC, qpstate.UC, qpstate.UD} {
		t.Run(typ.String(), func(t *testing.T) {
			srq, own, peers := sharing(t, typ)
			a, b := peers[0], own[0]
			pushRecvs(t, srq, b, 1, 5, 1000)
			held := typ != qpstate.UD
			if held { // a message in progress holds a receive
				sendTo(a, b, 600)
				b.handle(start, a.poll(start), a.gid)
			}
			modify := func(e *end, s qpstate.State) {
				t.Helper()
				if err := e.qp.Modify(start, &qpstate.Attr{State: s}, qpstate.MaskState, nil); err != nil {
					t.Fatal(err)
				}
			}
			modify(b, qpstate.Err)
			want, left := []string{}, 5
			if held {
				want, left = append(want, "1 WR_FLUSH_ERR"), 4
			}
			wantTexts(t, "flushed", b.recvCQ.take(), want...)
			ev, ok := b.qp.PollEvent()
			if _, more := b.qp.PollEvent(); !ok || more || ev.Kind != transport.LastWQE || ev.QPN != b.qpn {
				t.Errorf("event %+v, %v, more %v", ev, ok, more)
			}
			b.qp.PostRecv(start)
			modify(b, qpstate.Err)
			b.qp.Fatal(start)
			if _, ok := b.qp.PollEvent(); ok || b.qp.Flushing() || len(b.recvCQ.wcs) > 0 || srq.Len() != left {
				t.Errorf("in ERR: an event %v, flushing %v, completions %v, %d receives left", ok, b.qp.Flushing(), b.recvCQ.take(), srq.Len())
			}
			modify(b, qpstate.Reset)
			b.qp.Close()
			if srq.Len() != left {
				t.Errorf("after RESET %d receives are left, want %d", srq.Len(), left)
			}
			// The other queue pair takes them.
			sendTo(peers[1], own[1], 4)
			exchange(start, peers[1], own[1])
			if srq.Len() != left-1 {
				t.Errorf("the other queue pair left %d, want %d", srq.Len(), left-1)
			}
		})
	}
}

// TestSRQDropped: a message that UC or UD gives up completes the receive that it
// took in error, since it cannot go back (fault class E; UC-13).
func TestSRQDropped(t *testing.T) {
	srq, own, peers := sharing(t, qpstate.UC)
	b, from := own[0], peers[0].gid
	pushRecvs(t, srq, b, 1, 6, 600)
	for _, c := range []struct {
		packet string
		want   transport.Verdict
		wcs    []string
	}{
		{"UC SEND First psn=0x100 data=256", transport.Accepted, nil},
		{"UC SEND Middle psn=0x102 data=256", transport.DropMessage, []string{"1 REM_INV_REQ_ERR"}},
		{"UC SEND Last psn=0x103 data=6", transport.DropMessage, nil},
		{"UC SEND First psn=0x104 data=256", transport.Accepted, nil},
		{"UC SEND Only psn=0x105 data=6", transport.Accepted, []string{"2 REM_INV_REQ_ERR", "3 SUCCESS RECV len=6"}},
		{"UC SEND First psn=0x106 data=256", transport.Accepted, nil},
		{"UC SEND Middle psn=0x107 data=256", transport.Accepted, nil},
		{"UC SEND Middle psn=0x108 data=256", transport.DropLength, []string{"4 LOC_LEN_ERR"}},
		{"UC SEND Only psn=0x109 data=257", transport.DropLength, nil},
		{"UC SEND Only psn=0x10a data=1", transport.Accepted, []string{"5 SUCCESS RECV len=1"}},
	} {
		if v := b.handle(start, mustCraft(t, c.packet), from); v != c.want {
			t.Errorf("%s: %v, want %v", c.packet, v, c.want)
		}
		wantTexts(t, c.packet, b.recvCQ.take(), c.wcs...)
	}
	if b.qp.State() != qpstate.RTS || srq.Len() != 1 {
		t.Errorf("state %v, %d receives left", b.qp.State(), srq.Len())
	}
	if n := b.ctr.DroppedMessages; n != 4 {
		t.Errorf("%d messages dropped, want 4", n)
	}

	srq, own, peers = sharing(t, qpstate.UD)
	b = own[0]
	pushRecvs(t, srq, b, 1, 2, 60)
	sendTo(peers[0], b, 21)
	sendTo(peers[0], b, 20)
	exchange(start, peers[0], b)
	wantTexts(t, "datagrams", b.recvCQ.take(), "1 LOC_LEN_ERR", "2 SUCCESS RECV len=60 src=0x30 grh")
}

// TestSRQFatal: an RC queue pair that a bad request ends says so, flushes what
// it holds and leaves the rest.
func TestSRQFatal(t *testing.T) {
	srq, own, peers := sharing(t, qpstate.RC)
	b := own[0]
	pushRecvs(t, srq, b, 1, 2, 600)
	for _, p := range []string{"RC SEND First psn=0x100 data=256", "RC SEND Only psn=0x101 data=1"} {
		b.handle(start, mustCraft(t, p), peers[0].gid)
	}
	wantTexts(t, "answer", texts(b.pollAll(start)), "RC Acknowledge psn=0x101 NAK invalid request msn=0")
	wantTexts(t, "receives", b.recvCQ.take(), "1 REM_INV_REQ_ERR")
	if ev, ok := b.qp.PollEvent(); !ok || ev.Kind != transport.LastWQE {
		t.Errorf("event %+v, %v", ev, ok)
	}
	if srq.Len() != 1 {
		t.Errorf("%d receives left, want 1", srq.Len())
	}
}
