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
const atOnce = 16

// tries is how often a case that should fail may pass: some breaks are a matter of time (an answer that comes too early),
// and a busy machine hides them.
const tries = 4

// TestMutations breaks the target in every way there is. The cases that the table names must fail; every case is named by
// one break at least. With -v it tells for each break by which words, and what else of the section fails.
func TestMutations(t *testing.T) {
	if testing.Short() {
		t.Skip("some hundred runs of a section take half a minute")
	}
	t.Parallel()
	named := map[string]bool{}
	inParallel(func(b tiny.Broken) {
		tryBroken(t, b)
	}, func(b tiny.Broken) bool {
		for _, id := range b.IDs {
			named[id] = true
		}
		return len(b.IDs) > 0
	})
	for _, id := range ids() {
		if !named[id] {
			t.Errorf("no mutation of the target names %s: the case has not been seen to fail", id)
		}
	}
}

// TestHopeless runs everything against targets by which next to nothing can pass: the run comes to its end, and what fails
// says what was seen.
func TestHopeless(t *testing.T) {
	if testing.Short() {
		t.Skip("runs of all cases in which most answers are waited for in vain")
	}
	t.Parallel()
	inParallel(func(b tiny.Broken) {
		results := play(t, b.Name, patience{trial.wait / 5, trial.quiet}, false, ids()...)
		if len(results) != len(ids()) {
			t.Errorf("%s (%s): %d results of %d cases", b.Name, b.What, len(results), len(ids()))
		}
		sane(t, b.Name, results)
		fails := failed(results)
		if len(fails) < b.AtLeast {
			t.Errorf("%s (%s): %d cases fail, want %d at least: %s", b.Name, b.What, len(fails), b.AtLeast, strings.Join(fails, " "))
		}
		t.Logf("%s (%s): %d of %d fail", b.Name, b.What, len(fails), len(results))
	}, func(b tiny.Broken) bool { return len(b.IDs) == 0 })
}

// inParallel calls f with the mutations that are wanted, several at once.
func inParallel(f func(tiny.Broken), wanted func(tiny.Broken) bool) {
	var wg sync.WaitGroup
	turn := make(chan bool, atOnce)
	for _, b := range tiny.Mutations() {
		if !wanted(b) {
			continue
		}
		turn <- true
		wg.Go(func() {
			f(b)
			<-turn
		})
	}
	wg.Wait()
}

// sane fails for a case that panicked, or that failed without a word.
func sane(t *testing.T, m tiny.Mutation, results []suite.Result) {
	for _, r := range results {
		if r.Outcome == suite.Fail && (r.Reason == "" || strings.Contains(r.Reason, "panicked")) {
			t.Errorf("%s: %s fails with %q", m, r.ID, r.Reason)
		}
	}
}

// tryBroken runs the cases that a broken target should fail; tests that are to say much tell what else of their sections
// fails.
func tryBroken(t *testing.T, b tiny.Broken) {
	have := ids()
	for _, id := range b.IDs {
		if !slices.Contains(have, id) {
			t.Errorf("%s: there is no case %s", b.Name, id)
		}
	}
	results := play(t, b.Name, patient, b.Name.V6(), b.IDs...)
	sane(t, b.Name, results)
	for _, r := range results {
		for try := 1; r.Outcome != suite.Fail; try++ {
			if try == tries {
				t.Errorf("%s (%s): %s does not fail in %d runs: %v %s", b.Name, b.What, r.ID, tries, r.Outcome, r.Reason)
				break
			}
			r = play(t, b.Name, patient, b.Name.V6(), r.ID)[0]
		}
	}
	if !testing.Verbose() {
		return
	}
	var sections []string
	for _, id := range b.IDs {
		section, _, _ := strings.Cut(id, "-")
		sections = append(sections, section)
	}
	also := failed(play(t, b.Name, trial, b.Name.V6(), sections...))
	t.Logf("%s (%s): %s: %s; of the whole section %s", b.Name, b.What, results[0].ID, results[0].Reason, strings.Join(also, " "))
}

func failed(results []suite.Result) (out []string) {
	for _, r := range results {
		if r.Outcome == suite.Fail {
			out = append(out, r.ID)
		}
	}
	return out
}
