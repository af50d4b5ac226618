package rdmatest

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/softroce/softroce/internal/impair"
	"github.com/softroce/softroce/pkg/verbs"
)

// A Match says which packets a rule is about. Without one, those are all packets
// that any adapter of the Net sends; the zero Match adds nothing. A number of 0 where
// none can be meant, as in First(0), ends the test: it is no word for all packets.
type Match struct {
	set func(*Rule)
}

// above0 is a match of a number that must not be 0, which the rules have for none said.
func above0(what string, zero bool, set func(*Rule)) Match {
	return Match{func(r *Rule) {
		if set(r); zero {
			r.refuse(what + "(0) would be no packet: leave the rule out")
		}
	}}
}

// refuse has the rule end the test.
func (r *Rule) refuse(why string) {
	if r.bad == nil {
		r.bad = errors.New(why)
	}
}

// Sent are packets that an adapter sends.
func Sent(a *Adapter) Match {
	return side(a, impair.Sent)
}

// Received are packets that come to an adapter.
func Received(a *Adapter) Match {
	return side(a, impair.Received)
}

// side is one side of a packet's way, where the rule is put in place.
func side(a *Adapter, d impair.Direction) Match {
	return Match{func(r *Rule) {
		if r.on != nil {
			r.refuse("Sent or Received was said before: To and From say who the other adapter is")
		}
		r.on, r.rule.Dir = []*Adapter{a}, d
	}}
}

// From are packets from another adapter, beside Received.
func From(a *Adapter) Match { return peer(a) }

// To are packets to another adapter, beside Sent.
func To(a *Adapter) Match { return peer(a) }

func peer(a *Adapter) Match {
	return Match{func(r *Rule) {
		if r.rule.Peer.IsValid() && r.rule.Action != impair.Partition {
			r.refuse("the other adapter was said before")
		}
		r.rule.Peer = prefixOf(a)
	}}
}

func prefixOf(a *Adapter) netip.Prefix { return netip.PrefixFrom(a.addr, a.addr.BitLen()) }

// Opcode are packets of these opcodes: classes as "ACK" and "WRITE", or names as
// "RC-RDMA-WRITE-FIRST"; docs/rdmatest.md has them all.
func Opcode(words ...string) Match {
	return Match{func(r *Rule) { r.rule.Ops = strings.Split(strings.ToUpper(strings.Join(words, ",")), ",") }}
}

// QP are packets of a queue pair, on either side.
func QP(n verbs.QPN) Match { return above0("QP", n == 0, func(r *Rule) { r.rule.QP = n }) }

// PSN are packets with these packet sequence numbers, both included.
func PSN(from, to verbs.PSN) Match {
	return Match{func(r *Rule) { r.rule.ByPSN, r.rule.PSN = true, impair.Range{From: uint64(from), To: uint64(to)} }}
}

// Nth is the packet with this number, of all that the other matches leave, counted
// from 1 by each adapter.
func Nth(n uint64) Match { return above0("Nth", n == 0, nth(n, n)) }

// NthTo are the packets with the numbers from to to; to 0 means without end.
func NthTo(from, to uint64) Match {
	return above0("NthTo", from == 0, nth(from, to))
}

func nth(from, to uint64) func(*Rule) {
	return func(r *Rule) { r.rule.Nth = impair.Range{From: from, To: to} }
}

// First are the first n packets.
func First(n uint64) Match { return above0("First", n == 0, nth(1, n)) }

// Every is each nth packet.
func Every(n uint64) Match { return above0("Every", n == 0, func(r *Rule) { r.rule.Every = n }) }

// Percent is so many packets of a hundred; the Net's seed says which.
func Percent(p float64) Match {
	return above0("Percent", p == 0, func(r *Rule) { r.rule.Percent = p })
}

// For is how long the rule holds.
func For(d time.Duration) Match { return above0("For", d == 0, func(r *Rule) { r.rule.For = d }) }

// In is how long it takes until the rule begins.
func In(d time.Duration) Match { return Match{func(r *Rule) { r.rule.In = d }} }

// Drop loses packets.
func (n *Net) Drop(m ...Match) *Rule {
	n.t.Helper()
	return n.add(impair.Rule{Action: impair.Drop}, m)
}

