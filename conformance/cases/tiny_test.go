package cases_test

import (
	"testing"
	"time"

	"github.com/softroce/softroce/conformance/agent"
	"github.com/softroce/softroce/conformance/cases"
	"github.com/softroce/softroce/conformance/suite"
	"github.com/softroce/softroce/conformance/tiny"
	"github.com/softroce/softroce/conformance/wire"
)

// patience is how long a run waits for answers, and how long silence has to last. In memory answers come at once.
type patience struct{ wait, quiet time.Duration }

var (
	trial   = patience{150 * time.Millisecond, 2 * time.Millisecond} // for what mostly waits in vain
	careful = patience{10 * time.Second, 5 * time.Millisecond}       // whose answers come, however busy the machine
	patient = patience{time.Second, 10 * time.Millisecond}           // longer than what any case has to wait for
)

// play runs the cases with these ids against a target in memory that is broken by m.
func play(t *testing.T, m tiny.Mutation, how patience, v6 bool, only ...string) []suite.Result {
	t.Helper()
	link, far := wire.Pair()
	if v6 {
		link, far = wire.Pair6()
	}
	return playOn(t, link, tiny.New(far, m), how, only)
}

// playOn runs cases against a target, and closes it and the tester's link.
func playOn(t *testing.T, link wire.Link, target *tiny.Target, how patience, only []string) []suite.Result {
	t.Helper()
	defer func() {
		_ = target.Close()
		_ = link.Close()
	}()
	results, err := suite.Run(t.Context(), suite.Config{
		Link:  link,
		Dial:  func() (suite.Agent, *agent.Hello, error) { return target, target.Hello(), nil },
		Cases: cases.All(), Untestable: cases.NotTestable(), Only: only, Wait: how.wait, Quiet: how.quiet, Seed: 1,
	})
	if err != nil {
		t.Error(err)
	}
	return results
}

func ids() (out []string) {
	for _, c := range cases.All() {
		out = append(out, c.ID)
	}
	return out
}

// TestTinyPasses: a target that does nothing wrong fails no case, over IPv4 and IPv6, and every case runs at least once.
func TestTinyPasses(t *testing.T) {
	t.Parallel()
	ran := map[string]bool{}
	for _, c := range []struct {
		name    string
		pair    func() (wire.Link, wire.Link)
		only    []string
		without []string
	}{
		{"IPv4", wire.Pair, ids(), nil},
		{"IPv6", wire.Pair6, ids(), nil},
		{"without FLUSH", wire.Pair, []string{"ATM-14"}, []string{agent.FeatureFlush}},
	} {
		run := func(only ...string) []suite.Result {
			link, far := c.pair()
			return playOn(t, link, tiny.New(far, "", c.without...), careful, only)
		}
		for _, r := range run(c.only...) {
			if r.Outcome == suite.Fail { // by a timer that ran while the case did not, on a busy machine?
				t.Logf("%s: %s is tried again: %s", c.name, r.ID, r.Reason)
				r = run(r.ID)[0]
			}
			switch r.Outcome {
			case suite.Pass:
				ran[r.ID] = true
			case suite.Fail:
				t.Errorf("%s: %s: %s", c.name, r.ID, r.Reason)
			case suite.Skip:
				t.Logf("%s: %s is skipped: %s", c.name, r.ID, r.Reason)
			}
		}
	}
	for _, id := range ids() {
		if !ran[id] {
			t.Errorf("%s is skipped every time", id)
		}
	}
}
