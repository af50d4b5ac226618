package nic

import (
	"testing"

	"github.com/softroce/softroce/internal/uapi"
	"github.com/softroce/softroce/pkg/qpstate"
)

// Requests of programs that come one behind the other, as fast as they are
// answered, take a turn each: packets and doorbells are looked at between them.
func TestCommandsLeaveTheTurn(t *testing.T) {
	a := startAdapter(t, func(c *Config) { c.Workers = 1 })
	w := a.workers[0]
	const commands = 100
	turns, left, done := map[uint64]bool{}, commands, make(chan struct{})
	var next func()
	next = func() {
		turns[w.stats.Turns] = true
		if left--; left == 0 {
			close(done)
			return
		}
		w.post(next)
	}
	w.post(next)
	<-done
	if len(turns) != commands {
		t.Errorf("%d commands, each posted by the one before, ran in %d turns", commands, len(turns))
	}
}

// Address handles that were destroyed while datagrams waited are freed a part at
// a time.
func TestManyAHsEndInParts(t *testing.T) {
	a := startAdapter(t, func(c *Config) { c.Workers = 1 })
	r := rawHello(t, a)
	pd := r.pd()
	m := rcRequest(pd, r.cq(8))
	m.Type = qpstate.UD
	must[uapi.CreateQPReply](r, uapi.OpCreateQP, m)
	gid, _, _ := a.gid(0)
	const handles = 4 * ahsPerCommand
	for range handles {
		must[uapi.HandleReply](r, uapi.OpCreateAH, &uapi.CreateAHRequest{PD: pd, Attr: qpstate.AHAttr{DGID: gid, IsGlobal: true, PortNum: 1}})
	}
	p, w := a.programList()[0], a.workers[0]
	p.mu.Lock()
	defer p.mu.Unlock()
	ways := &p.links[0].ahs
	w.do(func() {
		for i := range *p.ahs.places.Load() {
			if o := (*p.ahs.places.Load())[i].Load(); o != nil {
				ways.Path(o.handle, o.pd, 1)
				p.retired = append(p.retired, o)
			}
		}
	})
	// What a turn sees go, in one step.
	had, most, stop := handles, 0, false
	var look func()
	look = func() {
		most, had = max(most, had-len(ways.paths)), len(ways.paths)
		if !stop {
			w.post(look)
		}
	}
	w.post(look)
	p.sweepAHs()
	w.do(func() { stop = true })
	w.quiesce()
	if had != 0 || p.ahs.count != 0 || a.ledger.usage()[ResourceAHs] != 0 {
		t.Errorf("%d ways, %d handles left, %d booked", had, p.ahs.count, a.ledger.usage()[ResourceAHs])
	}
	if most == 0 || most > ahsPerCommand {
		t.Errorf("a turn met the end of %d handles, want %d at most", most, ahsPerCommand)
	}
}

// A listing of counters, which any program may ask for without end, does not make
// a worker look at each of the adapter's queue pairs.
func TestCountersCostNoLookAtQPs(t *testing.T) {
	a := startAdapter(t, func(c *Config) { c.Workers = 1 })
	r := rawHello(t, a)
	r.qp(r.pd(), r.cq(8))
	w := a.workers[0]
	const sentinel = 7
	w.do(func() { w.byQPN[sentinel] = &qp{} }) // has no engine: who looks at it ends the worker
	got := must[uapi.ListCountersReply](r, uapi.OpListCounters, nil).Counters
	w.do(func() { delete(w.byQPN, sentinel) })
	if len(got) < len(workerRows)+len(controlRows) || got[0].Name != workerRows[0].name {
		t.Errorf("the listing has %d counters", len(got))
	}
	if n := a.Snapshot().Workers[0].QPs[qpstate.Reset]; n != 1 {
		t.Errorf("%d queue pairs in RESET, want one", n)
	}
}

// A queue pair that sends little has its turn before those that sent much in
// their last, however many of them wait; among its like each waits its turn, and
// nobody is on a list twice.
func TestFewBytesGoFirst(t *testing.T) {
	var l active
	bulk := []*qp{{bulk: true}, {bulk: true}, {bulk: true}}
	few := []*qp{{}, {}}
	for _, q := range []*qp{bulk[0], bulk[1], few[0], bulk[2], few[1], bulk[0], few[0]} {
		l.push(q)
	}
	l.push(&qp{removed: true})
	for i, want := range []struct {
		from *qpList
		q    *qp
	}{{&l.few, few[0]}, {&l.few, few[1]}, {&l.few, nil}, {&l.bulk, bulk[0]}, {&l.bulk, bulk[1]}, {&l.bulk, bulk[2]}, {&l.bulk, nil}} {
		if l.empty() != (i >= 6) {
			t.Errorf("step %d: empty is %v", i, l.empty())
		}
		if got := want.from.pop(); got != want.q {
			t.Errorf("step %d: another queue pair's turn than expected", i)
		}
	}
}
