package nic

import (
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/softroce/softroce/internal/shm"
	"github.com/softroce/softroce/internal/uapi"
	"github.com/softroce/softroce/pkg/cq"
	"github.com/softroce/softroce/pkg/qpstate"
	"github.com/softroce/softroce/pkg/verbs"
	"github.com/softroce/softroce/pkg/wq"
)

// asyncEvent waits for a program's next async event.
func asyncEvent(t testing.TB, d *verbs.Device) verbs.AsyncEvent {
	t.Helper()
	ev, err := d.AsyncEvent(within(t))
	if err != nil {
		t.Fatal(err)
	}
	ev.Ack()
	return ev
}

// wantNoEvent checks that the adapter wrote no event for the program.
func wantNoEvent(t testing.TB, d *verbs.Device) {
	t.Helper()
	if ev, err := d.TryAsyncEvent(); err == nil {
		t.Errorf("unexpected event %v", ev.Type)
	}
}

// Queue pairs of two types share a queue: whoever receives takes the oldest
// request, and the completion tells who it was.
func TestSRQShared(t *testing.T) {
	a, b := twoAdapters(t, false)
	y := &endpoint{dev: openDevice(t, b)}
	var err error
	if y.pd, err = y.dev.AllocPD(); err != nil {
		t.Fatal(err)
	}
	srq, err := y.pd.CreateSRQ(verbs.SRQAttr{MaxWR: 30, MaxSGE: 2})
	if err != nil {
		t.Fatal(err)
	}
	share := func(typ verbs.QPType) *endpoint {
		e := &endpoint{dev: y.dev, pd: y.pd}
		return e.with(t, 1<<14, func(init *verbs.QPInitAttr) { init.Type, init.SRQ = typ, srq })
	}
	rc, uc, ud := share(verbs.RC), share(verbs.UC), share(verbs.UD)
	for _, e := range []*endpoint{rc, uc, ud} {
		if got := a.workerOf(e.qp.Num()).index % len(b.workers); got != b.workerOf(rc.qp.Num()).index {
			t.Errorf("queue pair %#x is on worker %d, the queue's others on %d", e.qp.Num(), got, b.workerOf(rc.qp.Num()).index)
		}
		if c := e.qp.Cap(); c.MaxRecvWR != 0 || c.MaxRecvSGE != 0 {
			t.Errorf("max_recv_wr %d, max_recv_sge %d with an SRQ", c.MaxRecvWR, c.MaxRecvSGE)
		}
	}
	d := openDevice(t, a)
	xrc := newQPOf(t, d, 1<<14, func(*verbs.QPInitAttr) {})
	xuc := newQPOf(t, d, 1<<14, func(init *verbs.QPInitAttr) { init.Type = verbs.UC })
	xud := newUD(t, d, 1<<14, nil)
	connectPair(t, xrc, rc)
	if err := errors.Join(
		xuc.qp.ConnectUC(verbs.RCPeer{QPN: uc.qp.Num(), PSN: 5, GID: uc.gid(t)}, verbs.RCConfig{PSN: 6}),
		uc.qp.ConnectUC(verbs.RCPeer{QPN: xuc.qp.Num(), PSN: 6, GID: xuc.gid(t)}, verbs.RCConfig{PSN: 5}),
		ud.qp.ReadyUD(testQKey, 1),
	); err != nil {
		t.Fatal(err)
	}
	ah := xud.handleTo(t, ud.gid(t))
	var id uint64
	for round := range 40 {
		if _, err := srq.PostRecv(verbs.RecvWR{WRID: id, SGList: rc.sge(0, 100)}); err != nil {
			t.Fatal(err)
		}
		from, to := xrc, rc
		wr := verbs.SendWR{Opcode: verbs.WRSend, Flags: verbs.SendSignaled, SGList: xrc.sge(0, 10)}
		switch round % 3 {
		case 1:
			from, to = xuc, uc
			wr.SGList = xuc.sge(0, 10)
		case 2:
			from, to = xud, ud
			wr = xud.datagram(ah, ud.qp.Num(), 0, 10)
		}
		from.post(t, wr)
		from.next(t, cq.Send, cq.Success)
		if wc := to.next(t, cq.Recv, cq.Success); wc.WRID != id || wc.QPN != to.qp.Num() {
			t.Fatalf("round %d: completion %+v, want request %d of queue pair %#x", round, wc, id, to.qp.Num())
		}
		id++
	}
	if err := srq.Destroy(); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("destroy in use: %v, want EBUSY", err)
	}
	for _, e := range []*endpoint{rc, uc, ud} {
		if err := e.qp.Destroy(); err != nil {
			t.Fatal(err)
		}
	}
	if err := srq.Destroy(); err != nil {
		t.Fatal(err)
	}
	if n := b.ledger.usage()[ResourceSRQs]; n != 0 {
		t.Errorf("%d shared receive queues still booked", n)
	}
}

