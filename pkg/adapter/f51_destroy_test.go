package adapter_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/pkg/adapter"
	"github.com/softroce/softroce/pkg/verbs"
)

// Field case F51: queue pairs, completion queues and regions are destroyed
// under full load in both directions between two adapters, while other
// goroutines post, poll and sleep on them. Nothing is used after its end, no
// call is stuck, the neighbours' data stay right.
func TestF51DestroyUnderLoad(t *testing.T) {
	for _, workers := range []int{1, 2} {
		t.Run(fmt.Sprint(workers, " workers"), func(t *testing.T) {
			change := func(c *adapter.Config) { c.Workers = workers }
			x, y := start(t, change), start(t, change)
			n, m := x.open(t, shape{}), y.open(t, shape{})
			connect(n, m, verbs.RCConfig{})
			var stop atomic.Bool
			var wg sync.WaitGroup
			wg.Go(func() {
				for !stop.Load() {
					if err := rounds(n, m, 1); err != nil {
						t.Errorf("neighbour: %v", err)
						return
					}
				}
			})
			dx, err := x.Open()
			must(t, err)
			t.Cleanup(func() { must(t, dx.Close()) })
			dy, err := y.Open()
			must(t, err)
			t.Cleanup(func() { must(t, dy.Close()) })
			for round := range 4 {
				s := shape{size: 128 << 10, events: true, foreign: round%3 == 2, wr: 16}
				destroyLoaded(t, x.openOn(t, dx, s), y.openOn(t, dy, s), round)
			}
			stop.Store(true)
			wg.Wait()
			for _, h := range []*host{x, y} {
				if w := h.workers().Stats; w.Faults != 0 || w.BadSlots != 0 {
					t.Errorf("%d memory faults, %d bad slots", w.Faults, w.BadSlots)
				}
			}
		})
	}
}

// destroyLoaded loads a connection both ways and takes everything away.
func destroyLoaded(t *testing.T, a, b *program, round int) {
	t.Helper()
	connect(a, b, verbs.RCConfig{})
	var wg sync.WaitGroup
	var moved atomic.Int64
	for _, x := range [][2]*program{{a, b}, {b, a}} {
		room := make(chan struct{}, 1)
		wg.Go(func() { postUntilDestroyed(t, x[0], x[1], room) })
		wg.Go(func() {
			defer close(room)
			pollUntilDestroyed(t, x[0], room, &moved)
		})
	}
	eventually(t, "the load runs", func() bool { return moved.Load() > 20 })
	ends := []func() error{
		b.mr.Dereg, a.qp.Destroy, a.mr.Dereg, b.qp.Destroy, b.cq.Destroy, a.cq.Destroy, a.ch.Destroy, b.ch.Destroy, a.pd.Dealloc, b.pd.Dealloc,
	}
	if round%2 == 1 { // the other way round
		ends[0], ends[1], ends[2], ends[3] = ends[3], ends[2], ends[1], ends[0]
	}
	for i, end := range ends {
		if err := end(); err != nil {
			t.Errorf("round %d, end %d: %v", round, i, err)
		}
	}
	wg.Wait()
}

// postUntilDestroyed keeps the queue pair's queues full.
func postUntilDestroyed(t *testing.T, p, q *program, room <-chan struct{}) {
	wrs := []verbs.SendWR{p.write(q, 0, 0, 100_000), p.read(q, 0, 0, 50_000)}
	for i := 0; ; i++ {
		wr := wrs[i%2]
		wr.Flags = verbs.SendSignaled
		_, err := p.qp.PostSend(wr)
		switch {
		case errors.Is(err, unix.ENOMEM):
			<-room
		case errors.Is(err, unix.EINVAL):
			return
		case err != nil:
			t.Errorf("post: %v", err)
			return
		}
		_, _ = p.qp.PostRecv(verbs.RecvWR{}) // full at times, ended at last
	}
}

// pollUntilDestroyed empties the queue and sleeps on its channel when nothing
// is there.
func pollUntilDestroyed(t *testing.T, p *program, room chan<- struct{}, moved *atomic.Int64) {
	var wcs [8]verbs.WC
	for armed := false; ; {
		k, err := p.cq.Poll(wcs[:])
		if err != nil {
			return
		}
		moved.Add(int64(k))
		select {
		case room <- struct{}{}:
		default:
		}
		switch {
		case k > 0:
			armed = false
		case !armed:
			if p.cq.ReqNotify(false) != nil {
				return
			}
			armed = true
		default:
			cq, err := p.ch.Get(context.Background()) // ends with the channel
			if err != nil {
				return
			}
			if cq != p.cq {
				t.Error("an event of another queue")
			}
			cq.AckEvents(1)
			armed = false
		}
	}
}
