package verbs

import (
	"testing"

	"golang.org/x/sys/unix"
)

// Every builder makes the request that its verb stands for, and nothing is seen
// before the batch is complete.
func TestBatch(t *testing.T) {
	f, d := newFake(t)
	o := newObjects(t, d, RC, StateReset)
	c := smallCap
	c.MaxSendWR = 16
	q, err := o.pd.CreateQP(&QPInitAttr{Type: RC, SendCQ: o.cq, RecvCQ: o.cq, Cap: c})
	check(t, err)
	check(t, q.Modify(&QPAttr{State: StateRTS}, QPStateMask))
	w := f.window(t, o.pd, MWType2, 0x7700)

	b := q.WRStart()
	list := []SGE{{Addr: 1, Length: 2, LKey: 3}, {Addr: 4, Length: 5, LKey: 6}}
	data := []byte("payload")
	b.WRID, b.Flags = 1, SendSignaled
	b.Send()
	b.SetSGEList(list)
	b.WRID, b.Flags = 2, 0
	b.SendImm(0xAABB)
	b.SetSGE(3, 1, 2)
	b.WRID++
	b.SendInv(0x55)
	b.SetInlineData(data)
	data[0] = 'X' // was copied
	b.WRID++
	b.RDMAWrite(7, 8)
	b.SetInlineDataList([]byte("ab"), nil, []byte("c"))
	b.WRID++
	b.RDMAWriteImm(7, 8, 9)
	b.WRID++
	b.RDMARead(7, 8)
	b.SetSGE(3, 1, 2)
	b.WRID++
	b.AtomicCmpSwp(7, 16, 10, 11)
	b.SetSGE(3, 1, 8)
	b.WRID++
	b.AtomicFetchAdd(7, 16, 12)
	b.SetSGE(3, 1, 8)
	b.WRID++
	b.LocalInv(0x66)
	b.WRID++
	b.BindMW(w, 0x7701, Bind{MR: 3, Addr: 1, Length: 2, Access: AccessRemoteRead})
	if n := f.sqs[q.handle].Pending(); n != 0 {
		t.Errorf("%d requests are seen before the batch is complete", n)
	}
	check(t, b.WRComplete())
	wants := []SendWR{
		{WRID: 1, Opcode: WRSend, Flags: SendSignaled, SGList: list},
		{WRID: 2, Opcode: WRSendWithImm, ImmData: 0xAABB, SGList: list[:1]},
		{WRID: 3, Opcode: WRSendWithInv, Flags: SendInline, InvalidateRKey: 0x55, Inline: []byte("payload")},
		{WRID: 4, Opcode: WRRDMAWrite, Flags: SendInline, RKey: 7, RemoteAddr: 8, Inline: []byte("abc")},
		{WRID: 5, Opcode: WRRDMAWriteWithImm, RKey: 7, RemoteAddr: 8, ImmData: 9},
		{WRID: 6, Opcode: WRRDMARead, RKey: 7, RemoteAddr: 8, SGList: list[:1]},
		{WRID: 7, Opcode: WRAtomicCmpAndSwp, RKey: 7, RemoteAddr: 16, CompareAdd: 10, Swap: 11, SGList: []SGE{{Addr: 1, Length: 8, LKey: 3}}},
		{WRID: 8, Opcode: WRAtomicFetchAdd, RKey: 7, RemoteAddr: 16, CompareAdd: 12, SGList: []SGE{{Addr: 1, Length: 8, LKey: 3}}},
		{WRID: 9, Opcode: WRLocalInv, InvalidateRKey: 0x66},
		{WRID: 10, Opcode: WRBindMW, Bind: Bind{RKey: 0x7701, MR: 3, Addr: 1, Length: 2, Access: AccessRemoteRead}},
	}
	got := f.sent(q)
	if len(got) != len(wants) {
		t.Fatalf("%d requests posted, want %d", len(got), len(wants))
	}
	for i := range wants {
		if !sameWR(&got[i], &wants[i]) {
			t.Errorf("request %d is\n%+v, want\n%+v", i, got[i], wants[i])
		}
	}
	if w.RKey() != 0x7701 {
		t.Errorf("the window's key is %#x", uint32(w.RKey()))
	}
	want(t, "a batch that is over", b.WRComplete(), unix.EINVAL)
	b.WRAbort() // does nothing
	check(t, q.WRStart().WRComplete())
}

// sameWR compares what a request is about.
func sameWR(a, b *SendWR) bool {
	if len(a.SGList) != len(b.SGList) || string(a.Inline) != string(b.Inline) {
		return false
	}
	for i := range a.SGList {
		if a.SGList[i] != b.SGList[i] {
			return false
		}
	}
	return a.WRID == b.WRID && a.Opcode == b.Opcode && a.Flags == b.Flags && a.ImmData == b.ImmData &&
		a.InvalidateRKey == b.InvalidateRKey && a.RemoteAddr == b.RemoteAddr && a.RKey == b.RKey &&
		a.CompareAdd == b.CompareAdd && a.Swap == b.Swap && a.AH == b.AH && a.RemoteQPN == b.RemoteQPN &&
		a.RemoteQKey == b.RemoteQKey && a.Bind == b.Bind
}

