package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
)

// A Ref names a row.
type Ref struct {
	Path string // the way the bytes take: loopback, a veth, one adapter
	Name string // what was measured
}

// Units of a row.
const (
	GBs     = "GB/s"          // 10^9 bytes of payload a second
	Micros  = "us round trip" // there and back
	P99     = "us, p99"       // there and back
	Rate    = "millions/s"    // messages or packets
	PerCent = "% of a core"   // of one CPU's time
)

// A Row is one measured thing.
type Row struct {
	Ref
	Unit   string
	Size   int       // bytes of a message; 0: does not matter
	Values []float64 // one for each round
	// Waited is, of a floor, which part of the time it waited for a CPU that
	// others had, for each round; else empty.
	Waited []float64
	// Base are the rows to compare with; of several, the one with the greatest
	// median.
	Base []Ref
}

// Median is the middle value.
func (r *Row) Median() float64 { return median(r.Values) }

// median is the middle value; of an even number the mean of the middle two.
func median(values []float64) float64 {
	v := slices.Sorted(slices.Values(values))
	n := len(v)
	switch {
	case n == 0:
		return 0
	case n%2 == 1:
		return v[n/2]
	}
	return (v[n/2-1] + v[n/2]) / 2
}

// MarshalJSON gives the row with its median.
func (r *Row) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Path   string    `json:"path"`
		Name   string    `json:"name"`
		Unit   string    `json:"unit"`
		Size   int       `json:"size,omitempty"`
		Median float64   `json:"median"`
		Values []float64 `json:"values"`
		Waited []float64 `json:"waited,omitempty"`
	}{r.Path, r.Name, r.Unit, r.Size, r.Median(), r.Values, r.Waited})
}

// A Table is a whole run.
type Table struct{ Rows []*Row }

// Add puts a value into the row of that path and name, making it when new.
func (t *Table) Add(like Row, value float64) {
	r := t.Find(like.Ref)
	if r == nil {
		r = &like
		t.Rows = append(t.Rows, r)
	}
	r.Values = append(r.Values, value)
}

// AddFloor is Add for a floor that waited for a part of the time.
func (t *Table) AddFloor(like Row, value, waited float64) {
	t.Add(like, value)
	r := t.Find(like.Ref)
	r.Waited = append(r.Waited, waited)
}

// Find returns the row, nil when there is none.
func (t *Table) Find(ref Ref) *Row {
	for _, r := range t.Rows {
		if r.Ref == ref {
			return r
		}
	}
	return nil
}

// Best returns, of the rows that are there, the one with the greatest median;
// nil when there is none.
func (t *Table) Best(refs ...Ref) (best *Row) {
	for _, ref := range refs {
		if r := t.Find(ref); r != nil && (best == nil || r.Median() > best.Median()) {
			best = r
		}
	}
	return best
}

// Ratio is the ratio of a row's median to that of the best of the base; false
// without either.
func (t *Table) Ratio(r *Row, base ...Ref) (float64, bool) {
	b := t.Best(base...)
	if r == nil || b == nil || len(r.Values) == 0 || b.Median() == 0 {
		return 0, false
	}
	return r.Median() / b.Median(), true
}

// WriteTo writes a table for each path as Markdown, the rows in the order of
// their names' first measurement, or of size.
func (t *Table) WriteTo(w io.Writer) (int64, error) {
	var b strings.Builder
	for _, path := range t.paths() {
		fmt.Fprintf(&b, "### %s\n\n| what | unit | median | min..max | ratio |\n|---|---|---|---|---|\n", path)
		for _, r := range t.of(path) {
			ratio := ""
			if v, ok := t.Ratio(r, r.Base...); ok {
				ratio = fmt.Sprintf("%.2f of %s", v, t.Best(r.Base...).label(path))
			}
			fmt.Fprintf(&b, "| %s | %s | %s | %s..%s | %s |\n", r.Name, r.Unit,
				figure(r.Median()), figure(slices.Min(r.Values)), figure(slices.Max(r.Values)), ratio)
		}
		b.WriteString("\n")
	}
	n, err := io.WriteString(w, b.String())
	return int64(n), err
}

// label names the row where path is understood.
func (r *Row) label(path string) string {
	if r.Path == path {
		return r.Name
	}
	return r.Name + " (" + r.Path + ")"
}

// paths lists the paths, sorted by name: rounds measure in any order.
func (t *Table) paths() []string {
	var p []string
	for _, r := range t.Rows {
		p = append(p, r.Path)
	}
	slices.Sort(p)
	return slices.Compact(p)
}

// of gives the rows of a path: by unit, then operation, then size.
func (t *Table) of(path string) []*Row {
	var rows []*Row
	for _, r := range t.Rows {
		if r.Path == path {
			rows = append(rows, r)
		}
	}
	slices.SortFunc(rows, func(a, b *Row) int {
		for _, c := range []int{
			strings.Compare(a.Unit, b.Unit),
			strings.Compare(operation(a.Name), operation(b.Name)),
			a.Size - b.Size,
			strings.Compare(a.Name, b.Name),
		} {
			if c != 0 {
				return c
			}
		}
		return 0
	})
	return rows
}

// operation is the first word of a name.
func operation(name string) string {
	word, _, _ := strings.Cut(name, " ")
	return word
}

// figure writes three digits that count, without an exponent.
func figure(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	case v >= 1:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.3g", v)
}

// SizeName writes a number of bytes as people do.
func SizeName(n int) string {
	switch {
	case n >= 1<<20 && n%(1<<20) == 0:
		return fmt.Sprintf("%d MiB", n>>20)
	case n >= 1<<10 && n%(1<<10) == 0:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d B", n)
}

// The marks between which a document holds what was measured.
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
