package adapter_test

import (
	"bytes"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/pkg/verbs"
)

// What an unreliable connection carries: SEND and WRITE, both with immediate
// data, of one and of many packets; and what it does not (IBTA Vol 1 Table 37).
func TestUCOperations(t *testing.T) {
	a, b := pair(t, shape{typ: verbs.UC}, verbs.RCConfig{}, nil)
	for _, n := range []int{0, 1, 4096, 10001} {
		fill(a.mr.Bytes()[:n], n)
		for i, op := range []verbs.WROpcode{verbs.WRSend, verbs.WRSendWithImm, verbs.WRRDMAWrite, verbs.WRRDMAWriteWithImm} {
			clear(b.mr.Bytes()[:n])
			b.recv(uint64(i), 0, n)
			wr := a.write(b, 0, 0, n)
			wr.Opcode, wr.ImmData = op, uint32(n)
			if wc := a.do(wr); wc.QPN != a.qp.Num() {
				t.Errorf("%v of %d bytes: completion %+v", op, n, wc)
			}
			if op == verbs.WRRDMAWrite {
				a.do(verbs.SendWR{Opcode: verbs.WRSend}) // tells that it arrived
				b.status(uint64(i), verbs.WCSuccess)
			} else if wc := b.status(uint64(i), verbs.WCSuccess); wc.ByteLen != uint32(n) ||
				(op != verbs.WRSend) != (wc.Flags == verbs.WCWithImm) || op != verbs.WRSend && wc.ImmData != uint32(n) {
				t.Errorf("%v of %d bytes: %+v", op, n, wc)
			}
			if !bytes.Equal(a.mr.Bytes()[:n], b.mr.Bytes()[:n]) {
				t.Errorf("%v of %d bytes: other bytes arrived", op, n)
			}
		}
	}
	for _, wr := range []verbs.SendWR{
		a.read(b, 0, 0, 8),
		{Opcode: verbs.WRAtomicFetchAdd, SGList: []verbs.SGE{a.mr.SGE(0, 8)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()},
		{Opcode: verbs.WRSendWithInv},
	} {
		_, err := a.qp.PostSend(wr)
		wantErrno(t, wr.Opcode.String(), err, unix.EINVAL)
	}
	a.none()
	b.none()
}

// A message that finds no receive is dropped, and only that one: the sender is
// not told, nothing waits for it.
func TestUCMessageWithoutReceive(t *testing.T) {
	a, b := pair(t, shape{typ: verbs.UC}, verbs.RCConfig{}, nil)
	send := func(imm uint32) {
		a.do(verbs.SendWR{Opcode: verbs.WRSendWithImm, ImmData: imm, SGList: []verbs.SGE{a.mr.SGE(0, 9000)}})
	}
	in := func() uint64 { return b.host.workers().Stats.PacketsIn }
	send(1)
	eventually(t, "the packets of the first message came", func() bool { return in() >= 3 })
	b.recv(7, 0, 9000)
	send(2)
	if wc := b.status(7, verbs.WCSuccess); wc.ImmData != 2 {
		t.Errorf("message %d took the receive, want the second", wc.ImmData)
	}
}

// A request that fails puts an unreliable send queue into SQE: it flushes what
// follows, still receives, and goes on when it is modified to RTS (IBTA Vol 1
// §10.3.1.6).
func TestUCSendQueueError(t *testing.T) {
	a, b := pair(t, shape{typ: verbs.UC}, verbs.RCConfig{}, nil)
	bad := a.write(b, 0, 0, 8)
	bad.SGList[0].LKey ^= 0x100
	good := a.write(b, 0, 0, 8)
	good.WRID = 1
	a.post(bad, good)
	a.status(0, verbs.WCLocProtErr)
	a.status(1, verbs.WCWRFlushErr)
	if s := a.qp.State(); s != verbs.StateSQE {
		t.Errorf("the library has state %v, want SQE", s)
	}
	if q, err := a.qp.Query(); err != nil || q.State != verbs.StateSQE {
		t.Errorf("state %v, %v, want SQE", q.State, err)
	}
	a.post(good)
	a.status(1, verbs.WCWRFlushErr)
	a.recv(2, 0, 8)
	b.do(verbs.SendWR{Opcode: verbs.WRSend, SGList: []verbs.SGE{b.mr.SGE(0, 8)}})
	a.status(2, verbs.WCSuccess)
	must(t, a.qp.Modify(&verbs.QPAttr{State: verbs.StateRTS, CurState: verbs.StateSQE}, verbs.QPStateMask|verbs.QPCurStateMask))
	a.do(good)
}
