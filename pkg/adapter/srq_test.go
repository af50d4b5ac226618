package adapter_test

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/pkg/verbs"
)

// A shared receive queue serves queue pairs of RC and UD in the order that it was
// posted to; each completion names the one that took it.
func TestSRQSharedByQueuePairs(t *testing.T) {
	x, y := start(t, nil), start(t, nil)
	b := y.open(t, shape{srq: 64})
	var senders []*program
	var to []verbs.QPN
	for range 3 {
		a := x.open(t, shape{})
		b.qp = b.newQP(8, false)
		connect(a, b, verbs.RCConfig{})
		senders, to = append(senders, a), append(to, b.qp.Num())
	}
	b.typ = verbs.UD
	b.qp = b.newQP(8, false)
	must(t, b.qp.ReadyUD(qkey, 1))
	u := x.open(t, shape{typ: verbs.UD})
	must(t, u.qp.ReadyUD(qkey, 1))
	ah := u.handleTo(b.gid)
	_, err := b.qp.PostRecv(verbs.RecvWR{})
	wantErrno(t, "a receive posted to a queue pair", err, unix.EINVAL)
	const each = 10
	for i := range uint64(4 * each) {
		b.recv(i, int(i)*64, 64)
	}
	next := uint64(0)
	for i := range each {
		for k, a := range senders {
			a.mr.Bytes()[0] = byte(i)
			a.do(verbs.SendWR{Opcode: verbs.WRSend, SGList: []verbs.SGE{a.mr.SGE(0, 1)}})
			if wc := b.status(next, verbs.WCSuccess); wc.QPN != to[k] || wc.ByteLen != 1 || b.mr.Bytes()[next*64] != byte(i) {
				t.Errorf("message %d of sender %d: %+v", i, k, wc)
			}
			next++
		}
		u.do(u.datagram(ah, b.qp.Num(), 1))
		if wc := b.status(next, verbs.WCSuccess); wc.QPN != b.qp.Num() || wc.ByteLen != 41 {
			t.Errorf("datagram %d: %+v", i, wc)
		}
		next++
	}
	wantErrno(t, "a queue in use", b.srq.Destroy(), unix.EBUSY)
}

// SRQ_LIMIT_REACHED comes once when fewer requests than the limit wait, and again
// when it is armed again (ibv_modify_srq(3)).
func TestSRQLimit(t *testing.T) {
	a := start(t, nil).open(t, shape{})
	b := start(t, nil).open(t, shape{srq: 16})
	connect(a, b, verbs.RCConfig{})
	send := func() {
		t.Helper()
		a.do(verbs.SendWR{Opcode: verbs.WRSend, SGList: []verbs.SGE{a.mr.SGE(0, 1)}})
		if wc := b.next(); wc.Status != verbs.WCSuccess {
			t.Fatal(wc.Status)
		}
	}
	for i := range uint64(8) {
		b.recv(i, 0, 64)
	}
	wantErrno(t, "a limit over max_wr", b.srq.Modify(verbs.SRQAttr{Limit: 1000}, verbs.SRQLimitMask), unix.EINVAL)
	for range 2 {
		must(t, b.srq.Modify(verbs.SRQAttr{Limit: 7}, verbs.SRQLimitMask))
		if q, err := b.srq.Query(); err != nil || q.Limit != 7 || q.MaxWR < 16 || q.MaxSGE < 2 {
			t.Errorf("query: %+v, %v", q, err)
		}
		send() // 7 wait: not below
		if ev, err := b.dev.TryAsyncEvent(); !errors.Is(err, unix.EAGAIN) {
			t.Errorf("with 7 of a limit of 7: %+v, %v", ev, err)
		}
		send()
		ev, err := b.dev.AsyncEvent(within(t))
		if err != nil || ev.Type != verbs.EventSRQLimitReached || ev.SRQ != b.srq {
			t.Fatalf("event %+v, %v; want SRQ_LIMIT_REACHED", ev, err)
		}
		ev.Ack()
		send()
		if ev, err := b.dev.TryAsyncEvent(); !errors.Is(err, unix.EAGAIN) {
			t.Errorf("a second event: %+v, %v", ev, err)
		}
		if q, err := b.srq.Query(); err != nil || q.Limit != 0 {
			t.Errorf("after the event: %+v, %v", q, err)
		}
		for i := range uint64(3) {
			b.recv(i, 0, 64)
		}
	}
}

// A resize keeps what waits and the order; a queue that is empty makes the sender
// wait, and goes on with the next post.
func TestSRQResizeAndEmpty(t *testing.T) {
	a := start(t, nil).open(t, shape{})
	b := start(t, nil).open(t, shape{srq: 4})
	connect(a, b, verbs.RCConfig{})
	attr, err := b.srq.Query()
	must(t, err)
	for i := range uint64(attr.MaxWR) {
		b.recv(i, 0, 64)
	}
	_, err = b.srq.PostRecv(verbs.RecvWR{})
	wantErrno(t, "a full queue", err, unix.ENOMEM)
	wantErrno(t, "fewer than wait", b.srq.Modify(verbs.SRQAttr{MaxWR: 1}, verbs.SRQMaxWRMask), unix.EINVAL)
	must(t, b.srq.Modify(verbs.SRQAttr{MaxWR: 100}, verbs.SRQMaxWRMask))
	for i := attr.MaxWR; i < 100; i++ {
		b.recv(uint64(i), 0, 64)
	}
	wr := verbs.SendWR{Opcode: verbs.WRSend, SGList: []verbs.SGE{a.mr.SGE(0, 8)}}
	for i := range uint64(100) {
		a.do(wr)
		b.status(i, verbs.WCSuccess)
	}
	wr.Flags, wr.WRID = verbs.SendSignaled, 7
	a.post(wr)
	eventually(t, "the receiver is not ready", func() bool { return a.host.stats(t, a.qp.Num()).Stats.RNRNAKsRcvd > 0 })
	b.recv(200, 0, 64)
	a.status(7, verbs.WCSuccess)
	b.status(200, verbs.WCSuccess)
}

// A queue pair that goes to ERR leaves the shared queue's requests alone and says
// LAST_WQE_REACHED; another one takes them.
func TestSRQLastWQEReached(t *testing.T) {
	a := start(t, nil).open(t, shape{})
	b := start(t, nil).open(t, shape{srq: 16})
	first := b.qp
	other := b.newQP(8, false)
	connect(a, b, verbs.RCConfig{})
	b.recv(1, 0, 64)
	must(t, first.Modify(&verbs.QPAttr{State: verbs.StateErr}, verbs.QPStateMask))
	ev, err := b.dev.AsyncEvent(within(t))
	if err != nil || ev.Type != verbs.EventQPLastWQE || ev.QP != first {
		t.Fatalf("event %+v, %v; want LAST_WQE_REACHED", ev, err)
	}
	ev.Ack()
	b.none()
	must(t, first.Destroy())
	b.qp = other
	a.qp = a.newQP(8, false)
	connect(a, b, verbs.RCConfig{})
	a.do(verbs.SendWR{Opcode: verbs.WRSend, SGList: []verbs.SGE{a.mr.SGE(0, 8)}})
	if wc := b.status(1, verbs.WCSuccess); wc.QPN != other.Num() {
		t.Errorf("taken by %v", wc.QPN)
	}
	must(t, other.Destroy())
	must(t, b.srq.Destroy())
	_, err = b.srq.PostRecv(verbs.RecvWR{})
	wantErrno(t, "a destroyed queue", err, unix.EINVAL)
}
