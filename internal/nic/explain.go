package nic

import (
	"os"
	"slices"
	"sync"
	"time"

	"github.com/softroce/softroce/internal/uapi"
	"github.com/softroce/softroce/pkg/qpstate"
	"github.com/softroce/softroce/pkg/transport"
)

// Our own tuning: how many failures the adapter remembers, whose queue pairs may be
// gone, and how many stories one reply has room for.
const (
	keptFailures = 64
	maxStories   = 24
)

// failures are the queue pairs that failed last, as they were then. A worker adds
// to them when one fails, which ends its connection.
type failures struct {
	mu   sync.Mutex
	ring [keptFailures]failure
	n    uint64
}

type failure struct {
	number, uid uint32 // of the program
	at          time.Time
	gone        time.Time // when the program ended; zero: it has not
	story       uapi.Story
}

func (f *failures) add(one failure) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ring[f.n%keptFailures] = one
	f.n++
}

// leave notes that a program is gone.
func (f *failures) leave(number uint32, at time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range f.ring {
		if one := &f.ring[i]; one.number == number && !one.at.IsZero() {
			one.gone = at
		}
	}
}

// newest gives what is kept, the newest first.
func (f *failures) newest() []failure {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []failure
	for i := uint64(0); i < min(f.n, keptFailures); i++ {
		out = append(out, f.ring[(f.n-1-i)%keptFailures])
	}
	return out
}

// remember keeps a queue pair's story when something went wrong with it for the
// first time. What its own program asked for is no failure.
func (w *worker) remember(q *qp) {
	h := q.engine.History()
	switch {
	case h == nil:
		q.troubles = 0
		return
	case h.Troubles == q.troubles:
		return
	}
	q.troubles = h.Troubles
	if h.First.Kind == transport.TroubleNone || !h.First.At.IsZero() {
		return
	}
	h.Stamp(w.now)
	if h.First.Kind == transport.TroubleAskedFor || q.prog == nil {
		return
	}
	s := uapi.Story{Past: true, QP: uapi.Resource{
		Number: uint32(q.qpn), Program: q.prog.number, PID: q.prog.pid, Name: q.prog.listName(), Worker: w.index, Type: q.kind().String(),
	}}
	q.list(&s.QP)
	q.tell(&s, w.now)
	w.a.failures.add(failure{number: q.prog.number, uid: q.prog.uid, at: w.now, story: s})
}

// kind is the queue pair's type.
func (q *qp) kind() qpstate.Type { return q.engine.Type() }

// tell fills in what the engine remembers; on the worker's goroutine.
func (q *qp) tell(s *uapi.Story, now time.Time) {
	var a qpstate.Attr
	q.engine.Query(&a)
	s.Attr = uapi.QPTuning{
		RetryCnt: a.RetryCnt, Timeout: a.Timeout, RNRRetry: a.RNRRetry, MinRNRTimer: a.MinRNRTimer, MaxRDAtomic: a.MaxRDAtomic,
		MaxDestRDAtomic: a.MaxDestRDAtomic, AccessFlags: a.AccessFlags, SGIDIndex: a.AH.SGIDIndex,
	}
	h := q.engine.History()
	if h == nil {
		return
	}
	s.Faults, s.PeerMTU = h.Troubles, h.PeerMTU
	s.NAKRcvd, s.NAKSent = toldNAK(&h.NAKRcvd, now), toldNAK(&h.NAKSent, now)
	if h.First.Kind != transport.TroubleNone {
		s.First = toldTrouble(&h.First, now)
	}
	for _, o := range h.Odds() {
		s.Odd = append(s.Odd, uapi.Odd{
			Verdict: o.Verdict.String(), Opcode: o.Opcode.String(), PSN: uint32(o.PSN), Size: o.Size, Count: o.Count, AgoNS: ago(now, o.At),
		})
	}
}

