package soak

import (
	"fmt"
	"time"

	"github.com/softroce/softroce/internal/simnet"
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/cq"
	"github.com/softroce/softroce/pkg/qpstate"
	"github.com/softroce/softroce/pkg/transport"
)

var start = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

const (
	udpPort  = 0xC123
	lookGap  = time.Second // of virtual time, between two looks for what is stuck
	maxSteps = 1 << 28
)

// world is all of a seed.
type world struct {
	cfg      Config
	plan     plan
	rand     simnet.Rand
	net      *simnet.Net
	alarms   alarms
	adapters []*adapter
	conns    []*conn
	ports    []*port
	senders  map[uint32]*sender // by queue pair number
	log      faultLog
	result   Result
	dirty    []*completions    // that have something
	ahead    []simnet.Datagram // taken from the network, not handled
	toPost   int               // requests that may still be posted
	nextQPN  bth.QPN
	err      error

	parsed transport.Packet
	buf    [transport.TransmitSpace]byte
	row    [runBuffer]byte
	lead   [bth.BTHLen]byte
	wc     cq.WC
	lent   [bth.BTHLen + bth.ICRCLen]byte
}

// Run lives through a world. The error says what the oracle found wrong, and what
// went before.
func Run(c Config) (Result, error) {
	w := newWorld(c)
	w.live()
	w.result.Virtual = w.now().Sub(start)
	w.result.Net = w.net.Stats()
	if w.err != nil {
		return w.result, w.log.wrap(w.err, w.plan.String())
	}
	return w.result, nil
}

func newWorld(c Config) *world {
	w := &world{cfg: c, rand: simnet.NewRand(c.Seed ^ 0x50AC), nextQPN: 0x100, senders: make(map[uint32]*sender)}
	w.plan = newPlan(c, &w.rand)
	w.log.world, w.log.full = w, make(map[[2]int]time.Time)
	n := w.plan.net
	n.OnFault = w.log.packet
	w.net = simnet.New(n, start)
	w.toPost = w.plan.requests
	for i := range w.plan.adapters {
		w.adapters = append(w.adapters, newAdapter(w, i))
	}
	anybody := func() *adapter { return w.adapters[w.rand.IntN(w.plan.adapters)] }
	for range w.plan.srqs {
		a := anybody()
		a.srqs = append(a.srqs, newSRQ(a))
	}
	for i := range w.plan.rc + w.plan.uc {
		typ := qpstate.RC
		if i >= w.plan.rc {
			typ = qpstate.UC
		}
		w.conns = append(w.conns, newConn(w, i, typ, anybody(), anybody()))
	}
	for i := range w.plan.ud {
		w.ports = append(w.ports, newPort(w, i, anybody()))
	}
	for _, a := range w.adapters {
		a.boot()
	}
	for _, p := range w.ports {
		p.begin()
	}
	for _, c := range w.conns {
		c.connect()
	}
	w.planTrouble()
	w.after(lookGap, w.look)
	return w
}

func (w *world) now() time.Time { return w.net.Now() }

// after has something done at a time; a time that is over means now.
func (w *world) after(d time.Duration, do func()) {
	w.alarms.push(alarm{at: w.now().Add(d), do: do})
}

// upTo draws a time.
func (w *world) upTo(d time.Duration) time.Duration { return time.Duration(w.rand.IntN(int(d) + 1)) }

// chance is true so many times in a thousand.
func (w *world) chance(perMille int) bool { return w.rand.IntN(1000) < perMille }

func (w *world) fail(format string, args ...any) {
	if w.err == nil {
		w.err = fmt.Errorf("at %v: "+format, append([]any{w.now().Sub(start)}, args...)...)
	}
}

func (w *world) trace(format string, args ...any) {
	if w.cfg.Trace != nil {
		w.cfg.Trace(fmt.Sprintf("%12v ", w.now().Sub(start)) + fmt.Sprintf(format, args...))
	}
}

// live drives the world until everything posted is done and nothing is on its
// way, then looks at what is left.
func (w *world) live() {
	for steps := 0; w.err == nil && !w.over(); steps++ {
		for _, a := range w.adapters {
			a.transmit()
		}
		w.pass()
		if steps > maxSteps {
			w.fail("endless: %d steps", steps)
		}
	}
	if w.err == nil {
		w.end()
	}
}

// pass moves the clock to what is due next, and does that.
func (w *world) pass() {
	at, ok := w.alarms.next()
	if t, flying := w.net.Next(); flying && (!ok || t.Before(at)) {
		at, ok = t, true
	}
	if !ok {
		w.fail("stuck: nothing is due")
		return
	}
	w.net.Advance(at)
	w.deliver()
	for w.err == nil {
		at, ok := w.alarms.next()
		if !ok || at.After(w.now()) {
			return
		}
		x := w.alarms.pop()
		if x.q != nil {
			x.q.due(x.at)
		} else {
			x.do()
		}
		w.harvest()
	}
}

// over says whether everything is done.
func (w *world) over() bool {
	if w.toPost > 0 || w.net.Flying() > 0 {
		return false
	}
	for _, c := range w.conns {
		if !c.idle() {
			return false
		}
	}
	for _, p := range w.ports {
		if !p.idle() {
			return false
		}
	}
	return true
}

// look finds what is stuck.
func (w *world) look() {
	for _, c := range w.conns {
		c.look()
	}
	for _, p := range w.ports {
		p.look()
	}
	w.after(lookGap, w.look)
}

// end closes everything and looks at what is left.
func (w *world) end() {
	for _, c := range w.conns {
		c.finish()
	}
	for _, p := range w.ports {
		if p.q != nil {
			p.kill()
		}
	}
	for _, a := range w.adapters {
		a.finish()
	}
}

// harvest hands completions to the queue pairs that they are of, in the order in
// which they came.
func (w *world) harvest() {
	for len(w.dirty) > 0 {
		c := w.dirty[0]
		w.dirty = w.dirty[1:]
		for i := 0; i < len(c.wcs); i++ { // more may come while they are looked at
			w.wc = c.wcs[i]
			wc := &w.wc
			q := c.a.queues[wc.QPN]
			if q == nil {
				w.fail("adapter %d: a completion of queue pair %v, which is not there: %v", c.a.index, wc.QPN, wc)
				return
			}
			w.trace("%v %s", q, wcText(wc))
			w.result.Completions++
			if c.isRecv[i] {
				q.user.recvDone(wc, c.solicited[i])
			} else {
				q.user.sendDone(wc)
			}
			if w.err != nil {
				return
			}
		}
		c.clear()
	}
}
