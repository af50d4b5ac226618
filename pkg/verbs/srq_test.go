package verbs

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/uapi"
	"github.com/softroce/softroce/pkg/cq"
)

// take takes what was posted to a shared queue, up to n.
func (f *fake) take(s *SRQ, n int) (wrids []uint64) {
	var wr RecvWR
	for ; n > 0 && f.rqs[s.handle].TakeRecv(&wr); n-- {
		wrids = append(wrids, wr.WRID)
	}
	return wrids
}

func posts(from, to uint64) (wrs []RecvWR) {
	for i := from; i < to; i++ {
		wrs = append(wrs, RecvWR{WRID: i, SGList: []SGE{{Addr: i, Length: 1}}})
	}
	return wrs
}

// A shared receive queue takes max_wr requests, rings nobody, and a slot is free
// when its request was taken.
func TestSRQPost(t *testing.T) {
	f, d := newFake(t)
	pd, err := d.AllocPD()
	check(t, err)
	s, err := pd.CreateSRQ(SRQAttr{MaxWR: 4, MaxSGE: 1})
	check(t, err)
	if s.Num() != 0x700+s.handle {
		t.Errorf("number %#x", s.Num())
	}
	n, err := s.PostRecv(posts(0, 5)...)
	if n != 4 {
		t.Errorf("%d of 5 posted to a queue of 4", n)
	}
	want(t, "the fifth", err, unix.ENOMEM)
	if got := f.take(s, 2); len(got) != 2 || got[0] != 0 || got[1] != 1 {
		t.Errorf("the adapter took %d, want 0 and 1", got)
	}
	if n, err = s.PostRecv(posts(4, 7)...); n != 2 {
		t.Errorf("%d posted where 2 were taken: %v", n, err)
	}
	_, err = s.PostRecv(RecvWR{SGList: make([]SGE, 2)})
	want(t, "two elements", err, unix.EINVAL)
	if f.bell.Any() {
		t.Error("a doorbell rang")
	}
}

// A resize goes on in the new ring with what the adapter moved there; a limit
// leaves the ring alone.
func TestSRQModify(t *testing.T) {
	f, d := newFake(t)
	pd, err := d.AllocPD()
	check(t, err)
	s, err := pd.CreateSRQ(SRQAttr{MaxWR: 2, MaxSGE: 1})
	check(t, err)
	_, err = s.PostRecv(posts(0, 2)...)
	check(t, err)

	var m uapi.ModifySRQRequest
	f.answer(uapi.OpModifySRQ, decodes(t, &m, &uapi.ModifySRQReply{Attr: SRQAttr{MaxWR: 2, MaxSGE: 1, Limit: 1}}))
	check(t, s.Modify(SRQAttr{Limit: 1}, SRQLimitMask))
	if m.Handle != s.handle || m.Mask != SRQLimitMask || m.Attr.Limit != 1 {
		t.Errorf("the request is %+v", m)
	}
	if _, err = s.PostRecv(posts(2, 3)...); err == nil {
		t.Error("the ring changed with the limit")
	}

	f.answer(uapi.OpModifySRQ, func(body []byte, _ []int) (uapi.Body, []int, unix.Errno) {
		check(t, m.Decode(body))
		old := f.rqs[s.handle]
		rep := &uapi.ModifySRQReply{Attr: SRQAttr{MaxWR: 8, MaxSGE: 1}, Ring: uapi.RingRef{Slots: 8, MaxSGE: 1}}
		mem, fd := f.ring(&rep.Ring, uapi.RQRingSize(8, 1))
		ring, err := uapi.NewRQConsumer(mem, rep.Ring)
		check(t, err)
		moved, err := uapi.NewRQProducer(mem, rep.Ring)
		check(t, err)
		for wr := (RecvWR{}); old.TakeRecv(&wr); {
			check(t, moved.Put(&wr))
		}
		moved.Publish()
		f.rqs[s.handle] = ring
		return rep, []int{fd}, 0
	})
	check(t, s.Modify(SRQAttr{MaxWR: 5}, SRQMaxWRMask))
	if n, err := s.PostRecv(posts(2, 9)...); n != 6 {
		t.Errorf("%d posted to a queue of 8 with 2: %v", n, err)
	}
	got := f.take(s, 20)
	if len(got) != 8 {
		t.Errorf("%d requests in the new ring: %d", len(got), got)
	}
	for i, id := range got {
		if id != uint64(i) {
			t.Errorf("request %d is %d", i, id)
		}
	}
	want(t, "unknown attributes", s.Modify(SRQAttr{}, 4), unix.EINVAL)
	f.answer(uapi.OpModifySRQ, says(nil, unix.EINVAL))
	want(t, "refused", s.Modify(SRQAttr{MaxWR: 1}, SRQMaxWRMask), unix.EINVAL)
	if n, _ := s.PostRecv(posts(9, 17)...); n != 8 {
		t.Errorf("%d posted after a refusal, want 8", n)
	}
	f.answer(uapi.OpQuerySRQ, says(&uapi.QuerySRQReply{Attr: SRQAttr{MaxWR: 8, MaxSGE: 1, Limit: 3}}, 0))
	if a, err := s.Query(); err != nil || a.Limit != 3 {
		t.Errorf("query: %+v, %v", a, err)
	}
	check(t, s.Destroy())
	_, err = s.PostRecv(RecvWR{})
	want(t, "a post after the destruction", err, unix.EINVAL)
}

