package nic

import (
	"fmt"
	"strings"

	"github.com/softroce/softroce/internal/cm"
	"github.com/softroce/softroce/internal/uapi"
)

// CMSnapshot is what the connection manager counted and holds at one moment.
type CMSnapshot struct {
	Messages []CMMessages // by kind of message
	Verdicts []CMCount    // MADs with the right keys, by what became of them
	Resent   uint64       // of those sent: after a time without an answer
	Lost     uint64       // not sent: a full queue, or no way to the peer
	Events   uint64       // event records written
	Held     uint64       // of those: some time after they happened, to a pipe that was full
	// What there is now.
	Connections, HalfOpen, Listeners int
}

// CMMessages counts one kind of message.
type CMMessages struct {
	Name           string // as "SIDR_REQ"
	Received, Sent uint64
}

// CMCount is a number with a name.
type CMCount struct {
	Name  string
	Count uint64
}

// cmSnapshot reads the connection manager between two turns of its worker.
func (a *Adapter) cmSnapshot() (s CMSnapshot) {
	g := a.gsi
	g.w.do(func() {
		c := g.machine.Counters()
		for i := range c.Received {
			name := (cm.AttrREQ + cm.AttrID(i)).String()
			s.Messages = append(s.Messages, CMMessages{Name: name, Received: c.Received[i], Sent: c.Sent[i]})
		}
		for v := range cm.VerdictCount {
			s.Verdicts = append(s.Verdicts, CMCount{Name: v.String(), Count: c.Verdicts[v]})
		}
		s.Resent, s.Lost, s.Events, s.Held = c.Resent, c.SendsLost+g.lost, g.events, g.held
		s.Connections, s.HalfOpen, s.Listeners = c.Conns, c.HalfOpen, c.Listeners
	})
	return s
}

// counters lists everything that the connection manager counted.
func (s *CMSnapshot) counters() (out []uapi.Counter) {
	add := func(name, help string, v uint64) { out = append(out, uapi.Counter{Name: name, Help: help, Value: v}) }
	for _, m := range s.Messages {
		name := strings.ToLower(m.Name)
		add("cm_rcvd_"+name, fmt.Sprintf("%s messages of the connection manager received", m.Name), m.Received)
		add("cm_sent_"+name, fmt.Sprintf("%s messages of the connection manager sent", m.Name), m.Sent)
	}
	for _, v := range s.Verdicts {
		add("cm_"+v.Name, "management datagrams, by what became of them", v.Count)
	}
	add("cm_resent", "messages of the connection manager sent again", s.Resent)
	add("cm_lost", "messages of the connection manager that could not be sent", s.Lost)
	add("cm_events", "events of the connection manager written", s.Events)
	add("cm_events_held", "of those, events that waited for room in a program's pipe", s.Held)
	return out
}
