package report

import (
	"bufio"
	"fmt"
	"io"
	"strings"

	"github.com/softroce/softroce/conformance/suite"
)

// Exceptions are the statements that a target is known to fail, for a reason that lies outside of it: its socket does
// not see what a case changes, for instance. A nil *Exceptions has none.
type Exceptions struct {
	order []string
	why   map[string]string
}

// ParseExceptions reads lines "ID reason"; "#" begins a comment. Each needs its reason, none may be there twice, and all
// must be statements.
func ParseExceptions(r io.Reader) (*Exceptions, error) {
	e := &Exceptions{why: map[string]string{}}
	in := bufio.NewScanner(r)
	for n := 1; in.Scan(); n++ {
		line, _, _ := strings.Cut(in.Text(), "#")
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		id, why := words[0], strings.Join(words[1:], " ")
		switch _, known := suite.Lookup(id); {
		case !known:
			return nil, fmt.Errorf("exceptions, line %d: %q is no statement", n, id)
		case why == "":
			return nil, fmt.Errorf("exceptions, line %d: %s has no reason", n, id)
		case e.why[id] != "":
			return nil, fmt.Errorf("exceptions, line %d: %s is there twice", n, id)
		}
		e.order = append(e.order, id)
		e.why[id] = why
	}
	if err := in.Err(); err != nil {
		return nil, fmt.Errorf("exceptions: %w", err)
	}
	return e, nil
}

func (e *Exceptions) reason(id string) string {
	if e == nil {
		return ""
	}
	return e.why[id]
}

// Complaints says, one line each, why the run as a whole is not good: musts that failed and are no exception, and
// exceptions that are none. isCase says whether a statement has a case.
func (r *Run) Complaints(e *Exceptions, isCase func(id string) bool) []string {
	var found []string
	results := map[string]string{}
	for _, c := range r.Cases {
		results[c.ID] = c.Result
		if c.Result == resultFail && c.Level == suite.Must.String() && c.Exception == "" {
			found = append(found, c.ID+": a must failed")
		}
	}
	if e == nil {
		return found
	}
	for _, id := range e.order {
		switch {
		case !isCase(id):
			found = append(found, id+": is in the exceptions file, and has no case")
		case results[id] == resultPass:
			found = append(found, id+": is in the exceptions file, and passes")
		}
	}
	return found
}
