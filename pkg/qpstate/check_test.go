package qpstate

import (
	"errors"
	"strings"
	"testing"

	"github.com/softroce/softroce/pkg/bth"
)

// letters of the attributes in the expectation below, each once.
var attrLetters = map[string]Mask{
	"cur": MaskCurState, "sqdn": MaskEnSQDAsyncNotify, "acc": MaskAccessFlags, "pk": MaskPKeyIndex,
	"port": MaskPort, "qkey": MaskQKey, "av": MaskAV, "mtu": MaskPathMTU, "tmo": MaskTimeout,
	"rc": MaskRetryCnt, "rnr": MaskRNRRetry, "rqpsn": MaskRQPSN, "rd": MaskMaxQPRDAtomic,
	"alt": MaskAltPath, "rnrt": MaskMinRNRTimer, "sqpsn": MaskSQPSN, "drd": MaskMaxDestRDAtomic,
	"mig": MaskPathMigState, "cap": MaskCap, "dqpn": MaskDestQPN, "rate": MaskRateLimit,
}

func masks(t *testing.T, words string) Mask {
	t.Helper()
	var m Mask
	for _, w := range strings.Fields(words) {
		bit, ok := attrLetters[w]
		if !ok {
			t.Fatalf("no attribute %q", w)
		}
		m |= bit
	}
	return m
}

// expectation is one row of the specification's table, written from it word
// by word and not from the code's.
type expectation struct {
	clause   string
	from, to State
	types    []Type
	required string
	optional string
}

var (
	connected = []Type{RC, UC}
	datagram  = []Type{UD, GSI}
	every     = []Type{RC, UC, UD, GSI}
)

var expectations = []expectation{
	{"§11.2.5.2 RESET to INIT, connected", Reset, Init, connected, "pk port acc", ""},
	{"§11.2.5.2 RESET to INIT, UD", Reset, Init, []Type{UD}, "pk port qkey", ""},
	{"§11.2.5.2 RESET to INIT, GSI", Reset, Init, []Type{GSI}, "pk qkey", ""},
	{"§11.2.5.2 INIT to INIT, connected", Init, Init, connected, "", "pk port acc"},
	{"§11.2.5.2 INIT to INIT, UD", Init, Init, []Type{UD}, "", "pk port qkey"},
	{"§11.2.5.2 INIT to INIT, GSI", Init, Init, []Type{GSI}, "", "pk qkey"},
	{"§11.2.5.2 INIT to RTR, RC", Init, RTR, []Type{RC}, "av mtu dqpn rqpsn drd rnrt", "alt acc pk"},
	{"§11.2.5.2 INIT to RTR, UC", Init, RTR, []Type{UC}, "av mtu dqpn rqpsn", "alt acc pk"},
	{"§11.2.5.2 INIT to RTR, datagram", Init, RTR, datagram, "", "pk qkey"},
	{"§11.2.5.2 RTR to RTS, RC", RTR, RTS, []Type{RC}, "tmo rc rnr sqpsn rd", "cur alt acc rnrt mig"},
	{"§11.2.5.2 RTR to RTS, UC", RTR, RTS, []Type{UC}, "sqpsn", "cur alt acc mig"},
	{"§11.2.5.2 RTR to RTS, datagram", RTR, RTS, datagram, "sqpsn", "cur qkey"},
	{"§11.2.5.2 RTS to RTS, RC", RTS, RTS, []Type{RC}, "", "cur acc alt mig rnrt"},
	{"§11.2.5.2 RTS to RTS, UC", RTS, RTS, []Type{UC}, "", "cur acc alt mig"},
	{"§11.2.5.2 RTS to RTS, datagram", RTS, RTS, datagram, "", "cur qkey"},
	{"§11.2.5.2 RTS to SQD", RTS, SQD, every, "", "sqdn"},
	{"§11.2.5.2 SQD to RTS, RC", SQD, RTS, []Type{RC}, "", "cur alt acc rnrt mig"},
	{"§11.2.5.2 SQD to RTS, UC", SQD, RTS, []Type{UC}, "", "cur alt acc mig"},
	{"§11.2.5.2 SQD to RTS, datagram", SQD, RTS, datagram, "", "cur qkey"},
	{"§11.2.5.2 SQD to SQD, RC", SQD, SQD, []Type{RC}, "", "port av tmo rc rnr rd drd alt acc pk rnrt mig"},
	{"§11.2.5.2 SQD to SQD, UC", SQD, SQD, []Type{UC}, "", "av alt acc pk mig"},
	{"§11.2.5.2 SQD to SQD, datagram", SQD, SQD, datagram, "", "pk qkey"},
	{"§11.2.5.2 SQE to RTS, UC", SQE, RTS, []Type{UC}, "", "cur acc"},
	{"§11.2.5.2 SQE to RTS, datagram", SQE, RTS, datagram, "", "cur qkey"},
	{"§11.2.5.2 SQE to RTS, RC: listed, without attributes", SQE, RTS, []Type{RC}, "", ""},
	{"§10.3.1.1 RESET from RESET", Reset, Reset, every, "", ""},
	{"§10.3.1.1 RESET from INIT", Init, Reset, every, "", ""},
	{"§10.3.1.1 RESET from RTR", RTR, Reset, every, "", ""},
	{"§10.3.1.1 RESET from RTS", RTS, Reset, every, "", ""},
	{"§10.3.1.1 RESET from SQD", SQD, Reset, every, "", ""},
	{"§10.3.1.1 RESET from SQE", SQE, Reset, every, "", ""},
	{"§10.3.1.1 RESET from ERR", Err, Reset, every, "", ""},
	{"§10.3.1.7 ERR from INIT", Init, Err, every, "", ""},
	{"§10.3.1.7 ERR from RTR", RTR, Err, every, "", ""},
	{"§10.3.1.7 ERR from RTS", RTS, Err, every, "", ""},
	{"§10.3.1.7 ERR from SQD", SQD, Err, every, "", ""},
	{"§10.3.1.7 ERR from SQE", SQE, Err, every, "", ""},
	{"§10.3.1.7 ERR from ERR", Err, Err, every, "", ""},
}

