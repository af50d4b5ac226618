// Package report shows what a run of the conformance suite found: as a tree on a terminal, as JSON, as JUnit's XML, as
// captures, and as one HTML page with several targets side by side.
//
// It owns the form of a result outside of the suite and the question whether a run as a whole is good, exceptions
// included. It refuses to run a case and to judge one.
package report

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/softroce/softroce/conformance/suite"
)

// Format is the version of the JSON form of a Run.
const Format = 1

// maxLadder bounds the lines of a case's ladder in a report; what is beyond is cut out of its middle.
const maxLadder = 160

// Run is one run of the suite against one target.
type Run struct {
	Format   int       `json:"format"`
	Target   Target    `json:"target"`
	Versions Versions  `json:"versions"`
	Seed     uint64    `json:"seed"`
	Began    time.Time `json:"began"`
	MS       float64   `json:"ms"` // of the whole run
	Counts   Counts    `json:"counts"`
	Cases    []Case    `json:"cases"`
}

// Target is what was tested.
type Target struct {
	Name     string   `json:"name"` // what a report calls it
	Host     string   `json:"host"`
	Agent    string   `json:"agent,omitempty"`  // program and version of the agent
	Device   string   `json:"device,omitempty"` // the RDMA device's name
	Features []string `json:"features,omitempty"`
}

// Versions says by what.
type Versions struct {
	Softroce string `json:"softroce"` // the tester's
	Protocol int    `json:"protocol"` // of the agent
}

// Counts are numbers of cases.
type Counts struct {
	Cases    int `json:"cases"`
	Passed   int `json:"passed"`
	Failed   int `json:"failed"`
	Excepted int `json:"excepted"` // failed, and named in the exceptions file; not among Failed
	Skipped  int `json:"skipped"`
	// MustFailed are those of Failed that are musts.
	MustFailed int `json:"must_failed"`
}

// Case is what came of one case.
type Case struct {
	ID      string `json:"id"`
	Section string `json:"section"`
	Level   string `json:"level"`
	Title   string `json:"title"`
	Clause  string `json:"clause"`
	Result  string `json:"result"` // pass, fail or skip
	Reason  string `json:"reason,omitempty"`
	// Exception is why a failure is expected of this target.
	Exception string   `json:"exception,omitempty"`
	Notes     []string `json:"notes,omitempty"`
	MS        float64  `json:"ms"`
	Ladder    string   `json:"ladder,omitempty"`
}

// The results of a Case.
const (
	resultPass = "pass"
	resultFail = "fail"
	resultSkip = "skip"
)

// Title is a statement in one line.
func Title(s suite.Statement) string { return s.Stimulus + " → " + s.Expected }

// NewCase puts a result in a report's form. ladder draws the packets; nil leaves them out.
func NewCase(r *suite.Result, ladder func(*suite.Result) string, ex *Exceptions) Case {
	c := Case{
		ID: r.ID, Section: r.Section, Level: r.Level.String(), Title: Title(r.Statement), Clause: r.Clause,
		Result: r.Outcome.String(), Reason: r.Reason, Notes: r.Notes, MS: milliseconds(r.Took),
	}
	if c.Result == resultFail {
		c.Exception = ex.reason(r.ID)
	}
	if ladder != nil {
		c.Ladder = cut(ladder(r))
	}
	return c
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// cut shortens a ladder that nobody would read.
func cut(ladder string) string {
	lines := strings.Split(strings.TrimRight(ladder, "\n"), "\n")
	if len(lines) <= maxLadder {
		return strings.Join(lines, "\n")
	}
	half := maxLadder / 2
	gap := fmt.Sprintf("  ... %d lines are left out here ...", len(lines)-2*half)
	return strings.Join(slices.Concat(lines[:half], []string{gap}, lines[len(lines)-half:]), "\n")
}

// Add adds a case.
func (r *Run) Add(c Case) {
	r.Cases = append(r.Cases, c)
	r.Counts.add(c)
}

func (n *Counts) add(c Case) {
	n.Cases++
	switch {
	case c.Result == resultPass:
		n.Passed++
	case c.Result == resultSkip:
		n.Skipped++
	case c.Exception != "":
		n.Excepted++
	default:
		n.Failed++
		if c.Level == suite.Must.String() {
			n.MustFailed++
		}
	}
}

// WriteJSON writes the run as JSON.
func (r *Run) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", " ")
	if err := e.Encode(r); err != nil {
		return fmt.Errorf("write the results: %w", err)
	}
	return nil
}

// ReadJSON reads what WriteJSON wrote. Numbers of cases are counted anew.
func ReadJSON(r io.Reader) (*Run, error) {
	var run Run
	in := json.NewDecoder(r)
	if err := in.Decode(&run); err != nil {
		return nil, fmt.Errorf("read results: %w", err)
	}
	if _, err := in.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("read results: there is more behind them")
	}
	if run.Format != Format {
		return nil, fmt.Errorf("read results: format %d, want %d", run.Format, Format)
	}
	run.Counts = Counts{}
	seen := map[string]bool{}
	for _, c := range run.Cases {
		if !slices.Contains([]string{resultPass, resultFail, resultSkip}, c.Result) {
			return nil, fmt.Errorf("read results: %s: result %q, want pass, fail or skip", c.ID, c.Result)
		}
		if seen[c.ID] {
			return nil, fmt.Errorf("read results: %s is there twice", c.ID)
		}
		seen[c.ID] = true
		run.Counts.add(c)
	}
	return &run, nil
}
