package suite

import (
	"fmt"
	"slices"
	"time"

	"github.com/softroce/softroce/conformance/agent"
)

// RecvBase is the offset in the region of the first receive that PostRecvs posts; the i-th one, from 0, has RecvOff(i).
func (p *Peer) recvBase() int { return p.MR.Length / 2 }

// RecvOff is where in the region the receive with id i+1 lies.
func (p *Peer) RecvOff(i int) int { return p.recvBase() + i*p.recvSize() }

func (p *Peer) recvSize() int { return orElse(p.Options.RecvSize, 2048) }

// PostRecvs posts n receives of RecvSize bytes, with ids from 1.
func (p *Peer) PostRecvs(n int) {
	wrs := make([]agent.RecvWR, n)
	for i := range wrs {
		wrs[i] = agent.RecvWR{ID: uint64(i + 1), SGEs: []agent.SGE{p.SGE(p.RecvOff(i), p.recvSize())}}
	}
	p.PostRecv(wrs...)
}

// PostRecv posts receives.
func (p *Peer) PostRecv(wrs ...agent.RecvWR) {
	p.T.Do(agent.Request{Do: agent.DoRecv, QP: p.QP, Recvs: wrs})
}

// PostSend posts send requests; a request is signaled when its Flags say so.
func (p *Peer) PostSend(wrs ...agent.SendWR) {
	p.T.Do(agent.Request{Do: agent.DoSend, QP: p.QP, Sends: wrs})
}

// SGE is n bytes at an offset of the region.
func (p *Peer) SGE(off, n int) agent.SGE {
	return agent.SGE{Addr: p.MR.Addr + uint64(off), Length: uint32(n), LKey: p.MR.LKey}
}

// Signaled is what most requests carry.
var Signaled = []string{"SIGNALED"}

// SendWR is a signaled request on n bytes at an offset of the region; its remote address and key are some that the tester
// made up.
func (p *Peer) SendWR(id uint64, op string, off, n int) agent.SendWR {
	return agent.SendWR{
		ID: id, Op: op, Flags: Signaled, SGEs: []agent.SGE{p.SGE(off, n)},
		Addr: 0x10000, RKey: 0x1234,
	}
}

// Fill writes into the target's region.
func (p *Peer) Fill(off int, data []byte) {
	p.T.Do(agent.Request{Do: agent.DoWrite, MR: p.MR.ID, Off: off, Data: data})
}

// Memory reads the target's region.
func (p *Peer) Memory(off, n int) []byte {
	return p.T.Memory(p.MR, off, n)
}

// Memory reads a region of the target.
func (t *T) Memory(r Region, off, n int) []byte {
	return t.Do(agent.Request{Do: agent.DoRead, MR: r.ID, Off: off, Length: n}).Data
}

// Holds fails unless the region has these bytes at an offset.
func (p *Peer) Holds(off int, want []byte) {
	p.T.Same(fmt.Sprintf("the target's memory at offset %d", off), want, p.Memory(off, len(want)))
}

// Sent takes the next completion of the send queue, which must have this id and one of these statuses [SUCCESS].
func (p *Peer) Sent(id uint64, statuses ...string) agent.WC {
	return p.completion("send", p.SendCQ, &p.sent, id, statuses)
}

// Received takes the next completion of the receive queue, likewise.
func (p *Peer) Received(id uint64, statuses ...string) agent.WC {
	return p.completion("receive", p.RecvCQ, &p.taken, id, statuses)
}

func (p *Peer) completion(queue string, cq int, have *[]agent.WC, id uint64, statuses []string) agent.WC {
	if len(statuses) == 0 {
		statuses = []string{"SUCCESS"}
	}
	expected := fmt.Sprintf("a completion of %s request %d with status %v", queue, id, statuses)
	if len(*have) == 0 {
		ms := int(p.T.Wait / time.Millisecond)
		*have = p.T.Do(agent.Request{Do: agent.DoPoll, CQ: cq, N: 1, MS: ms}).WCs
	}
	if len(*have) == 0 {
		p.T.Failed(expected, fmt.Sprintf("none within %v", p.T.Wait))
	}
	wc := (*have)[0]
	*have = (*have)[1:]
	if wc.ID != id || !slices.Contains(statuses, wc.Status) {
		p.T.Failed(expected, fmt.Sprintf("one of request %d with status %s", wc.ID, wc.Status))
	}
	return wc
}

