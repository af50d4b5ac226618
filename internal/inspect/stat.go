package inspect

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/softroce/softroce/pkg/verbs"
)

// ErrNoCounter is wrapped by the error of a name that no counter has.
var ErrNoCounter = errors.New("no such counter")

// StatOptions say which counters are shown and how.
type StatOptions struct {
	Names   []string // names, or patterns as drop_*; empty: all
	NonZero bool     // leave out what is 0
	Rates   bool     // show what a second brought since the look before
}

// Stat shows the adapter's counters. With rates, one Look makes one series.
func Stat(o StatOptions) Look {
	var last map[string]uint64
	var before time.Time
	return func(src Source, now time.Time) (View, error) {
		all, err := src.Counters()
		if err != nil {
			return nil, err
		}
		chosen, err := choose(all, o.Names)
		if err != nil {
			return nil, err
		}
		s := stat{options: o, adapter: src.Name()}
		for _, c := range chosen {
			if o.NonZero && c.Value == 0 {
				continue
			}
			r := rate{}
			if old, ok := last[c.Name]; ok {
				r = rateOf(old, c.Value, now.Sub(before))
			}
			s.counters, s.rates = append(s.counters, c), append(s.rates, r)
		}
		last, before = make(map[string]uint64, len(all)), now
		for _, c := range all {
			last[c.Name] = c.Value
		}
		return &s, nil
	}
}

// choose keeps the counters that a name names, in the adapter's order.
func choose(all []verbs.Counter, names []string) ([]verbs.Counter, error) {
	if len(names) == 0 {
		return all, nil
	}
	used := make([]bool, len(names))
	var out []verbs.Counter
	for _, c := range all {
		keep := false
		for i, n := range names {
			ok, err := path.Match(n, c.Name)
			if err != nil {
				return nil, fmt.Errorf("%w: %q is no pattern", ErrNoCounter, n)
			}
			used[i], keep = used[i] || ok, keep || ok
		}
		if keep {
			out = append(out, c)
		}
	}
	for i, n := range names {
		if !used[i] {
			return nil, fmt.Errorf("%w: %q (softroce stat lists them all)", ErrNoCounter, n)
		}
	}
	return out, nil
}

// rate is a counter's increase a second; ok is false before the second look, and
// when the counter began anew.
type rate struct {
	perSecond float64
	ok        bool
}

func rateOf(old, now uint64, elapsed time.Duration) rate {
	if now < old || elapsed <= 0 {
		return rate{}
	}
	return rate{float64(now-old) / elapsed.Seconds(), true}
}

// cell shows a rate in whole units, or with one digit where that is less than
// ten.
func (r rate) cell() cell {
	switch {
	case !r.ok:
		return cell{nil, "-"}
	case r.perSecond == 0 || r.perSecond >= 10:
		return cell{r.perSecond, fmt.Sprintf("%.0f", r.perSecond)}
	}
	return cell{r.perSecond, fmt.Sprintf("%.1f", r.perSecond)}
}

type stat struct {
	options  StatOptions
	adapter  string
	counters []verbs.Counter
	rates    []rate
}

// Lines is a table of name, value, rate and what the counter counts.
func (s *stat) Lines() []string {
	t := Table{Titles: []string{"COUNTER", "VALUE"}, right: []bool{false, true}}
	if s.options.Rates {
		t.Titles, t.right = append(t.Titles, "PER-SEC"), append(t.right, true)
	}
	t.Titles, t.right = append(t.Titles, "COUNTS"), append(t.right, false)
	for i, c := range s.counters {
		row := []cell{{text: clean(c.Name)}, {text: fmt.Sprint(c.Value)}}
		if s.options.Rates {
			row = append(row, s.rates[i].cell())
		}
		t.rows = append(t.rows, append(row, cell{text: clean(c.Help)}))
	}
	return t.Lines()
}

