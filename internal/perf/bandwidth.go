package perf

import (
	"fmt"
	"time"

	"github.com/softroce/softroce/pkg/verbs"
)

// Our own tuning.
const (
	batch        = 16 // requests of a queue pair posted at once
	progressTick = 200 * time.Millisecond
)

// measure is the client's part: it measures one size and returns the result
// and the operations of each queue pair.
func (s *session) measure(size int) (*Row, []int64, error) {
	if s.p.Latency {
		return s.latency(size)
	}
	b := &bandwidth{s: s, size: size, qps: make([]stream, s.p.QPs), start: time.Now()}
	for q := range b.qps {
		b.qps[q].wr = s.request(q, size)
	}
	b.peak, b.shown = newPeak(&s.p, b.start), b.start
	end, err := b.run()
	if err != nil {
		return nil, nil, err
	}
	counts := make([]int64, len(b.qps))
	for q := range b.qps {
		counts[q] = b.qps[q].done
	}
	elapsed := end.Sub(b.start)
	return &Row{Size: size, Iters: b.done, Elapsed: elapsed, BW: bwRow(size, b.done, elapsed, b.peak.best)}, counts, nil
}

// bandwidth keeps every queue pair of the client full.
type bandwidth struct {
	s     *session
	size  int
	qps   []stream
	wrs   [batch]verbs.SendWR
	wcs   [64]verbs.WC
	start time.Time
	shown time.Time
	over  bool // the duration has passed
	done  int64
	peak  peak
}

// stream is what one queue pair has done.
type stream struct {
	wr           verbs.SendWR
	posted, done int64
	since        int // posted since the last signaled one
}

// run returns when the last operation completed.
func (b *bandwidth) run() (time.Time, error) {
	now := b.start
	for {
		posted := false
		for q := range b.qps {
			n, err := b.post(q)
			if err != nil {
				return now, err
			}
			posted = posted || n > 0
		}
		if !posted && b.idle() {
			return now, nil
		}
		n, err := b.reap(posted)
		if err != nil {
			return now, err
		}
		for i := range b.wcs[:n] {
			q, count := unmark(b.wcs[i].WRID)
			b.qps[q].done += int64(count)
			b.done += int64(count)
		}
		now = time.Now()
		b.peak.at(now, b.done)
		b.over = b.s.p.Duration > 0 && now.Sub(b.start) >= b.s.p.Duration
		b.show(now)
	}
}

// idle says whether nothing is in flight.
func (b *bandwidth) idle() bool {
	for q := range b.qps {
		if b.qps[q].posted != b.qps[q].done {
			return false
		}
	}
	return true
}

// reap takes completions; it waits for one when nothing could be posted.
func (b *bandwidth) reap(posted bool) (int, error) {
	if !posted {
		return b.s.wait(b.s.ctx, b.wcs[:])
	}
	n, err := b.s.cq.Poll(b.wcs[:])
	if err != nil {
		return 0, err
	}
	return n, good(b.wcs[:n])
}

// post posts up to a batch on a queue pair and says how many.
func (b *bandwidth) post(q int) (int, error) {
	st, p := &b.qps[q], &b.s.p
	n := min(int64(p.TxDepth)-(st.posted-st.done), batch)
	switch {
	case p.Duration == 0:
		n = min(n, int64(p.Iters)-st.posted)
	case b.over: // up to the next that is signaled
		if st.since == 0 {
			return 0, nil
		}
		n = min(n, int64(p.CQMod-st.since))
	}
	for i := range n {
		wr := &b.wrs[i]
		*wr = st.wr
		b.s.number(wr, st.posted)
		st.posted++
		if st.since++; st.since == p.CQMod || p.Duration == 0 && st.posted == int64(p.Iters) {
			wr.WRID, wr.Flags = mark(q, st.since), wr.Flags|verbs.SendSignaled
			st.since = 0
		}
	}
	if n <= 0 {
		return 0, nil
	}
	_, err := b.s.qps[q].PostSend(b.wrs[:n]...)
	return int(n), err
}

func (b *bandwidth) show(now time.Time) {
	if b.s.cfg.Progress == nil || now.Sub(b.shown) < progressTick {
		return
	}
	b.shown = now
	b.s.cfg.Progress(Progress{Size: b.size, Part: b.s.p.part(b.done, now.Sub(b.start))})
}

// part says how much of a measurement is done.
func (p *Params) part(done int64, took time.Duration) float64 {
	if p.Duration > 0 {
		return min(float64(took)/float64(p.Duration), 1)
	}
	return float64(done) / (float64(p.Iters) * float64(p.QPs))
}

// partner is the server's part in the measurement of one size. It returns the
// client's message that ends it.
func (s *session) partner(size int) (message, error) {
	if !s.p.Op.pingPong() || !s.p.Latency && !s.p.receives() {
		m, err := s.link.recv(s.ctx, kindDone)
		if err == nil {
			err = s.counted(m)
		}
		return m, err
	}
	w := s.untilDone()
	defer w.stop()
	work := s.sink
	if s.p.Latency {
		work = s.echo
	}
	return work(size, w)
}

// counted says whether the client's counts can be right.
func (s *session) counted(m message) error {
	if len(m.Counts) != s.p.QPs {
		return fmt.Errorf("%w counted %d queue pairs, not %d", ErrPeer, len(m.Counts), s.p.QPs)
	}
	for _, n := range m.Counts {
		if n < 0 || n > 1<<48 {
			return fmt.Errorf("%w counted %d operations", ErrPeer, n)
		}
	}
	return nil
}

// sink takes messages until the client said how many it sent, and all of them
// are there.
func (s *session) sink(size int, w *waiter) (message, error) {
	var wcs [64]verbs.WC
	got, total := int64(0), int64(-1)
	ctx := w.ctx
	for total < 0 || got < total {
		n, err := s.wait(ctx, wcs[:])
		if w.ended() && total < 0 {
			if err := w.result(s); err != nil {
				return w.m, err
			}
			total, ctx = 0, s.ctx // the client has all acknowledged: the rest is in the queue
			for _, c := range w.m.Counts {
				total += c
			}
			if n == 0 {
				continue
			}
		}
		if err != nil {
			return w.m, err
		}
		for i := range wcs[:n] {
			if err := s.received(&wcs[i], size, s.index); err != nil {
				return w.m, err
			}
		}
		got += int64(n)
	}
	return w.m, nil
}
