package bench

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
)

// A Target is a ratio that is asked for, and what was reached.
type Target struct {
	Name   string   `json:"name"`
	Ratio  *float64 `json:"ratio"` // nil: not measured
	Must   float64  `json:"must"`
	Goal   float64  `json:"goal"`
	Met    bool     `json:"met"` // the must
	AtMost bool     `json:"at_most,omitempty"`
	Note   string   `json:"note,omitempty"`
}

// reached takes in a ratio.
func (t *Target) reached(v float64) {
	t.Ratio = &v
	t.Met = t.holds(v, t.Must)
}

func (t *Target) holds(v, bound float64) bool {
	if t.AtMost {
		return v <= bound
	}
	return v >= bound
}

// verdict says in words how far it is.
func (t *Target) verdict() string {
	switch {
	case t.Ratio == nil:
		return notMeasured
	case strings.HasPrefix(t.Note, void):
		return t.Note
	case !t.Met:
		return "**no**"
	case t.holds(*t.Ratio, t.Goal):
		return "yes, and the goal"
	}
	return "yes"
}

// A Want is a target and the rows that it is about.
type Want struct {
	Target
	Of   Ref
	Base []Ref // none: the row's own figure counts
}

// Floor is a base that an outside program can be held against.
type Floor struct {
	Name string // as the benchmark's flag has it
	Unit string
	Rows []Ref
	Top  bool // nothing of ours can be faster
}

// Reference names what the outside program number i got.
func (f Floor) Reference(i int) Ref {
	return Ref{Outside, fmt.Sprintf("%s, program %d", f.Name, i)}
}

// best is what the outside programs got.
func (f Floor) best(t *Table) (refs []Ref) {
	for i := 1; t.Find(f.Reference(i)) != nil; i++ {
		refs = append(refs, f.Reference(i))
	}
	return refs
}

// What is asked of a floor.
const (
	leastOfReference = 0.8  // part of the reference program's figure
	mostOfFloor      = 1.05 // who gets more did not have a floor beneath
	mostWaited       = 0.1  // part of the time that it waited for a CPU
)

// Words of the table.
const (
	notMeasured = "not measured"
	void        = "void: "
	fromRxe     = "from bench-rxe of "
)

// Void returns why a ratio to the floor is not to be trusted, empty when
// nothing speaks against it.
func (f Floor) Void(t *Table, ratio float64) string {
	if v, ok := t.Ratio(t.Best(f.Rows...), f.best(t)...); ok && v < leastOfReference {
		return fmt.Sprintf("%sthe floor reached %.2f of the reference program", void, v)
	}
	if f.Top && ratio > mostOfFloor {
		return void + "the floor was disturbed, for nothing is faster"
	}
	return ""
}

// Targets compares the table with what is asked for.
func (t *Table) Targets(wants []Want, floors []Floor) []Target {
	var out []Target
	for _, w := range wants {
		g := w.Target
		r := t.Find(w.Of)
		if v, ok := t.Ratio(r, w.Base...); ok {
			g.reached(v)
		} else if r != nil && len(w.Base) == 0 {
			g.reached(r.Median())
		}
		if b := t.Best(w.Base...); b != nil && g.Ratio != nil && median(b.Waited) > mostWaited {
			g.Note, g.Met = fmt.Sprintf("%sthe floor waited for a CPU %.0f %% of the time", void, 100*median(b.Waited)), false
		}
		for _, f := range floors {
			if g.Ratio == nil || !slices.ContainsFunc(f.Rows, func(r Ref) bool { return slices.Contains(w.Base, r) }) {
				continue
			}
			if why := f.Void(t, *g.Ratio); why != "" {
				g.Note, g.Met = why, false
			}
		}
		out = append(out, g)
	}
	return out
}

// MergeRxe takes over the targets that `make bench-rxe` left in a file, by their
// names. No file means that they were not measured.
func MergeRxe(targets []Target, file string) ([]Target, error) {
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return targets, nil
	}
	if err != nil {
		return targets, fmt.Errorf("bench: %w", err)
	}
	var doc struct {
		Date    string   `json:"date"`
		Targets []Target `json:"targets"`
	}
	if err := json.Unmarshal(data, &doc); err != nil {
		return targets, fmt.Errorf("bench: %s: %w", file, err)
	}
	note := fromRxe + doc.Date
	for _, g := range doc.Targets {
		g.Note = note
		if i := slices.IndexFunc(targets, func(t Target) bool { return t.Name == g.Name }); i >= 0 {
			g.AtMost = targets[i].AtMost
			targets[i] = g
		} else {
			targets = append(targets, g)
		}
	}
	return targets, nil
}

// FormatTargets writes the targets as Markdown.
func FormatTargets(targets []Target) string {
	var b strings.Builder
	b.WriteString("| name | ratio | must | goal | met |\n|---|---|---|---|---|\n")
	for i := range targets {
		g := &targets[i]
		ratio, most := "", ""
		if g.Ratio != nil {
			ratio = figure(*g.Ratio)
		}
		if g.AtMost {
			most = "at most "
		}
		met := g.verdict()
		if g.Note != "" && met != g.Note {
			met += " (" + g.Note + ")"
		}
		fmt.Fprintf(&b, "| %s | %s | %s%v | %s%v | %s |\n", g.Name, ratio, most, g.Must, most, g.Goal, met)
	}
	return b.String()
}
