package suite

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"time"

	"github.com/softroce/softroce/conformance/agent"
	"github.com/softroce/softroce/conformance/wire"
	"github.com/softroce/softroce/pkg/bth"
)

// Case tests one statement.
type Case struct {
	ID    string   // the statement's
	Needs []string // features of the target (agent.Feature...) without which the case is skipped
	Run   func(t *T)
}

// Untestable is a statement without a case, and why.
type Untestable struct{ ID, Reason string }

// Outcome of a case.
type Outcome uint8

// The outcomes.
const (
	Pass Outcome = iota
	Fail
	Skip
)

func (o Outcome) String() string { return [...]string{"pass", "fail", "skip"}[o] }

// Result is what came of a case.
type Result struct {
	Statement
	Outcome Outcome
	// Reason says why a case failed or was skipped: for a failure what was expected and what came.
	Reason string
	// Notes are what the case saw and found worth saying, whatever its outcome: which of the allowed alternatives for instance.
	Notes  []string
	Took   time.Duration
	Frames []*wire.Frame // what was on the link, in order
	Began  time.Time
	names  map[bth.QPN]string
}

// Agent asks the target's side to do something.
type Agent interface {
	Do(agent.Request) (*agent.Answer, error)
}

// T is a running case: the target's agent, the link, and the verdict. Its methods that say so end the case; all of them are
// for the case's own goroutine.
type T struct {
	Case  *Case
	Link  wire.Link
	Hello *agent.Hello
	// Rand is made from the run's seed and the case's id.
	Rand *rand.Rand
	// Wait is how long an answer may take; Quiet how long silence must last to be believed.
	Wait, Quiet time.Duration

	agent  Agent
	res    *Result
	peers  map[bth.QPN]*Peer // by the tester's queue pair number
	strays []*wire.Frame     // to no peer of the case
	events []agent.Event     // asked for and not yet looked at
	gid    int               // index of the target's GID that the link reaches
}

// over ends a case's Run.
type over struct{}

// Failed ends the case: it expected one thing and got another. Both are phrases: "an ACK with PSN 5", "nothing for 20 ms".
func (t *T) Failed(expected, got string) {
	t.Fatalf("expected %s, got %s", expected, got)
}

// Fatalf ends the case as failed.
func (t *T) Fatalf(format string, args ...any) {
	t.res.Outcome, t.res.Reason = Fail, fmt.Sprintf(format, args...)
	panic(over{})
}

// Skipf ends the case as skipped, with the reason.
func (t *T) Skipf(format string, args ...any) {
	t.res.Outcome, t.res.Reason = Skip, fmt.Sprintf(format, args...)
	panic(over{})
}

// Notef adds a note to the result.
func (t *T) Notef(format string, args ...any) {
	t.res.Notes = append(t.res.Notes, fmt.Sprintf(format, args...))
}

// Has reports whether the target named a feature.
func (t *T) Has(feature string) bool { return has(t.Hello, feature) }

func has(h *agent.Hello, feature string) bool {
	for _, f := range h.Features {
		if f == feature {
			return true
		}
	}
	return false
}

// Do asks the agent; a refusal fails the case.
func (t *T) Do(r agent.Request) *agent.Answer {
	a, err := t.agent.Do(r)
	if refusal, ok := agent.Refusal(err); ok && t.manager() != nil {
		t.Skipf("%s", refusal.Text)
	}
	if err != nil {
		t.Fatalf("the agent did not do %q: %v", r.Do, err)
	}
	return a
}

// Try asks the agent and returns its refusal, an *agent.Error, or its answer. That the agent is gone fails the case.
func (t *T) Try(r agent.Request) (*agent.Answer, *agent.Error) {
	a, err := t.agent.Do(r)
	if refusal, ok := agent.Refusal(err); ok {
		if t.manager() != nil {
			t.Skipf("%s", refusal.Text)
		}
		return nil, refusal
	}
	if err != nil {
		t.Fatalf("the agent did not answer to %q: %v", r.Do, err)
	}
	return a, nil
}

// Refused asks for something that the target must refuse, with one of the given errnos if there are any.
func (t *T) Refused(r agent.Request, errnos ...string) {
	_, refusal := t.Try(r)
	if refusal == nil {
		t.Failed(fmt.Sprintf("%q to be refused", r.Do), "success")
	}
	for _, e := range errnos {
		if refusal.Errno == e {
			return
		}
	}
	if len(errnos) > 0 {
		t.Failed(fmt.Sprintf("%q to fail with %v", r.Do, errnos), refusal.Error())
	}
}

// seed makes a case's random numbers its own, so that leaving out another case changes nothing.
func seeded(seed uint64, id string) *rand.Rand {
	h := fnv.New64a()
	h.Write([]byte(id))
	return rand.New(rand.NewPCG(seed, h.Sum64()))
}
