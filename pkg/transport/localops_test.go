package transport_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/cq"
	"github.com/softroce/softroce/pkg/mrtable"
	"github.com/softroce/softroce/pkg/qpstate"
	"github.com/softroce/softroce/pkg/transport"
	"github.com/softroce/softroce/pkg/wq"
)

func (e *end) window(typ mrtable.WindowType) *mrtable.Window {
	e.t.Helper()
	w, err := e.keys.AllocWindow(1, typ, 0)
	if err != nil {
		e.t.Fatal(err)
	}
	return w
}

// bindWR binds a window under its next key to n bytes at off of the end's memory.
func (e *end) bindWR(w *mrtable.Window, off, n int, access mrtable.Access) wq.SendWR {
	k := w.RKey()
	return wq.SendWR{Opcode: wq.BindMW, Bind: wq.Bind{
		RKey: k&^0xFF | (k+1)&0xFF, MR: e.mr.LKey(), Addr: memBase + uint64(off), Length: uint64(n), Access: access,
	}}
}

// local posts requests that make no packet and lets them be carried out.
func (e *end) local(wrs ...wq.SendWR) {
	e.t.Helper()
	for i := range wrs {
		e.post(start, wrs[i])
		if p := e.pollAll(start); len(p) != 0 {
			e.t.Fatalf("%v made packets: %s", wrs[i].Opcode, texts(p))
		}
	}
}

// TestReadAheadEndsWithAKey: what was read ahead under a key is not given out
// once the key, closed and opened anew, names other memory.
func TestReadAheadEndsWithAKey(t *testing.T) {
	o := options{mtu: bth.MTU256, memAccess: allAccess | mrtable.AccessMWBind}.withDefaults()
	a, b := newEnd(t, 0x11, 1, o), newEnd(t, 0x22, 2, o)
	b.cfg.Stage = new(transport.Stage)
	var err error
	if b.mr, err = b.keys.Register(1, unmapped{b.mem}, memBase, memSize, o.memAccess, 0); err != nil {
		t.Fatal(err)
	}
	if b.qp, err = transport.New(b.cfg); err != nil {
		t.Fatal(err)
	}
	a.to(qpstate.RTS, b, o)
	b.to(qpstate.RTS, a, o)
	w := b.window(mrtable.WindowType2)
	const zeroBased = mrtable.AccessRemoteRead | mrtable.AccessZeroBased
	inv := func() wq.SendWR { return wq.SendWR{Opcode: wq.LocalInv, InvalidateRKey: w.RKey()} }
	b.local(b.bindWR(w, 0, 1024, zeroBased))
	key := w.RKey()
	read := func() []byte {
		a.post(start, wq.SendWR{Opcode: wq.RDMARead, RKey: key, SGList: []wq.SGE{a.sge(0x8000, 1024)}})
		exchange(start, a, b)
		return append([]byte(nil), a.mem[0x8000:][:1024]...)
	}
	if !bytes.Equal(read(), b.mem[:1024]) {
		t.Fatal("wrong data")
	}
	b.local(inv())
	b.local(b.bindWR(w, 0, 1, zeroBased))
	b.local(inv())
	wr := b.bindWR(w, 0x3000, 1024, zeroBased)
	wr.Bind.RKey = key
	b.local(wr)
	if got := read(); !bytes.Equal(got, b.mem[0x3000:][:1024]) {
		t.Errorf("READ gave the old memory: %v", bytes.Equal(got, b.mem[:1024]))
	}
}

// TestLocalOpsAndReset: RESET drops what was not carried out, without
// completions, and ERR flushes it in order.
func TestLocalOpsAndReset(t *testing.T) {
	for _, to := range []qpstate.State{qpstate.Reset, qpstate.Err} {
		a, _ := connected(t, options{sigAll: true, memAccess: allAccess | mrtable.AccessMWBind})
		w := a.window(mrtable.WindowType2)
		bind := a.bindWR(w, 0, 64, mrtable.AccessRemoteRead)
		bind.WRID = 2
		a.post(start, wq.SendWR{WRID: 1, Opcode: wq.Send})
		a.post(start, bind)
		a.post(start, wq.SendWR{WRID: 3, Opcode: wq.LocalInv, InvalidateRKey: bind.Bind.RKey})
		a.pollAll(start)
		if w.RKey() != bind.Bind.RKey {
			t.Error("the bind waited for the SEND")
		}
		attr := qpstate.Attr{State: to}
		if err := a.qp.Modify(start, &attr, qpstate.MaskState, nil); err != nil {
			t.Fatal(err)
		}
		want := "[]"
		if to == qpstate.Err {
			want = "[1 WR_FLUSH_ERR 2 WR_FLUSH_ERR 3 WR_FLUSH_ERR]"
		}
		if got := fmt.Sprint(a.sendCQ.take()); got != want {
			t.Errorf("%v: %s, want %s", to, got, want)
		}
		if _, err := a.keys.Remote(w.RKey(), 1, 0x11, memBase, 1, mrtable.AccessRemoteRead); err != nil {
			t.Errorf("%v: the window is closed: %v", to, err)
		}
	}
}

