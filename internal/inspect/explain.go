package inspect

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/cq"
	"github.com/softroce/softroce/pkg/verbs"
)

// Explainer is what explanations are made of; *verbs.Device is one.
type Explainer interface {
	Explain(qpn verbs.QPN) ([]verbs.Story, error)
}

// Explanation is what went wrong, in words. What is not known is empty.
type Explanation struct {
	Heading string   `json:"heading,omitempty"` // what sets it apart from what happened just now
	Subject string   `json:"subject"`
	Status  *uint8   `json:"status"` // ibv_wc_status
	Name    string   `json:"name,omitempty"`
	Meaning string   `json:"meaning"`
	Seen    []string `json:"seen"`   // on the wire
	Cause   []string `json:"cause"`  // attributes and values
	Change  []string `json:"change"` // what to do

	Story *verbs.Story `json:"story,omitempty"`
}

// ErrNothing says that there is nothing to explain.
var ErrNothing = errors.New("nothing to explain")

// ExplainQP explains a queue pair: as it is, and each of its failures that the
// adapter remembers when it has gone or was used again since.
func ExplainQP(src Explainer, qpn verbs.QPN) ([]Explanation, error) {
	stories, err := src.Explain(qpn)
	if err != nil {
		return nil, err
	}
	if len(stories) == 0 {
		return nil, fmt.Errorf("%w: no queue pair %#06x that you may see, and none of the last failures is of it", ErrNothing, uint32(qpn))
	}
	var out []Explanation
	for i := range stories {
		if i > 0 && sameFailure(&stories[0], &stories[i]) {
			continue
		}
		out = append(out, tell(&stories[i]))
	}
	return out, nil
}

// sameFailure says that a remembered failure is the one that the living queue pair
// tells of.
func sameFailure(now, then *verbs.Story) bool {
	return !now.Past && then.Past && now.QP.Program == then.QP.Program && now.First.Kind == then.First.Kind && now.First.PSN == then.First.PSN
}

// ExplainLast explains the last failures, the newest first, n at most; those of
// self, which asks, are left out.
func ExplainLast(src Explainer, n, self int) ([]Explanation, error) {
	stories, err := src.Explain(0)
	if err != nil {
		return nil, err
	}
	var out []Explanation
	for i := range stories {
		if len(out) < n && stories[i].QP.PID != self {
			out = append(out, tell(&stories[i]))
			out[len(out)-1].Heading = heading(&stories[i])
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%w: no queue pair that you may see has failed since the adapter started", ErrNothing)
	}
	return out, nil
}

// heading says that a failure is of a program that is gone.
func heading(s *verbs.Story) string {
	if s.GoneNS == 0 {
		return ""
	}
	return fmt.Sprintf("A program that is gone (it ended %s, its queue pair failed %s):", since(s.GoneNS), since(s.First.AgoNS))
}

// WriteExplanations writes explanations for people, or one JSON list.
func WriteExplanations(w io.Writer, list []Explanation, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(w).Encode(list)
	}
	for i := range list {
		if i > 0 {
			if _, err := fmt.Fprintln(w); err != nil {
				return err
			}
		}
		if err := writeLines(w, "", list[i].lines()); err != nil {
			return err
		}
	}
	return nil
}

// textWidth is where lines for people are broken.
const textWidth = 96

func (e *Explanation) lines() []string {
	var out []string
	if e.Heading != "" {
		out = append(out, e.Heading)
	}
	out = append(out, e.Subject)
	if e.Status != nil {
		out = append(out, fmt.Sprintf("status %d, %s", *e.Status, e.Name))
	}
	out = append(out, wrap("  ", "  ", e.Meaning)...)
	for _, part := range []struct {
		title string
		text  []string
	}{{"seen:", e.Seen}, {"cause:", e.Cause}, {"change:", e.Change}} {
		if len(part.text) > 0 {
			out = append(out, part.title)
		}
		for _, s := range part.text {
			out = append(out, wrap("  - ", "    ", s)...)
		}
	}
	return out
}

// wrap breaks a text at blanks.
func wrap(first, rest, text string) (out []string) {
	line, empty := first, true
	for word := range strings.FieldsSeq(text) {
		if !empty && len(line)+1+len(word) > textWidth {
			out, line, empty = append(out, line), rest, true
		}
		if !empty {
			line += " "
		}
		line, empty = line+word, false
	}
	return append(out, line)
}

func (e *Explanation) setStatus(s cq.Status) {
	n := uint8(s)
	e.Status, e.Name = &n, s.String()
}

func (e *Explanation) cause(format string, args ...any) {
	e.Cause = append(e.Cause, fmt.Sprintf(format, args...))
}

func (e *Explanation) change(format string, args ...any) {
	e.Change = append(e.Change, fmt.Sprintf(format, args...))
}

func (e *Explanation) seen(format string, args ...any) {
	e.Seen = append(e.Seen, fmt.Sprintf(format, args...))
}

// Count says a number with the word for it, whose plural ends on s, or on ies for y.
func Count(n uint64, one string) string {
	if n == 1 {
		return "1 " + one
	}
	if stem, ok := strings.CutSuffix(one, "y"); ok {
		one = stem + "ie"
	}
	return fmt.Sprintf("%d %ss", n, one)
}

// since says how long ago something was.
func since(ns uint64) string {
	d := time.Duration(ns)
	switch {
	case d < time.Millisecond:
		return "just now"
	case d < time.Second:
		d = d.Round(time.Millisecond)
	case d < time.Minute:
		d = d.Round(100 * time.Millisecond)
	default:
		d = d.Round(time.Second)
	}
	return d.String() + " ago"
}

