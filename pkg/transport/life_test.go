package transport_test

import (
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/qpstate"
	"github.com/softroce/softroce/pkg/transport"
	"github.com/softroce/softroce/pkg/wq"
)

// allAttrs has a legal value, other than zero, for each attribute that can be
// set.
func allAttrs() qpstate.Attr {
	return qpstate.Attr{
		PathMTU: bth.MTU512, QKey: 0x77, RQPSN: 0xABCDEF, SQPSN: 0x123456, DestQPN: 0x22, AccessFlags: 7, PortNum: 1,
		MaxRDAtomic: 3, MaxDestRDAtomic: 5, MinRNRTimer: 9, Timeout: 13, RetryCnt: 6, RNRRetry: 5,
		AH: qpstate.AHAttr{DGID: gid4(2), IsGlobal: true, PortNum: 1, HopLimit: 64, TrafficClass: 0x68, FlowLabel: 0x12345, SL: 3},
	}
}

// TestQueryTellsWhatWasSet: for every service, in every state on its way, and
// after RESET nothing of it (IBTA Vol 1 §11.2.5.3).
func TestQueryTellsWhatWasSet(t *testing.T) {
	for _, typ := range []qpstate.Type{qpstate.RC, qpstate.UC, qpstate.UD} {
		e := newEnd(t, 0x11, 1, options{typ: typ}.withDefaults())
		want := qpstate.Attr{Cap: e.cfg.Cap}
		for _, s := range []qpstate.State{qpstate.Init, qpstate.RTR, qpstate.RTS} {
			a := allAttrs()
			a.State = s
			required, _, ok := qpstate.Transition(typ, e.qp.State(), s)
			if !ok {
				t.Fatalf("%v: no way to %v", typ, s)
			}
			if err := e.qp.Modify(start, &a, required|qpstate.MaskState, &transport.Path{Dst: gid4(2)}); err != nil {
				t.Fatal(err)
			}
			setAttrs(&want, &a, required)
			want.State, want.CurState = s, s
			var got qpstate.Attr
			if e.qp.Query(&got); !reflect.DeepEqual(got, want) {
				t.Errorf("%v in %v:\n got %+v\nwant %+v", typ, s, got, want)
			}
		}
		e.qp.Close()
		var got qpstate.Attr
		if e.qp.Query(&got); !reflect.DeepEqual(got, qpstate.Attr{Cap: e.cfg.Cap}) {
			t.Errorf("%v after RESET: %+v", typ, got)
		}
	}
}

// setAttrs copies the attributes of m, by the name that the mask has for them.
func setAttrs(to, from *qpstate.Attr, m qpstate.Mask) {
	for _, f := range []struct {
		bit qpstate.Mask
		set func()
	}{
		{qpstate.MaskAccessFlags, func() { to.AccessFlags = from.AccessFlags }},
		{qpstate.MaskPort, func() { to.PortNum = from.PortNum }},
		{qpstate.MaskQKey, func() { to.QKey = from.QKey }},
		{qpstate.MaskAV, func() { to.AH = from.AH }},
		{qpstate.MaskPathMTU, func() { to.PathMTU = from.PathMTU }},
		{qpstate.MaskTimeout, func() { to.Timeout = from.Timeout }},
		{qpstate.MaskRetryCnt, func() { to.RetryCnt = from.RetryCnt }},
		{qpstate.MaskRNRRetry, func() { to.RNRRetry = from.RNRRetry }},
		{qpstate.MaskRQPSN, func() { to.RQPSN = from.RQPSN }},
		{qpstate.MaskSQPSN, func() { to.SQPSN = from.SQPSN }},
		{qpstate.MaskDestQPN, func() { to.DestQPN = from.DestQPN }},
		{qpstate.MaskMaxQPRDAtomic, func() { to.MaxRDAtomic = from.MaxRDAtomic }},
		{qpstate.MaskMaxDestRDAtomic, func() { to.MaxDestRDAtomic = from.MaxDestRDAtomic }},
		{qpstate.MaskMinRNRTimer, func() { to.MinRNRTimer = from.MinRNRTimer }},
	} {
		if m&f.bit != 0 {
			f.set()
		}
	}
}

// inState makes a queue pair of a service in a state.
func inState(t *testing.T, typ qpstate.Type, s qpstate.State) *end {
	t.Helper()
	a, b := connected(t, options{typ: typ})
	switch s {
	case qpstate.Reset, qpstate.Init, qpstate.RTR:
		a.qp.Close()
		a.to(s, b, options{typ: typ}.withDefaults())
	case qpstate.SQE:
		wr := a.datagram(1, b, 4)
		wr.SGList[0].LKey++
		a.post(start, wr)
		a.pollAll(start)
	case qpstate.SQD, qpstate.Err:
		if err := a.qp.Modify(start, &qpstate.Attr{State: s}, qpstate.MaskState, nil); err != nil {
			t.Fatal(err)
		}
	case qpstate.RTS:
	}
	a.sendCQ.take0()
	if a.qp.State() != s {
		t.Fatalf("%v: in %v, want %v", typ, a.qp.State(), s)
	}
	return a
}