// find is the row of a transition, nil when the specification has none.
func find(t Type, from, to State) *expectation {
	for i := range expectations {
		e := &expectations[i]
		if e.from != from || e.to != to {
			continue
		}
		for _, et := range e.types {
			if et == t {
				return e
			}
		}
	}
	return nil
}

// goodAttr has a legal value for every attribute.
func goodAttr(to, cur State) Attr {
	return Attr{
		State: to, CurState: cur, PathMTU: bth.MTU1024, QKey: 0x11111111, RQPSN: 1, SQPSN: 2, DestQPN: 17,
		AH: AHAttr{IsGlobal: true, PortNum: 1, DGID: bth.GID{15: 1}}, MaxRDAtomic: 16, MaxDestRDAtomic: 16,
		MinRNRTimer: 12, PortNum: 1, Timeout: 14, RetryCnt: 7, RNRRetry: 7,
	}
}

// TestEveryTransition: 7 × 7 pairs × 4 types, each with all of its required
// attributes, with each one missing, with each optional one, and with each of
// the other attributes.
func TestEveryTransition(t *testing.T) {
	legal := 0
	for _, typ := range every {
		for from := Reset; from <= Err; from++ {
			for to := Reset; to <= Err; to++ {
				e := find(typ, from, to)
				name := typ.String() + " " + from.String() + " to " + to.String()
				t.Run(name, func(t *testing.T) {
					if e == nil {
						wantNoTransition(t, typ, from, to)
						return
					}
					legal++
					tryMasks(t, e, typ)
				})
			}
		}
	}
	if want := 22 * 4; legal != want {
		t.Errorf("%d legal transitions of all types, want %d", legal, want)
	}
}

func wantNoTransition(t *testing.T, typ Type, from, to State) {
	t.Helper()
	a := goodAttr(to, from)
	for _, m := range []Mask{MaskState, MaskState | MaskQKey, 1<<26 - 1} {
		next, err := Check(typ, from, &a, m)
		var te *TransitionError
		if !errors.As(err, &te) || te.From != from || te.To != to || te.Type != typ || te.Missing|te.Extra != 0 {
			t.Errorf("mask %v: error %v, want no such transition", m, err)
		}
		if next != from {
			t.Errorf("mask %v: refused, but the next state is %v", m, next)
		}
	}
}

