package impair

import (
	"net/netip"
	"time"

	"github.com/softroce/softroce/pkg/bth"
)

// A Packet is what a rule looks at.
type Packet struct {
	Sent bool
	Peer netip.Addr // where it goes, or comes from
	// Local and Remote are the queue pairs' numbers, 0 where not known.
	Local, Remote bth.QPN
	// Bytes are the UDP payload: BTH to ICRC.
	Bytes []byte
}

// maxChanges bounds the changes of one packet that a verdict has room for; our
// own choice.
const maxChanges = 4

// A Verdict is what becomes of a packet.
type Verdict struct {
	// Rule is the number of the rule that dropped the packet, or else of the first
	// that did something to it; 0: none.
	Rule int
	// Drop says that nothing else happens.
	Drop bool
	// Delay is how long the packet waits.
	Delay time.Duration
	// Behind is how many packets go first, HoldFor at most.
	Behind int
	// Copies is how many further copies there are.
	Copies int

	changes [maxChanges]change
	n       int
}

// Changed says that Apply changes the packet.
func (v *Verdict) Changed() bool { return v.n > 0 }

// Held says that the packet is to wait.
func (v *Verdict) Held() bool { return v.Delay > 0 || v.Behind > 0 }

// Apply changes the packet's bytes.
func (v *Verdict) Apply(b []byte) {
	for i := range v.changes[:v.n] {
		v.changes[i].apply(b)
	}
}

// Hits are how often a rule matched a packet and how often it did something.
type Hits struct{ Matched, Hit uint64 }

// Status is a rule in place.
type Status struct {
	ID   int
	Rule Rule
	Hits
	// Over says that the rule's time has passed.
	Over bool
}

// rateBacklog is how long a packet waits at most for a rate; one that would wait
// longer is dropped, as by a switch whose buffer is full. Our own choice.
const rateBacklog = 100 * time.Millisecond

// active is a rule in place.
type active struct {
	Rule
	Hits
	id    int
	ops   ops
	since time.Time // when it was put in place
	busy  time.Time // rate: until then the line is taken
}

// A Set is the rules in place, in order.
type Set struct {
	rules []*active
	last  int
	// Actions counts what rules did, by action.
	Actions [NumActions]uint64
}

// Add puts rules in place at the time now and returns their numbers. All or, with
// an error, none are taken.
func (s *Set) Add(now time.Time, rules ...Rule) (ids []int, err error) {
	if len(s.rules)+len(rules) > MaxRules {
		return nil, errTooMany(len(s.rules) + len(rules))
	}
	added := make([]*active, len(rules))
	for i := range rules {
		if err := rules[i].Validate(); err != nil {
			return nil, err
		}
		o, err := compile(rules[i].Ops)
		if err != nil {
			return nil, err
		}
		added[i] = &active{Rule: rules[i], ops: o, since: now}
	}
	text := 0
	for _, a := range append(s.rules[:len(s.rules):len(s.rules)], added...) {
		text += len(a.String())
	}
	if text > MaxText {
		return nil, errTooLong(text)
	}
	for _, a := range added {
		s.last++
		a.id = s.last
		ids = append(ids, a.id)
	}
	s.rules = append(s.rules, added...)
	return ids, nil
}

// Remove takes a rule away; false when there is none of that number.
func (s *Set) Remove(id int) bool {
	for i, a := range s.rules {
		if a.id == id {
			s.rules = append(s.rules[:i:i], s.rules[i+1:]...)
			return true
		}
	}
	return false
}

// Clear takes all rules away; the next one has number 1 again.
func (s *Set) Clear() { s.rules, s.last = nil, 0 }

// Len is how many rules are in place.
func (s *Set) Len() int { return len(s.rules) }

// Status lists the rules in order.
func (s *Set) Status(now time.Time) []Status {
	out := make([]Status, len(s.rules))
	for i, a := range s.rules {
		out[i] = Status{ID: a.id, Rule: a.Rule, Hits: a.Hits, Over: a.For > 0 && now.Sub(a.since) >= a.In+a.For}
	}
	return out
}