// NothingSent and NothingReceived fail if a completion waits. They do not wait themselves: let something else, an answer
// of the target for instance, prove that it would have come.
func (p *Peer) NothingSent() { p.nothing("send", p.SendCQ, &p.sent) }

// NothingReceived is NothingSent for the receive queue.
func (p *Peer) NothingReceived() { p.nothing("receive", p.RecvCQ, &p.taken) }

func (p *Peer) nothing(queue string, cq int, have *[]agent.WC) {
	*have = append(*have, p.T.Do(agent.Request{Do: agent.DoPoll, CQ: cq, N: 16}).WCs...)
	if len(*have) > 0 {
		p.T.Failed("no completion of a "+queue+" request", fmt.Sprintf("one of request %d with status %s", (*have)[0].ID, (*have)[0].Status))
	}
}

// Event waits for an asynchronous event of one of these types [any] and returns it; none within Wait fails the case, others
// before it are dropped.
func (t *T) Event(types ...string) agent.Event {
	for deadline := time.Now().Add(t.Wait); ; {
		for len(t.events) > 0 {
			e := t.events[0]
			t.events = t.events[1:]
			if len(types) == 0 || slices.Contains(types, e.Type) {
				return e
			}
		}
		left := time.Until(deadline)
		if left <= 0 {
			t.Failed(fmt.Sprintf("an event %v", types), fmt.Sprintf("none within %v", t.Wait))
		}
		t.events = t.Do(agent.Request{Do: agent.DoAsync, MS: int(left / time.Millisecond)}).Events
	}
}

// NoEvent fails if an event of one of these types waits.
func (t *T) NoEvent(types ...string) {
	t.events = append(t.events, t.Do(agent.Request{Do: agent.DoAsync}).Events...)
	for _, e := range t.events {
		if slices.Contains(types, e.Type) {
			t.Failed("no event "+e.Type, "one")
		}
	}
}

// Counts fails unless one of the target's counters of these names rises by n at least while f runs. A target that has none of
// them gets a note.
func (t *T) Counts(n uint64, f func(), names ...string) {
	if !t.Has(agent.FeatureCounters) {
		t.Notef("the target shows no counters")
		f()
		return
	}
	before := t.Do(agent.Request{Do: agent.DoCounters}).Counters
	f()
	after := t.Do(agent.Request{Do: agent.DoCounters}).Counters
	known := false
	for _, name := range names {
		if _, ok := after[name]; ok {
			known = true
			if after[name] >= before[name]+n {
				return
			}
		}
	}
	if known {
		t.Failed(fmt.Sprintf("one of the counters %v to rise by %d", names, n), "no change")
	}
	t.Notef("the target has none of the counters %v", names)
}

// HeadRoom is how many bytes of a receive come before the payload: the network header's area of a datagram.
func (p *Peer) HeadRoom() uint32 {
	if p.datagram() {
		return 40
	}
	return 0
}

// AnyReceived takes the next completion of the receive queue, whatever it is.
func (p *Peer) AnyReceived() agent.WC {
	if len(p.taken) == 0 {
		p.taken = p.T.Do(agent.Request{Do: agent.DoPoll, CQ: p.RecvCQ, N: 1, MS: int(p.T.Wait / time.Millisecond)}).WCs
	}
	if len(p.taken) == 0 {
		p.T.Failed("a completion of a receive", fmt.Sprintf("none within %v", p.T.Wait))
	}
	wc := p.taken[0]
	p.taken = p.taken[1:]
	return wc
}
