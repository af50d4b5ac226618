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

// Patience of a run in memory: an answer comes at once, so that a short silence is to be believed. Only the unbroken target's
// answers are waited for long: they come, however busy the machine.
const (
	longWait = 10 * time.Second
	quiet    = 2 * time.Millisecond
)

// play runs the cases with these ids against a target in memory that is broken by m.
func play(t *testing.T, m tiny.Mutation, wait time.Duration, v6 bool, only ...string) []suite.Result {
	t.Helper()
	link, far := wire.Pair()
	if v6 {
		link, far = wire.Pair6()
	}
	target := tiny.New(far, m)
	defer func() {
		_ = target.Close()
		_ = link.Close()
	}()
	results, err := suite.Run(t.Context(), suite.Config{
		Link:  link,
		Dial:  func() (suite.Agent, *agent.Hello, error) { return target, target.Hello(), nil },
		Cases: cases.All(), Untestable: cases.NotTestable(), Only: only, Wait: wait, Quiet: quiet, Seed: 1,
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

// TestTinyPasses: a target that does nothing wrong fails no case, over IPv4 and IPv6, and every case runs over one of them.
func TestTinyPasses(t *testing.T) {
	t.Parallel()
	ran := map[string]bool{}
	for _, v6 := range []bool{false, true} {
		for _, r := range play(t, "", longWait, v6, ids()...) {
			switch r.Outcome {
			case suite.Pass:
				ran[r.ID] = true
			case suite.Fail:
				t.Errorf("IPv6 %v: %s: %s", v6, r.ID, r.Reason)
			case suite.Skip:
				t.Logf("IPv6 %v: %s is skipped: %s", v6, r.ID, r.Reason)
			}
			if r.Took > time.Second {
				t.Logf("IPv6 %v: %s takes %v", v6, r.ID, r.Took)
			}
		}
	}
	for _, id := range ids() {
		if !ran[id] {
			t.Logf("%s runs nowhere", id)
		}
	}
}