// subject names a story's queue pair.
func subject(s *verbs.Story) string {
	r := &s.QP
	var b strings.Builder
	fmt.Fprintf(&b, "queue pair 0x%06x (%s, %s)", r.Number, r.Type, r.State)
	if r.PID != 0 {
		fmt.Fprintf(&b, " of process %d", r.PID)
	}
	if r.Name != "" {
		fmt.Fprintf(&b, " (%s)", clean(r.Name))
	}
	if r.Peer != "" && r.Type != "UD" {
		fmt.Fprintf(&b, ", peer %s queue pair 0x%06x", address(r.Peer), r.PeerQPN)
	}
	if s.First.Kind != "" {
		fmt.Fprintf(&b, ", %s", since(s.First.AgoNS))
	}
	return b.String()
}

// wire says what was seen on the wire.
func (e *Explanation) wire(s *verbs.Story) {
	r := &s.QP
	e.seen("%s sent (%d of them again) and %d received; %s done, %d taken", Count(r.SentPkts, "packet"), r.Resent, r.RcvdPkts, Count(r.SentMsgs, "message"), r.RcvdMsgs)
	if r.Duplicates > 0 {
		e.seen("%s received: this end had taken the requests before, and the peer did not see the answers", Count(r.Duplicates, "duplicate"))
	}
	if r.OutOfSequence > 0 {
		e.seen("%s received out of sequence: behind one that is missing", Count(r.OutOfSequence, "packet"))
	}
	if r.Timeouts > 0 {
		e.seen("the ACK timer expired %s: timeout %d is %v", Count(r.Timeouts, "time"), s.Attr.Timeout, bth.AckTimeout(s.Attr.Timeout))
	}
	if r.SeqNAKs > 0 {
		e.seen("the peer asked for a lost packet %s (NAK PSN sequence error)", Count(r.SeqNAKs, "time"))
	}
	if r.RNRWaits > 0 {
		e.seen("the peer had no receive posted %s (RNR NAK), and asked to wait %v in all", Count(r.RNRWaits, "time"), time.Duration(r.RNRWaitNS))
	}
	if r.SentRNRs > 0 {
		e.seen("no receive was posted here %s (RNR NAK sent)", Count(r.SentRNRs, "time"))
	}
	for _, n := range []struct {
		what string
		nak  verbs.NAK
	}{{"received", s.NAKRcvd}, {"sent", s.NAKSent}} {
		if n.nak.Syndrome != 0 {
			e.seen("last NAK %s: %v (syndrome 0x%02x) for PSN 0x%06x, %s", n.what, bth.Syndrome(n.nak.Syndrome), n.nak.Syndrome, n.nak.PSN, since(n.nak.AgoNS))
		}
	}
	for _, o := range s.Odd {
		text := verdictTexts[o.Verdict]
		if text == "" {
			text = "not accepted"
		}
		e.seen("%d x %s of %s, the last with PSN 0x%06x, %s: %s (%s)", o.Count, o.Opcode, Count(uint64(o.Size), "byte"), o.PSN, since(o.AgoNS), text, o.Verdict)
	}
}

// verdictTexts say what became of packets that were not accepted.
var verdictTexts = map[string]string{
	"out_of_sequence":   "a packet before it is missing",
	"not_ready":         "no receive is posted, RNR NAK",
	"refused":           "refused with a NAK",
	"drop_malformed":    "dropped, it cannot be read",
	"drop_state":        "dropped, the queue pair's state does not take it: RTR for requests, RTS for answers",
	"drop_opcode_class": "dropped, it is of another type of queue pair",
	"drop_opcode":       "dropped, there is no such operation here",
	"drop_address":      "dropped, it came from another address than the one connected to",
	"drop_pkey":         "dropped, its P_Key is not the default partition's",
	"drop_qkey":         "dropped, its Q_Key is not the queue pair's qkey",
	"drop_stale":        "dropped, it answers nothing that was sent: of an earlier connection, or another sq_psn",
	"drop_duplicate":    "dropped, a repetition of what is no longer remembered",
	"drop_length":       "dropped, it does not fit the path MTU or the receive",
	"drop_no_recv":      "dropped, no receive is posted",
	"drop_resource":     "dropped, out of memory for replays",
	"drop_waiting":      "dropped, it came behind a gap that the peer knows of; where that never ends, rq_psn is not the peer's sq_psn",
	"drop_message":      "dropped with its message, of which a packet was lost",
	"drop_access":       "dropped, a key, a range or a right does not allow it",
}

// Impaired puts the rules that harm packets of this adapter on purpose before all other causes of failures of queue pairs.
func Impaired(list []Explanation, rules []verbs.ImpairRule) {
	var causes []string
	for _, r := range rules {
		if r.Hit > 0 {
			causes = append(causes, fmt.Sprintf("packets of this adapter are impaired on purpose: rule %d (%s) hit %s", r.ID, r.Rule, Count(r.Hit, "packet")))
		}
	}
	if len(causes) == 0 {
		return
	}
	for i := range list {
		if e := &list[i]; e.Story != nil && e.Story.First.Status != 0 {
			e.Cause = slices.Concat(causes, e.Cause)
			e.Change = slices.Concat([]string{"see softroce impair show, and softroce impair clear"}, e.Change)
		}
	}
}
