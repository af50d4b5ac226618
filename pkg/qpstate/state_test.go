package qpstate

import "testing"

// TestStateAbilities is the verbs' table of what works in which state
// (IBTA Vol 1 §10.3.1), row by row.
func TestStateAbilities(t *testing.T) {
	for _, tt := range []struct {
		s                                                State
		name                                             string
		postSend, postRecv, requests, sends, starts, rsp bool
		flushSend, flushRecv                             bool
	}{
		{s: Reset, name: "RESET"},
		{s: Init, name: "INIT", postRecv: true},
		{s: RTR, name: "RTR", postRecv: true, requests: true},
		{s: RTS, name: "RTS", postSend: true, postRecv: true, requests: true, sends: true, starts: true, rsp: true},
		{s: SQD, name: "SQD", postSend: true, postRecv: true, requests: true, sends: true, rsp: true},
		{s: SQE, name: "SQE", postSend: true, postRecv: true, requests: true, flushSend: true},
		{s: Err, name: "ERR", postSend: true, postRecv: true, flushSend: true, flushRecv: true},
		{s: 7, name: "state 7"},
		{s: 255, name: "state 255"},
	} {
		if got := tt.s.String(); got != tt.name {
			t.Errorf("State(%d).String() = %q, want %q", uint8(tt.s), got, tt.name)
		}
		for _, c := range []struct {
			what      string
			got, want bool
		}{
			{"AllowsPostSend", tt.s.AllowsPostSend(), tt.postSend},
			{"AllowsPostRecv", tt.s.AllowsPostRecv(), tt.postRecv},
			{"ReceivesRequests", tt.s.ReceivesRequests(), tt.requests},
			{"SendsRequests", tt.s.SendsRequests(), tt.sends},
			{"StartsRequests", tt.s.StartsRequests(), tt.starts},
			{"ProcessesResponses", tt.s.ProcessesResponses(), tt.rsp},
			{"Flushes", tt.s.Flushes(), tt.flushSend},
			{"FlushesRecv", tt.s.FlushesRecv(), tt.flushRecv},
			{"Valid", tt.s.Valid(), tt.s <= 6},
		} {
			if c.got != c.want {
				t.Errorf("%v.%s() = %v, want %v", tt.s, c.what, c.got, c.want)
			}
		}
	}
}

// TestSendErrorState: §10.3.1.6: only the unacknowledged services have SQE.
func TestSendErrorState(t *testing.T) {
	for typ, want := range map[Type]State{RC: Err, UC: SQE, UD: SQE, GSI: SQE} {
		if got := typ.SendErrorState(); got != want {
			t.Errorf("%v: %v, want %v", typ, got, want)
		}
	}
}

// TestValues: the numbers are the verbs API's; they go over shared memory.
func TestValues(t *testing.T) {
	for name, ok := range map[string]bool{
		"types":  GSI == 1 && RC == 2 && UC == 3 && UD == 4,
		"states": Reset == 0 && Init == 1 && RTR == 2 && RTS == 3 && SQD == 4 && SQE == 5 && Err == 6,
		"masks": MaskState == 1 && MaskCurState == 2 && MaskEnSQDAsyncNotify == 4 && MaskAccessFlags == 8 &&
			MaskPKeyIndex == 0x10 && MaskPort == 0x20 && MaskQKey == 0x40 && MaskAV == 0x80 &&
			MaskPathMTU == 0x100 && MaskTimeout == 0x200 && MaskRetryCnt == 0x400 && MaskRNRRetry == 0x800 &&
			MaskRQPSN == 0x1000 && MaskMaxQPRDAtomic == 0x2000 && MaskAltPath == 0x4000 && MaskMinRNRTimer == 0x8000 &&
			MaskSQPSN == 0x10000 && MaskMaxDestRDAtomic == 0x20000 && MaskPathMigState == 0x40000 && MaskCap == 0x80000 &&
			MaskDestQPN == 0x100000 && MaskRateLimit == 0x2000000,
	} {
		if !ok {
			t.Errorf("%s do not have the verbs API's values", name)
		}
	}
}

// TestCheckNoAllocation: a legal modify allocates nothing.
func TestCheckNoAllocation(t *testing.T) {
	a := goodAttr(RTR, Init)
	n := testing.AllocsPerRun(100, func() {
		if _, err := Check(RC, Init, &a, initRTR.mask); err != nil {
			t.Error(err)
		}
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}
