package adapter

import (
	"github.com/softroce/softroce/internal/impair"
	"github.com/softroce/softroce/pkg/verbs"
)

// Impair harms the adapter's packets on purpose, by rules of which
// docs/rdmatest.md has the words, one a line. They take the place of those that
// there are; none takes them all away. Error: a line is no rule, and which.
func (a *Adapter) Impair(rules string) error {
	_, err := a.impair(rules, false)
	return err
}

// AddImpair puts rules behind those that there are, and returns their numbers.
func (a *Adapter) AddImpair(rules string) (ids []int, err error) { return a.impair(rules, true) }

func (a *Adapter) impair(text string, add bool) ([]int, error) {
	rules, err := impair.Parse(text)
	if err != nil {
		return nil, err
	}
	return a.nic.Impair(rules, add)
}

// RemoveImpair takes a rule away; false when there is none of that number.
func (a *Adapter) RemoveImpair(id int) bool { return a.nic.Unimpair(id) }

// ImpairRules lists the rules in place, with what they did.
func (a *Adapter) ImpairRules() []verbs.ImpairRule {
	var out []verbs.ImpairRule
	for _, s := range a.nic.Impairments() {
		out = append(out, verbs.ImpairRule{ID: s.ID, Rule: s.Rule.String(), Matched: s.Matched, Hit: s.Hit, Over: s.Over})
	}
	return out
}
