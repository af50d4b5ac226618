package inspect

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Table is rows of cells below titles, and the same as JSON.
type Table struct {
	Titles []string
	keys   []string
	rows   [][]cell
	right  []bool // columns whose numbers stand at the right; nil: none
}

// cell is a value and how a table shows it. A nil value is "-".
type cell struct {
	value any
	text  string
}

func shown(value any, show func(any) string) cell {
	if value == nil {
		return cell{nil, "-"}
	}
	s := show(value)
	if s == "" {
		s = "-"
	}
	return cell{value, s}
}

// Rows is the number of its rows.
func (t *Table) Rows() int { return len(t.rows) }

// Lines are the header and the rows, aligned.
func (t *Table) Lines() []string {
	width := make([]int, len(t.Titles))
	for i, s := range t.Titles {
		width[i] = utf8.RuneCountInString(s)
	}
	for _, r := range t.rows {
		for i := range r {
			width[i] = max(width[i], utf8.RuneCountInString(r[i].text))
		}
	}
	lines := make([]string, 0, 1+len(t.rows))
	lines = append(lines, t.line(width, func(i int) string { return t.Titles[i] }))
	for _, r := range t.rows {
		lines = append(lines, t.line(width, func(i int) string { return r[i].text }))
	}
	return lines
}

func (t *Table) line(width []int, text func(i int) string) string {
	var b strings.Builder
	for i, w := range width {
		s := text(i)
		pad := strings.Repeat(" ", w-utf8.RuneCountInString(s))
		if t.right != nil && t.right[i] {
			s, pad = pad+s, ""
		}
		if i > 0 {
			b.WriteString("  ")
		}
		b.WriteString(s)
		b.WriteString(pad)
	}
	return strings.TrimRight(b.String(), " ")
}

// MarshalJSON gives a list of objects, each with every key, in the order of the
// columns.
func (t *Table) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('[')
	for i, r := range t.rows {
		if i > 0 {
			b.WriteByte(',')
		}
		if err := object(&b, len(r), func(i int) (string, any) { return t.keys[i], r[i].value }); err != nil {
			return nil, err
		}
	}
	b.WriteByte(']')
	return b.Bytes(), nil
}

// object writes a JSON object whose keys keep their order.
func object(b *bytes.Buffer, n int, pair func(i int) (string, any)) error {
	b.WriteByte('{')
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		key, value := pair(i)
		j, err := json.Marshal(value)
		if err != nil {
			return err
		}
		fmt.Fprintf(b, "%q:%s", key, j)
	}
	b.WriteByte('}')
	return nil
}

// clean makes a text that a program chose harmless to a terminal and a table.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) || r == utf8.RuneError {
			return '?'
		}
		return r
	}, s)
}

// writeLines writes each line with its newline.
func writeLines(w io.Writer, prefix string, lines []string) error {
	for _, l := range lines {
		if _, err := fmt.Fprintln(w, prefix+l); err != nil {
			return err
		}
	}
	return nil
}
