package cq

import (
	"errors"
	"strings"
	"testing"
)

// push pushes a completion numbered id.
func push(t *testing.T, c *CQ, id uint64, s Status, solicited bool) {
	t.Helper()
	if err := c.Push(&WC{WRID: id, Status: s}, solicited); err != nil {
		t.Fatalf("push %d: %v", id, err)
	}
}

// poll takes everything and gives the numbers.
func poll(r *SliceRing) []uint64 {
	var ids []uint64
	var wc [1]WC
	for r.Poll(wc[:]) == 1 {
		ids = append(ids, wc[0].WRID)
	}
	return ids
}

func wantIDs(t *testing.T, what string, got []uint64, want ...uint64) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: got %v, want %v", what, got, want)
		return
	}
	for i := range got {
		if got[i] != want[i] {
			t.Errorf("%s: got %v, want %v", what, got, want)
			return
		}
	}
}

// arm is a call of req_notify_cq.
type arm int

const (
	none arm = iota
	solicitedOnly
	anyCompletion
)

// TestArming: §11.4.2.2: which completions fire which arming.
func TestArming(t *testing.T) {
	type wc struct {
		status    Status
		solicited bool
	}
	plain, se, failed := wc{}, wc{solicited: true}, wc{status: WRFlushErr}
	for _, tt := range []struct {
		name string
		arms []arm
		wcs  []wc
		want bool
	}{
		{"not armed", nil, []wc{plain, se, failed}, false},
		{"any: a plain completion", []arm{anyCompletion}, []wc{plain}, true},
		{"any: nothing came", []arm{anyCompletion}, nil, false},
		{"solicited: a plain completion", []arm{solicitedOnly}, []wc{plain}, false},
		{"solicited: a message with SE", []arm{solicitedOnly}, []wc{se}, true},
		{"solicited: an error", []arm{solicitedOnly}, []wc{failed}, true},
		{"solicited: SE among plain ones", []arm{solicitedOnly}, []wc{plain, se, plain}, true},
		{"solicited, then any", []arm{solicitedOnly, anyCompletion}, []wc{plain}, true},
		{"any, then solicited: not weakened", []arm{anyCompletion, solicitedOnly}, []wc{plain}, true},
		{"any twice", []arm{anyCompletion, anyCompletion}, []wc{plain}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := NewSliceRing(8)
			c := New(r)
			for _, a := range tt.arms {
				r.Arm(a == solicitedOnly)
			}
			for i, w := range tt.wcs {
				push(t, c, uint64(i), w.status, w.solicited)
			}
			if got := c.Flush(); got != tt.want {
				t.Errorf("event %v, want %v", got, tt.want)
			}
			if tt.want {
				push(t, c, 7, FatalErr, true)
				if c.Flush() {
					t.Error("one arming gave two events")
				}
			}
		})
	}
}

// TestArmingIsAnEdge: completions that were there when the queue was armed do
// not fire; the next one does, and what an earlier flush had does not count.
func TestArmingIsAnEdge(t *testing.T) {
	r := NewSliceRing(8)
	c := New(r)
	push(t, c, 1, Success, true)
	if c.Flush() {
		t.Error("an event without arming")
	}
	r.Arm(true)
	if c.Flush() {
		t.Error("an event for a completion that was there before the arming")
	}
	push(t, c, 2, Success, false)
	if c.Flush() {
		t.Error("a plain completion fired a solicited arming: an earlier flush's mark was kept")
	}
	push(t, c, 3, Success, true)
	if !c.Flush() {
		t.Error("no event for a solicited completion")
	}
	wantIDs(t, "completions", poll(r), 1, 2, 3)
}

// TestFlushPublishes: nothing is seen before Flush.
func TestFlushPublishes(t *testing.T) {
	r := NewSliceRing(4)
	c := New(r)
	push(t, c, 1, Success, false)
	wantIDs(t, "before the flush", poll(r))
	if r.Len() != 0 {
		t.Errorf("Len() = %d before the flush", r.Len())
	}
	c.Flush()
	if r.Len() != 1 {
		t.Errorf("Len() = %d after the flush", r.Len())
	}
	wantIDs(t, "after the flush", poll(r), 1)
}

// TestOverflow: class G of the responder's faults, CQ overrun: told once, then
// the queue is dead; the overflowing completion is lost, earlier ones stay.
func TestOverflow(t *testing.T) {
	r := NewSliceRing(2)
	c := New(r)
	push(t, c, 1, Success, false)
	push(t, c, 2, Success, false)
	if err := c.Push(&WC{WRID: 3}, false); !errors.Is(err, ErrOverflow) || !c.Dead() {
		t.Fatalf("third of two: %v, dead %v", err, c.Dead())
	}
	if err := c.Push(&WC{WRID: 4}, false); !errors.Is(err, ErrDead) || errors.Is(err, ErrOverflow) {
		t.Errorf("fourth: %v, want %v", err, ErrDead)
	}
	r.Arm(false)
	if !c.Flush() {
		t.Error("the completions from before the overflow gave no event")
	}
	wantIDs(t, "completions", poll(r), 1, 2)
	if err := c.Push(&WC{WRID: 5}, false); !errors.Is(err, ErrDead) {
		t.Errorf("room again: %v, want %v", err, ErrDead)
	}
	if c.Flush() || r.Len() != 0 {
		t.Error("a dead queue gave something")
	}
}