// A queue pair with a shared receive queue has none of its own, and its receives
// count nowhere; a dead adapter flushes its sends only.
func TestQPWithSRQ(t *testing.T) {
	f, d := newFake(t)
	o := newObjects(t, d, RC, StateReset)
	s, err := o.pd.CreateSRQ(SRQAttr{MaxWR: 4, MaxSGE: 1})
	check(t, err)
	q, err := o.pd.CreateQP(&QPInitAttr{Type: RC, SendCQ: o.cq, RecvCQ: o.cq, SRQ: s, Cap: smallCap})
	check(t, err)
	if c := q.Cap(); c.MaxRecvWR != 0 || c.MaxRecvSGE != 0 || c.MaxSendWR != 4 {
		t.Errorf("capabilities %+v", c)
	}
	if q.InitAttr().SRQ != s {
		t.Error("InitAttr does not tell the shared queue")
	}
	check(t, q.Modify(&QPAttr{State: StateRTS}, QPStateMask))
	_, err = q.PostRecv(RecvWR{})
	want(t, "a receive posted to the queue pair", err, unix.EINVAL)
	_, err = s.PostRecv(posts(0, 4)...)
	check(t, err)
	f.complete(o.cq, success(q, 0, cq.Recv), success(q, 1, cq.Recv))
	if got := o.poll(t); len(got) != 2 {
		t.Errorf("polled %+v", got)
	}
	for i := range uint64(3) {
		_, err = q.PostSend(SendWR{WRID: 10 + i, Opcode: WRSend, Flags: SendSignaled})
		check(t, err)
	}
	check(t, q.Modify(&QPAttr{State: StateReset}, QPStateMask))
	check(t, q.Modify(&QPAttr{State: StateRTS}, QPStateMask))
	_, err = q.PostSend(SendWR{WRID: 20, Opcode: WRSend, Flags: SendSignaled})
	check(t, err)
	check(t, f.conn.Close())
	<-d.Done()
	got := o.poll(t)
	if len(got) != 1 || got[0].WRID != 20 || got[0].Status != cq.WRFlushErr {
		t.Errorf("after the adapter's death: %+v, want request 20 flushed", got)
	}
	_, err = s.PostRecv(RecvWR{})
	want(t, "a post to a dead adapter", err, unix.EIO)
	other, d2 := newFake(t)
	_ = other
	o2 := newObjects(t, d2, RC, StateReset)
	_, err = o2.pd.CreateQP(&QPInitAttr{Type: RC, SendCQ: o2.cq, RecvCQ: o2.cq, SRQ: s})
	want(t, "a shared queue of another device", err, unix.EINVAL)
}