func toldNAK(n *transport.NAK, now time.Time) uapi.NAK {
	if n.At.IsZero() {
		return uapi.NAK{}
	}
	return uapi.NAK{Syndrome: uint8(n.Syndrome), PSN: uint32(n.PSN), AgoNS: ago(now, n.At)}
}

func toldTrouble(t *transport.Trouble, now time.Time) uapi.Trouble {
	r := &t.Remote
	out := uapi.Trouble{
		Kind: t.Kind.String(), Why: t.Why.String(), Status: uint8(t.Status), Syndrome: uint8(t.Syndrome), RNRTimer: t.RNRTimer,
		Retries: t.Retries, PSN: uint32(t.PSN), AgoNS: ago(now, t.At), Key: r.Key, Need: uint32(r.Need), Has: uint32(r.Has),
		Addr: r.Addr, Length: r.Length, Base: r.Base, Covers: r.Size, Size: t.Size, Room: t.Room, Heard: t.Heard,
	}
	if t.HasOp {
		out.Op = t.Op.String()
	}
	if t.Kind == transport.TroubleRequest || t.Kind == transport.TroubleBadAnswer {
		out.Opcode = t.Opcode.String()
	}
	return out
}

func ago(now, at time.Time) uint64 {
	if at.IsZero() {
		return 0
	}
	return uint64(max(0, now.Sub(at)))
}

// explainQP answers with what is remembered of one queue pair, as it is and as it
// was when it failed, or of the last failures. It takes the locks of other programs,
// and so holds none itself.
func (p *program) explainQP(m *uapi.ExplainQPRequest) (reply, error) {
	r := &uapi.ExplainQPReply{}
	if m.QPN != 0 {
		r.Stories = p.living(m.QPN)
	}
	now := time.Now()
	for _, f := range p.a.failures.newest() {
		sees, keys := sight(p.uid, f.uid, uint32(os.Geteuid()))
		sees, keys = sees || p.number == f.number, keys || p.number == f.number
		if !sees || m.QPN != 0 && f.story.QP.Number != m.QPN {
			continue
		}
		s := aged(f.story, ago(now, f.at))
		if !f.gone.IsZero() {
			s.GoneNS = max(1, ago(now, f.gone))
		}
		if !keys {
			hideKeys(&s)
		}
		if r.Stories = append(r.Stories, s); len(r.Stories) == maxStories {
			break
		}
	}
	return reply{body: r}, nil
}

// aged is a story so many nanoseconds later.
func aged(s uapi.Story, ns uint64) uapi.Story {
	s.First.AgoNS += ns
	for _, n := range []*uapi.NAK{&s.NAKRcvd, &s.NAKSent} {
		if *n != (uapi.NAK{}) {
			n.AgoNS += ns
		}
	}
	s.Odd = slices.Clone(s.Odd)
	for i := range s.Odd {
		s.Odd[i].AgoNS += ns
	}
	return s
}

// hideKeys takes out what opens memory.
func hideKeys(s *uapi.Story) { s.First.Key, s.First.Addr, s.First.Base = 0, 0, 0 }

// living is the story of a queue pair that is there and that p may see.
func (p *program) living(qpn uint32) (out []uapi.Story) {
	for _, o := range p.visible(0) {
		_, keys := p.sight(o)
		o.mu.Lock()
		for _, q := range o.qps.byHandle {
			if uint32(q.qp.qpn) != qpn {
				continue
			}
			s := uapi.Story{QP: uapi.Resource{
				Number: qpn, Program: o.number, PID: o.pid, Name: o.listName(), PD: q.pd.handle, Worker: q.worker.index, Type: q.kind.String(),
				SendCQ: q.send.handle, RecvCQ: q.recv.handle,
			}}
			q.worker.do(func() {
				q.qp.list(&s.QP)
				q.qp.tell(&s, time.Now())
			})
			if !keys {
				hideKeys(&s)
			}
			out = append(out, s)
		}
		o.mu.Unlock()
	}
	return out
}