// ibv_modify_srq(3): the event comes once, when fewer than the limit wait, and
// disarms; a resize keeps what waits, in order.
func TestSRQLimitAndResize(t *testing.T) {
	a := startAdapter(t, nil)
	d := openDevice(t, a)
	y := &endpoint{dev: d}
	var err error
	if y.pd, err = d.AllocPD(); err != nil {
		t.Fatal(err)
	}
	srq, err := y.pd.CreateSRQ(verbs.SRQAttr{MaxWR: 8, MaxSGE: 1})
	if err != nil {
		t.Fatal(err)
	}
	y.with(t, 1<<14, func(init *verbs.QPInitAttr) { init.Type, init.SRQ = verbs.UD, srq })
	if err := y.qp.ReadyUD(testQKey, 1); err != nil {
		t.Fatal(err)
	}
	x := newUD(t, openDevice(t, a), 1<<12, nil)
	ah := x.handleTo(t, y.gid(t))
	var posted, taken uint64
	post := func(n int) {
		t.Helper()
		for range n {
			if _, err := srq.PostRecv(verbs.RecvWR{WRID: posted, SGList: y.sge(0, 64)}); err != nil {
				t.Fatal(err)
			}
			posted++
		}
	}
	take := func(n int) {
		t.Helper()
		for range n {
			x.post(t, x.datagram(ah, y.qp.Num(), 0, 4))
			x.next(t, cq.Send, cq.Success)
			if wc := y.next(t, cq.Recv, cq.Success); wc.WRID != taken {
				t.Fatalf("request %d where %d was due", wc.WRID, taken)
			}
			taken++
		}
	}
	post(8)
	if err := srq.Modify(verbs.SRQAttr{Limit: 5}, verbs.SRQLimitMask); err != nil {
		t.Fatal(err)
	}
	take(3) // 5 wait
	wantNoEvent(t, d)
	if attr, err := srq.Query(); err != nil || attr != (verbs.SRQAttr{MaxWR: 8, MaxSGE: 1, Limit: 5}) {
		t.Errorf("query: %+v, %v", attr, err)
	}
	take(1) // 4
	if ev := asyncEvent(t, d); ev.Type != verbs.EventSRQLimitReached || ev.SRQ != srq {
		t.Errorf("event %+v", ev)
	}
	take(1)
	wantNoEvent(t, d)
	if attr, err := srq.Query(); err != nil || attr.Limit != 0 {
		t.Errorf("after the event: %+v, %v", attr, err)
	}

	// 3 wait. Refusals change nothing.
	for _, row := range []struct {
		attr verbs.SRQAttr
		mask verbs.SRQAttrMask
	}{
		{verbs.SRQAttr{Limit: 9}, verbs.SRQLimitMask},
		{verbs.SRQAttr{MaxWR: 2}, verbs.SRQMaxWRMask},
		{verbs.SRQAttr{MaxWR: 0}, verbs.SRQMaxWRMask},
		{verbs.SRQAttr{MaxWR: 1 << 20}, verbs.SRQMaxWRMask},
		{verbs.SRQAttr{MaxWR: 4, Limit: 5}, verbs.SRQMaxWRMask | verbs.SRQLimitMask},
	} {
		if err := srq.Modify(row.attr, row.mask); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("modify to %+v (%#x): %v, want EINVAL", row.attr, row.mask, err)
		}
	}
	if err := srq.Modify(verbs.SRQAttr{MaxWR: 100, Limit: 20}, verbs.SRQMaxWRMask|verbs.SRQLimitMask); err != nil {
		t.Fatal(err)
	}
	if attr, err := srq.Query(); err != nil || attr != (verbs.SRQAttr{MaxWR: 128, MaxSGE: 1, Limit: 20}) {
		t.Errorf("after the resize: %+v, %v", attr, err)
	}
	post(40) // 43 wait
	take(24) // 19
	if ev := asyncEvent(t, d); ev.Type != verbs.EventSRQLimitReached {
		t.Errorf("event %+v", ev)
	}
	if err := srq.Modify(verbs.SRQAttr{MaxWR: 19}, verbs.SRQMaxWRMask); err != nil {
		t.Fatal(err)
	}
	take(19)
	wantNoEvent(t, d)
	// Below the limit when it is set: at the next request that is taken.
	if err := srq.Modify(verbs.SRQAttr{Limit: 4}, verbs.SRQLimitMask); err != nil {
		t.Fatal(err)
	}
	wantNoEvent(t, d)
	post(2)
	take(1)
	if ev := asyncEvent(t, d); ev.Type != verbs.EventSRQLimitReached {
		t.Errorf("event %+v", ev)
	}
}

