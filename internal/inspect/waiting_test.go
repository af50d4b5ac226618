package inspect

import (
	"strings"
	"testing"

	"github.com/softroce/softroce/pkg/verbs"
)

// TestWaiting: of two looks at queue pairs, those that got no further are named, and not what flows, is idle, is new or asks.
func TestWaiting(t *testing.T) {
	qp := func(n uint32, pid, queued int, sent, rcvd, timeouts uint64) verbs.Resource {
		return verbs.Resource{
			Number: n, Program: uint32(pid), PID: pid, Name: "prog", Type: "RC", State: "RTS", SendQueued: queued, SentMsgs: sent, RcvdPkts: rcvd, Timeouts: timeouts,
		}
	}
	before := []verbs.Resource{
		qp(0x11, 5, 1, 3, 9, 0), qp(0x12, 5, 4, 3, 9, 1), qp(0x13, 5, 4, 3, 9, 0), qp(0x14, 5, 0, 3, 9, 0), qp(0x15, 7, 2, 0, 0, 0), qp(0x16, 5, 2, 0, 0, 0),
		qp(0x17, 5, 1, 3, 9, 0),
	}
	now := []verbs.Resource{
		qp(0x11, 5, 1, 3, 9, 1),  // nothing came
		qp(0x12, 5, 4, 3, 12, 2), // told to try again
		qp(0x13, 5, 4, 9, 12, 0), // flows
		qp(0x14, 5, 0, 3, 9, 0),  // idle
		qp(0x15, 7, 2, 0, 0, 0),  // of who asks
		qp(0x16, 6, 2, 0, 0, 0),  // another program's, of the same number
		qp(0x17, 5, 1, 3, 12, 0), // in the middle of a long message
		qp(0x18, 5, 1, 0, 0, 0),  // new
	}
	list := Waiting(before, now, 7)
	if len(list) != 2 {
		t.Fatalf("got %d, want 2: %+v", len(list), list)
	}
	for i, want := range []string{
		"Waiting right now:\nqueue pair 0x000011 (RC, RTS) of process 5 (prog)\n  Nothing has failed yet: 1 send request waits, the ACK timer expired 1 time; softroce explain",
		"Waiting right now:\nqueue pair 0x000012 (RC, RTS) of process 5 (prog)\n  Nothing has failed yet: 4 send requests wait, the ACK timer expired 2 times; softroce explain",
	} {
		if got := strings.Join(list[i].lines(), "\n"); !strings.HasPrefix(got, want) {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
	}
	var many []verbs.Resource
	for i := range maxWaiting + 3 {
		many = append(many, qp(uint32(0x20+i), 5, 1, 0, 0, 0))
	}
	if list := Waiting(many, many, 0); len(list) != maxWaiting || !strings.Contains(list[maxWaiting-1].Meaning, "There are 3 more") {
		t.Errorf("got %d of many: %+v", len(list), list)
	}
}
