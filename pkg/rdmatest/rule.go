package rdmatest

import (
	"slices"
	"time"

	"github.com/softroce/softroce/internal/impair"
	"github.com/softroce/softroce/pkg/adapter"
)

// A Rule is a rule in place, until the test ends or Remove.
type Rule struct {
	net    *Net
	rule   impair.Rule
	on     []*Adapter // nil: all
	number uint64
	seeded bool  // the rule's own seed counts
	bad    error // of a match

	// Guarded by the Net's lock.
	places  []place
	removed bool
	done    counts // of adapters that were killed
}

// A place is where a rule is: on which running adapter, under which number.
type place struct {
	at *adapter.Adapter
	id int
}

type counts struct{ matched, hit uint64 }

// put puts a rule in place on its adapters.
func (n *Net) put(r *Rule) *Rule {
	n.t.Helper()
	if err := r.bad; err != nil {
		n.t.Fatalf("rdmatest: %v: %v", r.rule.Action, err)
	}
	if err := r.rule.Validate(); err != nil {
		n.t.Fatalf("rdmatest: %v: %v", r.rule.Action, err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, a := range r.on {
		if a.net != n {
			n.t.Fatalf("rdmatest: %v: adapter %s is of another Net, where the rule would do nothing", r.rule.Action, a.name)
		}
	}
	n.number++
	r.net, r.number = n, n.number
	n.rules = append(n.rules, r)
	for _, a := range n.adapters {
		if a.running != nil && r.isFor(a) {
			r.putOn(a)
		}
	}
	return r
}

func (r *Rule) isFor(a *Adapter) bool { return r.on == nil || slices.Contains(r.on, a) }

// putOn puts the rule on a running adapter. Each has chances of its own, which the
// Net's seed decides. The Net's lock is held.
func (r *Rule) putOn(a *Adapter) {
	rule := r.rule
	if !r.seeded {
		rule.Seed = r.net.cfg.Seed ^ r.number<<32 ^ a.index<<48
	}
	ids, err := a.running.AddImpair(rule.String())
	if err != nil || len(ids) != 1 {
		r.net.t.Fatalf("rdmatest: put %v on %s: %v", &rule, a.name, err)
	}
	r.places = append(r.places, place{a.running, ids[0]})
}

// String is the rule in the words of docs/rdmatest.md.
func (r *Rule) String() string { return r.rule.String() }

// Remove takes the rule away. What it holds back still arrives.
func (r *Rule) Remove() {
	n := r.net
	n.mu.Lock()
	defer n.mu.Unlock()
	if r.removed {
		return
	}
	r.done = r.count()
	r.removed = true
	for _, p := range r.places {
		p.at.RemoveImpair(p.id) // it may have died
	}
	r.places = nil
	n.rules = slices.DeleteFunc(n.rules, func(o *Rule) bool { return o == r })
}

// count sums up what the rule did. The Net's lock is held.
func (r *Rule) count() counts {
	sum := r.done
	for _, p := range r.places {
		for _, s := range p.at.ImpairRules() {
			if s.ID == p.id {
				sum.matched += s.Matched
				sum.hit += s.Hit
			}
		}
	}
	return sum
}

// Matched is how many packets the rule was about, Hit to how many it did
// something.
func (r *Rule) Matched() uint64 {
	r.net.mu.Lock()
	defer r.net.mu.Unlock()
	return r.count().matched
}

// Hit is how many packets the rule did something to.
func (r *Rule) Hit() uint64 {
	r.net.mu.Lock()
	defer r.net.mu.Unlock()
	return r.count().hit
}

// Wait waits until the rule has done something to n packets. A minute without
// that ends the test.
func (r *Rule) Wait(n uint64) {
	r.net.t.Helper()
	for end := time.Now().Add(patience); r.Hit() < n; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			r.net.t.Fatalf("rdmatest: %v hit %d packets in a minute, waited for %d", r, r.Hit(), n)
		}
	}
}
