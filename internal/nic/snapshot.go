package nic

import (
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/qpstate"
	"github.com/softroce/softroce/pkg/transport"
)

// Aliases for those who only read a snapshot.
type (
	// EngineCounters are what the engines of a worker count.
	EngineCounters = transport.Counters
	// Verdict is what an engine did with a packet.
	Verdict = transport.Verdict
	// QPState is a queue pair's state, the index of WorkerSnapshot.QPs.
	QPState = qpstate.State
)

// NumVerdicts is the number of verdicts.
const NumVerdicts = transport.VerdictCount

// ErrnoName names an index of WorkerStats.SendErrors, "EMSGSIZE" for example;
// "other" where the errno is not known.
func ErrnoName(n int) string {
	if s := unix.ErrnoName(unix.Errno(n)); s != "" {
		return s
	}
	return "other"
}

// Snapshot is what an adapter counted and holds at one moment. Each worker's
// part is consistent in itself: it is read between two of its turns.
type Snapshot struct {
	Name     string
	Workers  []WorkerSnapshot
	Control  ControlSnapshot
	CM       CMSnapshot
	Use      []ResourceUse // one per Resource
	Programs []ProgramSnapshot
	GIDs     []bth.GID    // by index; zero: a hole
	Rules    []RuleStatus // that impair packets
	// RecvBuffer is the receive buffer of a socket in bytes, as the kernel
	// gave it.
	RecvBuffer int
}

// ControlSnapshot is what the control plane counted since the start.
type ControlSnapshot struct {
	Requests    uint64 // answered, refusals included
	Refused     uint64 // answered with an errno
	BadMessages uint64 // undecodable, or the connection ended by one
	Programs    uint64 // programs that connected
	Deaths      uint64 // programs that are gone
	Faults      uint64 // times that a program's queue pairs were ended
	AsyncEvents uint64 // async event records written
	AsyncLost   uint64 // async event records a full pipe did not take
	LinkDowns   uint64 // times that the port went down
}

// ResourceUse is the adapter's use of one resource and its limit.
type ResourceUse struct {
	Resource    Resource
	Used, Limit uint64
}

// ProgramSnapshot is what one program holds.
type ProgramSnapshot struct {
	PID   int // 0: not visible from here
	UID   uint32
	Since time.Time
	Use   []ResourceUse // of its own quota
}

// QPSnapshot is one queue pair.
type QPSnapshot struct {
	QPN     bth.QPN
	Worker  int
	PID     int
	State   qpstate.State
	DestQPN bth.QPN
	Peer    netip.Addr // the zero Addr before RTR
	Stats   transport.Stats
}

// Snapshot reads everything that an adapter counts. It waits for each worker
// to end its turn.
func (a *Adapter) Snapshot() Snapshot {
	s := Snapshot{Name: a.cfg.Name, RecvBuffer: a.group.RecvBuffer()}
	for _, w := range a.workers {
		s.Workers = append(s.Workers, w.snapshot())
	}
	s.Control = a.control.snapshot()
	s.CM = a.cmSnapshot()
	s.Use = a.ledger.use(&a.ledger.adapter)
	s.Rules = a.Impairments()
	for _, e := range a.gids.load() {
		s.GIDs = append(s.GIDs, e.gid)
	}
	for _, p := range a.programList() {
		s.Programs = append(s.Programs, ProgramSnapshot{
			PID: p.pid, UID: p.uid, Since: p.since, Use: a.ledger.use(&p.account.program),
		})
	}
	return s
}

func (c *controlStats) snapshot() ControlSnapshot {
	return ControlSnapshot{
		Requests: c.requests.Load(), Refused: c.refused.Load(), BadMessages: c.badMessages.Load(),
		Programs: c.programs.Load(), Deaths: c.deaths.Load(), Faults: c.faults.Load(),
		AsyncEvents: c.asyncEvents.Load(), AsyncLost: c.asyncLost.Load(), LinkDowns: c.linkDowns.Load(),
	}
}

// counts is a snapshot of nothing but what workers and control plane count: any
// program may ask for it as often as it likes.
func (a *Adapter) counts() Snapshot {
	s := Snapshot{Control: a.control.snapshot()}
	for _, w := range a.workers {
		var c WorkerSnapshot
		w.do(func() { c = w.counts() })
		s.Workers = append(s.Workers, c)
	}
	return s
}

func (a *Adapter) programList() []*program {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := make([]*program, 0, len(a.programs))
	for p := range a.programs {
		out = append(out, p)
	}
	return out
}

// use lists a holder's resources.
func (l *ledger) use(h *holder) []ResourceUse {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([]ResourceUse, 0, numResources)
	for r := range numResources {
		out = append(out, ResourceUse{Resource: r, Used: h.used[r], Limit: *h.quota.field(r)})
	}
	return out
}

// QPSnapshots reads every queue pair, worker by worker. With many it takes
// its time: it is for when somebody asks, not for every scrape.
func (a *Adapter) QPSnapshots() []QPSnapshot {
	var out []QPSnapshot
	for _, w := range a.workers {
		w.do(func() {
			for _, q := range w.byQPN {
				out = append(out, q.snapshot())
			}
		})
	}
	return out
}

// snapshot reads a queue pair; on its worker's goroutine.
func (q *qp) snapshot() QPSnapshot {
	var attr qpstate.Attr
	q.engine.Query(&attr)
	s := QPSnapshot{
		QPN: q.qpn, Worker: q.worker.index, PID: q.prog.pid, State: q.engine.State(),
		DestQPN: attr.DestQPN, Stats: *q.engine.Stats(),
	}
	if q.hasFlow {
		s.Peer = q.path.Dst.Addr()
	}
	return s
}