// MarshalJSON gives the counters by name, and the rates by the same names.
func (s *stat) MarshalJSON() ([]byte, error) {
	var values, rates, out bytes.Buffer
	err := object(&values, len(s.counters), func(i int) (string, any) { return s.counters[i].Name, s.counters[i].Value })
	if err != nil {
		return nil, err
	}
	if err = object(&rates, len(s.counters), func(i int) (string, any) { return s.counters[i].Name, s.rates[i].cell().value }); err != nil {
		return nil, err
	}
	parts := []struct {
		key   string
		value any
	}{{"adapter", s.adapter}, {"counters", json.RawMessage(values.Bytes())}, {"per_second", json.RawMessage(rates.Bytes())}}
	if !s.options.Rates {
		parts = parts[:2]
	}
	err = object(&out, len(parts), func(i int) (string, any) { return parts[i].key, parts[i].value })
	return out.Bytes(), err
}

func (s *stat) Key() string    { return "stat" }
func (s *stat) Headless() bool { return false }

// qpCounters are what a queue pair counts.
var qpCounters = []struct {
	title, perSecond, key string
	value                 func(*verbs.Resource) uint64
}{
	{"SENT-BYTES", "SENT/S", "sent_bytes", func(r *verbs.Resource) uint64 { return r.SentBytes }},
	{"RCVD-BYTES", "RCVD/S", "rcvd_bytes", func(r *verbs.Resource) uint64 { return r.RcvdBytes }},
	{"RESENT", "RESENT/S", "resent_pkts", func(r *verbs.Resource) uint64 { return r.Resent }},
	{"TIMEOUTS", "TIMEOUTS/S", "timeouts", func(r *verbs.Resource) uint64 { return r.Timeouts }},
	{"RNR-WAITS", "RNR/S", "rnr_waits", func(r *verbs.Resource) uint64 { return r.RNRWaits }},
}

// qpName tells a queue pair from a later one of the same number.
type qpName struct{ program, qpn uint32 }

// StatQPs shows the counters of the chosen queue pairs. With rates, one Look
// makes one series.
func StatQPs(f Filter, o StatOptions) Look {
	var last map[qpName]verbs.Resource
	var before time.Time
	return func(src Source, now time.Time) (View, error) {
		list, err := f.list(src, verbs.ResourceQP)
		if err != nil {
			return nil, err
		}
		t := named{qpTable(o.Rates), "qp"}
		seen := make(map[qpName]verbs.Resource, len(list))
		for i := range list {
			r := &list[i]
			name := qpName{r.Program, r.Number}
			seen[name] = *r
			old, known := last[name]
			if o.NonZero && idle(r) {
				continue
			}
			t.rows = append(t.rows, qpRow(r, &old, known, now.Sub(before), o.Rates))
		}
		last, before = seen, now
		return &t, nil
	}
}

// idle says that a queue pair has counted nothing.
func idle(r *verbs.Resource) bool {
	for _, c := range qpCounters {
		if c.value(r) != 0 {
			return false
		}
	}
	return true
}

func qpTable(rates bool) Table {
	t := Table{Titles: []string{"LQPN", "TYPE", "STATE"}, keys: []string{"lqpn", "type", "state"}, right: make([]bool, 3)}
	add := func(title, key string, right bool) {
		t.Titles, t.keys, t.right = append(t.Titles, title), append(t.keys, key), append(t.right, right)
	}
	for _, c := range qpCounters {
		add(c.title, c.key, true)
		if rates {
			add(c.perSecond, c.key+"_per_second", true)
		}
	}
	add("PID", "pid", false)
	add("COMM", "comm", false)
	return t
}

func qpRow(r, old *verbs.Resource, known bool, elapsed time.Duration, rates bool) []cell {
	row := []cell{
		{r.Number, fmt.Sprintf("0x%06x", r.Number)}, shown(r.Type, plain), shown(r.State, plain),
	}
	for _, c := range qpCounters {
		v := c.value(r)
		row = append(row, cell{v, fmt.Sprint(v)})
		if !rates {
			continue
		}
		per := rate{}
		if known {
			per = rateOf(c.value(old), v, elapsed)
		}
		row = append(row, per.cell())
	}
	return append(row, shown(r.PID, plain), shown(strings.TrimSpace(r.Name), func(v any) string { return clean(v.(string)) }))
}
