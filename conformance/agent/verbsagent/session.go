// Package verbsagent is the conformance suite's agent on pkg/verbs: it does on a softroce device what the tester asks for.
// It owns the objects of a session and the names of the protocol; who may ask, and how, is package agent's.
package verbsagent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/conformance/agent"
	"github.com/softroce/softroce/pkg/verbs"
)

// Program is what the agent calls itself in its hello.
const Program = "softroce conformance agent"

// Limits of a session, beside the adapter's own.
const (
	maxMR     = 1 << 30 // bytes of a region
	maxMemory = 4 << 30 // bytes of all regions
)

// Session is one tester's session on a device: an [agent.Handler], and by Do an agent without a connection. Its methods are
// called one at a time.
type Session struct {
	dev *verbs.Device
	own bool // the device is closed with the session

	last   *atomic.Int64 // handle, of all sessions of an agent: one of another session is none here
	memory int           // bytes of all regions
	pds    map[int]*verbs.PD
	mrs    map[int]*verbs.MR
	mws    map[int]*verbs.MW
	cqs    map[int]*queue
	srqs   map[int]*verbs.SRQ
	qps    map[int]*pair
	ahs    map[int]*verbs.AH
}

// queue is a completion queue, with a channel of its own if it has one.
type queue struct {
	*verbs.CQ
	events *verbs.CompChannel
}

// pair is a queue pair and the groups that it is attached to.
type pair struct {
	*verbs.QP
	groups map[verbs.GID]bool
}

// New makes a session on a device that stays the caller's. Asynchronous events of the device go to whoever reads them first,
// so a device has one session at a time.
func New(dev *verbs.Device) *Session {
	s := &Session{dev: dev, last: new(atomic.Int64)}
	s.clear()
	return s
}

// Sessions makes a session on a device of its own whenever one begins, for [agent.ServerConfig].
func Sessions(open func() (*verbs.Device, error)) func(context.Context) (agent.Handler, error) {
	var last atomic.Int64
	return func(context.Context) (agent.Handler, error) {
		dev, err := open()
		if err != nil {
			return nil, err
		}
		s := New(dev)
		s.own, s.last = true, &last
		return s, nil
	}
}

func (s *Session) clear() {
	s.memory = 0
	s.pds, s.mrs, s.mws = map[int]*verbs.PD{}, map[int]*verbs.MR{}, map[int]*verbs.MW{}
	s.cqs, s.srqs, s.qps = map[int]*queue{}, map[int]*verbs.SRQ{}, map[int]*pair{}
	s.ahs = map[int]*verbs.AH{}
}

// Do is Handle without a limit of time but the request's own.
func (s *Session) Do(r agent.Request) (*agent.Answer, error) {
	return s.Handle(context.Background(), r)
}

// Handle does one request. Every error is an *[agent.Error].
func (s *Session) Handle(ctx context.Context, r agent.Request) (*agent.Answer, error) {
	do := requests[r.Do]
	if do == nil {
		return nil, &agent.Error{Do: r.Do, Text: fmt.Sprintf("there is no request %q", r.Do)}
	}
	a, err := do(s, ctx, &r)
	if err != nil {
		return nil, refusal(r.Do, err)
	}
	if a == nil {
		a = &agent.Answer{}
	}
	return a, nil
}

// requests are all of them.
var requests = map[string]func(*Session, context.Context, *agent.Request) (*agent.Answer, error){
	agent.DoHello: (*Session).hello, agent.DoReset: (*Session).reset, agent.DoDestroy: (*Session).destroy,
	agent.DoPD: (*Session).pd, agent.DoMR: (*Session).mr, agent.DoRereg: (*Session).rereg,
	agent.DoWrite: (*Session).write, agent.DoRead: (*Session).read,
	agent.DoCQ: (*Session).cq, agent.DoArm: (*Session).arm, agent.DoEvent: (*Session).event, agent.DoPoll: (*Session).poll,
	agent.DoSRQ: (*Session).srq, agent.DoSRQLimit: (*Session).srqLimit,
	agent.DoQP: (*Session).qp, agent.DoModify: (*Session).modify, agent.DoQuery: (*Session).query,
	agent.DoSend: (*Session).send, agent.DoRecv: (*Session).recv,
	agent.DoMW: (*Session).mw, agent.DoBind: (*Session).bind, agent.DoAH: (*Session).ah,
	agent.DoAttach: (*Session).attach, agent.DoDetach: (*Session).detach,
	agent.DoAsync: (*Session).async, agent.DoCounters: (*Session).counters,
}

