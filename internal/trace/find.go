package trace

import (
	"fmt"
	"strings"
	"time"

	"github.com/softroce/softroce/pkg/bth"
)

// Weight says how much a finding matters.
type Weight int

// Weights.
const (
	Fine Weight = iota
	Cost        // it cost time
	Fail        // a request failed, or hangs
)

// Finding is what went on in one connection, in a sentence or two.
type Finding struct {
	Weight Weight
	Text   string
	Event  int // in Conn.Events, the first that shows it; -1: none
}

// Findings say what went wrong: first what was done on purpose, then the worst first; one that is Fine when nothing did.
func (c *Conn) Findings() []Finding {
	fs := c.onPurpose()
	purpose := len(fs) > 0
	for _, w := range []Weight{Fail, Cost} {
		for k := range c.Dirs {
			f := finder{c: c, d: &c.Dirs[k], b: k == 1, asker: "A", other: "B", purpose: purpose}
			if k == 1 {
				f.asker, f.other = "B", "A"
			}
			if w == Fail {
				f.failures()
			} else {
				f.costs()
			}
			fs = append(fs, f.found...)
		}
	}
	fs = append(fs, c.common()...)
	if len(fs) == 0 {
		text := "Nothing went wrong: no loss, no packet sent again, no wait."
		switch {
		case c.Service == bth.ClassUD:
			text = "Datagrams have no acknowledgements: whether they arrived cannot be seen."
		case c.Service == bth.ClassUC:
			text = "No packet is missing in the capture; whether they all arrived cannot be seen on an unreliable connection."
		case c.Dirs[0].Answers+c.Dirs[1].Answers == 0 && c.Service == bth.ClassRC:
			text = "Only one direction is in the capture: what was answered cannot be seen."
		}
		fs = append(fs, Finding{Weight: Fine, Text: text, Event: -1})
	}
	return fs
}

// finder makes the findings of one direction.
type finder struct {
	c            *Conn
	d            *Dir
	b            bool
	asker, other string
	purpose      bool // packets were dropped on purpose
	found        []Finding
}

func (f *finder) add(w Weight, k Kind, format string, args ...any) {
	event := -1
	for i := range f.c.Events {
		if e := &f.c.Events[i]; e.Kind == k && e.FromB == f.b {
			event = i
			break
		}
	}
	f.found = append(f.found, Finding{Weight: w, Text: fmt.Sprintf(format, args...), Event: event})
}

// longest is the longest wait among events of a kind.
func (f *finder) longest(k Kind) (d time.Duration) {
	for i := range f.c.Events {
		if e := &f.c.Events[i]; e.Kind == k && e.FromB == f.b {
			d = max(d, e.For)
		}
	}
	return d
}

func (f *finder) failures() {
	for i := range f.c.Events {
		if e := &f.c.Events[i]; e.Kind == KindNAK && e.FromB == f.b {
			f.found = append(f.found, Finding{Fail, fmt.Sprintf("%s refused a request of %s: %s. The request fails at %s, and its queue pair goes to the error state.", f.other, f.asker, e.Text, f.asker), i})
			break
		}
	}
	switch {
	case f.d.Tries < 2:
	case f.purpose:
		f.add(Fail, KindSilent, "A request of %s has no answer: it was sent %d times. If nothing came after the capture, it fails with \"retry exceeded\". Packets were dropped on purpose: take those rules away before you look for another reason.", f.asker, f.d.Tries)
	default:
		f.add(Fail, KindSilent, "A request of %s has no answer: it was sent %d times. If nothing came after the capture, it fails with \"retry exceeded\": the peer is gone, its queue pair is in error or reset, its number or address is a wrong one, or every packet of this size is lost (path MTU).", f.asker, f.d.Tries)
	}
}