// Queue pairs on several workers take from one queue at once while it is
// resized: each request once.
func TestSRQUnderLoad(t *testing.T) {
	const senders, each = 6, 300
	a := startAdapter(t, func(c *Config) { c.Workers = 3 })
	d := openDevice(t, a)
	y := &endpoint{dev: d}
	var err error
	if y.pd, err = d.AllocPD(); err != nil {
		t.Fatal(err)
	}
	srq, err := y.pd.CreateSRQ(verbs.SRQAttr{MaxWR: 64, MaxSGE: 1})
	if err != nil {
		t.Fatal(err)
	}
	if y.mr, err = y.pd.AllocMR(64*senders*each, allAccess); err != nil { // a buffer for each: workers write them at once
		t.Fatal(err)
	}
	var left atomic.Int64
	left.Store(senders * each)
	var seen [senders * each]atomic.Bool
	ctx := within(t)
	var wg sync.WaitGroup
	used := map[int]bool{}
	p := a.programList()[0]
	for range senders {
		e := &endpoint{dev: d, pd: y.pd}
		// Their CQs' vectors spread them; the SRQ's worker would not.
		p.mu.Lock()
		for _, o := range p.srqs.byHandle {
			clear(o.homes)
		}
		p.mu.Unlock()
		e.with(t, 1<<12, func(init *verbs.QPInitAttr) { init.SRQ = srq })
		used[a.workerOf(e.qp.Num()).index] = true
		x := newEndpoint(t, openDevice(t, a), 1<<12)
		connectPair(t, x, e)
		wg.Go(func() {
			for range each {
				if _, err := x.qp.PostSend(verbs.SendWR{Opcode: verbs.WRSend, Flags: verbs.SendSignaled, SGList: x.sge(0, 8)}); err != nil {
					t.Error(err)
					return
				}
				if wc, err := completion(ctx, x.cq); err != nil || wc.Status != cq.Success {
					t.Errorf("send: %+v, %v", wc, err)
					return
				}
			}
		})
		wg.Go(func() {
			for range each {
				wc, err := completion(ctx, e.cq)
				if err != nil || wc.Status != cq.Success || seen[wc.WRID].Swap(true) {
					t.Errorf("receive: %+v, %v; or taken twice", wc, err)
					return
				}
				left.Add(-1)
			}
		})
	}
	if len(used) < 2 {
		t.Errorf("the queue pairs are on workers %v: the test shows nothing", used)
	}
	for id, round := 0, 0; id < senders*each && ctx.Err() == nil; round++ {
		for ; id < senders*each; id++ {
			if _, err := srq.PostRecv(verbs.RecvWR{WRID: uint64(id), SGList: y.sge(64*id, 64)}); err != nil {
				break
			}
		}
		if round%7 == 0 {
			if err := srq.Modify(verbs.SRQAttr{MaxWR: uint32(64 << (round % 3))}, verbs.SRQMaxWRMask); err != nil && !errors.Is(err, syscall.EINVAL) {
				t.Fatal(err)
			}
		}
		runtime.Gosched()
	}
	wg.Wait()
	if n := left.Load(); n != 0 {
		t.Errorf("%d messages are missing", n)
	}
}