// All or nothing: an abort and a request that is refused post none, and leave
// the queue as it was.
func TestBatchDropped(t *testing.T) {
	f, d := newFake(t)
	o := newObjects(t, d, RC, StateRTS)
	w := f.window(t, o.pd, MWType2, 0x7700)
	fill := func(b *Batch, n int) {
		for i := range n {
			b.WRID = uint64(i)
			b.RDMAWrite(1, 2)
		}
	}
	for _, c := range []struct {
		name  string
		build func(*Batch)
		want  unix.Errno
	}{
		{"one more than the queue takes", func(b *Batch) { fill(b, 5) }, unix.ENOMEM},
		{"inline data too long", func(b *Batch) { fill(b, 1); b.Send(); b.SetInlineData(make([]byte, 65)) }, unix.EINVAL},
		{"too many elements", func(b *Batch) { b.Send(); b.SetSGEList(make([]SGE, 3)); fill(b, 1) }, unix.EINVAL},
		{"another window's key", func(b *Batch) { fill(b, 1); b.BindMW(w, 0x7801, Bind{}) }, unix.EINVAL},
		{"a window and an error after it", func(b *Batch) { b.BindMW(w, 0x7701, Bind{}); fill(b, 4) }, unix.ENOMEM},
		{"an unaligned atomic", func(b *Batch) { b.AtomicFetchAdd(1, 1, 1); b.SetSGE(1, 1, 8) }, unix.EINVAL},
	} {
		b := o.qp.WRStart()
		c.build(b)
		want(t, c.name, b.WRComplete(), c.want)
	}
	b := o.qp.WRStart()
	fill(b, 4)
	b.WRAbort()
	if got := f.sent(o.qp); len(got) != 0 || w.RKey() != 0x7700 {
		t.Errorf("posted %+v, window %#x", got, uint32(w.RKey()))
	}
	b = o.qp.WRStart()
	fill(b, 4)
	check(t, b.WRComplete())
	if got := f.sent(o.qp); len(got) != 4 {
		t.Errorf("%d posted after the batches that were dropped, want 4", len(got))
	}
	if w.RKey() != 0x7700 {
		t.Errorf("a bind that was dropped changed the window's key to %#x", uint32(w.RKey()))
	}
	o2 := newObjects(t, d, RC, StateInit)
	b = o2.qp.WRStart()
	fill(b, 1)
	want(t, "INIT", b.WRComplete(), unix.EINVAL)
}

// The operations that a queue pair was made with bound its batches; those that
// its type lacks are refused at creation.
func TestBatchOps(t *testing.T) {
	f, d := newFake(t)
	o := newObjects(t, d, UD, StateReset)
	for _, c := range []struct {
		name string
		typ  QPType
		ops  SendOps
		want unix.Errno
	}{
		{"RC has all", RC, QPExWithSendWithInv<<1 - 1, 0},
		{"RC and TSO", RC, QPExWithSendWithInv << 1, unix.EOPNOTSUPP},
		{"UC and READ", UC, QPExWithRDMARead, unix.EOPNOTSUPP},
		{"UC and WRITE", UC, QPExWithRDMAWrite | QPExWithSend | QPExWithBindMW, 0},
		{"UD and SEND", UD, QPExWithSend | QPExWithSendWithImm, 0},
		{"UD and WRITE", UD, QPExWithRDMAWrite, unix.EOPNOTSUPP},
	} {
		_, err := o.pd.CreateQP(&QPInitAttr{Type: c.typ, SendCQ: o.cq, RecvCQ: o.cq, Cap: smallCap, SendOps: c.ops})
		want(t, c.name, err, c.want)
	}
	q, err := o.pd.CreateQP(&QPInitAttr{Type: UD, SendCQ: o.cq, RecvCQ: o.cq, Cap: smallCap, SendOps: QPExWithSend})
	check(t, err)
	check(t, q.Modify(&QPAttr{State: StateRTS}, QPStateMask))
	ah, err := o.pd.CreateAH(&AHAttr{})
	check(t, err)
	b := q.WRStart()
	b.SendImm(1)
	b.SetUDAddr(ah, 2, 3)
	want(t, "an operation that was not asked for", b.WRComplete(), unix.EINVAL)
	b = q.WRStart()
	b.Send()
	b.SetUDAddr(ah, 2, 3)
	b.SetInlineData([]byte("x"))
	check(t, b.WRComplete())
	if got := f.sent(q); len(got) != 1 || got[0].AH != ah.Handle() || got[0].RemoteQPN != 2 || got[0].RemoteQKey != 3 {
		t.Errorf("posted %+v", got)
	}
}

// A batch allocates nothing.
func TestBatchDoesNotAllocate(t *testing.T) {
	f, d := newFake(t)
	o := newObjects(t, d, RC, StateRTS)
	data := make([]byte, 32)
	s := f.sqs[o.qp.handle]
	var wr SendWR
	ring := f.cqs[o.cq.handle]
	done := []WC{success(o.qp, 0, WCSend), success(o.qp, 0, WCRDMAWrite)}
	var wcs [2]WC
	n := testing.AllocsPerRun(100, func() {
		b := o.qp.WRStart()
		b.Flags = SendSignaled
		b.Send()
		b.SetInlineData(data)
		b.RDMAWrite(1, 2)
		b.SetSGE(1, 2, 3)
		if err := b.WRComplete(); err != nil {
			t.Error(err)
		}
		for ok, _ := s.Peek(&wr); ok; ok, _ = s.Peek(&wr) {
			s.Consume()
		}
		for i := range done {
			ring.Put(&done[i])
		}
		ring.Publish()
		if n, err := o.cq.Poll(wcs[:]); n != 2 || err != nil {
			t.Error(n, err)
		}
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}
