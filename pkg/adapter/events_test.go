package adapter_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/pkg/verbs"
)

// collect is the loop of a program that sleeps on its channel: get, ack, arm,
// poll until empty. It ends after n completions, or with the error that took
// one away.
func collect(ctx context.Context, p *program, n int, solicitedOnly bool, each func(verbs.WC) error) error {
	if err := p.cq.ReqNotify(solicitedOnly); err != nil {
		return err
	}
	var wcs [8]verbs.WC
	for {
		// Completions that were there before the queue was armed raise none.
		for {
			k, err := p.cq.Poll(wcs[:])
			if err != nil {
				return err
			}
			for _, wc := range wcs[:k] {
				if wc.Status != verbs.WCSuccess {
					return fmt.Errorf("completion %d: %v", wc.WRID, wc.Status)
				}
				if err := each(wc); err != nil {
					return err
				}
				n--
			}
			if k == 0 {
				break
			}
		}
		if n <= 0 {
			return nil
		}
		cq, err := p.ch.Get(ctx)
		if err != nil {
			return fmt.Errorf("%d completions missing: %w", n, err)
		}
		if cq != p.cq {
			return errors.New("an event of another queue")
		}
		cq.AckEvents(1)
		if err := cq.ReqNotify(solicitedOnly); err != nil {
			return err
		}
	}
}

// No completion event is lost under a storm: a producer with a window and a
// consumer, both asleep between events, for some thousand messages.
func TestEventsOfAStorm(t *testing.T) {
	const total, window = 4000, 16
	a, b := pair(t, shape{events: true}, verbs.RCConfig{}, nil)
	ctx := within(t)
	for i := range uint64(window) {
		b.recv(i, int(i)*8, 8)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		next := uint64(0)
		err := collect(ctx, b, total, false, func(wc verbs.WC) error {
			if want := next % window; wc.WRID != want {
				return fmt.Errorf("receive %d completed, want %d", wc.WRID, want)
			}
			next++
			_, err := b.qp.PostRecv(verbs.RecvWR{WRID: wc.WRID, SGList: []verbs.SGE{b.mr.SGE(int(wc.WRID)*8, 8)}})
			return err
		})
		if err != nil {
			t.Errorf("consumer: %v", err)
		}
	})
	wg.Go(func() {
		sent := uint64(0)
		send := func() error {
			_, err := a.qp.PostSend(verbs.SendWR{
				WRID: sent, Opcode: verbs.WRSend, Flags: verbs.SendSignaled, SGList: []verbs.SGE{a.mr.SGE(0, 8)},
			})
			sent++
			return err
		}
		for range window {
			if err := send(); err != nil {
				t.Errorf("producer: %v", err)
				return
			}
		}
		next := uint64(0)
		err := collect(ctx, a, total, false, func(wc verbs.WC) error {
			if wc.WRID != next {
				return fmt.Errorf("send %d completed, want %d", wc.WRID, next)
			}
			if next++; sent < total {
				return send()
			}
			return nil
		})
		if err != nil {
			t.Errorf("producer: %v", err)
		}
	})
	wg.Wait()
	for _, h := range []*host{a.host, b.host} {
		if w := h.workers().Stats; w.EventsLost != 0 || w.CQEvents == 0 {
			t.Errorf("%d events written, %d lost", w.CQEvents, w.EventsLost)
		}
	}
}

// Armed for solicited completions only: SENDs without the mark wake nobody,
// one with it does, a failure does.
func TestSolicitedOnly(t *testing.T) {
	a, b := pair(t, shape{events: true}, verbs.RCConfig{}, nil)
	for i := range uint64(6) {
		b.recv(i, 0, 8)
	}
	must(t, b.cq.ReqNotify(true))
	send := verbs.SendWR{Opcode: verbs.WRSend, SGList: []verbs.SGE{a.mr.SGE(0, 8)}}
	for range 3 {
		a.do(send) // acknowledged, so the receives are complete
	}
	for i := range uint64(3) {
		b.status(i, verbs.WCSuccess)
	}
	if n := b.host.workers().Stats.CQEvents; n != 0 {
		t.Errorf("%d events of unsolicited completions", n)
	}
	send.Flags = verbs.SendSolicited
	a.do(send)
	event := func() {
		t.Helper()
		cq, err := b.ch.Get(within(t))
		must(t, err)
		if cq != b.cq {
			t.Error("an event of another queue")
		}
		cq.AckEvents(1)
	}
	event()
	b.status(3, verbs.WCSuccess)
	must(t, b.cq.ReqNotify(true))
	must(t, b.qp.Modify(&verbs.QPAttr{State: verbs.StateErr}, verbs.QPStateMask))
	event()
	b.status(4, verbs.WCWRFlushErr)
	b.status(5, verbs.WCWRFlushErr)
	if n := b.host.workers().Stats.CQEvents; n != 2 {
		t.Errorf("%d events, want 2", n)
	}
	// Nothing more: a Get ends with its context only.
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := b.ch.Get(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Get: %v, want the context's error", err)
	}
}

