package qpstate

import (
	"fmt"

	"github.com/softroce/softroce/pkg/bth"
)

// TransitionError says that a modify is not legal between these states, or
// not with this set of attributes. On the verbs API it is EINVAL.
type TransitionError struct {
	From, To State
	Type     Type
	Missing  Mask // required, not given
	Extra    Mask // given, not allowed
}

// Error names the states and the attributes.
func (e *TransitionError) Error() string {
	s := fmt.Sprintf("modify %v QP from %v to %v", e.Type, e.From, e.To)
	switch {
	case e.Missing != 0 && e.Extra != 0:
		return fmt.Sprintf("%s: missing %v; not allowed here: %v", s, e.Missing, e.Extra)
	case e.Missing != 0:
		return fmt.Sprintf("%s: missing %v", s, e.Missing)
	case e.Extra != 0:
		return fmt.Sprintf("%s: not allowed here: %v", s, e.Extra)
	default:
		return s + ": no such transition"
	}
}

// AttrError says that an attribute's value is not legal. On the verbs API it
// is EINVAL.
type AttrError struct {
	Field string // the attribute's verbs name
	Value uint64
	Limit string // what is legal, in words
}

// Error names the attribute, its value and what is legal.
func (e *AttrError) Error() string {
	return fmt.Sprintf("modify QP: %s is %d: %s", e.Field, e.Value, e.Limit)
}

// Limits are an adapter's own limits. A zero field is not checked.
type Limits struct {
	GIDs            int     // entries in the GID table
	MaxMTU          bth.MTU // of the port
	MaxRDAtomic     uint8   // as initiator (max_qp_init_rd_atom)
	MaxDestRDAtomic uint8   // as responder (max_qp_rd_atom)
}

// Check judges the modify of a queue pair of type t in state cur: that the
// transition exists, that m has every required attribute and no other than
// the optional ones, and that the values are in range. next is the state it
// leads to. Nothing has to be undone on error.
//
// Errors: [*TransitionError], [*AttrError]; both EINVAL.
func Check(t Type, cur State, a *Attr, m Mask) (next State, err error) {
	return Limits{}.Check(t, cur, a, m)
}

// Check is the package's Check with an adapter's limits.
func (l Limits) Check(t Type, cur State, a *Attr, m Mask) (next State, err error) {
	next = cur
	if m&MaskState != 0 {
		next = a.State
	}
	if err := checkTransition(t, cur, next, m); err != nil {
		return cur, err
	}
	if m&MaskCurState != 0 {
		if err := checkCurState(cur, a.CurState); err != nil {
			return cur, err
		}
	}
	if err := l.checkRanges(a, m); err != nil {
		return cur, err
	}
	return next, nil
}

func checkTransition(t Type, cur, next State, m Mask) error {
	required, optional, ok := Transition(t, cur, next)
	if !ok {
		return &TransitionError{From: cur, To: next, Type: t}
	}
	missing := required &^ m
	extra := m &^ (required | optional | MaskState)
	if missing != 0 || extra != 0 {
		return &TransitionError{From: cur, To: next, Type: t, Missing: missing, Extra: extra}
	}
	return nil
}

// checkCurState: the program may name the state it believes the queue pair to
// be in, one of RTR, RTS, SQD and SQE, and is told when that is wrong
// (IBTA Vol 1 §11.2.5.2). The kernel's core takes the program's word instead
// and would jump from INIT to RTS; that helps nobody.
func checkCurState(cur, claimed State) error {
	switch claimed {
	case RTR, RTS, SQD, SQE:
	case Reset, Init, Err:
		return &AttrError{"cur_qp_state", uint64(claimed), "must be RTR, RTS, SQD or SQE"}
	default:
		return &AttrError{"cur_qp_state", uint64(claimed), "must be RTR, RTS, SQD or SQE"}
	}
	if claimed != cur {
		return &AttrError{"cur_qp_state", uint64(claimed), "the queue pair is in " + cur.String()}
	}
	return nil
}
