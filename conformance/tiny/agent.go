package tiny

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/softroce/softroce/conformance/agent"
)

// Limits that the target announces.
const (
	maxRDAtomic = 16
	maxSGE      = 16
	maxInline   = 256
	maxData     = 1 << 30
)

// errno is an error with the name of its number.
type errno struct {
	name, text string
}

func (e *errno) Error() string { return e.text }

func invalid(format string, args ...any) error {
	return &errno{"EINVAL", fmt.Sprintf(format, args...)}
}

// Hello says what the target is and can.
func (t *Target) Hello() *agent.Hello {
	return &agent.Hello{
		Version: agent.Version, Agent: "tiny", Device: "tiny0",
		GIDs: []agent.GID{{Index: 0, Addr: t.link.Local().String()}},
		Features: slices.DeleteFunc([]string{
			agent.FeatureUC, agent.FeatureUD, agent.FeatureSRQ, agent.FeatureMW1, agent.FeatureMW2, agent.FeatureInv,
			agent.FeatureZeroBased, agent.FeatureIova, agent.FeatureRereg, agent.FeatureMulticast, agent.FeatureQP1,
			agent.FeatureFlush, agent.FeatureAtomicWrite, agent.FeatureEvents, agent.FeatureCounters, agent.FeatureSQD,
			agent.FeatureEmptyRD,
		}, func(f string) bool { return slices.Contains(t.without, f) }),
		MaxRDAtomic: maxRDAtomic, MaxSGE: maxSGE, MaxInline: maxInline,
	}
}

// Do does what the tester asks for. Every error is an *[agent.Error], unless that is what is broken.
func (t *Target) Do(r agent.Request) (*agent.Answer, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, &agent.Error{Do: r.Do, Text: "the target is closed"}
	}
	if t.floods++; t.broken("agent-gone") && t.floods%20 == 0 {
		return nil, errors.New("the connection is lost")
	}
	a := &agent.Answer{}
	err := t.do(&r, a)
	t.rearm()
	if err != nil && t.broken("agent-yes") {
		err = nil
	}
	if err != nil {
		refusal := &agent.Error{Do: r.Do, Text: err.Error(), Errno: "EINVAL"}
		var e *errno
		if errors.As(err, &e) {
			refusal.Errno = e.name
		}
		return nil, refusal
	}
	return a, nil
}

func (t *Target) do(r *agent.Request, a *agent.Answer) error {
	f := map[string]func(*agent.Request, *agent.Answer) error{
		agent.DoHello: t.doHello, agent.DoReset: t.doReset, agent.DoPD: t.doPD, agent.DoMR: t.doMR, agent.DoRereg: t.doRereg,
		agent.DoWrite: t.doWrite, agent.DoRead: t.doRead, agent.DoCQ: t.doCQ, agent.DoArm: t.doArm, agent.DoEvent: t.doEvent,
		agent.DoPoll: t.doPoll, agent.DoSRQ: t.doSRQ, agent.DoSRQLimit: t.doSRQLimit, agent.DoQP: t.doQP,
		agent.DoModify: t.doModify, agent.DoQuery: t.doQuery, agent.DoSend: t.doSend, agent.DoRecv: t.doRecv, agent.DoMW: t.doMW,
		agent.DoBind: t.doBind, agent.DoAH: t.doAH, agent.DoAttach: t.doAttach, agent.DoDetach: t.doDetach,
		agent.DoAsync: t.doAsync, agent.DoCounters: t.doCounters, agent.DoDestroy: t.doDestroy,
	}[r.Do]
	if f == nil {
		return &errno{"", "no such request"}
	}
	return f(r, a)
}

// await waits until ready says so, for ms at most. The mutex is let go meanwhile.
func (t *Target) await(ms int, ready func() bool) {
	timer := time.NewTimer(time.Duration(ms) * time.Millisecond)
	defer timer.Stop()
	for ms > 0 && !ready() && !t.closed {
		changed := t.changed
		t.rearm()
		t.mu.Unlock()
		select {
		case <-changed:
		case <-timer.C:
			ms = 0
		}
		t.mu.Lock()
	}
}

func find[T any](m map[int]T, what string, handle int) (T, error) {
	v, ok := m[handle]
	if !ok {
		return v, &errno{"", fmt.Sprintf("there is no %s %d", what, handle)}
	}
	return v, nil
}

func (t *Target) doHello(_ *agent.Request, a *agent.Answer) error {
	a.Hello = t.Hello()
	return nil
}

func (t *Target) doReset(*agent.Request, *agent.Answer) error {
	t.reset()
	return nil
}
