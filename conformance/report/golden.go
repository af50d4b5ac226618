package report

import "fmt"

// Against compares a run with an earlier one of the same target that is taken for right, and returns what differs, a line
// each: a case that ended otherwise, or that the earlier run does not have. What was left out of either is not compared.
func (r *Run) Against(golden *Run) []string {
	want := map[string]Case{}
	for _, c := range golden.Cases {
		want[c.ID] = c
	}
	var out []string
	for _, c := range r.Cases {
		w, ok := want[c.ID]
		switch {
		case !ok:
			out = append(out, fmt.Sprintf("%s: not in the earlier results, %s now", c.ID, c.Result))
		case w.leftOut() || c.leftOut() || c.Result == w.Result:
		default:
			out = append(out, fmt.Sprintf("%s: %s in the earlier results, %s now%s", c.ID, w.Result, c.Result, because(c.Reason)))
		}
	}
	return out
}

func (c *Case) leftOut() bool { return c.Result == resultSkip && c.Reason == "left out" }

func because(reason string) string {
	if reason == "" {
		return ""
	}
	return ": " + reason
}
