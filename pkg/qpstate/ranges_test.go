package qpstate

import (
	"errors"
	"strings"
	"testing"

	"github.com/softroce/softroce/pkg/bth"
)

// modify is a transition in which an attribute may be given.
type modify struct {
	typ      Type
	from, to State
	mask     Mask
}

var (
	resetInit = modify{RC, Reset, Init, MaskState | MaskPKeyIndex | MaskPort | MaskAccessFlags}
	initRTR   = modify{RC, Init, RTR, MaskState | MaskAV | MaskPathMTU | MaskDestQPN | MaskRQPSN | MaskMaxDestRDAtomic | MaskMinRNRTimer}
	rtrRTS    = modify{RC, RTR, RTS, MaskState | MaskTimeout | MaskRetryCnt | MaskRNRRetry | MaskSQPSN | MaskMaxQPRDAtomic}
	rtsRTS    = modify{RC, RTS, RTS, MaskPathMigState}
)

// TestRanges: every attribute at the edges of its range; the error names the
// attribute as the verbs API does, its value and what is legal.
func TestRanges(t *testing.T) {
	lim := Limits{GIDs: 3, MaxMTU: bth.MTU2048, MaxRDAtomic: 16, MaxDestRDAtomic: 32}
	tests := []struct {
		name  string
		m     modify
		lim   Limits
		set   func(a *Attr)
		field string // "" when legal
		words string // in the error's text
	}{
		{"F43: no GRH on RoCE", initRTR, Limits{}, func(a *Attr) { a.AH.IsGlobal = false }, "ah_attr.is_global", "must be 1"},
		{"F43: sgid_index behind the table", initRTR, lim, func(a *Attr) { a.AH.SGIDIndex = 3 }, "ah_attr.grh.sgid_index", "has 3 entries"},
		{"F43: last sgid_index", initRTR, lim, func(a *Attr) { a.AH.SGIDIndex = 2 }, "", ""},
		{"sgid_index without a known table", initRTR, Limits{}, func(a *Attr) { a.AH.SGIDIndex = 255 }, "", ""},
		{"AV port 0", initRTR, Limits{}, func(a *Attr) { a.AH.PortNum = 0 }, "ah_attr.port_num", "must be 1"},
		{"AV port 2", initRTR, Limits{}, func(a *Attr) { a.AH.PortNum = 2 }, "ah_attr.port_num", "is 2"},
		{"port 0", resetInit, Limits{}, func(a *Attr) { a.PortNum = 0 }, "port_num", "must be 1"},
		{"port 2", resetInit, Limits{}, func(a *Attr) { a.PortNum = 2 }, "port_num", "is 2"},
		{"pkey_index 1", resetInit, Limits{}, func(a *Attr) { a.PKeyIndex = 1 }, "pkey_index", "must be 0"},
		{"path_mtu 0", initRTR, Limits{}, func(a *Attr) { a.PathMTU = 0 }, "path_mtu", "must be 1 to 5"},
		{"path_mtu 256 bytes", initRTR, Limits{}, func(a *Attr) { a.PathMTU = 1 }, "", ""},
		{"path_mtu 4096 bytes", initRTR, Limits{}, func(a *Attr) { a.PathMTU = 5 }, "", ""},
		{"path_mtu 6", initRTR, Limits{}, func(a *Attr) { a.PathMTU = 6 }, "path_mtu", "is 6"},
		{"path_mtu at the port's", initRTR, lim, func(a *Attr) { a.PathMTU = bth.MTU2048 }, "", ""},
		{"path_mtu above the port's", initRTR, lim, func(a *Attr) { a.PathMTU = bth.MTU4096 }, "path_mtu", "2048"},
		{"F6: min_rnr_timer 0", initRTR, Limits{}, func(a *Attr) { a.MinRNRTimer = 0 }, "", ""},
		{"min_rnr_timer 31", initRTR, Limits{}, func(a *Attr) { a.MinRNRTimer = 31 }, "", ""},
		{"min_rnr_timer 32", initRTR, Limits{}, func(a *Attr) { a.MinRNRTimer = 32 }, "min_rnr_timer", "must be 0 to 31"},
		{"max_dest_rd_atomic at the limit", initRTR, lim, func(a *Attr) { a.MaxDestRDAtomic = 32 }, "", ""},
		{"max_dest_rd_atomic above", initRTR, lim, func(a *Attr) { a.MaxDestRDAtomic = 33 }, "max_dest_rd_atomic", "at most 32"},
		{"max_rd_atomic at the limit", rtrRTS, lim, func(a *Attr) { a.MaxRDAtomic = 16 }, "", ""},
		{"max_rd_atomic above", rtrRTS, lim, func(a *Attr) { a.MaxRDAtomic = 17 }, "max_rd_atomic", "at most 16"},
		{"max_rd_atomic without a limit", rtrRTS, Limits{}, func(a *Attr) { a.MaxRDAtomic = 255 }, "", ""},
		{"timeout 0", rtrRTS, Limits{}, func(a *Attr) { a.Timeout = 0 }, "", ""},
		{"timeout 31", rtrRTS, Limits{}, func(a *Attr) { a.Timeout = 31 }, "", ""},
		{"timeout 32", rtrRTS, Limits{}, func(a *Attr) { a.Timeout = 32 }, "timeout", "must be 0 to 31"},
		{"retry_cnt 0", rtrRTS, Limits{}, func(a *Attr) { a.RetryCnt = 0 }, "", ""},
		{"retry_cnt 8", rtrRTS, Limits{}, func(a *Attr) { a.RetryCnt = 8 }, "retry_cnt", "must be 0 to 7"},
		{"rnr_retry 0", rtrRTS, Limits{}, func(a *Attr) { a.RNRRetry = 0 }, "", ""},
		{"F6: rnr_retry 8", rtrRTS, Limits{}, func(a *Attr) { a.RNRRetry = 8 }, "rnr_retry", "must be 0 to 7"},
		{"path_mig_state armed", rtsRTS, Limits{}, func(a *Attr) { a.PathMigState = 2 }, "", ""},
		{"path_mig_state 3", rtsRTS, Limits{}, func(a *Attr) { a.PathMigState = 3 }, "path_mig_state", "must be 0 to 2"},
		{"24-bit numbers with a high byte", initRTR, Limits{}, func(a *Attr) { a.DestQPN, a.RQPSN = 0xFF000011, 0xFF000001 }, "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a := goodAttr(tt.m.to, tt.m.from)
			tt.set(&a)
			next, err := tt.lim.Check(tt.m.typ, tt.m.from, &a, tt.m.mask)
			if tt.field == "" {
				if err != nil || next != tt.m.to {
					t.Errorf("next %v, error %v; want %v", next, err, tt.m.to)
				}
				return
			}
			var ae *AttrError
			if !errors.As(err, &ae) || ae.Field != tt.field {
				t.Fatalf("error %v, want one that names %s", err, tt.field)
			}
			if s := err.Error(); !strings.Contains(s, tt.field) || !strings.Contains(s, tt.words) {
				t.Errorf("text %q lacks %q or %q", s, tt.field, tt.words)
			}
			if next != tt.m.from {
				t.Errorf("refused, but the next state is %v", next)
			}
		})
	}
}