// Judge asks every rule in order. What they say adds up; a drop ends it.
func (s *Set) Judge(now time.Time, p *Packet) (v Verdict) {
	for _, a := range s.rules {
		if !a.matches(now, p) {
			continue
		}
		a.Matched++
		if !a.chosen() {
			continue
		}
		a.Hit++
		if v.Rule == 0 && a.Action != Count {
			v.Rule = a.id
		}
		s.Actions[a.Action]++
		if a.act(now, p, &v); v.Drop {
			v.Rule = a.id
			return v
		}
	}
	return v
}

// matches says whether the rule is about a packet.
func (a *active) matches(now time.Time, p *Packet) bool {
	// A turn that began before the rule may meet it.
	if age := max(now.Sub(a.since), 0); age < a.In || a.For > 0 && age >= a.In+a.For {
		return false
	}
	switch {
	case a.Dir == Sent && !p.Sent, a.Dir == Received && p.Sent,
		a.Peer.IsValid() && !a.Peer.Contains(p.Peer.WithZone("")),
		a.QP != 0 && a.QP != p.Local && a.QP != p.Remote,
		a.LocalQP != 0 && a.LocalQP != p.Local,
		a.RemoteQP != 0 && a.RemoteQP != p.Remote:
		return false
	}
	if len(p.Bytes) < bth.BTHLen {
		return a.ops.any && !a.ByPSN
	}
	return a.ops.has(p.Bytes) && (!a.ByPSN || a.hasPSN(bth.BTH(p.Bytes).PSN()))
}

func (a *active) hasPSN(n bth.PSN) bool {
	from, to := bth.PSN(a.PSN.From), bth.PSN(a.PSN.To)
	return (n-from)&bth.PSNMask <= (to-from)&bth.PSNMask
}

// chosen says whether the packet that was just counted is one that the rule does
// something to.
func (a *active) chosen() bool {
	return a.Matched >= a.Nth.From && (a.Nth.To == 0 || a.Matched <= a.Nth.To) && (a.Every == 0 || a.Matched%a.Every == 0) &&
		(a.Percent == 0 || a.chance(saltPercent) < a.Percent/100)
}

// act adds to the verdict what the rule does.
func (a *active) act(now time.Time, p *Packet, v *Verdict) {
	switch a.Action {
	case Drop, Partition:
		v.Drop = true
	case Delay:
		v.Delay += a.Delay
		if a.DelayMax > a.Delay {
			v.Delay += time.Duration(a.chance(saltDelay) * float64(a.DelayMax-a.Delay))
		}
	case Duplicate:
		v.Copies = min(v.Copies+max(a.Copies, 1), MaxCopies)
	case Corrupt:
		if v.n < maxChanges {
			v.changes[v.n] = a.change(len(p.Bytes))
			v.n++
		}
	case Reorder:
		v.Behind = max(v.Behind, max(a.Places, 1))
	case Rate:
		a.pace(now, len(p.Bytes), v)
	case Count, NumActions:
	}
}

// pace has a packet wait until the line is free.
func (a *active) pace(now time.Time, n int, v *Verdict) {
	if a.busy.Before(now) {
		a.busy = now
	}
	wait := a.busy.Sub(now)
	if wait > rateBacklog {
		v.Drop = true
		return
	}
	a.busy = a.busy.Add(time.Duration(float64(8*n) / float64(a.BitsPerSecond) * float64(time.Second)))
	v.Delay += wait
}

// What chance is used for, so that one use says nothing of another.
const (
	saltPercent = 1 + iota
	saltDelay
	saltBit
)

// chance is a number from 0 to 1, without 1, that the seed and the number of the
// packet decide.
func (a *active) chance(salt uint64) float64 { return float64(a.roll(salt)>>11) / (1 << 53) }

func (a *active) roll(salt uint64) uint64 {
	return mix(mix(mix(a.Seed+salt)+uint64(a.id)) + a.Matched)
}

// mix spreads a number over 64 bits (splitmix64's step).
func mix(x uint64) uint64 {
	x += 0x9E3779B97F4A7C15
	x = (x ^ x>>30) * 0xBF58476D1CE4E5B9
	x = (x ^ x>>27) * 0x94D049BB133111EB
	return x ^ x>>31
}