// A rawSRQ is a shared receive queue without the library.
type rawSRQ struct {
	uapi.CreateSRQReply
	ring *uapi.RQProducer
	seg  *shm.Segment
}

// srq makes one as the first object with a ring: the descriptor of the rings'
// memory comes once.
func (r *rawClient) srq(pd uint32, attr uapi.SRQAttr) *rawSRQ {
	r.t.Helper()
	got := r.call(uapi.OpCreateSRQ, &uapi.CreateSRQRequest{PD: pd, Attr: attr})
	q := &rawSRQ{}
	if err := q.Decode(got.body); got.errno != 0 || err != nil || len(got.fds) != 1 {
		r.t.Fatal(got.errno, got.text, err, len(got.fds))
	}
	var err error
	if q.seg, err = shm.Map(got.fds[0], false); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = q.seg.Close() })
	if q.ring, err = uapi.NewRQProducer(q.seg, q.Ring); err != nil {
		r.t.Fatal(err)
	}
	return q
}

func TestSRQBadInput(t *testing.T) {
	a := startAdapter(t, func(c *Config) { c.Limits = Limits{MaxRecvWR: 256, MaxSGE: 4, Program: Quota{SRQs: 1}} })
	r := rawHello(t, a)
	pd := r.pd()
	attr := uapi.SRQAttr{MaxWR: 4, MaxSGE: 1}
	create := func(f func(*uapi.CreateSRQRequest)) *uapi.CreateSRQRequest {
		m := &uapi.CreateSRQRequest{PD: pd, Attr: attr}
		f(m)
		return m
	}
	for _, row := range []struct {
		name  string
		req   *uapi.CreateSRQRequest
		words string
	}{
		{"PD", create(func(m *uapi.CreateSRQRequest) { m.PD = 9 }), "protection domain"},
		{"no requests", create(func(m *uapi.CreateSRQRequest) { m.Attr.MaxWR = 0 }), "max_wr 0"},
		{"too many", create(func(m *uapi.CreateSRQRequest) { m.Attr.MaxWR = ^uint32(0) }), "max_srq_wr 256"},
		{"elements", create(func(m *uapi.CreateSRQRequest) { m.Attr.MaxSGE = 5 }), "max_srq_sge is 4"},
		{"limit", create(func(m *uapi.CreateSRQRequest) { m.Attr.Limit = 5 }), "srq_limit 5"},
	} {
		t.Run(row.name, func(t *testing.T) { r.wantRefusal(r.call(uapi.OpCreateSRQ, row.req), syscall.EINVAL, row.words) })
	}
	if n := a.ledger.usage()[ResourceSRQs]; n != 0 {
		t.Errorf("%d booked after refusals", n)
	}
	s := r.srq(pd, attr)
	r.wantRefusal(r.call(uapi.OpCreateSRQ, create(func(*uapi.CreateSRQRequest) {})), syscall.ENOMEM, "shared receive queues of this program", "limit 1")
	r.wantRefusal(r.call(uapi.OpModifySRQ, &uapi.ModifySRQRequest{Handle: s.Handle, Mask: 4}), syscall.EINVAL, "unknown bits")
	r.wantRefusal(r.call(uapi.OpModifySRQ, &uapi.ModifySRQRequest{Handle: 77}), syscall.EINVAL, "handle 77")
	r.wantRefusal(r.call(uapi.OpQuerySRQ, &uapi.HandleRequest{Handle: 77}), syscall.EINVAL, "handle 77")
	m := rcRequest(r.pd(), r.cq(16))
	m.SRQ = s.Handle
	r.wantRefusal(r.call(uapi.OpCreateQP, m), syscall.EINVAL, "another protection domain")
	m.PD = pd
	rep := must[uapi.CreateQPReply](r, uapi.OpCreateQP, m)
	if rep.RQ != (uapi.RingRef{}) || rep.Cap.MaxRecvWR != 0 {
		t.Errorf("queue pair with an SRQ: %+v", rep)
	}
	r.wantRefusal(r.call(uapi.OpDeallocPD, &uapi.HandleRequest{Handle: pd}), syscall.EBUSY)
	r.wantRefusal(r.call(uapi.OpDestroySRQ, &uapi.HandleRequest{Handle: s.Handle}), syscall.EBUSY, "1 queue pairs")
}

