package adapter_test

import (
	"errors"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/testnet"
	"github.com/softroce/softroce/pkg/adapter"
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/qpstate"
	"github.com/softroce/softroce/pkg/verbs"
)

// SQD: started requests end, SQ_DRAINED says so, what is posted then waits,
// and RTS goes on with it (IBTA Vol 1 §10.3.1.5).
func TestSendQueueDrain(t *testing.T) {
	a, b := pair(t, shape{}, verbs.RCConfig{}, nil)
	ctx := within(t)
	wr := a.write(b, 20_000, 20_000, 30_000) // beside what alive uses
	wr.Flags = verbs.SendSignaled
	for i := range uint64(8) {
		wr.WRID = i
		a.post(wr)
	}
	must(t, a.qp.Modify(&verbs.QPAttr{State: verbs.StateSQD, EnSQDAsyncNotify: true}, verbs.QPStateMask|qpstate.MaskEnSQDAsyncNotify))
	ev, err := a.dev.AsyncEvent(ctx)
	if err != nil || ev.Type != verbs.EventSQDrained || ev.QP != a.qp {
		t.Fatalf("event %+v, %v; want SQ_DRAINED of the queue pair", ev, err)
	}
	wr.WRID = 8
	a.post(wr)
	// What comes from the peer is still served, so packets do pass.
	alive(b, a)
	before := a.host.stats(t, a.qp.Num()).Stats.SentPkts
	q, err := a.qp.Query()
	if err != nil || q.State != verbs.StateSQD || q.SQDraining {
		t.Errorf("state %v, draining %v, %v; want SQD, drained", q.State, q.SQDraining, err)
	}
	if now := a.host.stats(t, a.qp.Num()).Stats.SentPkts; now != before {
		t.Errorf("%d packets were sent in SQD", now-before)
	}
	must(t, a.qp.Modify(&verbs.QPAttr{State: verbs.StateRTS}, verbs.QPStateMask))
	for i := range uint64(9) {
		a.status(i, verbs.WCSuccess)
	}
	alive(a, b)
}

// The first packet that finds the queue pair in RTR: COMM_EST, and the packet
// is served.
func TestCommunicationEstablished(t *testing.T) {
	x, y := start(t, nil), start(t, nil)
	a, b := x.open(t, shape{}), y.open(t, shape{})
	must(t, b.qp.ToInit(allAccess))
	b.recv(1, 0, 64)
	must(t, b.qp.Modify(&verbs.QPAttr{
		State: verbs.StateRTR, PathMTU: bth.MTU1024, DestQPN: a.qp.Num(), RQPSN: a.psn, MaxDestRDAtomic: 4, MinRNRTimer: 12,
		AH: verbs.AHAttr{DGID: a.gid, IsGlobal: true, PortNum: 1},
	}, verbs.QPStateMask|verbs.QPAVMask|verbs.QPPathMTUMask|verbs.QPDestQPNMask|verbs.QPRQPSNMask|
		verbs.QPMaxDestRDAtomicMask|verbs.QPMinRNRTimerMask))
	a.connectTo(b.peer(), verbs.RCConfig{MTU: bth.MTU1024})
	a.do(verbs.SendWR{Opcode: verbs.WRSend, SGList: []verbs.SGE{a.mr.SGE(0, 64)}})
	b.status(1, verbs.WCSuccess)
	if ev, err := b.dev.AsyncEvent(within(t)); err != nil || ev.Type != verbs.EventCommEst || ev.QP != b.qp {
		t.Errorf("event %+v, %v; want COMM_EST of the queue pair", ev, err)
	}
}

