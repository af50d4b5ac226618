package inspect

import (
	"fmt"

	"github.com/softroce/softroce/pkg/verbs"
)

// maxWaiting is how many waiting queue pairs are named; our own choice.
const maxWaiting = 5

// Waiting names queue pairs that wait in vain right now: of two listings, a moment apart, those that have send requests, completed none
// meanwhile, and heard nothing or were told to try again. Those of self, which asks, are left out.
func Waiting(before, now []verbs.Resource, self int) (out []Explanation) {
	last := make(map[uint32]*verbs.Resource, len(before))
	for i := range before {
		last[before[i].Number] = &before[i]
	}
	more := 0
	for i := range now {
		r := &now[i]
		old := last[r.Number]
		if old == nil || old.Program != r.Program || r.PID == self || !stuck(old, r) {
			continue
		}
		if len(out) == maxWaiting {
			more++
			continue
		}
		e := Explanation{Heading: "Waiting right now:", Subject: subject(&verbs.Story{QP: *r}), Seen: []string{}, Cause: []string{}, Change: []string{}}
		e.Meaning = fmt.Sprintf("Nothing has failed yet: %s; softroce explain 0x%06x says more.", waitText(r), r.Number)
		out = append(out, e)
	}
	if more > 0 {
		e := &out[len(out)-1]
		e.Meaning += fmt.Sprintf(" There are %d more that wait (softroce resource qp).", more)
	}
	return out
}

// stuck says that a queue pair got no further between two looks.
func stuck(old, now *verbs.Resource) bool {
	again := now.Timeouts > old.Timeouts || now.RNRWaits > old.RNRWaits || now.SeqNAKs > old.SeqNAKs
	return old.SendQueued > 0 && now.SendQueued > 0 && now.SentMsgs == old.SentMsgs && (now.RcvdPkts == old.RcvdPkts || again)
}

// waitText says what a queue pair waits for.
func waitText(r *verbs.Resource) string {
	text := "1 send request waits"
	if r.SendQueued != 1 {
		text = fmt.Sprintf("%d send requests wait", r.SendQueued)
	}
	if r.Timeouts > 0 {
		text += fmt.Sprintf(", the ACK timer expired %s", Count(r.Timeouts, "time"))
	}
	if r.RNRWaits > 0 {
		text += fmt.Sprintf(", the peer had no receive posted %s", Count(r.RNRWaits, "time"))
	}
	return text
}
