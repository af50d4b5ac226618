package report

import (
	"slices"
	"testing"
)

func TestAgainst(t *testing.T) {
	golden := &Run{Cases: []Case{
		{ID: "A-01", Result: resultPass},
		{ID: "A-02", Result: resultFail, Reason: "no answer"},
		{ID: "A-03", Result: resultPass},
		{ID: "A-04", Result: resultSkip, Reason: "left out"},
		{ID: "A-05", Result: resultSkip, Reason: "the target does not have uc"},
		{ID: "A-06", Result: resultPass},
	}}
	now := &Run{Cases: []Case{
		{ID: "A-01", Result: resultPass},
		{ID: "A-02", Result: resultPass},
		{ID: "A-03", Result: resultFail, Reason: "nothing came"},
		{ID: "A-04", Result: resultPass},
		{ID: "A-05", Result: resultPass},
		{ID: "A-06", Result: resultSkip, Reason: "left out"},
		{ID: "A-07", Result: resultPass},
	}}
	want := []string{
		"A-02: fail in the earlier results, pass now",
		"A-03: pass in the earlier results, fail now: nothing came",
		"A-05: skip in the earlier results, pass now",
		"A-07: not in the earlier results, pass now",
	}
	if got := now.Against(golden); !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
	if got := golden.Against(golden); len(got) != 0 {
		t.Errorf("equal runs differ: %q", got)
	}
}