// tryMasks checks one transition with every neighbour of its legal masks.
func tryMasks(t *testing.T, e *expectation, typ Type) {
	t.Helper()
	required, optional := masks(t, e.required), masks(t, e.optional)
	a := goodAttr(e.to, e.from)
	wantOK := func(m Mask) {
		t.Helper()
		if next, err := Check(typ, e.from, &a, m); err != nil || next != e.to {
			t.Errorf("%s: %v with %v: next %v, error %v", e.clause, typ, m, next, err)
		}
	}
	wantBad := func(m, missing, extra Mask) {
		t.Helper()
		next, err := Check(typ, e.from, &a, m)
		var te *TransitionError
		if !errors.As(err, &te) || te.Missing != missing || te.Extra != extra {
			t.Errorf("%s: %v with %v: error %v, want missing %v, extra %v", e.clause, typ, m, err, missing, extra)
		}
		if next != e.from {
			t.Errorf("%s: refused, but the next state is %v", e.clause, next)
		}
	}
	wantOK(MaskState | required)
	wantOK(MaskState | required | optional)
	for bit := Mask(1); bit != 0; bit <<= 1 {
		switch {
		case bit == MaskState:
		case required&bit != 0:
			wantBad(MaskState|required&^bit, bit, 0)
			wantBad((MaskState|required|MaskCap)&^bit, bit, MaskCap)
		case optional&bit != 0:
			wantOK(MaskState | required | bit)
		default:
			wantBad(MaskState|required|bit, 0, bit)
		}
	}
	if required != 0 {
		wantBad(MaskState, required, 0)
	}
}

// TestWithoutState: a modify without a state stays where it is, under the
// rules of the transition to the same state.
func TestWithoutState(t *testing.T) {
	for _, tt := range []struct {
		name string
		typ  Type
		cur  State
		mask Mask
		ok   bool
	}{
		{"RTS: access flags", RC, RTS, MaskAccessFlags, true},
		{"RTS: min_rnr_timer", RC, RTS, MaskMinRNRTimer, true},
		{"RTS: UC has no min_rnr_timer", UC, RTS, MaskMinRNRTimer, false},
		{"INIT: port", RC, Init, MaskPort, true},
		{"SQD: address vector", RC, SQD, MaskAV, true},
		{"RTS: address vector", RC, RTS, MaskAV, false},
		{"ERR: nothing", RC, Err, 0, true},
		{"RESET: nothing", RC, Reset, 0, true},
		{"RTR: nothing", RC, RTR, 0, false},
		{"SQE: nothing", UD, SQE, 0, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := goodAttr(RTR, tt.cur) // the state is not meant
			next, err := Check(tt.typ, tt.cur, &a, tt.mask)
			if (err == nil) != tt.ok || next != tt.cur {
				t.Errorf("next %v, error %v; want %v, ok %v", next, err, tt.cur, tt.ok)
			}
		})
	}
}

// TestCurState: the state a program believes in.
func TestCurState(t *testing.T) {
	for _, tt := range []struct {
		name          string
		cur, claimed  State
		to            State
		ok            bool
		wantAttrError bool
	}{
		{"right: RTR", RTR, RTR, RTS, true, false},
		{"right: RTS", RTS, RTS, RTS, true, false},
		{"right: SQD", SQD, SQD, RTS, true, false},
		{"right: SQE", SQE, SQE, RTS, true, false},
		{"wrong: is SQE, believed RTS", SQE, RTS, RTS, false, true},
		{"wrong: is RTR, believed SQD", RTR, SQD, RTS, false, true},
		{"not to be named: INIT", RTR, Init, RTS, false, true},
		{"not to be named: RESET", RTR, Reset, RTS, false, true},
		{"not to be named: ERR", RTR, Err, RTS, false, true},
		{"not a state", RTR, 9, RTS, false, true},
		{"a lie does not jump over RTR", Init, RTR, RTS, false, false},
		{"a lie does not wake ERR", Err, RTS, RTS, false, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := goodAttr(tt.to, tt.claimed)
			m := MaskState | MaskCurState
			if tt.cur == RTR {
				m |= MaskSQPSN
			}
			next, err := Check(UD, tt.cur, &a, m)
			if (err == nil) != tt.ok {
				t.Fatalf("next %v, error %v; want ok %v", next, err, tt.ok)
			}
			var ae *AttrError
			if got := errors.As(err, &ae); got != tt.wantAttrError {
				t.Errorf("error %v (%T); want AttrError %v", err, err, tt.wantAttrError)
			}
			if ae != nil && ae.Field != "cur_qp_state" {
				t.Errorf("field %q, want cur_qp_state", ae.Field)
			}
		})
	}
}

// TestInvalidInput: numbers that name no type or state are refused, not
// looked up.
func TestInvalidInput(t *testing.T) {
	a := goodAttr(Init, Reset)
	for _, typ := range []Type{0, 5, 8, 255} {
		if _, err := Check(typ, Reset, &a, MaskState); err == nil {
			t.Errorf("%v: accepted", typ)
		}
	}
	for _, s := range []State{7, 255} {
		a := goodAttr(s, Reset)
		if _, err := Check(RC, Reset, &a, MaskState); err == nil {
			t.Errorf("to %v: accepted", s)
		}
		if _, err := Check(RC, s, &a, MaskState); err == nil {
			t.Errorf("from %v: accepted", s)
		}
	}
}