func (f *finder) costs() {
	d := f.d
	if d.Timeouts > 0 {
		f.add(Cost, KindTimeout, "%s %s waited in vain for an answer, %s in all, %s at most, and then sent again. A lost acknowledgement, or the loss of a message's last packet, is only found by this timer: a lower \"timeout\" attribute finds it sooner.",
			plural(d.Timeouts, "time", "times"), f.asker, short(d.Waited), short(f.longest(KindTimeout)))
	}
	if d.RNRs > 0 {
		f.add(Cost, KindRNR, "%s %s had no receive posted, and %s waited %s for it. Post receives earlier or more of them; min_rnr_timer of %s says how long %s waits each time (0 means 655 ms).",
			plural(d.RNRs, "time", "times"), f.other, f.asker, short(d.RNRWait), f.other, f.asker)
	}
	if d.Lost > 0 && f.c.Service == bth.ClassUC {
		f.add(Cost, KindLost, "%s of %s %s lost, and with %s the messages that they belong to: nothing repairs that on an unreliable connection.",
			plural(d.Lost, "packet", "packets"), f.asker, isAre(d.Lost), itThem(d.Lost))
	} else if d.Lost > 0 {
		f.add(Cost, KindLost, "%s of %s did not reach %s, which asked for %s again (%s); %s were sent again in all. Losses in a row behind a long run of packets point at a receive buffer or a queue that is too small.",
			plural(d.Lost, "packet", "packets"), f.asker, f.other, itThem(d.Lost), plural(d.SeqNAKs, "sequence NAK", "sequence NAKs"), plural(d.Resent, "packet", "packets"))
	}
	if d.Missing > 0 && f.c.Service != bth.ClassUC {
		f.add(Cost, KindGap, "%s of %s %s not in the capture: lost before the place where it was taken, or left out by the capture itself.", plural(d.Missing, "PSN", "PSNs"), f.asker, isAre(d.Missing))
	}
	if d.LostAns > 0 {
		f.add(Cost, KindGap, "%s for %s %s not in the capture; %s asks for %s again.", plural(d.LostAns, "READ response", "READ responses"), f.asker, isAre(d.LostAns), f.asker, itThem(d.LostAns))
	}
}

func isAre(n int) string {
	if n == 1 {
		return "is"
	}
	return "are"
}

func itThem(n int) string {
	if n == 1 {
		return "it"
	}
	return "them"
}

// ruleOf reads from the reason of a drop whether it was on purpose, and by which rule where the adapter says it.
func ruleOf(why string) (rule string, is bool) {
	rest, is := strings.CutPrefix(why, "impaired")
	if !is || rest == "" {
		return "a rule", is
	}
	return strings.CutPrefix(rest, " by ")
}

// onPurpose are the findings about packets that rules dropped, one for each rule: whatever else is seen probably comes of them.
func (c *Conn) onPurpose() (fs []Finding) {
	n := make(map[string]int)
	var order []string
	first := make(map[string]int)
	for i := range c.Events {
		e := &c.Events[i]
		if e.Kind != KindDropped {
			continue
		}
		why := behindLast(e.Text, ": ")
		rule, is := ruleOf(why)
		if !is {
			continue
		}
		if n[rule]++; n[rule] == 1 {
			first[rule] = i
			order = append(order, rule)
		}
	}
	for _, rule := range order {
		fs = append(fs, Finding{Cost, fmt.Sprintf("%s dropped on purpose (%s of softroce impair show): what follows probably comes of that. softroce impair clear takes the rules away.",
			plural(n[rule], "packet was", "packets were"), rule), first[rule]})
	}
	return fs
}

// common are the findings about both directions.
func (c *Conn) common() (fs []Finding) {
	dropped, bad, first, longest := make(map[string]int), 0, map[string]int{}, -1
	var order []string
	for i := range c.Events {
		switch e := &c.Events[i]; {
		case e.Kind == KindDropped:
			why := behindLast(e.Text, ": ")
			if _, is := ruleOf(why); is {
				continue
			}
			if dropped[why] == 0 {
				first[why] = i
				order = append(order, why)
			}
			dropped[why]++
		case e.Kind == KindBad:
			if bad++; bad == 1 {
				first["bad"] = i
			}
		case e.Kind == KindStall:
			if longest < 0 || e.For > c.Events[longest].For {
				longest = i
			}
		}
	}
	for _, why := range order {
		n := dropped[why]
		fs = append(fs, Finding{Cost, fmt.Sprintf("%s dropped by the adapter itself: %s.", plural(n, "packet was", "packets were"), why), first[why]})
	}
	if bad > 0 {
		fs = append(fs, Finding{Cost, fmt.Sprintf("%s malformed or with a wrong ICRC.", plural(bad, "packet is", "packets are")), first["bad"]})
	}
	if longest >= 0 {
		fs = append(fs, Finding{Cost, fmt.Sprintf("For %s of %s requests were open and nothing was on the way; the longest stall took %s.", short(c.Stalls), short(c.Last-c.First), short(c.Events[longest].For)), longest})
	}
	if c.CNPs > 0 {
		fs = append(fs, Finding{Cost, fmt.Sprintf("%s asked to send more slowly.", plural(c.CNPs, "congestion notification", "congestion notifications")), -1})
	}
	return fs
}

// behindLast is what stands behind the last sep; all where there is none.
func behindLast(s, sep string) string {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[i+len(sep):]
	}
	return s
}
