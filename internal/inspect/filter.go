package inspect

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/softroce/softroce/pkg/verbs"
)

// States and Types are the words that a filter takes.
var (
	States = []string{"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"}
	Types  = []string{"RC", "UC", "UD"}
)

// Filter chooses objects. An empty list chooses all.
type Filter struct {
	PIDs []int
	// For queue pairs only.
	QPNs          []uint32
	States, Types []string
	// Self is the asking program, whose objects are left out; 0: none is.
	Self int
}

// NewFilter reads the words of a filter: QPNs decimal or, after 0x, hexadecimal;
// states and types in small letters or capitals.
func NewFilter(pids []int, qpns, states, types []string) (Filter, error) {
	f := Filter{PIDs: pids}
	for _, s := range qpns {
		n, err := strconv.ParseUint(s, 0, 24)
		if err != nil {
			return f, fmt.Errorf("%q is no queue pair number: want 0 to 16777215, or 0x0 to 0xffffff", s)
		}
		f.QPNs = append(f.QPNs, uint32(n))
	}
	var err error
	if f.States, err = words("state", states, States); err != nil {
		return f, err
	}
	f.Types, err = words("type", types, Types)
	return f, err
}

// words checks that each is one of known.
func words(what string, given, known []string) (out []string, err error) {
	for _, s := range given {
		u := strings.ToUpper(s)
		if !slices.Contains(known, u) {
			return nil, fmt.Errorf("%q is no %s of a queue pair: want %s", s, what, strings.Join(known, ", "))
		}
		out = append(out, u)
	}
	return out, nil
}

// OfQPs says whether it asks for what only queue pairs have.
func (f *Filter) OfQPs() bool { return len(f.QPNs)+len(f.States)+len(f.Types) > 0 }

// match says whether an object is chosen.
func (f *Filter) match(r *verbs.Resource) bool {
	one := func(n int, has bool) bool { return n == 0 || has }
	return (f.Self == 0 || r.PID != f.Self) && one(len(f.PIDs), slices.Contains(f.PIDs, r.PID)) &&
		one(len(f.QPNs), slices.Contains(f.QPNs, r.Number)) && one(len(f.States), slices.Contains(f.States, r.State)) &&
		one(len(f.Types), slices.Contains(f.Types, r.Type))
}

// list lists the chosen objects of a kind.
func (f *Filter) list(src Source, kind verbs.ResourceKind) ([]verbs.Resource, error) {
	all, err := src.Resources(kind)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(r verbs.Resource) bool { return !f.match(&r) }), nil
}
