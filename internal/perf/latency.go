package perf

import (
	"context"
	"time"

	"github.com/softroce/softroce/pkg/verbs"
)

// bytePolls is how often the memory is looked at before the completion queue
// is polled too, which yields the processor (our own tuning).
const bytePolls = 20

// loadByte reads a byte that the adapter may write meanwhile: a program that
// polls memory for what a peer writes is, for Go, a data race by design, which
// the race detector is told to overlook here and nowhere else. A call that is
// not inlined keeps the compiler from reading it once for all.
//
//go:noinline
//go:norace
func loadByte(b []byte, i int) byte { return b[i] }

// storeByte writes a byte of a message whose predecessor came to the peer, as
// its answer proves, but whose completion may not be polled yet. Sent once
// more, the predecessor is a duplicate, of which the peer writes nothing.
//
//go:noinline
//go:norace
func storeByte(b []byte, i int, v byte) { b[i] = v }

// pinger makes single operations on queue pair 0.
type pinger struct {
	s        *session
	size     int
	wr       verbs.SendWR
	n        int64 // operations
	mod      int   // one of so many is signaled
	since    int   // posted since the last signaled one
	inFlight int   // sends not yet completed
	arrived  int   // messages that came and were not asked for yet
	wcs      [16]verbs.WC
}

func (s *session) pinger(size int) *pinger {
	g := &pinger{s: s, size: size, wr: s.request(0, size), mod: 1}
	if s.p.Op.pingPong() { // the peer's answer says that it came
		g.mod = s.p.CQMod
	}
	return g
}

// post posts the next operation.
func (g *pinger) post(ctx context.Context) error {
	if err := g.drain(ctx, g.s.p.TxDepth-1); err != nil {
		return err
	}
	wr := g.wr
	g.s.number(&wr, g.n)
	g.n++
	if g.s.p.polled() {
		storeByte(g.s.mr.Bytes(), g.s.lay.local(0)+g.size-1, byte(g.n))
	}
	return g.put(wr, g.since+1 >= g.mod)
}

// put posts a request; a signaled one completes those before it as well.
func (g *pinger) put(wr verbs.SendWR, signaled bool) error {
	g.inFlight++
	if g.since++; signaled {
		wr.WRID, wr.Flags = mark(0, g.since), wr.Flags|verbs.SendSignaled
		g.since = 0
	}
	_, err := g.s.qps[0].PostSend(wr)
	return err
}

// reap waits for completions and takes them.
func (g *pinger) reap(ctx context.Context) error {
	n, err := g.s.wait(ctx, g.wcs[:])
	if err != nil {
		return err
	}
	return g.take(n)
}

func (g *pinger) take(n int) error {
	for i := range g.wcs[:n] {
		if g.wcs[i].WRID&recvMark == 0 {
			_, n := unmark(g.wcs[i].WRID)
			g.inFlight -= n
			continue
		}
		g.arrived++
		if err := g.s.received(&g.wcs[i], g.size, g.s.index); err != nil {
			return err
		}
	}
	return nil
}

// message waits for number n of the peer's.
func (g *pinger) message(ctx context.Context, n int64) error {
	if g.s.p.polled() {
		return g.written(ctx, byte(n))
	}
	for g.arrived == 0 {
		if err := g.reap(ctx); err != nil {
			return err
		}
	}
	g.arrived--
	return nil
}

// written polls the last byte of what the peer writes.
func (g *pinger) written(ctx context.Context, want byte) error {
	mem, at := g.s.mr.Bytes(), g.s.lay.target(0, 0)+g.size-1
	for polls := 1; loadByte(mem, at) != want; polls++ {
		if polls < bytePolls {
			continue
		}
		n, err := g.s.cq.Poll(g.wcs[:])
		if err == nil {
			err = good(g.wcs[:n])
		}
		if err != nil {
			return err
		}
		if err := g.take(n); err != nil {
			return err
		}
		if polls%64 == 0 && ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return nil
}

// once makes one operation from its post to its end.
func (g *pinger) once(ctx context.Context) error {
	if err := g.post(ctx); err != nil {
		return err
	}
	if g.s.p.Op.pingPong() {
		return g.message(ctx, g.n)
	}
	return g.drain(ctx, 0)
}

// settle completes what was not signaled, and makes the peer's last message
// wholly visible: a byte that was polled promises nothing about the others, the
// completion of a request that was posted after it does.
func (g *pinger) settle(ctx context.Context) error {
	if g.s.p.Op.pingPong() {
		empty := verbs.SendWR{Opcode: verbs.WRRDMAWrite, RemoteAddr: g.s.peer.Addr, RKey: verbs.RKey(g.s.peer.RKey)}
		if err := g.drain(ctx, g.s.p.TxDepth-1); err != nil {
			return err
		}
		if err := g.put(empty, true); err != nil {
			return err
		}
	}
	return g.drain(ctx, 0)
}

// drain waits for completions until at most n sends are in flight.
func (g *pinger) drain(ctx context.Context, n int) error {
	for g.inFlight > n {
		if err := g.reap(ctx); err != nil {
			return err
		}
	}
	return nil
}

// latency is the client's part for one size.
func (s *session) latency(size int) (*Row, []int64, error) {
	g := s.pinger(size)
	var times samples
	start := time.Now()
	last, shown := start, start
	for s.p.Duration == 0 && g.n < int64(s.p.Iters) || s.p.Duration > 0 && last.Sub(start) < s.p.Duration {
		if err := g.once(s.ctx); err != nil {
			return nil, nil, err
		}
		now := time.Now()
		times.add(now.Sub(last))
		last = now
		if s.cfg.Progress != nil && now.Sub(shown) >= progressTick {
			shown = now
			s.cfg.Progress(Progress{Size: size, Part: s.p.part(g.n, now.Sub(start))})
		}
	}
	if err := g.settle(s.ctx); err != nil {
		return nil, nil, err
	}
	parts := 1.0
	if s.p.Op.pingPong() {
		parts = 2
	}
	return &Row{Size: size, Iters: g.n, Elapsed: last.Sub(start), Lat: times.row(parts)}, []int64{g.n}, nil
}

// echo is the server's part for one size: it answers until the client is
// done.
func (s *session) echo(size int, w *waiter) (message, error) {
	g := s.pinger(size)
	for {
		err := g.message(w.ctx, g.n+1)
		if err == nil {
			err = g.post(s.ctx)
		}
		if err == nil {
			continue
		}
		if !w.ended() {
			return w.m, err
		}
		if err := w.result(s); err != nil {
			return w.m, err
		}
		return w.m, g.settle(s.ctx)
	}
}
