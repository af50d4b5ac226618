package cm_test

import (
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"github.com/softroce/softroce/internal/cm"
	"github.com/softroce/softroce/internal/simnet"
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/qpstate"
)

const (
	simHosts    = 3
	simConnects = 8
)

// simHost is a host of the simulation and what its programs know.
type simHost struct {
	*cm.Machine
	number int
	ids    map[cm.CommID]*simConn
}

// simConn is an id as its program sees it.
type simConn struct {
	host   *simHost
	id     cm.CommID
	token  uint32 // names the attempt on both sides
	active bool
	ud     bool
	up     bool // it came up
	over   bool // it ended, or never came up
	gone   bool // destroyed
}

// attempt is a connection that a program asked for.
type attempt struct {
	active  *simConn
	passive []*simConn // more than one when the network brought an old REQ again
}

// sim is the world: hosts, programs, and a bad network of MADs.
type sim struct {
	t        *testing.T
	seed     uint64
	rand     simnet.Rand
	net      *simnet.Net
	hosts    [simHosts]*simHost
	agenda   []simTask
	attempts map[uint32]*attempt
	nextQPN  bth.QPN
	calm     bool // programs neither refuse nor go
	kinds    map[cm.EventKind]int
}

// simTask is something that a program does at a time.
type simTask struct {
	at time.Time
	do func()
}

func simAddr(host int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, byte(host + 1)}) }

func newSim(t *testing.T, seed uint64, kinds map[cm.EventKind]int) *sim {
	s := &sim{t: t, seed: seed, rand: simnet.NewRand(seed), attempts: map[uint32]*attempt{}, nextQPN: 16, kinds: kinds}
	cfg := simnet.Config{
		Seed: seed, Loss: 0.2, Duplicate: 0.1, Reorder: 0.1, Delay: time.Millisecond, Jitter: 3 * time.Millisecond,
		ReorderDelay: 200 * time.Millisecond,
	}
	if seed%4 == 0 {
		cfg.ReorderDelay = 20 * time.Second // longer than time-wait and than each timeout
	}
	s.net = simnet.New(cfg, start)
	for i := range s.hosts {
		m, err := cm.New(cm.Config{GUID: uint64(i + 1), Secret: [16]byte{byte(i), byte(seed), byte(seed >> 8)}})
		ok(t, err)
		s.hosts[i] = &simHost{m, i, map[cm.CommID]*simConn{}}
		for _, a := range []cm.ListenArgs{
			{Type: qpstate.RC, Service: cm.IPService(cm.SpaceTCP, port)},
			{Type: qpstate.UD, Service: cm.IPService(cm.SpaceUDP, port)},
		} {
			must[cm.ListenerID](t)(m.Listen(a))
		}
	}
	return s
}

func (s *sim) now() time.Time { return s.net.Now() }

func (s *sim) after(d time.Duration, do func()) {
	s.agenda = append(s.agenda, simTask{s.now().Add(d), do})
}

// some is a random time below d.
func (s *sim) some(d time.Duration) time.Duration { return time.Duration(s.rand.IntN(int(d))) }

// run goes on until nobody waits for anything.
func (s *sim) run() {
	limit := s.now().Add(2 * time.Hour)
	for {
		s.settle()
		next, found := s.net.Next()
		consider := func(t time.Time) {
			if !t.IsZero() && (!found || t.Before(next)) {
				next, found = t, true
			}
		}
		for _, h := range s.hosts {
			consider(h.NextTimeout())
		}
		for _, task := range s.agenda {
			consider(task.at)
		}
		if !found {
			return
		}
		if next.After(limit) {
			s.t.Fatalf("seed %d: not at rest after two hours", s.seed)
		}
		s.net.Advance(next)
		for _, h := range s.hosts {
			h.HandleTimeout(s.now())
		}
		for d, ok := s.net.Take(); ok; d, ok = s.net.Take() {
			s.hosts[d.To].HandleMAD(s.now(), path(simAddr(d.To), simAddr(d.From)), d.Data)
		}
		for i := 0; i < len(s.agenda); i++ {
			if task := s.agenda[i]; !task.at.After(s.now()) {
				s.agenda = append(s.agenda[:i], s.agenda[i+1:]...)
				task.do()
				i = -1
			}
		}
	}
}

// settle takes what the machines have to say.
func (s *sim) settle() {
	for _, h := range s.hosts {
		for ev, ok := h.PollEvent(); ok; ev, ok = h.PollEvent() {
			s.kinds[ev.Kind]++
			s.event(h, ev)
		}
		for to, mad, ok := h.PollSend(); ok; to, mad, ok = h.PollSend() {
			s.net.Send(h.number, int(to.Remote[15])-1, mad)
		}
	}
}