// TestWrap goes round a small ring many times.
func TestWrap(t *testing.T) {
	r := NewSliceRing(3)
	c := New(r)
	var got, want []uint64
	for id := uint64(0); id < 30; id += 2 {
		push(t, c, id, Success, false)
		push(t, c, id+1, Success, false)
		want = append(want, id, id+1)
		c.Flush()
		if r.Free() != 1 {
			t.Fatalf("Free() = %d, want 1", r.Free())
		}
		got = append(got, poll(r)...)
	}
	wantIDs(t, "all", got, want...)
	var two [2]WC
	if n := r.Poll(two[:]); n != 0 {
		t.Errorf("an empty ring gave %d", n)
	}
}

// TestPushKeepsNothing: the caller may use its completion again.
func TestPushKeepsNothing(t *testing.T) {
	r := NewSliceRing(2)
	c := New(r)
	wc := WC{WRID: 1, Opcode: Recv, ByteLen: 9, ImmData: 8, Flags: WithImm, QPN: 17}
	want := wc
	if err := c.Push(&wc, false); err != nil {
		t.Fatal(err)
	}
	wc = WC{}
	c.Flush()
	var got [1]WC
	if n := r.Poll(got[:]); n != 1 || got[0] != want {
		t.Errorf("got %+v, want %+v", got[0], want)
	}
}

// TestSliceRingFull: a Put without room drops, and harms nothing.
func TestSliceRingFull(t *testing.T) {
	r := NewSliceRing(1)
	r.Put(&WC{WRID: 1})
	r.Put(&WC{WRID: 2})
	r.Publish()
	wantIDs(t, "ring of one", poll(r), 1)
	if NewSliceRing(0).Free() != 0 {
		t.Error("a ring of none has room")
	}
}

func TestNoAllocation(t *testing.T) {
	r := NewSliceRing(4)
	c := New(r)
	var wcs [4]WC
	wc := WC{WRID: 1}
	if n := testing.AllocsPerRun(100, func() {
		r.Arm(false)
		if c.Push(&wc, true) != nil || !c.Flush() || r.Poll(wcs[:]) != 1 {
			t.Error("refused")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestStatuses: every status of ibv_wc_status has its name and one sentence.
func TestStatuses(t *testing.T) {
	names := []string{
		"SUCCESS", "LOC_LEN_ERR", "LOC_QP_OP_ERR", "LOC_EEC_OP_ERR", "LOC_PROT_ERR", "WR_FLUSH_ERR", "MW_BIND_ERR",
		"BAD_RESP_ERR", "LOC_ACCESS_ERR", "REM_INV_REQ_ERR", "REM_ACCESS_ERR", "REM_OP_ERR", "RETRY_EXC_ERR",
		"RNR_RETRY_EXC_ERR", "LOC_RDD_VIOL_ERR", "REM_INV_RD_REQ_ERR", "REM_ABORT_ERR", "INV_EECN_ERR",
		"INV_EEC_STATE_ERR", "FATAL_ERR", "RESP_TIMEOUT_ERR", "GENERAL_ERR", "TM_ERR", "TM_RNDV_INCOMPLETE",
	}
	seen := make(map[string]Status)
	for i, name := range names {
		s := Status(i)
		if got := s.String(); got != "IBV_WC_"+name {
			t.Errorf("status %d: %q, want IBV_WC_%s", i, got, name)
		}
		e := s.Explain()
		if !strings.HasSuffix(e, ".") || strings.Count(e, ".") != 1 || len(e) < 20 {
			t.Errorf("%v: not one sentence: %q", s, e)
		}
		if other, ok := seen[e]; ok {
			t.Errorf("%v and %v have the same explanation", s, other)
		}
		seen[e] = s
	}
	for s, want := range map[Status]string{24: "IBV_WC_STATUS_24", 100: "IBV_WC_STATUS_100", 255: "IBV_WC_STATUS_255"} {
		if got := s.String(); got != want || s.Explain() == "" {
			t.Errorf("status %d: %q %q", uint8(s), got, s.Explain())
		}
	}
}

// TestValues: the numbers are the verbs API's; they go over shared memory.
func TestValues(t *testing.T) {
	for op, want := range map[Opcode]string{
		0: "IBV_WC_SEND", 1: "IBV_WC_RDMA_WRITE", 2: "IBV_WC_RDMA_READ", 3: "IBV_WC_COMP_SWAP", 4: "IBV_WC_FETCH_ADD",
		5: "IBV_WC_BIND_MW", 6: "IBV_WC_LOCAL_INV", 128: "IBV_WC_RECV", 129: "IBV_WC_RECV_RDMA_WITH_IMM",
		7: "IBV_WC_OPCODE_7", 200: "IBV_WC_OPCODE_200",
	} {
		if got := op.String(); got != want || op.IsRecv() != (op >= 128) {
			t.Errorf("opcode %d: %q, receive %v; want %q", uint8(op), got, op.IsRecv(), want)
		}
	}
	for name, ok := range map[string]bool{
		"flags":    GRH == 1 && WithImm == 2 && WithInv == 8,
		"statuses": Success == 0 && LocLenErr == 1 && LocProtErr == 4 && WRFlushErr == 5 && BadRespErr == 7 && RemInvReqErr == 9 && RemAccessErr == 10 && RemOpErr == 11 && RetryExcErr == 12 && RNRRetryExcErr == 13 && FatalErr == 19 && GeneralErr == 21,
	} {
		if !ok {
			t.Errorf("%s do not have the verbs API's values", name)
		}
	}
}
