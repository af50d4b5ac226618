package cases_test

import (
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/softroce/softroce/conformance/suite"
	"github.com/softroce/softroce/conformance/tiny"
)

// atOnce is how many broken targets are tried at the same time: they and their testers mostly wait.
const atOnce = 8

// slow are cases that an answer in time for a trial is not enough for.
var slow = map[string]bool{"RSP-23": true}

// TestMutations breaks the target in every way there is. The sections of the statements that the table names are run, and
// those statements must fail. Then every case must have failed by one of the mutations, the general ones included.
func TestMutations(t *testing.T) {
	if testing.Short() {
		t.Skip("some hundred runs of a section take half a minute")
	}
	t.Parallel()
	have, red := ids(), &redness{by: map[string][]tiny.Mutation{}}
	var wg sync.WaitGroup
	turn := make(chan bool, atOnce)
	for _, b := range tiny.Mutations() {
		if len(b.IDs) == 0 {
			continue
		}
		wg.Add(1)
		turn <- true
		go func() {
			defer func() { <-turn; wg.Done() }()
			tryBroken(t, b, have, red)
		}()
	}
	wg.Wait()
	for _, b := range tiny.Mutations() {
		if left := red.missing(have); len(b.IDs) == 0 && len(left) > 0 {
			red.add(b.Name, failed(play(t, b.Name, trial, false, left...)))
		}
	}
	if left := red.missing(have); len(left) > 0 {
		t.Errorf("no mutation turns these cases red: %s", strings.Join(left, " "))
	}
}

// tryBroken runs the sections that a broken target should fail in.
func tryBroken(t *testing.T, b tiny.Broken, have []string, red *redness) {
	var sections []string
	for _, id := range b.IDs {
		if !slices.Contains(have, id) {
			t.Errorf("%s: there is no case %s", b.Name, id)
			continue
		}
		section, _, _ := strings.Cut(id, "-")
		sections = append(sections, section)
	}
	slices.Sort(sections)
	results := play(t, b.Name, trial, b.Name.V6(), slices.Compact(sections)...)
	fails := slices.DeleteFunc(failed(results), func(id string) bool { return slow[id] })
	for _, id := range b.IDs {
		if slices.Contains(fails, id) {
			continue
		}
		// Once more, alone and with patience: what it does wrong may have come too late, and a slow case was not asked.
		if results = play(t, b.Name, patient, b.Name.V6(), id); len(failed(results)) == 0 {
			t.Errorf("%s (%s): %s does not fail: %v", b.Name, b.What, id, results)
			continue
		}
		fails = append(fails, id)
	}
	red.add(b.Name, fails)
	if testing.Verbose() {
		t.Logf("%s (%s): %s", b.Name, b.What, strings.Join(fails, " "))
	}
}

func failed(results []suite.Result) (out []string) {
	for _, r := range results {
		if r.Outcome == suite.Fail {
			out = append(out, r.ID)
		}
	}
	return out
}

// redness is which mutations turned a case red.
type redness struct {
	mu sync.Mutex
	by map[string][]tiny.Mutation
}

func (r *redness) add(m tiny.Mutation, ids []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, id := range ids {
		r.by[id] = append(r.by[id], m)
	}
}

// missing are the ids that are not red.
func (r *redness) missing(ids []string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return len(r.by[id]) > 0 })
}
