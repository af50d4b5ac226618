package adapter_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"

	"github.com/softroce/softroce/pkg/adapter"
	"github.com/softroce/softroce/pkg/verbs"
)

// mallocs counts the allocations of the whole process while f runs: the
// program's, both adapters' and the runtime's own.
func mallocs(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.Mallocs - before.Mallocs
}

// noise is how many allocations of the runtime's own are let pass: a thread that
// is started, a timer, a garbage collection. It does not grow with the requests.
const noise = 20

// Posting, transfer and polling allocate nothing once they are warm, in the
// program and in both adapters of this process.
func TestHotPathDoesNotAllocate(t *testing.T) {
	a, b := pair(t, shape{}, verbs.RCConfig{}, nil)
	write, read := a.write(b, 0, 0, 10000), a.read(b, 0, 0, 10000)
	inline := verbs.SendWR{Opcode: verbs.WRSend, Flags: verbs.SendInline, SGList: []verbs.SGE{a.mr.SGE(0, 32)}}
	for _, wr := range []*verbs.SendWR{&write, &read, &inline} {
		wr.Flags |= verbs.SendSignaled
	}
	recv := verbs.RecvWR{SGList: []verbs.SGE{b.mr.SGE(0, 64)}}
	const rounds = 1000
	run := func() {
		for range rounds {
			if _, err := b.qp.PostRecv(recv); err != nil {
				t.Fatal(err)
			}
			if n, err := a.qp.PostSend(write, read, inline); n != 3 {
				t.Fatal(err)
			}
			for range 3 {
				if wc, ok := pollOne(a.cq); !ok || wc.Status != verbs.WCSuccess {
					t.Fatal(wc.Status)
				}
			}
			if wc, ok := pollOne(b.cq); !ok || wc.Status != verbs.WCSuccess {
				t.Fatal(wc.Status)
			}
		}
	}
	run()
	n := mallocs(run)
	for tries := 0; n > noise && tries < 60; tries++ {
		n = mallocs(run) // it may be the watch over the network, which a new link wakes a few times
	}
	t.Logf("%d allocations for %d requests and %d receives", n, 3*rounds, rounds)
	if n > noise {
		t.Errorf("%d allocations for %d requests", n, 3*rounds)
	}
}

// messages are requests of n bytes, so many at a time, whose completions are
// polled for or, with ctx, waited for.
type messages struct {
	a, b  *program
	wrs   []verbs.SendWR
	recvs []verbs.RecvWR
	ctx   context.Context
	wcs   [16]verbs.WC
	waits int
}

func newMessages(a, b *program, op verbs.WROpcode, n, atOnce int) *messages {
	m := &messages{a: a, b: b}
	for i := range atOnce {
		wr := a.write(b, i*n, i*n, n)
		wr.Opcode, wr.Flags = op, verbs.SendSignaled
		m.wrs = append(m.wrs, wr)
		if op == verbs.WRSend {
			m.recvs = append(m.recvs, verbs.RecvWR{SGList: []verbs.SGE{b.mr.SGE(i*n, n)}})
		}
	}
	return m
}

// take waits for n completions of a program.
func (m *messages) take(t *testing.T, p *program, n int) {
	for n > 0 {
		if m.ctx != nil {
			must(t, p.cq.ReqNotify(false))
		}
		got := 0
		for {
			k, err := p.cq.Poll(m.wcs[:])
			must(t, err)
			if got += k; k == 0 {
				break
			}
			for i := range m.wcs[:k] {
				if m.wcs[i].Status != verbs.WCSuccess {
					t.Fatal(m.wcs[i].Status)
				}
			}
		}
		if n -= got; n > 0 && m.ctx != nil {
			cq, err := p.ch.Get(m.ctx)
			must(t, err)
			cq.AckEvents(1)
			m.waits++
		}
	}
}

func (m *messages) run(t *testing.T, rounds int) {
	for range rounds {
		if len(m.recvs) > 0 {
			if n, err := m.b.qp.PostRecv(m.recvs...); n != len(m.recvs) {
				t.Fatal(err)
			}
		}
		if n, err := m.a.qp.PostSend(m.wrs...); n != len(m.wrs) {
			t.Fatal(err)
		}
		m.take(t, m.a, len(m.wrs))
		m.take(t, m.b, len(m.recvs))
	}
}

// The whole of two adapters and their programs allocates nothing in its steady
// state: large messages, with and without the kernel's offloads, by one worker
// and by several, over a socket and in memory, polling and waiting.
func TestSteadyStateDoesNotAllocate(t *testing.T) {
	type cell struct {
		name    string
		workers int
		offload adapter.Offload
		local   bool
		events  bool
	}
	for _, c := range []cell{
		{"offload", 1, adapter.OffloadAuto, false, false},
		{"offload, 3 workers", 3, adapter.OffloadAuto, false, false},
		{"no offload", 1, adapter.OffloadOff, false, false},
		{"no offload, 3 workers", 3, adapter.OffloadOff, false, false},
		{"one adapter, one worker", 1, adapter.OffloadAuto, true, false},
		{"one adapter, 2 workers", 2, adapter.OffloadAuto, true, false},
		{"offload, waiting for events", 2, adapter.OffloadAuto, false, true},
		{"one adapter, waiting for events", 2, adapter.OffloadAuto, true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			change := func(cfg *adapter.Config) { cfg.Workers, cfg.Offload, cfg.RecvBuffer = c.workers, c.offload, 4<<20 }
			s := shape{size: 4 << 20, events: c.events}
			var a, b *program
			if c.local {
				a, b = localPair(t, start(t, change), s, c.workers == 1)
				connect(a, b, verbs.RCConfig{Timeout: 20})
			} else {
				a, b = pair(t, s, verbs.RCConfig{Timeout: 20}, change)
			}
			for _, op := range []verbs.WROpcode{verbs.WRRDMAWrite, verbs.WRRDMARead, verbs.WRSend} {
				for _, size := range []int{8, 64 << 10, 1 << 20} {
					atOnce := min(16, 4<<20/size)
					rounds := 100
					if size >= 64<<10 {
						rounds = 10
					}
					if testing.Short() {
						rounds /= 5
					}
					m := newMessages(a, b, op, size, atOnce)
					if c.events {
						m.ctx = within(t)
					}
					m.run(t, rounds/4+1)
					m.waits = 0
					n := mallocs(func() { m.run(t, rounds) })
					for tries := 0; n > noise+allocsPerWait*uint64(m.waits) && tries < 60; tries++ {
						// It may be the watch over the network, which a new link wakes a few times.
						m.waits = 0
						n = mallocs(func() { m.run(t, rounds) })
					}
					what := fmt.Sprintf("%d allocations for %d %v of %d bytes and %d waits", n, rounds*atOnce, op, size, m.waits)
					if t.Log(what); n > noise+allocsPerWait*uint64(m.waits) {
						t.Error(what)
					}
				}
			}
		})
	}
}