// A queue with unread events is destroyed: they are gone, and the channel
// serves the next queue. One that has returned events waits for their ack.
func TestDestroyCQWithEvents(t *testing.T) {
	a, b := pair(t, shape{events: true}, verbs.RCConfig{}, nil)
	must(t, a.cq.ReqNotify(false))
	a.do(a.write(b, 0, 0, 8)) // the event stays unread
	must(t, a.qp.Destroy())
	must(t, a.cq.Destroy())
	if err := b.ch.Destroy(); !errors.Is(err, unix.EBUSY) {
		t.Errorf("destroy of a channel in use: %v, want EBUSY", err)
	}
	if err := b.cq.Destroy(); !errors.Is(err, unix.EBUSY) {
		t.Errorf("destroy of a queue in use: %v, want EBUSY", err)
	}
	var err error
	a.cq, err = a.dev.CreateCQ(16, a.ch, 0)
	must(t, err)
	a.qp = a.newQP(4, false)
	c := a.host.openOn(t, a.dev, shape{})
	connect(a, c, verbs.RCConfig{})
	must(t, a.cq.ReqNotify(false))
	a.do(a.write(c, 0, 0, 8))
	cq, err := a.ch.Get(within(t))
	must(t, err)
	if cq != a.cq {
		t.Fatal("the channel gives an event of the queue that was destroyed")
	}
	must(t, a.qp.Destroy())
	done := make(chan error)
	go func() { done <- cq.Destroy() }()
	eventually(t, "the queue is on its way out", func() bool { _, err := cq.Poll(make([]verbs.WC, 1)); return err != nil })
	select {
	case err := <-done:
		t.Errorf("destroyed with an event not acknowledged: %v", err)
	default:
	}
	cq.AckEvents(1)
	must(t, <-done)
	must(t, a.ch.Destroy())
}

// A completion queue that overflows: CQ_ERR, its queue pairs go to ERR, told
// by an event each; the neighbour on the adapter goes on.
func TestCQOverflow(t *testing.T) {
	h := start(t, nil)
	a, b := h.open(t, shape{cqe: 4}), start(t, nil).open(t, shape{})
	x, y := h.open(t, shape{}), b.host.open(t, shape{})
	connect(a, b, verbs.RCConfig{})
	connect(x, y, verbs.RCConfig{})
	n := a.cq.Cap() + 1
	if n > 32 {
		t.Fatalf("a queue of 4 was made with %d", n-1)
	}
	wr := a.write(b, 0, 0, 8)
	wr.Flags = verbs.SendSignaled
	for range n {
		a.post(wr)
	}
	ctx := within(t)
	told := map[verbs.EventType]int{}
	for told[verbs.EventCQErr] == 0 || told[verbs.EventQPFatal] == 0 {
		ev, err := a.dev.AsyncEvent(ctx)
		if err != nil {
			t.Fatalf("told of %v only: %v", told, err)
		}
		told[ev.Type]++
		switch ev.Type { //nolint:exhaustive // the others would fail the wait (2026-11)
		case verbs.EventCQErr:
			if ev.CQ != a.cq {
				t.Error("CQ_ERR of another queue")
			}
		case verbs.EventQPFatal:
			if ev.QP != a.qp {
				t.Error("QP_FATAL of another queue pair")
			}
		}
	}
	if q, err := a.qp.Query(); err != nil || q.State != verbs.StateErr {
		t.Errorf("state %v, %v; want ERR", q.State, err)
	}
	if got := h.workers().Stats.CQOverflows; got != 1 {
		t.Errorf("%d overflows counted, want 1", got)
	}
	// What was put before can be polled.
	for range a.cq.Cap() {
		a.status(0, verbs.WCSuccess)
	}
	alive(x, y)
}