// A program that writes nonsense into the ring of its shared queue gets SRQ_ERR
// once and loses the queue pairs that use it, on every worker; its others and
// those of other programs go on.
func TestCorruptSRQ(t *testing.T) {
	for _, c := range []struct {
		name  string
		spoil func(q *rawSRQ)
	}{
		{"index", func(q *rawSRQ) { q.seg.Word32(int(q.Ring.Offset)).Store(77) }},
		{"slot", func(q *rawSRQ) {
			for range 4 {
				if q.ring.Put(&wq.RecvWR{WRID: 1}) != nil {
					break
				}
			}
			for i := range q.seg.Bytes()[q.Ring.Offset+uapi.RingHeaderSize:][:128] {
				q.seg.Bytes()[q.Ring.Offset+uapi.RingHeaderSize:][i] = 0xFF
			}
			q.ring.Publish()
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := startAdapter(t, func(c *Config) { c.Workers = 2 })
			r := rawHello(t, a)
			pd := r.pd()
			s := r.srq(pd, uapi.SRQAttr{MaxWR: 4, MaxSGE: 1})
			cqs := []uint32{
				r.cq(16),
				must[uapi.CreateCQReply](r, uapi.OpCreateCQ, &uapi.CreateCQRequest{CQE: 16, Vector: 1}).Handle,
			}
			p := a.programList()[0]
			var qps []uapi.CreateQPReply
			for i := range 3 {
				m := rcRequest(pd, cqs[i%2])
				m.Type = qpstate.UD
				if i < 2 {
					m.SRQ = s.Handle
				}
				p.mu.Lock()
				for _, o := range p.srqs.byHandle {
					clear(o.homes) // the CQ's vector decides
				}
				p.mu.Unlock()
				qps = append(qps, must[uapi.CreateQPReply](r, uapi.OpCreateQP, m))
				r.readyUD(qps[i].Handle)
			}
			if qps[0].Worker == qps[1].Worker {
				t.Fatalf("both queue pairs are on worker %d", qps[0].Worker)
			}
			c.spoil(s)
			raw := newRawSender(t)
			state := func(q uapi.CreateQPReply) qpstate.State {
				return must[uapi.QueryQPReply](r, uapi.OpQueryQP, &uapi.HandleRequest{Handle: q.Handle}).Attr.State
			}
			ctx := within(t)
			for state(qps[0]) != qpstate.Err || state(qps[1]) != qpstate.Err {
				raw.send(a.Addrs()[0], rawDatagram(qps[0].QPN, testQKey, nil))
				if ctx.Err() != nil {
					t.Fatalf("states %v, %v; want ERR", state(qps[0]), state(qps[1]))
				}
			}
			if got := state(qps[2]); got != qpstate.RTS {
				t.Errorf("the queue pair with a queue of its own is in %v", got)
			}
			m := rcRequest(pd, cqs[0])
			m.SRQ = s.Handle
			r.wantRefusal(r.call(uapi.OpCreateQP, m), syscall.EINVAL, "in error")
			r.wantRefusal(r.call(uapi.OpModifySRQ, &uapi.ModifySRQRequest{Handle: s.Handle}), syscall.EIO, "in error")
			for _, q := range qps[:2] {
				must[uapi.DestroyReply](r, uapi.OpDestroyQP, &uapi.HandleRequest{Handle: q.Handle})
			}
			if n := must[uapi.DestroyReply](r, uapi.OpDestroySRQ, &uapi.HandleRequest{Handle: s.Handle}).AsyncEvents; n != 1 {
				t.Errorf("%d events of the queue, want SRQ_ERR once", n)
			}
		})
	}
}

