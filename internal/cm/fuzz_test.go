package cm_test

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"github.com/softroce/softroce/internal/cm"
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/qpstate"
)

// seeds gives a fuzz target every captured MAD and every golden.
func seeds(f *testing.F, add func(mad []byte)) {
	f.Helper()
	for name := range captures {
		for _, c := range readCapture(f, name) {
			add(c.mad)
		}
	}
	for _, g := range goldens {
		h := cm.Header{BaseVersion: 1, Class: 7, ClassVersion: 2, Method: 3}
		if g.msg.Attr() == cm.AttrClassPortInfo {
			h.Method = cm.MethodGet
		}
		add(cm.AppendMAD(nil, h, g.msg))
	}
}

// FuzzMAD: what parses is the same when it is appended and parsed again.
func FuzzMAD(f *testing.F) {
	seeds(f, func(mad []byte) { f.Add(mad) })
	f.Fuzz(func(t *testing.T, mad []byte) {
		h, msg, err := cm.ParseMAD(mad)
		if err != nil {
			return
		}
		once := cm.AppendMAD(nil, h, msg)
		h2, msg2, err := cm.ParseMAD(once)
		if err != nil || h2 != h {
			t.Fatalf("%v, %+v, want %+v", err, h2, h)
		}
		if twice := cm.AppendMAD(nil, h2, msg2); !bytes.Equal(once, twice) {
			t.Fatalf("%x\n%x", once, twice)
		}
	})
}

// FuzzMachine: a hostile peer and a wild program, whose bytes choose what happens
// next. The machine stays within its limits, does not panic, and forgets all when
// its ids are destroyed.
func FuzzMachine(f *testing.F) {
	seeds(f, func(mad []byte) { f.Add(append(mad, 3, 1, 3, 2, 3, 3, 9, 9)) })
	f.Add(bytes.Repeat([]byte{1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 6, 0, 7, 0}, 30))
	f.Fuzz(func(t *testing.T, script []byte) {
		limits := cm.Limits{Conns: 8, HalfOpen: 4, Listeners: 2, Sends: 8}
		e := newEnd(t, addrB, guidB, limits)
		w := wild{e: e, now: start, seen: []cm.CommID{0}}
		w.listen()
		for i := 0; len(script) > 0 && i < 400; i++ {
			script = w.step(script)
			if n := e.Counters(); n.Conns > limits.Conns || n.HalfOpen > limits.HalfOpen || n.HalfOpen < 0 || cm.TableSizes(e.Machine) > 6*limits.Conns {
				t.Fatalf("%+v, %d table entries", n, cm.TableSizes(e.Machine))
			}
		}
		for _, id := range e.IDs() {
			ok(t, e.Destroy(w.now, id))
		}
		for range 40 {
			w.now = w.now.Add(20 * time.Second)
			e.HandleTimeout(w.now)
			w.drain()
		}
		if n := e.Counters(); n.Conns != 0 || n.HalfOpen != 0 || cm.TableSizes(e.Machine) != 0 || !e.NextTimeout().IsZero() {
			t.Fatalf("left: %+v, %d table entries", n, cm.TableSizes(e.Machine))
		}
	})
}

// wild is a machine and the ids that it has shown so far.
type wild struct {
	e    *end
	now  time.Time
	seen []cm.CommID
	last []byte // the MAD that it sent last
}

func (w *wild) listen() {
	_, _ = w.e.Listen(cm.ListenArgs{Type: qpstate.RC, Service: cm.IPService(cm.SpaceTCP, port), Backlog: 3})
	_, _ = w.e.Listen(cm.ListenArgs{Type: qpstate.UD, Service: cm.IPService(cm.SpaceUDP, port)})
}

func (w *wild) drain() {
	for ev, ok := w.e.PollEvent(); ok; ev, ok = w.e.PollEvent() {
		w.seen = append(w.seen, ev.ID)
	}
	for _, mad, ok := w.e.PollSend(); ok; _, mad, ok = w.e.PollSend() {
		w.last = bytes.Clone(mad)
	}
}

// step does one thing that the script says, and returns the rest of it.
func (w *wild) step(script []byte) []byte {
	op, arg := script[0], byte(0)
	script = script[1:]
	if len(script) > 0 {
		arg, script = script[0], script[1:]
	}
	id := w.seen[int(arg)%len(w.seen)]
	p := cm.Param{QPN: 16 + bth.QPN(arg), ResponderResources: arg, InitiatorDepth: ^arg}
	switch op % 16 {
	case 0, 1, 2:
		mad := make([]byte, cm.MADLen)
		copy(mad, script)
		w.aim(mad, op, arg)
		w.e.HandleMAD(w.now, path(addrB, addrA), mad)
		script = script[min(len(script), cm.MADLen):]
	case 3:
		_ = w.e.Accept(w.now, id, p, script[:min(len(script), 250)])
	case 4:
		_ = w.e.Reject(w.now, id, cm.RejectReason(arg), nil)
	case 5:
		_ = w.e.Establish(w.now, id, nil)
	case 6:
		_ = w.e.Disconnect(w.now, id, nil)
	case 7:
		_ = w.e.Destroy(w.now, id)
	case 8:
		args := connectArgs()
		args.CMA.Dst, args.Path, args.Param = addrA, path(addrB, addrA), p
		if arg&1 != 0 {
			args.Type, args.Service = qpstate.UD, cm.IPService(cm.SpaceUDP, port)
		}
		if id, err := w.e.Connect(w.now, args); err == nil {
			w.seen = append(w.seen, id)
		}
	case 9:
		w.now = w.now.Add(time.Duration(arg) * 100 * time.Millisecond)
		w.e.HandleTimeout(w.now)
	case 10:
		_ = w.e.CommEstablished(w.now, id)
	case 11:
		_, _, _ = w.e.QPAttr(id, qpstate.State(arg%8), p)
	case 12:
		_ = w.e.Unlisten(w.now, cm.ListenerID(arg%4))
	case 13:
		w.listen()
	case 14:
		_ = w.e.Taken(id)
	case 15:
		if w.last != nil { // its own words come back
			w.e.HandleMAD(w.now, path(addrB, addrA), w.last)
		}
	}
	w.drain()
	return script
}

// aim makes a script's MAD well-formed and about an id that lives, so that more
// than the parser is met.
func (w *wild) aim(mad []byte, op, arg byte) {
	if op&0x10 == 0 {
		return
	}
	copy(mad, []byte{1, 7, 2, 3})
	mad[16], mad[17] = 0, 0x10+arg%11
	id := w.seen[int(op>>5)%len(w.seen)]
	if !slices.Contains([]byte{0x10, 0x17}, mad[17]) {
		mad[28], mad[29], mad[30], mad[31] = byte(id>>24), byte(id>>16), byte(id>>8), byte(id)
	}
}
