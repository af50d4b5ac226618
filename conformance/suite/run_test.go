package suite

import (
	"errors"
	"os"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/softroce/softroce/conformance/agent"
	"github.com/softroce/softroce/conformance/wire"
)

// mortal is an agent that answers with why once it is dead.
type mortal struct {
	dead bool
	why  error
}

func (m *mortal) Do(agent.Request) (*agent.Answer, error) {
	if m.dead {
		return nil, m.why
	}
	return &agent.Answer{}, nil
}

// A case whose agent dies fails. The next one waits for it to come back; those behind one that waited in vain do not.
func TestLostAgent(t *testing.T) {
	lost, gone, busy := errors.New("lost"), &agent.Error{Errno: "EIO"}, &agent.Error{Errno: "EBUSY"}
	for _, c := range []struct {
		name     string
		why      error
		notices  bool // the case asks the dead agent for something
		failing  int  // how many dials fail
		outcomes [4]Outcome
		dials    func(n int) bool
	}{
		{"comes back", lost, true, 20, [4]Outcome{Fail, Pass, Pass, Pass}, func(n int) bool { return n == 1+20+1 }},
		{"not noticed by the case", lost, false, 0, [4]Outcome{Fail, Pass, Pass, Pass}, func(n int) bool { return n == 1+1 }},
		{"device gone", gone, false, 0, [4]Outcome{Fail, Pass, Pass, Pass}, func(n int) bool { return n == 1+1 }},
		{"only does not destroy", busy, false, 0, [4]Outcome{Pass, Pass, Pass, Pass}, func(n int) bool { return n == 1+1 }},
		{"stays away", lost, true, 1 << 20, [4]Outcome{Fail, Fail, Fail, Fail}, func(n int) bool { return n > 1+50+2 && n < 1+150+2 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				link, far := wire.Pair()
				defer func() { _, _ = link.Close(), far.Close() }()
				hello := &agent.Hello{Version: 1, GIDs: []agent.GID{{Addr: link.Remote().String()}}}
				a, dials := &mortal{why: c.why}, 0
				ok := func(*T) {}
				results, err := Run(t.Context(), Config{
					Link: link, Only: []string{"FRM-01", "FRM-02", "FRM-03", "FRM-04"},
					Cases: []Case{
						{ID: "FRM-01", Run: func(t *T) {
							a.dead = true
							if c.notices {
								t.Do(agent.Request{Do: agent.DoPD})
							}
						}}, {ID: "FRM-02", Run: ok}, {ID: "FRM-03", Run: ok}, {ID: "FRM-04", Run: ok},
					},
					Dial: func() (Agent, *agent.Hello, error) {
						if dials++; a.dead && dials <= 1+c.failing {
							return nil, nil, errors.New("refused")
						}
						a.dead = false
						return a, hello, nil
					},
				})
				if err != nil || len(results) != 4 {
					t.Fatalf("%d results, %v", len(results), err)
				}
				for i, r := range results {
					if r.Outcome != c.outcomes[i] {
						t.Errorf("%s: got %v (%s), want %v", r.ID, r.Outcome, r.Reason, c.outcomes[i])
					}
				}
				if !c.dials(dials) {
					t.Errorf("%d dials", dials)
				}
			})
		})
	}
}

// An agent that answers no more costs a few time-outs, and then the run ends and says so; one that answers again in between does not.
func TestSilentAgent(t *testing.T) {
	for _, c := range []struct {
		name  string
		hello bool // it answers a dial still
		heals int  // the dial from which on it answers again; 0: none
		want  int  // results
	}{
		{"deaf", false, 0, 1 + silentMost - 1},
		{"says hello only", true, 0, silentMost},
		{"comes back in time", true, 1 + silentMost - 1, 6},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				link, far := wire.Pair()
				defer func() { _, _ = link.Close(), far.Close() }()
				hello := &agent.Hello{Version: 1, GIDs: []agent.GID{{Addr: link.Remote().String()}}}
				a, dials := &mortal{why: os.ErrDeadlineExceeded}, 0
				ids := []string{"FRM-01", "FRM-02", "FRM-03", "FRM-04", "FRM-05", "FRM-06"}
				var all []Case
				for i, id := range ids {
					all = append(all, Case{ID: id, Run: func(*T) { a.dead = a.dead || i == 0 }})
				}
				results, err := Run(t.Context(), Config{
					Link: link, Only: ids, Cases: all,
					Dial: func() (Agent, *agent.Hello, error) {
						if dials++; dials == c.heals {
							a.dead = false
						}
						if a.dead && !c.hello {
							return nil, nil, os.ErrDeadlineExceeded
						}
						return a, hello, nil
					},
				})
				if len(results) != c.want || (err == nil) != (c.want == len(ids)) {
					t.Errorf("%d results, want %d; %v", len(results), c.want, err)
				}
				if err != nil && (!errors.Is(err, ErrSilent) || !strings.Contains(err.Error(), "in 3 cases in a row")) {
					t.Errorf("got %v", err)
				}
			})
		})
	}
}