// Count does nothing to packets and counts them.
func (n *Net) Count(m ...Match) *Rule {
	n.t.Helper()
	return n.add(impair.Rule{Action: impair.Count}, m)
}

// Delay has packets wait for a time from least to most.
func (n *Net) Delay(least, most time.Duration, m ...Match) *Rule {
	n.t.Helper()
	if most == least {
		most = 0
	}
	return n.add(impair.Rule{Action: impair.Delay, Delay: least, DelayMax: most}, m)
}

// Duplicate sends so many further copies of packets.
func (n *Net) Duplicate(copies int, m ...Match) *Rule {
	n.t.Helper()
	return n.add(impair.Rule{Action: impair.Duplicate, Copies: copies}, append(m, above0("Duplicate", copies == 0, func(*Rule) {})))
}

// A Change is what a corrupted packet suffers.
type Change struct{ change impair.Change }

// AnyBit turns over a bit that the Net's seed chooses.
func AnyBit() Change { return Change{} }

// Byte turns over all bits of a byte, counted from the first of the BTH, or with
// a negative number from the packet's end: -1 is of the ICRC.
func Byte(n int) Change { return Change{impair.Change{Unit: impair.Byte, At: n}} }

// Bit turns over one bit, counted from the highest of the BTH's first byte.
func Bit(n int) Change { return Change{impair.Change{Unit: impair.Bit, At: n}} }

// Sealed makes the ICRC right again, so that nobody notices on the way.
func (c Change) Sealed() Change {
	c.change.Sealed = true
	return c
}

// Corrupt changes packets.
func (n *Net) Corrupt(c Change, m ...Match) *Rule {
	n.t.Helper()
	return n.add(impair.Rule{Action: impair.Corrupt, Change: c.change}, m)
}

// Reorder puts packets behind the next ones of their queue pair and direction.
func (n *Net) Reorder(places int, m ...Match) *Rule {
	n.t.Helper()
	return n.add(impair.Rule{Action: impair.Reorder, Places: places}, append(m, above0("Reorder", places == 0, func(*Rule) {})))
}

// Rate holds packets to so many bits a second.
func (n *Net) Rate(bitsPerSecond uint64, m ...Match) *Rule {
	n.t.Helper()
	return n.add(impair.Rule{Action: impair.Rate, BitsPerSecond: bitsPerSecond}, m)
}

// Impair puts the rules of a text on an adapter, as `softroce impair` takes them.
func (a *Adapter) Impair(text string) []*Rule {
	a.net.t.Helper()
	rules, err := impair.Parse(text)
	if err != nil {
		a.net.t.Fatalf("rdmatest: rules for %s: %v", a.name, err)
	}
	var out []*Rule
	for _, r := range rules {
		out = append(out, a.net.put(&Rule{rule: r, on: []*Adapter{a}, seeded: true}))
	}
	return out
}

// Partition keeps two adapters from reaching one another, until Heal or for as
// long as a For says.
func (n *Net) Partition(a, b *Adapter, m ...Match) *Rule {
	n.t.Helper()
	r := &Rule{net: n, rule: impair.Rule{Action: impair.Partition, Peer: prefixOf(b)}}
	r.narrow(m)
	r.on = []*Adapter{a}
	return n.put(r)
}

// Heal takes away what parts two adapters.
func (n *Net) Heal(a, b *Adapter) {
	n.mu.Lock()
	rules := slices.Clone(n.rules)
	n.mu.Unlock()
	for _, r := range rules {
		if r.rule.Action != impair.Partition || len(r.on) != 1 {
			continue
		}
		if r.on[0] == a && r.rule.Peer == prefixOf(b) || r.on[0] == b && r.rule.Peer == prefixOf(a) {
			r.Remove()
		}
	}
}

func (n *Net) add(rule impair.Rule, m []Match) *Rule {
	n.t.Helper()
	r := &Rule{rule: rule}
	r.rule.Dir = impair.Sent
	r.narrow(m)
	return n.put(r)
}

// narrow has the rule be about the packets of all matches.
func (r *Rule) narrow(m []Match) {
	for _, x := range m {
		if x.set != nil {
			x.set(r)
		}
	}
}