// What a peer may do is bounded by the queue pair's rights, too. An operation
// that is not enabled is an invalid request, not an access error.
func TestRightsOfQueuePair(t *testing.T) {
	x, y := start(t, nil), start(t, nil)
	for _, c := range []struct {
		name   string
		access verbs.Access
		op     verbs.WROpcode
		want   verbs.WCStatus
	}{
		{"READ allowed", verbs.AccessRemoteRead, verbs.WRRDMARead, verbs.WCSuccess},
		{"WRITE not", verbs.AccessRemoteRead, verbs.WRRDMAWrite, verbs.WCRemInvReqErr},
		{"atomic not", verbs.AccessRemoteRead | verbs.AccessRemoteWrite, verbs.WRAtomicFetchAdd, verbs.WCRemInvReqErr},
		{"READ not", verbs.AccessRemoteWrite, verbs.WRRDMARead, verbs.WCRemInvReqErr},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := x.open(t, shape{}), y.open(t, shape{})
			a.connectTo(b.peer(), verbs.RCConfig{})
			b.connectTo(a.peer(), verbs.RCConfig{Access: c.access})
			wr := a.write(b, 0, 0, 8)
			wr.Opcode, wr.Flags, wr.WRID = c.op, verbs.SendSignaled, 3
			a.post(wr)
			a.status(3, c.want)
		})
	}
}

// Local memory that a request may not use so: LOC_PROT_ERR, and the queue pair
// is in ERR.
func TestLocalProtection(t *testing.T) {
	x, y := start(t, nil), start(t, nil)
	for _, c := range []struct {
		name  string
		spoil func(p *program, wr *verbs.SendWR)
	}{
		{"a wrong lkey", func(_ *program, wr *verbs.SendWR) { wr.SGList[0].LKey ^= 0x1100 }},
		{"beyond the region", func(p *program, wr *verbs.SendWR) { wr.SGList[0].Addr = p.mr.Addr() + uint64(p.mr.Len()) - 7 }},
		{"the second element", func(p *program, wr *verbs.SendWR) {
			wr.SGList = append(wr.SGList, verbs.SGE{Addr: p.mr.Addr() - 1, Length: 4, LKey: p.mr.LKey()})
		}},
		{"a region that has ended", func(p *program, wr *verbs.SendWR) {
			mr, err := p.pd.AllocMR(64, allAccess)
			must(p.t, err)
			wr.SGList[0] = mr.SGE(0, 8)
			must(p.t, mr.Dereg())
		}},
		{"a READ into memory without local write", func(p *program, wr *verbs.SendWR) {
			mr, err := p.pd.AllocMR(64, verbs.AccessRemoteRead)
			must(p.t, err)
			wr.Opcode, wr.SGList[0] = verbs.WRRDMARead, mr.SGE(0, 8)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := x.open(t, shape{}), y.open(t, shape{})
			connect(a, b, verbs.RCConfig{})
			wr := a.write(b, 0, 0, 8)
			wr.WRID = 4
			c.spoil(a, &wr)
			a.post(wr)
			a.status(4, verbs.WCLocProtErr)
			if q, err := a.qp.Query(); err != nil || q.State != verbs.StateErr {
				t.Errorf("state %v, %v; want ERR", q.State, err)
			}
		})
	}
}

// Objects of one device are none of another's.
func TestObjectsOfAnotherDevice(t *testing.T) {
	h := start(t, nil)
	a, b := h.open(t, shape{events: true}), h.open(t, shape{})
	_, err := b.dev.CreateCQ(4, a.ch, 0)
	if !errors.Is(err, unix.EINVAL) {
		t.Errorf("a queue with another device's channel: %v, want EINVAL", err)
	}
	_, err = b.pd.CreateQP(&verbs.QPInitAttr{Type: verbs.RC, SendCQ: a.cq, RecvCQ: b.cq})
	if !errors.Is(err, unix.EINVAL) {
		t.Errorf("a queue pair on another device's queue: %v, want EINVAL", err)
	}
	_, err = b.pd.CreateQP(&verbs.QPInitAttr{Type: verbs.UD, SendCQ: b.cq, RecvCQ: b.cq, Cap: verbs.QPCap{MaxSendWR: 1 << 30}})
	if err == nil {
		t.Error("a queue pair of 2^30 requests was made")
	}
}

// A path MTU that the link does not carry is refused, with both numbers.
func TestPathMTUOfLink(t *testing.T) {
	x, _ := testnet.Pair(t, 1500)
	var h *host
	must(t, x.Do(func() error { h = start(t, on(x.Addr4)); return nil }))
	p := h.open(t, shape{})
	err := p.qp.ConnectRC(verbs.RCPeer{QPN: 17, GID: p.gid}, verbs.RCConfig{MTU: bth.MTU2048})
	if !errors.Is(err, unix.EINVAL) {
		t.Errorf("error %v, want EINVAL", err)
	}
	wantWords(t, err, "path_mtu", "1024")
}