// readyUD brings a UD queue pair to RTS.
func (r *rawClient) readyUD(handle uint32) {
	r.t.Helper()
	for _, m := range []uapi.ModifyQPRequest{
		{
			Mask: qpstate.MaskState | qpstate.MaskPKeyIndex | qpstate.MaskPort | qpstate.MaskQKey,
			Attr: qpstate.Attr{State: qpstate.Init, PortNum: 1, QKey: testQKey},
		},
		{Mask: qpstate.MaskState, Attr: qpstate.Attr{State: qpstate.RTR}},
		{Mask: qpstate.MaskState | qpstate.MaskSQPSN, Attr: qpstate.Attr{State: qpstate.RTS}},
	} {
		m.Handle = handle
		must[uapi.ModifyQPReply](r, uapi.OpModifyQP, &m)
	}
}

// A queue pair in ERR leaves the shared queue's requests to the others and says
// LAST_WQE_REACHED.
func TestLastWQEReached(t *testing.T) {
	a := startAdapter(t, nil)
	d := openDevice(t, a)
	y := &endpoint{dev: d}
	var err error
	if y.pd, err = d.AllocPD(); err != nil {
		t.Fatal(err)
	}
	srq, err := y.pd.CreateSRQ(verbs.SRQAttr{MaxWR: 8, MaxSGE: 1})
	if err != nil {
		t.Fatal(err)
	}
	y.with(t, 1<<12, func(init *verbs.QPInitAttr) { init.Type, init.SRQ = verbs.UD, srq })
	if err := y.qp.ReadyUD(testQKey, 1); err != nil {
		t.Fatal(err)
	}
	if _, err := srq.PostRecv(verbs.RecvWR{WRID: 3, SGList: y.sge(0, 64)}); err != nil {
		t.Fatal(err)
	}
	if err := y.qp.Modify(&verbs.QPAttr{State: verbs.StateErr}, verbs.QPStateMask); err != nil {
		t.Fatal(err)
	}
	if ev := asyncEvent(t, d); ev.Type != verbs.EventQPLastWQE || ev.QP != y.qp {
		t.Errorf("event %+v", ev)
	}
	for _, state := range []verbs.QPState{verbs.StateReset} {
		if err := y.qp.Modify(&verbs.QPAttr{State: state}, verbs.QPStateMask); err != nil {
			t.Fatal(err)
		}
	}
	if err := y.qp.ReadyUD(testQKey, 1); err != nil {
		t.Fatal(err)
	}
	x := newUD(t, openDevice(t, a), 1<<12, nil)
	x.post(t, x.datagram(x.handleTo(t, y.gid(t)), y.qp.Num(), 0, 4))
	if wc := y.next(t, cq.Recv, cq.Success); wc.WRID != 3 {
		t.Errorf("request %d, want 3, which waited through ERR and RESET", wc.WRID)
	}
}
