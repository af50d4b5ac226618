package scenario

import (
	"fmt"
	"strings"
	"time"

	"github.com/softroce/softroce/pkg/mrtable"
	"github.com/softroce/softroce/pkg/qpstate"
	"github.com/softroce/softroce/pkg/transport"
	"github.com/softroce/softroce/pkg/wq"
)

// endless is more packets than any command leads to.
const endless = 1 << 16

// script is a scenario being run.
type script struct {
	out       strings.Builder
	now       time.Time
	shown     time.Time // that the output told last
	keys      *mrtable.Table
	mem       mrtable.HeapMemory
	mr        *mrtable.Region
	keyed     map[string]*keyed // windows and fast regions
	counters  transport.Counters
	srq       *wq.RecvQueue // nil: nobody shares
	endpoints []*endpoint   // in the order of their making
	e         *endpoint     // that the present command is about
}

// Run gives the scenario with the outputs that were found in place of those that
// it has. It fails on a line that is no command: [*SyntaxError].
func Run(file, text string) (string, error) {
	s := &script{now: start, shown: start}
	for i, line := range lines(text) {
		if isOutput(line) {
			continue
		}
		fmt.Fprintln(&s.out, line)
		if !isCommand(line) {
			continue
		}
		if err := s.line(line); err != nil {
			return "", &SyntaxError{File: file, Line: i + 1, Text: line, Err: err}
		}
	}
	return s.out.String(), nil
}

// line does a command.
func (s *script) line(line string) error {
	fields := strings.Fields(line)
	name := ""
	if strings.HasPrefix(fields[0], "@") {
		name, fields = fields[0], fields[1:]
	}
	if len(fields) == 0 {
		return fmt.Errorf("no command behind %s", name)
	}
	verb, fields := fields[0], fields[1:]
	if verb == "connect" && name == "" {
		s.keys, s.keyed, s.endpoints = nil, nil, nil // all anew
	}
	if s.keys == nil {
		if err := s.begin(verb, fields); err != nil {
			return err
		}
	}
	if verb == "connect" {
		e, err := s.newEndpoint(name, parseWords(without(fields, "mraccess")))
		if err == nil {
			s.endpoints = append(s.endpoints, e)
		}
		return err
	}
	if name == "" && len(s.endpoints) == 0 {
		if err := s.line("connect"); err != nil {
			return err
		}
	}
	if s.e = s.find(name); s.e == nil {
		return fmt.Errorf("no queue pair %s", name)
	}
	do, ok := commands[verb]
	if !ok {
		return fmt.Errorf("no command %q", verb)
	}
	return do(s, fields)
}

// begin makes the memory. Its rights are a word of the first connect.
func (s *script) begin(verb string, fields []string) (err error) {
	access := uint64(allAccess)
	if verb == "connect" {
		access = parseWords(fields).num("mraccess", access)
	}
	s.keys = mrtable.New(mrtable.Config{MaxRegions: 64, Secret: 1})
	s.mem = make(mrtable.HeapMemory, memSize)
	for i := range s.mem {
		s.mem[i] = byte(i*7 + i>>8)
	}
	s.mr, err = s.keys.Register(1, s.mem, memBase, memSize, mrtable.Access(access), 0)
	return err
}

// without gives the fields but those of a word.
func without(fields []string, word string) (rest []string) {
	for _, f := range fields {
		if k, _, _ := strings.Cut(f, "="); k != word {
			rest = append(rest, f)
		}
	}
	return rest
}

func (s *script) find(name string) *endpoint {
	for _, e := range s.endpoints {
		if e.name == name {
			return e
		}
	}
	return nil
}

// say writes an output line about a queue pair, behind the time when that moved.
func (s *script) say(e *endpoint, format string, args ...any) {
	if !s.shown.Equal(s.now) {
		s.shown = s.now
		fmt.Fprintf(&s.out, "  at %v\n", s.now.Sub(start))
	}
	if e.name != "" {
		format = e.name + " " + format
	}
	fmt.Fprintf(&s.out, "  "+format+"\n", args...)
}

// flush has every queue pair say all that it has to say now.
func (s *script) flush() error {
	for _, e := range s.endpoints {
		if err := s.flushOne(e); err != nil {
			return err
		}
	}
	return nil
}

func (s *script) flushOne(e *endpoint) error {
	for i := 0; ; i++ {
		b, err := e.poll(s.now)
		if err != nil {
			return err
		}
		if b == nil {
			break
		}
		if i > endless {
			return fmt.Errorf("packets without end: %s", PacketText(b))
		}
		s.say(e, "> %s", PacketText(b))
	}
	for i := range e.sendCQ.wcs {
		s.say(e, "wc %s", WCText(&e.sendCQ.wcs[i]))
	}
	for i := range e.recvCQ.wcs {
		solicited := ""
		if e.recvCQ.solicited[i] {
			solicited = " solicited"
		}
		s.say(e, "recv wc %s%s", WCText(&e.recvCQ.wcs[i]), solicited)
	}
	e.sendCQ.clear()
	e.recvCQ.clear()
	for ev, ok := e.qp.PollEvent(); ok; ev, ok = e.qp.PollEvent() {
		s.say(e, "event: %s", ev.Text())
	}
	if st := e.qp.State(); st != e.state {
		e.state = st
		s.say(e, "state %v", st)
	}
	return nil
}

// states are the words for the states.
var states = map[string]qpstate.State{
	"reset": qpstate.Reset, "init": qpstate.Init, "rtr": qpstate.RTR, "rts": qpstate.RTS,
	"sqd": qpstate.SQD, "sqe": qpstate.SQE, "err": qpstate.Err,
}