// Many queue pairs of one program share two completion queues, on two workers,
// each for the sends of half of them and the receives of the other half;
// several goroutines post and several poll. Each request completes once, in
// its queue pair's order.
func TestSharedQueuesManyGoroutines(t *testing.T) {
	const qps, messages = 24, 60
	change := func(c *adapter.Config) { c.Workers = 2 }
	x, y := start(t, change), start(t, change)
	a, b := x.open(t, shape{cqe: 8192}), y.open(t, shape{cqe: 8192})
	second, err := a.dev.CreateCQ(8192, nil, 0)
	must(t, err)
	var wg sync.WaitGroup
	ends := make(map[verbs.QPN]*sharedEnd)
	for i := range qps {
		init := verbs.QPInitAttr{
			Type: verbs.RC, SendCQ: a.cq, RecvCQ: second,
			Cap: verbs.QPCap{MaxSendWR: messages, MaxRecvWR: messages, MaxSendSGE: 1, MaxRecvSGE: 1},
		}
		if i%2 == 1 {
			init.SendCQ, init.RecvCQ = second, a.cq
		}
		qa, err := a.pd.CreateQP(&init)
		must(t, err)
		init.SendCQ, init.RecvCQ = b.cq, b.cq
		qb, err := b.pd.CreateQP(&init)
		must(t, err)
		must(t, qa.ConnectRC(verbs.RCPeer{QPN: qb.Num(), GID: b.gid}, verbs.RCConfig{}))
		must(t, qb.ConnectRC(verbs.RCPeer{QPN: qa.Num(), GID: a.gid}, verbs.RCConfig{}))
		ends[qa.Num()] = &sharedEnd{}
		for j := range uint64(messages) {
			if _, err := qa.PostRecv(verbs.RecvWR{WRID: j, SGList: []verbs.SGE{a.mr.SGE(64*i, 8)}}); err != nil {
				t.Fatal(err)
			}
			if _, err := qb.PostRecv(verbs.RecvWR{WRID: j, SGList: []verbs.SGE{b.mr.SGE(64*i, 8)}}); err != nil {
				t.Fatal(err)
			}
		}
		for _, q := range []struct {
			qp *verbs.QP
			mr *verbs.MR
		}{{qa, a.mr}, {qb, b.mr}} {
			wg.Go(func() {
				for j := range uint64(messages) {
					wr := verbs.SendWR{WRID: j, Opcode: verbs.WRSend, Flags: verbs.SendSignaled, SGList: []verbs.SGE{q.mr.SGE(64*i+16, 8)}}
					if _, err := q.qp.PostSend(wr); err != nil {
						t.Errorf("post: %v", err)
						return
					}
				}
			})
		}
	}
	var mu sync.Mutex
	left := 2 * qps * messages
	for _, cq := range []*verbs.CQ{a.cq, second} {
		wg.Go(func() { // one goroutine a queue: order is checked
			for {
				mu.Lock()
				done := left == 0 || t.Failed()
				mu.Unlock()
				if done {
					return
				}
				var wcs [16]verbs.WC
				n, err := cq.Poll(wcs[:])
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				for i := range wcs[:n] {
					if err := ends[wcs[i].QPN].next(&wcs[i]); err != nil {
						t.Errorf("queue pair %v: %v", wcs[i].QPN, err)
					}
				}
				left -= n
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	for range 2 * qps * messages {
		if wc := b.next(); wc.Status != verbs.WCSuccess {
			t.Fatalf("the peer: %v", wc.Status)
		}
	}
	a.none()
	b.none()
}

// sharedEnd counts the completions of one queue pair.
type sharedEnd struct{ sends, recvs uint64 }

func (e *sharedEnd) next(wc *verbs.WC) error {
	n := &e.sends
	if wc.Opcode.IsRecv() {
		n = &e.recvs
	}
	if wc.Status != verbs.WCSuccess || wc.WRID != *n {
		return errors.New("out of order, or failed: " + wc.Status.String())
	}
	*n++
	return nil
}
