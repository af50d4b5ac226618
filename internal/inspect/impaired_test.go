package inspect

import (
	"slices"
	"strings"
	"testing"

	"github.com/softroce/softroce/pkg/verbs"
)

// TestImpaired: rules that hit something come before every other cause of a queue pair's failure, and of nothing else.
func TestImpaired(t *testing.T) {
	failed := Explanation{Story: &verbs.Story{}, Cause: []string{"retry_cnt = 7"}, Change: []string{"raise timeout"}}
	failed.Story.First.Status = 12
	whole := Explanation{Story: &verbs.Story{}, Cause: []string{"none"}}
	status := Explanation{Cause: []string{"the usual"}}
	list := []Explanation{failed, whole, status}
	Impaired(list, []verbs.ImpairRule{{ID: 1, Rule: "drop sent SEND", Matched: 20, Hit: 20}, {ID: 2, Rule: "drop 1%", Matched: 3}})
	want := []string{"packets of this adapter are impaired on purpose: rule 1 (drop sent SEND) hit 20 packets", "retry_cnt = 7"}
	if !slices.Equal(list[0].Cause, want) || len(list[0].Change) != 2 || !strings.Contains(list[0].Change[0], "softroce impair clear") {
		t.Errorf("got %q, %q", list[0].Cause, list[0].Change)
	}
	if len(list[1].Cause) != 1 || len(list[2].Cause) != 1 {
		t.Errorf("what has not failed, and a status: got %q, %q", list[1].Cause, list[2].Cause)
	}
	before := slices.Clone(list[0].Cause)
	if Impaired(list, nil); !slices.Equal(list[0].Cause, before) {
		t.Errorf("without rules: got %q", list[0].Cause)
	}
}
