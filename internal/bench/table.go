package bench

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// A Row is one measured thing.
type Row struct {
	Name   string    // what was measured
	Path   string    // loopback, veth
	Unit   string    // GB/s (10^9 bytes of payload a second) or us
	Values []float64 // one for each round
	Base   string    // name of the row to compare with, same path; empty: none
	Must   float64   // the least ratio asked for; 0: none
}

// Median is the middle value; of an even number the mean of the middle two.
func (r *Row) Median() float64 {
	v := slices.Sorted(slices.Values(r.Values))
	n := len(v)
	switch {
	case n == 0:
		return 0
	case n%2 == 1:
		return v[n/2]
	}
	return (v[n/2-1] + v[n/2]) / 2
}

// A Table is a whole run.
type Table struct{ Rows []*Row }

// Add puts a value into the row of that name and path, making it when new.
func (t *Table) Add(like Row, value float64) {
	r := t.find(like.Name, like.Path)
	if r == nil {
		r = &like
		t.Rows = append(t.Rows, r)
	}
	r.Values = append(r.Values, value)
}

func (t *Table) find(name, path string) *Row {
	for _, r := range t.Rows {
		if r.Name == name && r.Path == path {
			return r
		}
	}
	return nil
}

// Ratio is the ratio of a row's median to its base's; false without a base.
func (t *Table) Ratio(r *Row) (float64, bool) {
	base := t.find(r.Base, r.Path)
	if r.Base == "" || base == nil || base.Median() == 0 {
		return 0, false
	}
	return r.Median() / base.Median(), true
}

// WriteTo writes the table as Markdown.
func (t *Table) WriteTo(w io.Writer) (int64, error) {
	var b strings.Builder
	b.WriteString("| path | what | unit | median | min..max | ratio | asked for |\n|---|---|---|---|---|---|---|\n")
	for _, r := range t.Rows {
		ratio, asked := "", ""
		if v, ok := t.Ratio(r); ok {
			ratio = fmt.Sprintf("%.2f of %s", v, r.Base)
		}
		if r.Must > 0 {
			asked = fmt.Sprintf("%.2f", r.Must)
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %.3g | %.3g..%.3g | %s | %s |\n",
			r.Path, r.Name, r.Unit, r.Median(), slices.Min(r.Values), slices.Max(r.Values), ratio, asked)
	}
	n, err := io.WriteString(w, b.String())
	return int64(n), err
}

// The marks between which a document holds the table.
const (
	beginMark = "<!-- begin: make bench -->\n"
	endMark   = "<!-- end: make bench -->\n"
)

// Replace gives doc with what stands between the marks replaced by text.
func Replace(doc, text string) (string, error) {
	i, j := strings.Index(doc, beginMark), strings.Index(doc, endMark)
	if i < 0 || j < i {
		return "", fmt.Errorf("bench: the document has no %q before %q", strings.TrimSpace(beginMark), strings.TrimSpace(endMark))
	}
	return doc[:i+len(beginMark)] + text + doc[j:], nil
}
