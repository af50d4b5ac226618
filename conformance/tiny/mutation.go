package tiny

import "strings"

// Mutation names one thing that a target does wrong.
type Mutation string

// Broken is a mutation, and what the suite is to find of it.
type Broken struct {
	Name Mutation
	What string   // what the target does
	IDs  []string // statements that it must turn red, the one that says it best first; none for a general one
}

// V6 reports whether the mutation shows over IPv6 only.
func (m Mutation) V6() bool { return strings.HasPrefix(string(m), "v6-") }

// Mutations returns every mutation, in the order of the statements; last the general ones, by which a target fails nearly
// everything.
func Mutations() []Broken {
	var out []Broken
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.TrimSpace(line), " | ")
		if len(cells) != 3 {
			continue
		}
		out = append(out, Broken{Name: Mutation(cells[0]), What: cells[1], IDs: strings.Fields(cells[2])})
	}
	return append(out, general...)
}

// general are the mutations that say nothing in particular.
var general = []Broken{
	{Name: "dead-wire", What: "takes nothing from the wire"},
	{Name: "flood", What: "answers each packet with hundreds of ACKs"},
	{Name: "agent-yes", What: "its agent says yes to everything"},
	{Name: "no-completions", What: "never completes anything"},
	{Name: "no-async-events", What: "never raises an asynchronous event"},
	{Name: "ack-as-nak", What: "answers NAK where an ACK is due"},
	{Name: "nak-silent", What: "never sends a NAK"},
}
