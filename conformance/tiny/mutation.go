package tiny

import "strings"

// Mutation names one thing that a target does wrong.
type Mutation string

// Broken is a mutation, and what the suite is to find of it.
type Broken struct {
	Name Mutation
	What string   // what the target does
	IDs  []string // statements that it must turn red, the one that says it best first; none for a general one
	// AtLeast is how many cases a general one must turn red.
	AtLeast int
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
	{Name: "dead-wire", What: "takes nothing from the wire", AtLeast: 200},
	{Name: "flood", What: "answers each packet with hundreds of ACKs", AtLeast: 100},
	{Name: "junk", What: "answers each packet with random bytes", AtLeast: 100},
	{Name: "agent-yes", What: "its agent says yes to everything", AtLeast: 5},
	{Name: "agent-gone", What: "its agent answers nothing after some requests", AtLeast: 50},
	{Name: "no-completions", What: "never completes anything", AtLeast: 50},
	{Name: "no-async-events", What: "never raises an asynchronous event", AtLeast: 5},
	{Name: "ack-as-nak", What: "answers NAK where an ACK is due", AtLeast: 100},
	{Name: "nak-silent", What: "never sends a NAK", AtLeast: 50},
}
