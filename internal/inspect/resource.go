package inspect

import (
	"bytes"
	"fmt"
	"strings"
	"time"
)

// View is one moment of what is shown.
type View interface {
	// Lines are for people and scripts: a header, unless Headless, and rows.
	Lines() []string
	MarshalJSON() ([]byte, error)
	// Key is the view's name in the JSON of a series.
	Key() string
	Headless() bool
}

// Look takes one view at a time.
type Look func(src Source, now time.Time) (View, error)

// Resources lists the chosen objects of a kind.
func Resources(k Kind, f Filter) Look {
	return func(src Source, _ time.Time) (View, error) {
		list, err := f.list(src, k.kind)
		if err != nil {
			return nil, err
		}
		t := Table{}
		for _, c := range k.columns {
			t.Titles, t.keys = append(t.Titles, c.title), append(t.keys, c.key)
		}
		for i := range list {
			row := make([]cell, len(k.columns))
			for j, c := range k.columns {
				row[j] = shown(c.value(&list[i]), c.show)
			}
			t.rows = append(t.rows, row)
		}
		return &named{t, k.Name}, nil
	}
}

// named is a table as a view.
type named struct {
	Table
	key string
}

func (n *named) Key() string    { return n.key }
func (n *named) Headless() bool { return false }

// Summary counts the chosen objects of each kind. A filter of queue pairs
// counts these alone.
func Summary(f Filter) Look {
	return func(src Source, _ time.Time) (View, error) {
		s := summary{adapter: src.Name()}
		for _, k := range Kinds {
			if f.OfQPs() && k.Name != "qp" {
				continue
			}
			list, err := f.list(src, k.kind)
			if err != nil {
				return nil, err
			}
			s.names, s.counts = append(s.names, k.Name), append(s.counts, len(list))
		}
		return &s, nil
	}
}

type summary struct {
	adapter string
	names   []string
	counts  []int
}

func (s *summary) Lines() []string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s:", clean(s.adapter))
	for i, n := range s.names {
		fmt.Fprintf(&b, " %s %d", n, s.counts[i])
	}
	return []string{b.String()}
}

func (s *summary) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	err := object(&b, 1+len(s.names), func(i int) (string, any) {
		if i == 0 {
			return "adapter", s.adapter
		}
		return s.names[i-1], s.counts[i-1]
	})
	return b.Bytes(), err
}

func (s *summary) Key() string    { return "resources" }
func (s *summary) Headless() bool { return true }