// TestEveryModify: for every service, from every state to every state and with
// every attribute: what the table forbids is refused and changes nothing
// (IBTA Vol 1 §11.2.5.2; QPS-03 to QPS-06).
func TestEveryModify(t *testing.T) {
	refused, done := 0, 0
	for _, typ := range []qpstate.Type{qpstate.RC, qpstate.UC, qpstate.UD} {
		for from := qpstate.Reset; from <= qpstate.Err; from++ {
			if typ == qpstate.RC && from == qpstate.SQE {
				continue // never there
			}
			for to := qpstate.Reset; to <= qpstate.Err; to++ {
				required, optional, ok := qpstate.Transition(typ, from, to)
				e := inState(t, typ, from)
				tryModify := func(m qpstate.Mask) {
					t.Helper()
					legal := ok && required&^m == 0 && m&^(required|optional) == 0
					var before, after qpstate.Attr
					e.qp.Query(&before)
					a := allAttrs()
					a.State, a.CurState = to, from
					err := e.qp.Modify(start, &a, m|qpstate.MaskState, &transport.Path{Src: e.gid, Dst: gid4(2)})
					if e.qp.Query(&after); legal != (err == nil) || err != nil && !reflect.DeepEqual(before, after) {
						t.Errorf("%v from %v to %v with %v: %v\nbefore %+v\n after %+v", typ, from, to, m, err, before, after)
					}
					if err != nil {
						refused++
						return
					}
					done++
					if e.qp.State() != to {
						t.Errorf("%v from %v to %v: in %v", typ, from, to, e.qp.State())
					}
					e = inState(t, typ, from)
				}
				tryModify(required)
				tryModify(required | optional)
				for bit := qpstate.MaskCurState; bit <= qpstate.MaskRateLimit; bit <<= 1 {
					tryModify(required ^ bit)
				}
			}
		}
	}
	t.Logf("%d changes done, %d refused", done, refused)
}

// TestChangesInSQD: timeout, retry_cnt and rnr_retry that are changed in SQD hold
// for what is sent then.
func TestChangesInSQD(t *testing.T) {
	a, b := connected(t, options{timeout: 14, retry: 7, rnrRetry: 7})
	modify := func(at *qpstate.Attr, m qpstate.Mask) {
		t.Helper()
		if err := a.qp.Modify(start, at, m, nil); err != nil {
			t.Fatal(err)
		}
	}
	modify(&qpstate.Attr{State: qpstate.SQD}, qpstate.MaskState)
	modify(&qpstate.Attr{Timeout: 10, RetryCnt: 1, RNRRetry: 1}, qpstate.MaskTimeout|qpstate.MaskRetryCnt|qpstate.MaskRNRRetry)
	modify(&qpstate.Attr{State: qpstate.RTS}, qpstate.MaskState)
	a.post(start, wq.SendWR{WRID: 1, Opcode: wq.Send, Flags: wq.SendSignaled, SGList: []wq.SGE{a.sge(0, 4)}})
	sent := len(a.pollAll(start))
	// An RNR NAK reloads retry_cnt and takes one of rnr_retry.
	a.handle(start, mustCraft(t, "RC Acknowledge psn=0x100 ack=rnr1 msn=0"), b.gid)
	now := start
	for len(a.sendCQ.wcs) == 0 && sent < 20 {
		at := a.qp.NextTimeout()
		if d := at.Sub(now); d > 5*time.Millisecond || at.IsZero() {
			t.Fatalf("waits %v, want about 4.2 ms", d)
		}
		now = at
		a.qp.HandleTimeout(now)
		sent += len(a.pollAll(now))
	}
	wantTexts(t, "completions", a.sendCQ.take(), "1 RETRY_EXC_ERR")
	if sent != 3 {
		t.Errorf("%d packets, want 3: one before the RNR NAK, two after it", sent)
	}
}

// TestDrainingIsRefused: an attribute does not change under requests that are
// under way (IBTA Vol 1 §10.3.1.5).
func TestDrainingIsRefused(t *testing.T) {
	a, b := connected(t, options{mtu: bth.MTU256, typ: qpstate.UC, sigAll: true})
	a.post(start, wq.SendWR{WRID: 1, Opcode: wq.Send, SGList: []wq.SGE{a.sge(0, 600)}})
	a.poll(start)
	modify := func(s qpstate.State, m qpstate.Mask) error {
		return a.qp.Modify(start, &qpstate.Attr{State: s, AccessFlags: 1}, m, nil)
	}
	if err := modify(qpstate.SQD, qpstate.MaskState); err != nil {
		t.Fatal(err)
	}
	var q qpstate.Attr
	if a.qp.Query(&q); !q.SQDraining {
		t.Error("not draining")
	}
	for _, c := range []struct {
		s qpstate.State
		m qpstate.Mask
	}{{qpstate.SQD, qpstate.MaskAccessFlags}, {qpstate.SQD, qpstate.MaskState}, {qpstate.RTS, qpstate.MaskState}} {
		if err := modify(c.s, c.m); !errors.Is(err, transport.ErrDraining) {
			t.Errorf("to %v with %v: %v", c.s, c.m, err)
		}
	}
	a.post(start, wq.SendWR{WRID: 2, Opcode: wq.Send, SGList: []wq.SGE{a.sge(0, 4)}})
	if n := len(a.pollAll(start)); n != 2 {
		t.Errorf("%d packets, want the rest of the message", n)
	}
	if a.qp.Query(&q); q.SQDraining {
		t.Error("still draining")
	}
	for _, c := range []struct {
		s qpstate.State
		m qpstate.Mask
	}{{qpstate.SQD, qpstate.MaskAccessFlags}, {qpstate.RTS, qpstate.MaskState}} {
		if err := modify(c.s, c.m); err != nil {
			t.Errorf("to %v with %v: %v", c.s, c.m, err)
		}
	}
	exchange(start, a, b)
	wantTexts(t, "completions", a.sendCQ.take(), "1 SUCCESS SEND len=600", "2 SUCCESS SEND len=4")
}

