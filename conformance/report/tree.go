package report

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/softroce/softroce/conformance/suite"
)

// Tree prints cases as they come, by section: a tick, a cross or a dash each, and below a failure what was expected, what
// came, and the packets. Write errors are kept; Err has the first.
type Tree struct {
	w       io.Writer
	colour  bool
	section string
	err     error
}

// NewTree returns a tree on w; colour is by the escape sequences of a terminal.
func NewTree(w io.Writer, colour bool) *Tree { return &Tree{w: w, colour: colour} }

// Err is the first error of writing.
func (t *Tree) Err() error { return t.err }

func (t *Tree) printf(format string, args ...any) {
	if t.err == nil {
		_, t.err = fmt.Fprintf(t.w, format, args...)
	}
}

// The escape sequences of Tree's colours.
const (
	red    = "31"
	green  = "32"
	yellow = "33"
	dim    = "2"
	bold   = "1"
)

func (t *Tree) paint(code, s string) string {
	if !t.colour || s == "" {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

// Head prints what is tested.
func (t *Tree) Head(r *Run) {
	t.printf("%s\n", t.paint(bold, "Conformance of "+clean(r.Target.Name)))
	if r.Target.Device != "" {
		t.printf("%s\n", t.paint(dim, clean(fmt.Sprintf("device %s at %s, agent %s, seed %d", r.Target.Device, r.Target.Host, r.Target.Agent, r.Seed))))
	}
}

// Case prints one case, below its section's heading.
func (t *Tree) Case(c Case) {
	if c.Section != t.section {
		t.section = c.Section
		t.printf("\n%s\n", t.paint(bold, c.Section))
	}
	sign, colour := c.sign()
	head := fmt.Sprintf("%s %-6s %-6s %s", t.paint(colour, sign), c.ID, c.Level, c.Title)
	if c.Result == resultSkip {
		head = t.paint(dim, clean(fmt.Sprintf("%s %-6s %-6s %s (%s)", sign, c.ID, c.Level, c.Title, c.Reason)))
	}
	t.printf("  %s\n", head)
	if c.Result == resultFail {
		t.failure(c)
	}
	for _, n := range c.Notes {
		t.block("note", n, dim)
	}
}

// sign is a case's mark and its colour.
func (c *Case) sign() (sign, colour string) {
	switch {
	case c.Result == resultPass:
		return "✓", green
	case c.Result == resultSkip:
		return "-", dim
	case c.Exception != "":
		return "!", yellow
	}
	return "✗", red
}

func (t *Tree) failure(c Case) {
	if c.Exception != "" {
		t.block("exception", c.Exception, yellow)
	}
	if want, got, ok := expectedGot(c.Reason); ok {
		t.block("expected", want, red)
		t.block("got", got, red)
	} else {
		t.block("failed", c.Reason, red)
	}
	t.block("clause", c.Clause, dim)
	if c.Ladder == "" {
		t.block("packets", "none", dim)
		return
	}
	t.printf("      packets (tester on the left)\n")
	for line := range strings.SplitSeq(c.Ladder, "\n") {
		t.printf("        %s\n", t.paint(dim, clean(line)))
	}
}

// block prints a word and a text, which may be of several lines.
func (t *Tree) block(word, text, colour string) {
	for i, line := range strings.Split(strings.TrimRight(text, "\n"), "\n") {
		if i > 0 {
			word = ""
		}
		t.printf("      %s %s\n", t.paint(colour, fmt.Sprintf("%-9s", word)), clean(line))
	}
}

// expectedGot takes a failure's reason apart.
func expectedGot(reason string) (want, got string, ok bool) {
	rest, ok := strings.CutPrefix(reason, "expected ")
	if !ok {
		return "", "", false
	}
	return strings.Cut(rest, ", got ")
}

// clean replaces what would move a terminal's cursor: parts of a text came from the target.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' && r != '\t' || r >= 0x7f && r < 0xa0 {
			return '.'
		}
		return r
	}, s)
}

// levels, in the order that a summary shows them.
var levels = []string{suite.Must.String(), suite.Should.String(), suite.May.String()}

// Summary prints the numbers, what failed, and the complaints.
func (t *Tree) Summary(r *Run, complaints []string) {
	by := map[string]*Counts{}
	for _, l := range levels {
		by[l] = &Counts{}
	}
	var failed []string
	for _, c := range r.Cases {
		if n := by[c.Level]; n != nil {
			n.add(c)
		}
		if c.Result == resultFail && c.Exception == "" {
			failed = append(failed, c.ID)
		}
	}
	took := time.Duration(r.MS * float64(time.Millisecond)).Round(10 * time.Millisecond)
	t.printf("\n%s\n", t.paint(bold, fmt.Sprintf("%s in %v", r.Counts, took)))
	for _, l := range levels {
		t.printf("  %-7s %s\n", l, by[l])
	}
	if len(failed) > 0 {
		t.printf("%s\n", t.paint(red, "failed: "+strings.Join(failed, " ")))
	}
	for _, c := range complaints {
		t.printf("%s\n", t.paint(red, c))
	}
}

// String says the numbers in a line.
func (n Counts) String() string {
	parts := []string{
		fmt.Sprintf("%d passed", n.Passed), fmt.Sprintf("%d failed", n.Failed),
		fmt.Sprintf("%d excepted", n.Excepted), fmt.Sprintf("%d skipped", n.Skipped),
	}
	if n.Excepted == 0 {
		parts = slices.Delete(parts, 2, 3)
	}
	word := "cases"
	if n.Cases == 1 {
		word = "case"
	}
	return fmt.Sprintf("%d %s: %s", n.Cases, word, strings.Join(parts, ", "))
}
