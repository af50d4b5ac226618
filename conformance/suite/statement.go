// Package suite holds the conformance suite's statements and what its cases are written with: the tester's end of a queue
// pair, which is packets and no engine, and the run over the cases.
//
// It owns the list of statements, when a case has passed, failed or been skipped, and what is shown of it. It refuses
// sockets (package wire has them) and any judgement about one statement (package cases).
package suite

import (
	_ "embed"
	"fmt"
	"strings"
	"sync"
)

// Level says what hangs on a statement.
type Level uint8

// The levels, in ascending order of weight.
const (
	May    Level = iota // optional
	Should              // what a program may rely on
	Must                // interoperation breaks without
)

func (l Level) String() string { return [...]string{"may", "should", "must"}[l] }

// ParseLevel reads a level's name.
func ParseLevel(s string) (Level, error) {
	for _, l := range []Level{May, Should, Must} {
		if s == l.String() {
			return l, nil
		}
	}
	return 0, fmt.Errorf("level %q: want must, should or may", s)
}

// Statement is one thing that an endpoint does. Its texts are Markdown.
type Statement struct {
	Number   int    // from 1, in the order of the list
	ID       string // RDR-01
	Section  string
	Level    Level
	Stimulus string
	Expected string
	Clause   string // of the InfiniBand Architecture Specification
}

//go:embed statements.md
var statementsText string

var statements = sync.OnceValue(func() []Statement {
	var out []Statement
	section := ""
	for line := range strings.SplitSeq(statementsText, "\n") {
		if s, ok := strings.CutPrefix(line, "## "); ok {
			section = s
			continue
		}
		line = strings.ReplaceAll(line, `\|`, "\x00")
		cells := strings.Split(strings.Trim(line, "|"), "|")
		if len(cells) != 5 || section == "" {
			continue
		}
		for i := range cells {
			cells[i] = strings.TrimSpace(strings.ReplaceAll(cells[i], "\x00", "|"))
		}
		level, err := ParseLevel(cells[1])
		if err != nil {
			continue // a table's head
		}
		out = append(out, Statement{
			Number: len(out) + 1, ID: cells[0], Section: section, Level: level,
			Stimulus: cells[2], Expected: cells[3], Clause: cells[4],
		})
	}
	return out
})

// Statements returns all statements, in order. The slice is shared: do not change it.
func Statements() []Statement { return statements() }

// Lookup finds a statement by its id.
func Lookup(id string) (Statement, bool) {
	for _, s := range statements() {
		if s.ID == id {
			return s, true
		}
	}
	return Statement{}, false
}
