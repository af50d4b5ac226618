package pingpong

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Our own tuning of the watch.
const (
	tick = 200 * time.Millisecond
	// rdma-core's programs hang up right after the exchange. A hang-up later than
	// that is the end of a program like this one: what is still to come must
	// then come soon.
	exchangeEnd  = time.Second
	lastPatience = 2 * time.Second
	// lingering keeps the queue pair for a few ACK timeouts: a peer whose last
	// acknowledgement was lost sends again, and must find somebody.
	lingering     = 250 * time.Millisecond
	lingeringPeer = 2 * time.Second
)

// watch sees that the run goes on: it ends ctx when nothing happened for too
// long.
type watch struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	conn   net.Conn
	hungUp chan struct{} // closed when the peer closed its TCP connection
	done   atomic.Int64  // exchanges
	wg     sync.WaitGroup
}

func newWatch(ctx context.Context, l link, cfg *Config) *watch {
	w := &watch{conn: l.Conn, hungUp: make(chan struct{})}
	w.ctx, w.cancel = context.WithCancelCause(ctx)
	w.wg.Go(func() {
		// The exchange is over: no more bytes are to come, and one that
		// comes means a stranger.
		var b [1]byte
		_, _ = w.conn.Read(b[:]) // any outcome is the end of the talk
		close(w.hungUp)
	})
	w.wg.Go(func() { w.run(cfg) })
	return w
}

// run looks after the exchanges until the watch is stopped.
func (w *watch) run(cfg *Config) {
	patience, total, progress := cfg.Patience, cfg.Iters, cfg.Progress
	t := time.NewTicker(tick)
	defer t.Stop()
	start := time.Now()
	last, seen := start, w.done.Load()
	hungUp := w.hungUp
	for {
		select {
		case <-w.ctx.Done():
			return
		case <-hungUp:
			hungUp = nil
			if time.Since(start) > exchangeEnd && (patience < 0 || patience > lastPatience) {
				patience = lastPatience
			}
		case now := <-t.C:
			if n := w.done.Load(); n != seen {
				last, seen = now, n
				if progress != nil {
					progress(int(n), total)
				}
			} else if patience > 0 && now.Sub(last) > patience {
				why := errStalled
				if !cfg.Service.reliable() {
					why = errLost
				}
				w.cancel(fmt.Errorf("nothing came for %v after %d of %d exchanges: %w", patience, n, total, why))
				return
			}
		}
	}
}

// explain gives the reason why ctx ended.
func (w *watch) explain(err error) error {
	if w.ctx.Err() != nil && errors.Is(err, w.ctx.Err()) {
		return context.Cause(w.ctx)
	}
	return err
}

// linger tells the peer that this side is done, and stays a while for a peer
// that is not.
func (w *watch) linger() {
	stay := lingeringPeer
	if w.gone() {
		stay = lingering
	}
	if c, ok := w.conn.(*net.TCPConn); ok {
		_ = c.CloseWrite() // a peer that is gone needs no telling
	}
	t := time.NewTimer(stay)
	defer t.Stop()
	hungUp := w.hungUp
	if stay == lingering {
		hungUp = nil
	}
	select {
	case <-hungUp:
	case <-t.C:
	case <-w.ctx.Done():
	}
}

// gone says whether the peer closed its TCP connection.
func (w *watch) gone() bool {
	select {
	case <-w.hungUp:
		return true
	default:
		return false
	}
}

// stop ends the watch and the TCP connection.
func (w *watch) stop() {
	w.cancel(nil)
	w.conn.Close()
	w.wg.Wait()
}