// TestSQEMidway: memory that goes while a message is under way cuts it. What is
// sent after the way back is a message of its own, and is delivered.
func TestSQEMidway(t *testing.T) {
	a, b := connected(t, options{mtu: bth.MTU256, typ: qpstate.UC, sigAll: true})
	b.postRecv(start, 1, b.sge(0, 2000))
	extra, err := a.keys.Register(1, a.mem[:1024], 0x900000, 1024, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	wr := wq.SendWR{WRID: 1, Opcode: wq.Send, SGList: []wq.SGE{{Addr: 0x900000, Length: 1024, LKey: extra.LKey()}}}
	a.post(start, wr)
	b.handle(start, a.poll(start), a.gid)
	if err := a.keys.Mark(extra); err != nil {
		t.Fatal(err)
	}
	exchange(start, a, b)
	wantTexts(t, "completions", a.sendCQ.take(), "1 LOC_PROT_ERR")
	if a.qp.State() != qpstate.SQE {
		t.Fatalf("in %v", a.qp.State())
	}
	var q qpstate.Attr
	if a.qp.Query(&q); q.SQPSN != 0x101 {
		t.Errorf("sq_psn %v, want 0x101", q.SQPSN)
	}
	if err := a.qp.Modify(start, &qpstate.Attr{State: qpstate.RTS}, qpstate.MaskState, nil); err != nil {
		t.Fatal(err)
	}
	a.post(start, wq.SendWR{WRID: 2, Opcode: wq.Send, SGList: []wq.SGE{a.sge(0, 300)}})
	exchange(start, a, b)
	wantTexts(t, "completions", a.sendCQ.take(), "2 SUCCESS SEND len=300")
	wantTexts(t, "receives", b.recvCQ.take(), "1 SUCCESS RECV len=300")
}

// TestAccessChangesInRTS: rights that are taken away or given hold for the next
// packet (QPS-18).
func TestAccessChangesInRTS(t *testing.T) {
	a, b := connected(t, options{typ: qpstate.UC})
	wr := wq.SendWR{Opcode: wq.RDMAWrite, RemoteAddr: memBase, RKey: b.mr.RKey(), SGList: []wq.SGE{a.sge(0, 4)}}
	for _, c := range []struct {
		access uint32
		want   transport.Verdict
	}{{0, transport.DropAccess}, {2, transport.Accepted}, {4, transport.DropAccess}} {
		if err := b.qp.Modify(start, &qpstate.Attr{AccessFlags: c.access}, qpstate.MaskAccessFlags, nil); err != nil {
			t.Fatal(err)
		}
		a.post(start, wr)
		if v := b.handle(start, a.poll(start), a.gid); v != c.want {
			t.Errorf("access flags %#x: %v, want %v", c.access, v, c.want)
		}
	}
}

// endless is the receive queue of a hostile program, which posts as fast as it is
// emptied.
type endless struct{ taken int }

func (s *endless) TakeRecv(dst *wq.RecvWR) bool {
	s.taken++
	return s.taken < 1<<20 // else a test that fails never ends
}

// RESET, and the queue pair's end, take as many receives as the queue has room
// for, and no more.
func TestResetOfAnEndlessReceiveQueueEnds(t *testing.T) {
	for _, typ := range []qpstate.Type{qpstate.RC, qpstate.UC, qpstate.UD} {
		e := newEnd(t, 0x11, 1, options{typ: typ, sendWR: 4, recvWR: 16}.withDefaults())
		src := new(endless)
		cfg := e.cfg
		cfg.Recv = src
		q, err := transport.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		for _, end := range []func(){
			func() {
				if err := q.Modify(time.Time{}, &qpstate.Attr{State: qpstate.Reset}, qpstate.MaskState, nil); err != nil {
					t.Error(err)
				}
			},
			q.Close,
		} {
			src.taken = 0
			if end(); src.taken > 16 {
				t.Errorf("%v: %d receives were taken of a queue of 16", typ, src.taken)
			}
		}
	}
}
