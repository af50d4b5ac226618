package featuretest

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/softroce/softroce/pkg/verbs"
)

// patience ends waits of a test that hangs; nothing is measured by it.
const patience = 60 * time.Second

const (
	regionSize = 256 << 10
	qkey       = verbs.QKey(0x1234567)

	allAccess = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead |
		verbs.AccessRemoteAtomic | verbs.AccessMWBind
)

// A Case shows one feature between two programs on two adapters.
type Case struct {
	Name string // as in docs/features.md
	run  func(a, b *end)
}

// Run plays every case. open gives two devices of two adapters that reach each
// other, to a case of its own.
func Run(t *testing.T, open func(t *testing.T) (a, b *verbs.Device)) {
	t.Helper()
	for _, c := range Cases() {
		t.Run(c.Name, func(t *testing.T) {
			a, b := open(t)
			c.run(newEnd(t, a), newEnd(t, b))
		})
	}
}

// Cases lists all of them.
func Cases() (all []Case) {
	for _, part := range [][]Case{connected, datagrams, shared, memory, queues, life, events} {
		all = append(all, part...)
	}
	return all
}

// end is one program: what every case needs.
type end struct {
	t   *testing.T
	dev *verbs.Device
	pd  *verbs.PD
	cq  *verbs.CQ
	mr  *verbs.MR
	gid verbs.GID
	qp  *verbs.QP // of connect and ready
}

func newEnd(t *testing.T, dev *verbs.Device) *end {
	t.Helper()
	e := &end{t: t, dev: dev}
	var err error
	e.pd, err = dev.AllocPD()
	e.must(err)
	e.cq, err = dev.CreateCQ(256, nil, 0)
	e.must(err)
	e.mr, err = e.pd.AllocMR(regionSize, allAccess)
	e.must(err)
	e.gid, err = dev.QueryGID(0)
	e.must(err)
	return e
}

func (e *end) must(err error) {
	e.t.Helper()
	if err != nil {
		e.t.Fatal(err)
	}
}

func (e *end) refused(what string, err error) {
	e.t.Helper()
	if err == nil {
		e.t.Errorf("%s was not refused", what)
	}
}

// init is what the cases' queue pairs are made of, but for what change sets.
func (e *end) newQP(typ verbs.QPType, change func(*verbs.QPInitAttr)) *verbs.QP {
	e.t.Helper()
	init := &verbs.QPInitAttr{
		Type: typ, SendCQ: e.cq, RecvCQ: e.cq,
		Cap: verbs.QPCap{MaxSendWR: 64, MaxRecvWR: 64, MaxSendSGE: 8, MaxRecvSGE: 8, MaxInlineData: 128},
	}
	if change != nil {
		change(init)
	}
	q, err := e.pd.CreateQP(init)
	e.must(err)
	return q
}

func (e *end) id(q *verbs.QP) verbs.RCPeer {
	return verbs.RCPeer{QPN: q.Num(), PSN: 0xFFFFF8, GID: e.gid}
}

// join connects two queue pairs.
func join(a, b *end, qa, qb *verbs.QP, conf verbs.RCConfig) {
	a.t.Helper()
	conf.PSN = 0xFFFFF8 // wraps soon
	a.must(qa.Connect(b.id(qb), conf))
	b.must(qb.Connect(a.id(qa), conf))
}

// connect gives both ends a connected queue pair.
func connect(a, b *end, typ verbs.QPType) {
	a.t.Helper()
	a.qp, b.qp = a.newQP(typ, nil), b.newQP(typ, nil)
	join(a, b, a.qp, b.qp, verbs.RCConfig{})
}

// ready gives both ends a UD queue pair, and a an address handle of b.
func ready(a, b *end) *verbs.AH {
	a.t.Helper()
	for _, e := range []*end{a, b} {
		e.qp = e.newQP(verbs.UD, nil)
		e.must(e.qp.ReadyUD(qkey, 5))
	}
	return a.handleOf(b.gid)
}

func (e *end) handleOf(gid verbs.GID) *verbs.AH {
	e.t.Helper()
	h, err := e.pd.CreateAH(&verbs.AHAttr{DGID: gid, IsGlobal: true, PortNum: 1, HopLimit: 64})
	e.must(err)
	return h
}