// connect makes a program ask.
func (s *sim) connect() {
	h := s.hosts[s.rand.IntN(simHosts)]
	to := s.rand.IntN(simHosts) // may be itself
	s.nextQPN++
	token := uint32(s.nextQPN)
	args := cm.ConnectArgs{
		Type: qpstate.RC, Service: cm.IPService(cm.SpaceTCP, port),
		CMA:  cm.CMA{Src: netip.AddrPortFrom(simAddr(h.number), 1000), Dst: simAddr(to)},
		Path: path(simAddr(h.number), simAddr(to)), MTU: bth.MTU1024,
		Param: cm.Param{QPN: s.nextQPN}, Private: binary.BigEndian.AppendUint32(nil, token),
	}
	c := &simConn{host: h, token: token, active: true}
	if s.rand.Chance(.2) {
		c.ud = true
		args.Type, args.Service = qpstate.UD, cm.IPService(cm.SpaceUDP, port)
	}
	c.id = must[cm.CommID](s.t)(h.Connect(s.now(), args))
	h.ids[c.id] = c
	s.attempts[token] = &attempt{active: c}
	if !s.calm && s.rand.Chance(.1) {
		s.after(s.some(3*time.Second), func() { s.destroy(c) })
	}
}

// destroy ends a program's use of an id.
func (s *sim) destroy(c *simConn) {
	if c.gone {
		return
	}
	c.gone, c.over = true, true
	ok(s.t, c.host.Destroy(s.now(), c.id))
	delete(c.host.ids, c.id)
}

// state is what an id is doing, Idle when it is gone.
func (c *simConn) state() cm.State {
	info, _ := c.host.Info(c.id)
	return info.State
}

// event is how programs react.
func (s *sim) event(h *simHost, ev cm.Event) {
	if ev.Kind == cm.ConnectRequest {
		s.requested(h, ev)
		return
	}
	c := h.ids[ev.ID]
	if c == nil {
		s.t.Fatalf("seed %d: event %v of an id that is not there", s.seed, ev.Kind)
	}
	switch ev.Kind {
	case cm.ConnectRequest:
	case cm.ConnectResponse:
		s.after(s.delay(), func() { s.answerResponse(c) })
	case cm.Established:
		c.up = true
		if c.ud {
			s.destroy(c)
		}
	case cm.Rejected, cm.Unreachable:
		c.over = true
		s.destroy(c)
	case cm.Disconnected:
		c.over = true
		ok(s.t, h.Disconnect(s.now(), c.id, nil))
	case cm.TimewaitExit:
		s.destroy(c)
	}
}

// delay is how long a program thinks: rarely longer than a peer waits.
func (s *sim) delay() time.Duration {
	if s.rand.Chance(.1) {
		return s.some(20 * time.Second)
	}
	return s.some(20 * time.Millisecond)
}

// requested is a program that gets a request.
func (s *sim) requested(h *simHost, ev cm.Event) {
	c := &simConn{host: h, id: ev.ID, token: binary.BigEndian.Uint32(ev.Private[:]), ud: ev.Type == qpstate.UD}
	a := s.attempts[c.token]
	if a == nil {
		s.t.Fatalf("seed %d: a request that nobody made", s.seed)
	}
	a.passive = append(a.passive, c)
	h.ids[c.id] = c
	s.after(s.delay(), func() {
		switch st := c.state(); {
		case c.gone || st != cm.ReqRcvd && st != cm.SIDRReqRcvd:
		case !s.calm && s.rand.Chance(.1):
			s.destroy(c)
		case !s.calm && s.rand.Chance(.15):
			ok(s.t, h.Reject(s.now(), c.id, cm.RejConsumer, nil))
			s.destroy(c)
		default:
			s.accept(c)
		}
	})
}

func (s *sim) accept(c *simConn) {
	s.nextQPN++
	ok(s.t, c.host.Accept(s.now(), c.id, cm.Param{QPN: s.nextQPN, QKey: 1}, nil))
	switch {
	case c.ud:
		c.up = true
		s.destroy(c)
	case !s.calm && s.rand.Chance(.1):
		s.after(s.some(5*time.Second), func() { s.destroy(c) })
	}
}

// answerResponse is a program whose connection was granted.
func (s *sim) answerResponse(c *simConn) {
	switch {
	case c.gone || c.state() != cm.RepRcvd:
	case !s.calm && s.rand.Chance(.05):
		s.destroy(c)
	case !s.calm && s.rand.Chance(.05):
		ok(s.t, c.host.Reject(s.now(), c.id, cm.RejConsumer, nil))
		s.destroy(c)
	default:
		ok(s.t, c.host.Establish(s.now(), c.id, nil))
		c.up = true
		if s.rand.Chance(.2) { // its first packet is there before the RTU
			for _, o := range s.attempts[c.token].passive {
				if !o.gone && o.state() == cm.RepSent {
					ok(s.t, o.host.CommEstablished(s.now(), o.id))
				}
			}
		}
	}
}