// TestInvalidateAfterManyPackets: a long message whose end invalidates the key
// that it is written by in the same queue: everything before it is in place.
func TestInvalidateAfterManyPackets(t *testing.T) {
	a, b := connected(t, options{mtu: bth.MTU256, sigAll: true, memAccess: allAccess | mrtable.AccessMWBind})
	w := b.window(mrtable.WindowType2)
	b.local(b.bindWR(w, 0x4000, 0x4000, mrtable.AccessRemoteWrite))
	b.sendCQ.take0()
	b.postRecv(start, 7, b.sge(0x10000, 0x4000))
	a.post(start, wq.SendWR{WRID: 1, Opcode: wq.RDMAWrite, RemoteAddr: memBase + 0x4000, RKey: w.RKey(), SGList: []wq.SGE{a.sge(0, 0x4000)}})
	a.post(start, wq.SendWR{WRID: 2, Opcode: wq.SendWithInv, InvalidateRKey: w.RKey(), SGList: []wq.SGE{a.sge(0, 0x4000)}})
	a.post(start, wq.SendWR{WRID: 3, Opcode: wq.RDMAWrite, RemoteAddr: memBase + 0x4000, RKey: w.RKey(), SGList: []wq.SGE{a.sge(0, 4)}})
	exchange(start, a, b)
	if !bytes.Equal(b.mem[0x4000:0x8000], a.mem[:0x4000]) || !bytes.Equal(b.mem[0x10000:0x14000], a.mem[:0x4000]) {
		t.Error("data differs")
	}
	if wc := b.recvCQ.wcs; len(wc) != 1 || wc[0].Flags != cq.WithInv || wc[0].InvalidatedRKey != uint32(w.RKey()) || wc[0].ByteLen != 0x4000 {
		t.Errorf("receive: %+v", wc)
	}
	wantTexts(t, "requests", a.sendCQ.take(), "1 SUCCESS RDMA_WRITE len=16384", "2 SUCCESS SEND len=16384", "3 REM_ACCESS_ERR")
}

// TestNoAllocationByOtherKeys: nothing is allocated for WRITEs and READs that go
// by a window or a fast region.
func TestNoAllocationByOtherKeys(t *testing.T) {
	a, b := connected(t, options{sigAll: true, memAccess: allAccess | mrtable.AccessMWBind})
	w := b.window(mrtable.WindowType2)
	b.local(b.bindWR(w, 0, 0x4000, mrtable.AccessRemoteWrite|mrtable.AccessRemoteRead))
	f, err := b.keys.AllocRegion(1, 2, 0)
	if err != nil {
		t.Fatal(err)
	}
	pages := []wq.SGE{b.sge(0x3000, 4096), b.sge(0x1000, 4096)}
	b.local(wq.SendWR{Opcode: wq.RegMR, SGList: pages, Bind: wq.Bind{RKey: f.RKey(), Addr: memBase, Access: allAccess}})
	l := &loop{a, b, start}
	for _, key := range []mrtable.RKey{w.RKey(), f.RKey()} {
		for _, op := range []wq.Opcode{wq.RDMAWrite, wq.RDMARead} {
			wr := wq.SendWR{Opcode: op, RemoteAddr: memBase, RKey: key, SGList: []wq.SGE{a.sge(0, 8192)}}
			step := func() {
				if err := a.qp.PostSend(l.now, &wr); err != nil {
					t.Fatal(err)
				}
				l.settle()
			}
			step()
			if n := testing.AllocsPerRun(50, step); n != 0 {
				t.Errorf("%v by key %#x: %v allocations", op, key, n)
			}
		}
	}
	if a.qp.State() != qpstate.RTS {
		t.Errorf("state %v", a.qp.State())
	}
}

// TestLocalOperationsComeInBatches: one call carries out some of many requests that
// make no packet, says that there are more, and goes on when it is called again.
func TestLocalOperationsComeInBatches(t *testing.T) {
	for _, typ := range []qpstate.Type{qpstate.RC, qpstate.UC} {
		const n, batch = 300, 64
		o := options{typ: typ, sendWR: n + 1, memAccess: allAccess | mrtable.AccessMWBind}.withDefaults()
		a, b := newEnd(t, 0x11, 1, o), newEnd(t, 0x22, 2, o)
		a.to(qpstate.RTS, b, o)
		w := a.window(mrtable.WindowType1)
		for i := range n {
			wr := a.bindWR(w, 0, 64, mrtable.AccessRemoteRead)
			wr.Bind.RKey ^= mrtable.RKey(i & 1)
			wr.Flags = wq.SendSignaled
			a.post(start, wr)
		}
		a.post(start, wq.SendWR{Opcode: wq.Send, SGList: []wq.SGE{{Addr: memBase, Length: 8, LKey: a.mr.LKey()}}})
		done := 0
		for calls := 1; ; calls++ {
			got, _ := a.qp.PollTransmit(start, a.buf[:])
			now := 0
			for _, wc := range a.sendCQ.wcs {
				if wc.Status == cq.Success && wc.Opcode == cq.BindMW {
					now++
				}
			}
			a.sendCQ.take()
			if done += now; now > batch {
				t.Errorf("%v: one call carried out %d operations", typ, now)
			}
			if got > 0 || !a.qp.LocalWaiting() {
				if got == 0 || done < n || calls <= n/batch {
					t.Errorf("%v: %d of %d operations are done in %d calls, and the packet behind them has %d bytes", typ, done, n, calls, got)
				}
				break
			}
		}
	}
}
