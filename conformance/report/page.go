package report

import (
	_ "embed"
	"errors"
	"fmt"
	"html/template"
	"io"
	"strconv"
	"strings"

	"github.com/softroce/softroce/conformance/suite"
)

// Parts of the page. It needs nothing else: no network, no font, no library.
var (
	//go:embed page.html
	pageHTML string
	//go:embed page.css
	pageCSS string
	//go:embed page.js
	pageJS string
)

var page = template.Must(template.New("page").Parse(pageHTML))

// pageData is what page.html shows.
type pageData struct {
	CSS      template.CSS
	JS       template.JS
	Columns  []column
	Sections []section
	Total    int
}

// column is a target.
type column struct {
	Number int
	Run    *Run
	Began  string
	Took   string
	Bar    []bar
}

// bar is a part of a target's bar, in per cent of its cases.
type bar struct {
	Class, Label string
	N            int
	Width        template.CSS
}

type section struct {
	Name, Prefix string
	Rows         []row
}

// row is a statement with one cell for each target.
type row struct {
	suite.Statement
	Cells []cell
	// Class names the results that are in the row, for the filter; Text is what a search looks at.
	Class, Text string
}

// cell is what came of a statement on a target; the zero Case was not run.
type cell struct {
	Case
	Column column
	Anchor string // of its ladder
	Sign   string
	Class  string // pass, fail (a must), weak (another that failed), except, skip, none
	Word   string
	Want   string
	Got    string
	Rungs  []rung
}

// rung is a line of a ladder; Class says who sent its packet.
type rung struct{ Class, Text string }

func rungs(ladder string) (out []rung) {
	if ladder == "" {
		return nil
	}
	for line := range strings.SplitSeq(ladder, "\n") {
		r := rung{Text: line}
		switch {
		case strings.Contains(line, " ---> "):
			r.Class = "sent"
		case strings.Contains(line, " <--- "):
			r.Class = "received"
		}
		out = append(out, r)
	}
	return out
}

// WritePage writes one HTML page that shows what came of each statement on each target; the runs are its columns.
func WritePage(w io.Writer, runs []*Run) error {
	if len(runs) == 0 {
		return errors.New("write the page: no results")
	}
	d := pageData{CSS: template.CSS(pageCSS), JS: template.JS(pageJS)} //nolint:gosec // embedded files of ours (2026-11)
	for i, r := range runs {
		d.Columns = append(d.Columns, newColumn(i+1, r))
	}
	d.Sections, d.Total = sectionsOf(d.Columns)
	if err := page.Execute(w, d); err != nil {
		return fmt.Errorf("write the page: %w", err)
	}
	return nil
}

func newColumn(number int, r *Run) column {
	c := column{Number: number, Run: r, Took: strconv.FormatFloat(r.MS/1000, 'f', 1, 64) + " s"}
	if !r.Began.IsZero() {
		c.Began = r.Began.UTC().Format("2006-01-02 15:04 UTC")
	}
	n := r.Counts
	for _, b := range []bar{
		{Class: "pass", Label: "passed", N: n.Passed},
		{Class: "fail", Label: "musts failed", N: n.MustFailed},
		{Class: "weak", Label: "others failed", N: n.Failed - n.MustFailed},
		{Class: "except", Label: "excepted", N: n.Excepted},
		{Class: "skip", Label: "skipped", N: n.Skipped},
	} {
		if b.N > 0 {
			b.Width = template.CSS(strconv.FormatFloat(100*float64(b.N)/float64(n.Cases), 'f', 2, 64)) //nolint:gosec // a number
			c.Bar = append(c.Bar, b)
		}
	}
	return c
}

// sectionsOf gives the statements that one of the targets at least was run with.
func sectionsOf(columns []column) (out []section, total int) {
	found := make([]map[string]Case, len(columns))
	for i, col := range columns {
		found[i] = map[string]Case{}
		for _, c := range col.Run.Cases {
			found[i][c.ID] = c
		}
	}
	for _, s := range suite.Statements() {
		r := row{Statement: s, Text: strings.ToLower(s.ID + " " + Title(s) + " " + s.Clause)}
		ran := false
		for i, col := range columns {
			c, ok := found[i][s.ID]
			ran = ran || ok
			r.Cells = append(r.Cells, newCell(c, ok, col))
			r.Text += " " + strings.ToLower(c.Reason)
		}
		if !ran {
			continue
		}
		r.Class = classes(r.Cells)
		if n := len(out); n == 0 || out[n-1].Name != s.Section {
			prefix, _, _ := strings.Cut(s.ID, "-")
			out = append(out, section{Name: s.Section, Prefix: prefix})
		}
		sec := &out[len(out)-1]
		sec.Rows = append(sec.Rows, r)
		total++
	}
	return out, total
}

func newCell(c Case, ran bool, col column) cell {
	x := cell{Case: c, Column: col, Anchor: c.ID + "." + strconv.Itoa(col.Number), Rungs: rungs(c.Ladder)}
	x.Want, x.Got, _ = expectedGot(c.Reason)
	switch {
	case !ran:
		x.Class, x.Word, x.Sign = "none", "not run", ""
	case c.Result == resultPass:
		x.Class, x.Word, x.Sign = "pass", "passed", "✓"
	case c.Result == resultSkip:
		x.Class, x.Word, x.Sign = "skip", "skipped", "–"
	case c.Exception != "":
		x.Class, x.Word, x.Sign = "except", "failed, an exception", "!"
	case c.Level == suite.Must.String():
		x.Class, x.Word, x.Sign = "fail", "failed", "✗"
	default:
		x.Class, x.Word, x.Sign = "weak", "failed", "✗"
	}
	return x
}

// classes lists the filter's words that a row answers to.
func classes(cells []cell) string {
	words := map[string]bool{}
	for _, c := range cells {
		words[c.Class] = true
		if c.Class == "weak" || c.Class == "except" {
			words["fail"] = true
		}
		if c.Result != cells[0].Result {
			words["differ"] = true
		}
	}
	var out []string
	for _, w := range []string{"pass", "fail", "except", "skip", "differ"} {
		if words[w] {
			out = append(out, w)
		}
	}
	return strings.Join(out, " ")
}