// TestRangesOfOthers: a value that is not meant is not judged.
func TestRangesOfOthers(t *testing.T) {
	a := Attr{State: Err, PathMTU: 9, Timeout: 99, RetryCnt: 99, RNRRetry: 99, MinRNRTimer: 99, PortNum: 9, PKeyIndex: 9, PathMigState: 9}
	for from := Init; from <= Err; from++ {
		if next, err := Check(RC, from, &a, MaskState); err != nil || next != Err {
			t.Errorf("from %v: next %v, error %v", from, next, err)
		}
	}
}

func TestErrorTexts(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want string
	}{
		{&TransitionError{From: Init, To: RTR, Type: RC, Missing: MaskAV | MaskDestQPN}, "modify RC QP from INIT to RTR: missing ah_attr, dest_qp_num"},
		{&TransitionError{From: RTS, To: RTS, Type: UD, Extra: MaskAV}, "modify UD QP from RTS to RTS: not allowed here: ah_attr"},
		{&TransitionError{From: RTR, To: RTS, Type: RC, Missing: MaskTimeout, Extra: MaskCap | 1<<30}, "modify RC QP from RTR to RTS: missing timeout; not allowed here: cap, unknown bits 0x40000000"},
		{&TransitionError{From: Reset, To: RTS, Type: UC}, "modify UC QP from RESET to RTS: no such transition"},
		{&TransitionError{From: 8, To: RTS, Type: 9}, "modify type 9 QP from state 8 to RTS: no such transition"},
		{&AttrError{"timeout", 32, "must be 0 to 31"}, "modify QP: timeout is 32: must be 0 to 31"},
	} {
		if got := tt.err.Error(); got != tt.want {
			t.Errorf("got  %q\nwant %q", got, tt.want)
		}
	}
}
