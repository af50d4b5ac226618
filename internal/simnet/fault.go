package simnet

import "slices"

// FaultKind says what went wrong with a datagram.
type FaultKind uint8

// Kinds of faults.
const (
	Lost       FaultKind = iota // by the dice
	Duplicated                  // a copy more
	Reordered                   // held back
	Corrupted                   // bits flipped
	Overflowed                  // a queue or buffer was full
	Blocked                     // a partition
	Discarded                   // lost with the host that held it

	// FaultKinds is the number of kinds.
	FaultKinds
)

var faultNames = [FaultKinds]string{"lost", "duplicated", "reordered", "corrupted", "overflowed", "blocked", "discarded"}

// String is the kind in a word.
func (k FaultKind) String() string {
	if k < FaultKinds {
		return faultNames[k]
	}
	return "fault"
}

// Fault is something that went wrong with a datagram. Data is valid during the
// call only.
type Fault struct {
	Kind     FaultKind
	From, To int
	Data     []byte
}

func (n *Net) fault(k FaultKind, from, to int, b []byte) {
	if n.cfg.OnFault != nil {
		n.cfg.OnFault(Fault{k, from, to, b})
	}
}

// host is what is special to a host.
func (n *Net) host(i int) (h Host) {
	if i < len(n.cfg.Hosts) {
		h = n.cfg.Hosts[i]
	}
	return h
}

func pair(a, b int) [2]int { return [2]int{min(a, b), max(a, b)} }

// Partition cuts two hosts off from each other: what they send from now on is
// lost, but not what is on its way. Heal ends it.
func (n *Net) Partition(a, b int) { n.cuts[pair(a, b)] = true }

// Heal ends the partition of two hosts.
func (n *Net) Heal(a, b int) { delete(n.cuts, pair(a, b)) }

// Restart discards what a host holds: what lies in its receive buffer, and what
// waits for its link.
func (n *Net) Restart(host int) {
	kept := n.heap[:0:0]
	for i := range n.heap {
		f := &n.heap[i]
		if f.From == host && f.leaves.After(n.now) || f.To == host && f.arrived {
			n.stats.Discarded++
			n.fault(Discarded, f.From, f.To, f.Data)
			n.queued[f.To]--
			n.read(f)
			n.free = append(n.free, f.Data)
			continue
		}
		kept = append(kept, *f)
	}
	n.heap = n.heap[:0]
	slices.SortFunc(kept, func(a, b flight) int {
		if c := a.at.Compare(b.at); c != 0 {
			return c
		}
		return int(int64(a.order) - int64(b.order))
	})
	for _, f := range kept {
		n.push(f)
	}
	delete(n.links, host)
	delete(n.reads, host)
}
