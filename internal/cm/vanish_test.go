package cm_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/softroce/softroce/internal/cm"
)

// steps of a connection's life, each leaving it where the next begins.
var steps = []struct {
	name string
	do   func(p *pair, a, b *cm.CommID)
}{
	{"REQ sent", func(p *pair, a, _ *cm.CommID) { *a = must[cm.CommID](p.t)(p.a.Connect(p.now, connectArgs())) }},
	{"REQ received", func(p *pair, _, b *cm.CommID) { p.exchange(); *b = p.b.expect(cm.ConnectRequest).ID }},
	{"REP sent", func(p *pair, _, b *cm.CommID) { ok(p.t, p.b.Accept(p.now, *b, acceptParam(), nil)) }},
	{"REP received", func(p *pair, _, _ *cm.CommID) { p.exchange(); p.a.expect(cm.ConnectResponse) }},
	{"RTU sent", func(p *pair, a, _ *cm.CommID) { ok(p.t, p.a.Establish(p.now, *a, nil)) }},
	{"RTU received", func(p *pair, _, _ *cm.CommID) { p.exchange(); p.b.expect(cm.Established) }},
	{"DREQ sent", func(p *pair, a, _ *cm.CommID) { ok(p.t, p.a.Disconnect(p.now, *a, nil)) }},
	{"DREQ received", func(p *pair, _, _ *cm.CommID) { p.exchange(); p.b.expect(cm.Disconnected) }},
	{"DREP sent", func(p *pair, _, b *cm.CommID) { ok(p.t, p.b.Disconnect(p.now, *b, nil)) }},
	{"DREP received", func(p *pair, _, _ *cm.CommID) { p.exchange(); p.a.expect(cm.Disconnected) }},
}

// forget drops the events that wait, and says how many there were.
func (e *end) forget() (n int) {
	for {
		if _, ok := e.PollEvent(); !ok {
			return n
		}
		n++
	}
}

// TestDestroyAnywhere: a program goes at each step, on either side; the other side
// learns that the connection is over, and nothing is left.
func TestDestroyAnywhere(t *testing.T) {
	for upTo := 1; upTo <= len(steps); upTo++ {
		for _, who := range []string{"A", "B"} {
			t.Run(fmt.Sprintf("%s, %s goes", steps[upTo-1].name, who), func(t *testing.T) {
				p := newPair(t)
				p.b.listen()
				var a, b cm.CommID
				for _, s := range steps[:upTo] {
					s.do(p, &a, &b)
				}
				gone, stays, id := p.a, p.b, a
				if who == "B" {
					gone, stays, id = p.b, p.a, b
				}
				if id == 0 {
					t.Skip("B has nothing to destroy before the REQ came")
				}
				ok(t, gone.Destroy(p.now, id))
				p.exchange()
				gone.quiet()
				over(t, p, stays)
				p.nothingLeftNow()
			})
		}
	}
}

// over checks that an end knows of the end of its connection within the time of
// the connection manager.
func over(t *testing.T, p *pair, e *end) {
	t.Helper()
	for range 40 {
		if e.forget() == 0 && len(e.IDs()) == 0 {
			return // it never heard of it
		}
		for _, id := range e.IDs() {
			info, _ := e.Info(id)
			switch {
			case info.State == cm.Idle:
				return
			case info.State == cm.DReqRcvd:
				ok(t, e.Disconnect(p.now, id, nil))
			case info.State == cm.ReqRcvd:
				ok(t, e.Accept(p.now, id, acceptParam(), nil)) // it does not know better
			}
		}
		p.exchange()
		p.advance(5 * time.Second)
	}
	for _, id := range e.IDs() {
		info, _ := e.Info(id)
		t.Fatalf("%v: id %#x is still in %v", e.addr, id, info.State)
	}
}

// TestVanishAnywhere: a whole end is gone, with all that it knew, and another with
// a new memory is in its place; the other side's program then disconnects.
func TestVanishAnywhere(t *testing.T) {
	for upTo := 1; upTo <= len(steps); upTo++ {
		for _, who := range []string{"A", "B"} {
			for _, back := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, %s vanishes, comes back %v", steps[upTo-1].name, who, back), func(t *testing.T) {
					p := newPair(t)
					p.b.listen()
					var a, b cm.CommID
					for _, s := range steps[:upTo] {
						s.do(p, &a, &b)
					}
					stays := p.b
					if who == "B" {
						p.b = newEnd(t, addrB, guidB, cm.Limits{})
						stays = p.a
					} else {
						p.a = newEnd(t, addrA, guidA, cm.Limits{})
					}
					if !back {
						p.lose = func(*end, cm.AttrID) bool { return true }
					}
					p.exchange()
					p.advance(5 * time.Minute)
					for _, id := range stays.IDs() {
						info, _ := stays.Info(id)
						if info.State == cm.Connected {
							ok(t, stays.Disconnect(p.now, id, nil))
						}
					}
					p.exchange()
					p.advance(5 * time.Minute)
					for _, id := range stays.IDs() {
						// Over, or the program's turn.
						rest := []cm.State{cm.Idle, cm.ReqRcvd, cm.RepRcvd, cm.DReqRcvd}
						if info, _ := stays.Info(id); !slices.Contains(rest, info.State) {
							t.Errorf("%v: id %#x is still in %v", stays.addr, id, info.State)
						}
					}
					p.lose = nil
					p.nothingLeftNow()
				})
			}
		}
	}
}