// outcomes checks that both sides of every attempt agree.
func (s *sim) outcomes() (up int) {
	for token, a := range s.attempts {
		there := 0
		for _, c := range a.passive {
			if !c.gone && c.state() == cm.Connected {
				there++
			}
			if !c.gone && c.state() != cm.Connected {
				s.t.Errorf("seed %d: attempt %d: the passive side is in %v", s.seed, token, c.state())
			}
		}
		here := 0
		if !a.active.gone {
			if here = 1; a.active.state() != cm.Connected {
				s.t.Errorf("seed %d: attempt %d: the active side is in %v", s.seed, token, a.active.state())
			}
		}
		if here != there {
			s.t.Errorf("seed %d: attempt %d is up on the active side %d times, on the passive %d", s.seed, token, here, there)
		}
		if s.calm && (!a.active.up || len(a.passive) == 0) {
			s.t.Errorf("seed %d: attempt %d did not come up", s.seed, token)
		}
		up += here
	}
	return up
}

// end disconnects all, from either side or both at once, or by going.
func (s *sim) end() {
	for _, h := range s.hosts {
		for _, id := range h.IDs() {
			c := h.ids[id]
			part := s.rand.IntN(4)
			s.after(s.some(time.Second), func() {
				switch {
				case c.gone:
				case part == 0:
					s.destroy(c)
				case part == 1 || c.active:
					ok(s.t, h.Disconnect(s.now(), c.id, nil))
				}
			})
		}
	}
}

// TestSimulation: 1,000 worlds. Every connection comes up on both sides or on
// none, and when all have ended nothing is left.
func TestSimulation(t *testing.T) {
	seeds := uint64(1000)
	if testing.Short() {
		seeds = 100
	}
	kinds := map[cm.EventKind]int{}
	up, attempts := 0, 0
	for seed := range seeds {
		s := newSim(t, seed, kinds)
		s.calm = seed%5 == 1
		for range simConnects {
			s.after(s.some(2*time.Second), s.connect)
		}
		s.run()
		up += s.outcomes()
		attempts += len(s.attempts)
		s.end()
		s.run()
		for _, h := range s.hosts {
			if n := h.Counters(); n.Conns != 0 || n.HalfOpen != 0 || cm.TableSizes(h.Machine) != 0 || len(h.ids) != 0 {
				t.Errorf("seed %d: host %d: left: %d ids, %d half open, %d table entries, %d at programs",
					seed, h.number, n.Conns, n.HalfOpen, cm.TableSizes(h.Machine), len(h.ids))
				for _, id := range h.IDs() {
					info, _ := h.Info(id)
					t.Errorf("%+v", info)
				}
			}
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	t.Logf("%d attempts, %d connections up, events %v", attempts, up, kinds)
	if up < attempts/3 {
		t.Errorf("only %d of %d attempts came up", up, attempts)
	}
	for _, k := range []cm.EventKind{cm.ConnectRequest, cm.ConnectResponse, cm.Rejected, cm.Established, cm.Disconnected, cm.TimewaitExit} {
		if kinds[k] == 0 {
			t.Errorf("no event %v in all", k)
		}
	}
}

// TestPartition: a network that breaks leaves no id and no timer behind, whenever
// it breaks.
func TestPartition(t *testing.T) {
	kinds := map[cm.EventKind]int{}
	for seed := range uint64(200) {
		s := newSim(t, seed, kinds)
		for range simConnects {
			s.after(s.some(2*time.Second), s.connect)
		}
		s.after(s.some(2*time.Second), func() { s.net.Partition(0, 1); s.net.Partition(1, 2) })
		if seed%2 == 0 {
			s.after(s.some(2*time.Minute), func() { s.net.Heal(0, 1); s.net.Heal(1, 2) })
		}
		s.run()
		s.end()
		s.run()
		for _, h := range s.hosts {
			for _, id := range h.IDs() { // those whose peer is gone wait for their program
				s.destroy(h.ids[id])
			}
		}
		s.run()
		for _, h := range s.hosts {
			if n := h.Counters(); n.Conns != 0 || n.HalfOpen != 0 || cm.TableSizes(h.Machine) != 0 {
				t.Fatalf("seed %d: host %d: left: %d ids, %d half open, %d table entries", seed, h.number, n.Conns, n.HalfOpen, cm.TableSizes(h.Machine))
			}
		}
	}
	if kinds[cm.Unreachable] == 0 {
		t.Error("no peer was ever unreachable")
	}
}
