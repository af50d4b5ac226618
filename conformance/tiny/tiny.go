// Package tiny is a RoCEv2 endpoint for the tests of the conformance suite: small, slow and simple, in memory, and breakable
// on purpose. A Mutation names one thing that it does wrong; the suite has to find it and name it.
//
// It owns its own reading of the specification, written apart from pkg/transport so that the suite is not tried against the
// engine that it is to judge. It serves the agent's requests in the process and the wire by a wire.Link. It refuses sockets,
// speed, and everything that no statement of the suite asks for.
package tiny

import (
	"net/netip"
	"sync"
	"time"

	"github.com/softroce/softroce/conformance/agent"
	"github.com/softroce/softroce/conformance/wire"
	"github.com/softroce/softroce/pkg/bth"
)

// Target is an endpoint: the answering end of a link, and the agent on its side.
type Target struct {
	link wire.Link
	m    Mutation
	// without are the features that the target does not have.
	without []string
	done    chan struct{} // closed when the goroutine that receives has ended

	mu      sync.Mutex
	closed  bool
	changed chan struct{} // closed and made anew when something happened that an agent's request may wait for
	timer   *time.Timer
	ids     int // the last handle
	keys    uint32
	addrs   uint64
	qpns    bth.QPN
	pds     map[int]bool
	mrs     map[int]*region
	mws     map[int]*window
	cqs     map[int]*cq
	srqs    map[int]*srq
	qps     map[int]*qp
	ahs     map[int]*addressHandle
	byNum   map[bth.QPN]*qp
	groups  map[netip.Addr][]*qp
	events  []agent.Event
	counts  map[string]uint64
	floods  int
	// lastAtomic is the queue pair that executed the last atomic, for a break.
	lastAtomic *qp
}

// New starts a target on its end of a link, correct but for m, and without some features (agent.Feature...). The zero
// Mutation breaks nothing.
func New(link wire.Link, m Mutation, without ...string) *Target {
	if m == "flush-acked-without-support" {
		without = append(without, agent.FeatureFlush)
	}
	t := &Target{link: link, m: m, without: without, done: make(chan struct{}), changed: make(chan struct{}), qpns: 0x10}
	t.timer = time.AfterFunc(time.Hour, t.tick)
	t.reset()
	go t.receive()
	return t
}

// Close ends the target and its end of the link.
func (t *Target) Close() error {
	t.mu.Lock()
	t.closed = true
	t.timer.Stop()
	t.wake()
	t.mu.Unlock()
	err := t.link.Close()
	<-t.done
	return err
}

// broken reports whether the target is to do the named thing wrong.
func (t *Target) broken(m Mutation) bool { return t.m == m }

// reset forgets every object, as when an agent's connection ends.
func (t *Target) reset() {
	t.pds, t.mrs, t.mws = map[int]bool{}, map[int]*region{}, map[int]*window{}
	t.cqs, t.srqs, t.qps, t.ahs = map[int]*cq{}, map[int]*srq{}, map[int]*qp{}, map[int]*addressHandle{}
	t.byNum, t.groups, t.counts = map[bth.QPN]*qp{}, map[netip.Addr][]*qp{}, map[string]uint64{}
	t.events = nil
}

// handle gives out a number for an object.
func (t *Target) handle() int {
	t.ids++
	return t.ids
}

// wake lets everyone look again who waits for a completion or an event.
func (t *Target) wake() {
	close(t.changed)
	t.changed = make(chan struct{})
}

// event raises an asynchronous event.
func (t *Target) event(e agent.Event) {
	if t.broken("no-async-events") {
		return
	}
	t.events = append(t.events, e)
	t.wake()
}

// receive is the goroutine that reads the link.
func (t *Target) receive() {
	defer close(t.done)
	for {
		f, ok, err := t.link.Receive(time.Now().Add(50 * time.Millisecond))
		t.mu.Lock()
		if t.closed || err != nil {
			t.mu.Unlock()
			return
		}
		if ok {
			t.frame(f)
			t.rearm()
		}
		t.mu.Unlock()
	}
}

// tick runs what is due.
func (t *Target) tick() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return
	}
	now := time.Now()
	for _, q := range t.qps {
		q.expire(now)
	}
	t.rearm()
}

// rearm sets the timer to the next deadline of any queue pair.
func (t *Target) rearm() {
	var next time.Time
	for _, q := range t.qps {
		for _, d := range []time.Time{q.ackBy, q.rnrUntil} {
			if !d.IsZero() && (next.IsZero() || d.Before(next)) {
				next = d
			}
		}
	}
	if !next.IsZero() {
		t.timer.Reset(time.Until(next))
	}
}

// portMTU is the largest path MTU that fits the link.
func (t *Target) portMTU() int {
	for m := bth.MTU4096; m > bth.MTU256; m-- {
		if m.Bytes()+80 <= t.link.MTU() {
			return m.Bytes()
		}
	}
	return bth.MTU256.Bytes()
}