// next polls a queue for one completion.
func (e *end) nextOf(cq *verbs.CQ) verbs.WC {
	e.t.Helper()
	var wcs [1]verbs.WC
	deadline := time.Now().Add(patience)
	for polls := 0; ; polls++ {
		n, err := cq.Poll(wcs[:])
		e.must(err)
		if n == 1 {
			return wcs[0]
		}
		if polls%512 == 511 && time.Now().After(deadline) {
			e.t.Fatalf("no completion after %v", patience)
		}
	}
}

// next takes the next completion, whose mark and status must be right.
func (e *end) next(wrid uint64, want verbs.WCStatus) verbs.WC {
	e.t.Helper()
	wc := e.nextOf(e.cq)
	if wc.WRID != wrid || wc.Status != want {
		e.t.Fatalf("completion of request %d: %v, want request %d: %v", wc.WRID, wc.Status, wrid, want)
	}
	return wc
}

// none checks that no completion waits.
func (e *end) none() {
	e.t.Helper()
	var wcs [1]verbs.WC
	if n, err := e.cq.Poll(wcs[:]); n != 0 || err != nil {
		e.t.Errorf("%d completions too many, %v: %+v", n, err, wcs)
	}
}

func (e *end) post(wrs ...verbs.SendWR) {
	e.t.Helper()
	if n, err := e.qp.PostSend(wrs...); n != len(wrs) || err != nil {
		e.t.Fatalf("%d of %d requests posted: %v", n, len(wrs), err)
	}
}

// do posts one request and waits for its success.
func (e *end) do(wr verbs.SendWR) verbs.WC {
	e.t.Helper()
	wr.WRID, wr.Flags = 77, wr.Flags|verbs.SendSignaled
	e.post(wr)
	return e.next(77, verbs.WCSuccess)
}

// fails posts one request that must complete so.
func (e *end) fails(wr verbs.SendWR, want verbs.WCStatus) {
	e.t.Helper()
	wr.WRID, wr.Flags = 78, wr.Flags|verbs.SendSignaled
	e.post(wr)
	e.next(78, want)
}

func (e *end) recv(wrid uint64, off, n int) {
	e.t.Helper()
	_, err := e.qp.PostRecv(verbs.RecvWR{WRID: wrid, SGList: []verbs.SGE{e.mr.SGE(off, n)}})
	e.must(err)
}

// rdma is a request between the start of the region and a place in the other.
func (e *end) rdma(op verbs.WROpcode, to *end, roff, n int) verbs.SendWR {
	return verbs.SendWR{
		Opcode: op, SGList: []verbs.SGE{e.mr.SGE(0, n)}, RemoteAddr: to.mr.Addr() + uint64(roff), RKey: to.mr.RKey(),
	}
}

// fill writes a pattern that differs by seed and gives the bytes.
func (e *end) fill(off, n, seed int) []byte {
	b := e.mr.Bytes()[off : off+n]
	for i := range b {
		b[i] = byte(i*7 + i>>8 + seed*13)
	}
	return b
}

// same compares memory.
func (e *end) same(off int, want []byte) {
	e.t.Helper()
	if !bytes.Equal(e.mr.Bytes()[off:off+len(want)], want) {
		e.t.Errorf("the %d bytes at %d are not what was sent", len(want), off)
	}
}

// event waits for an asynchronous event of a kind; others are passed over.
func (e *end) event(want verbs.EventType) verbs.AsyncEvent {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		ev, err := e.dev.AsyncEvent(ctx)
		if err != nil {
			e.t.Fatalf("waiting for %v: %v", want, err)
		}
		ev.Ack()
		if ev.Type == want {
			return ev
		}
		if ev.Type == verbs.EventDeviceFatal {
			e.t.Fatalf("waiting for %v: the adapter is gone", want)
		}
	}
}

// state checks a queue pair's state as the adapter tells it.
func (e *end) state(q *verbs.QP, want verbs.QPState) {
	e.t.Helper()
	attr, err := q.Query()
	e.must(err)
	if attr.State != want {
		e.t.Errorf("the queue pair is in %v, want %v", attr.State, want)
	}
}

// ends waits until a queue pair is in ERR.
func (e *end) ends(q *verbs.QP) {
	e.t.Helper()
	e.eventually("the queue pair is in ERR", func() bool {
		attr, err := q.Query()
		e.must(err)
		return attr.State == verbs.StateErr
	})
}