// refusal makes an agent's refusal of an error.
func refusal(do string, err error) error {
	e := &agent.Error{Do: do, Text: err.Error()}
	var verb *verbs.Error
	var errno unix.Errno
	switch {
	case errors.As(err, &verb):
		errno = verb.Errno
	case !errors.As(err, &errno):
		return e
	}
	e.Text = strings.TrimSuffix(e.Text, " ("+unix.ErrnoName(errno)+")")
	if e.Errno = unix.ErrnoName(errno); errno == unix.EOPNOTSUPP {
		e.Errno = "EOPNOTSUPP" // as the verbs manual calls it
	}
	return e
}

// invalid is a refusal for a value that the verbs could not even be asked for.
func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{unix.EINVAL}, args...)...)
}

// add gives an object its handle.
func add[T any](s *Session, objects map[int]T, o T) int {
	h := int(s.last.Add(1))
	objects[h] = o
	return h
}

// find is the object of a handle. That there is none is not the target's refusal, so it has no errno.
func find[T any](objects map[int]T, kind string, handle int) (T, error) {
	o, ok := objects[handle]
	if !ok {
		return o, fmt.Errorf("this session has no %s %d", kind, handle)
	}
	return o, nil
}

func (s *Session) hello(context.Context, *agent.Request) (*agent.Answer, error) {
	at, err := s.dev.Query()
	if err != nil {
		return nil, err
	}
	table, err := s.dev.GIDTable()
	if err != nil {
		return nil, err
	}
	h := &agent.Hello{
		Version: agent.Version, Agent: Program, Device: s.dev.Name(), GIDs: []agent.GID{}, Features: s.features(&at),
		MaxRDAtomic: int(at.MaxQPRDAtomic), MaxSGE: int(at.MaxSGE), MaxInline: int(at.MaxInline),
	}
	for _, e := range table {
		h.GIDs = append(h.GIDs, agent.GID{Index: int(e.Index), Addr: e.GID.Addr().String()})
	}
	return &agent.Answer{Hello: h}, nil
}

// features are what the device has. An iova takes memory of the agent's own, which a daemon of another user may not reach.
func (s *Session) features(at *verbs.DeviceAttr) []string {
	all := []string{
		agent.FeatureUC, agent.FeatureUD, agent.FeatureSRQ, agent.FeatureMW1, agent.FeatureMW2, agent.FeatureInv,
		agent.FeatureZeroBased, agent.FeatureRereg, agent.FeatureQP1, agent.FeatureEvents,
		agent.FeatureCounters, agent.FeatureSQD, agent.FeatureEmptyRD,
	}
	if at.MaxMcastGroup > 0 {
		all = append(all, agent.FeatureMulticast)
	}
	if pd, err := s.dev.AllocPD(); err == nil {
		if mr, err := pd.RegMRIova(make([]byte, 4096), 1<<40, verbs.AccessLocalWrite); err == nil {
			all = append(all, agent.FeatureIova)
			_ = mr.Dereg() // nothing uses it
		}
		_ = pd.Dealloc() // nothing uses it
	}
	return all
}

func (s *Session) counters(context.Context, *agent.Request) (*agent.Answer, error) {
	list, err := s.dev.Counters()
	if err != nil {
		return nil, err
	}
	a := &agent.Answer{Counters: make(map[string]uint64, len(list))}
	for _, c := range list {
		a.Counters[c.Name] = c.Value
	}
	return a, nil
}
