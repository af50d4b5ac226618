package pingpong

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/softroce/softroce/pkg/verbs"
)

// Marks of the two kinds of request.
const (
	recvID = 1
	sendID = 2
)

// Report is the outcome of a run.
type Report struct {
	Local, Remote Endpoint
	Size, Iters   int
	MTU           int           // bytes
	Elapsed       time.Duration // of all exchanges
	Checked       bool
	// BadPages are the numbers of the pages of the message whose data was
	// wrong, as pages of this host.
	BadPages []int
}

// Bytes is how much was moved both ways.
func (r *Report) Bytes() int64 { return 2 * int64(r.Size) * int64(r.Iters) }

// MbitPerSec is the rate in 10^6 bits a second.
func (r *Report) MbitPerSec() float64 { return float64(r.Bytes()) * 8 / usec(r.Elapsed) }

// UsecPerIter is the time of one message there and back.
func (r *Report) UsecPerIter() float64 { return usec(r.Elapsed) / float64(r.Iters) }

func usec(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// Run plays one side until all exchanges are done, ctx ends, or the peer is
// given up. It leaves nothing of its own on dev.
func Run(ctx context.Context, dev *verbs.Device, cfg Config) (*Report, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	o := &objects{cfg: &cfg, dev: dev}
	defer o.close()
	if err := o.open(); err != nil {
		return nil, err
	}
	if cfg.Local != nil {
		cfg.Local(o.us)
	}
	l, peer, err := meet(ctx, o)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	if cfg.Remote != nil {
		cfg.Remote(peer)
	}
	rep := &Report{Local: o.us, Remote: peer, Size: cfg.Size, Iters: cfg.Iters, MTU: cfg.MTU.Bytes(), Checked: cfg.Check}
	w := newWatch(ctx, l, &cfg)
	defer w.stop()
	if rep.Elapsed, err = o.play(w); err != nil {
		return nil, fmt.Errorf("pingpong: %w", err)
	}
	if cfg.Check {
		rep.BadPages = o.badPages()
	}
	w.linger()
	return rep, nil
}

// meet makes the TCP connection and exchanges the endpoints.
func meet(ctx context.Context, o *objects) (link, Endpoint, error) {
	server := o.cfg.Host == ""
	open := dial
	if server {
		open = accept
	}
	conn, err := open(ctx, o.cfg)
	if err != nil {
		return link{}, Endpoint{}, err
	}
	l := link{conn}
	stop, err := l.guard(ctx, o.cfg.Patience)
	if err == nil {
		var peer Endpoint
		if peer, err = l.exchange(server, o.us, o.connect); err == nil {
			stop()
			return l, peer, nil
		}
		stop()
	}
	l.Close()
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return l, Endpoint{}, fmt.Errorf("pingpong: exchange with %s: %w", conn.RemoteAddr(), err)
}

// play makes the exchanges: a message is sent when the one before it is
// acknowledged and one has come.
func (o *objects) play(w *watch) (time.Duration, error) {
	start := time.Now()
	pending := recvID
	if o.cfg.Host != "" {
		if err := o.send(); err != nil {
			return 0, err
		}
		pending |= sendID
	}
	posted, sent, received := o.cfg.RxDepth, 0, 0
	var wcs [2]verbs.WC
	for received < o.cfg.Iters || sent < o.cfg.Iters {
		n, err := o.wait(w, wcs[:])
		if err != nil {
			return 0, err
		}
		for i := range wcs[:n] {
			wc := &wcs[i]
			if wc.Status != verbs.WCSuccess {
				return 0, o.failed(w, wc)
			}
			if wc.WRID == sendID {
				sent++
			} else {
				if wc.ByteLen != uint32(o.cfg.Size) {
					return 0, fmt.Errorf("a message of %d bytes came, not %d: both sides need the same -s", wc.ByteLen, o.cfg.Size)
				}
				received++
				if posted--; posted <= 1 {
					if err := o.post(o.cfg.RxDepth - posted); err != nil {
						return 0, err
					}
					posted = o.cfg.RxDepth
				}
			}
			if pending &^= int(wc.WRID); pending == 0 && sent < o.cfg.Iters {
				if err := o.send(); err != nil {
					return 0, err
				}
				pending = recvID | sendID
			}
		}
		w.done.Store(int64(received))
	}
	return time.Since(start), nil
}

// wait returns with completions. It polls, or sleeps until an event.
func (o *objects) wait(w *watch, wcs []verbs.WC) (int, error) {
	for polls := 1; ; polls++ {
		n, err := o.cq.Poll(wcs)
		if n > 0 || err != nil {
			return n, err
		}
		switch {
		case o.ch != nil && polls%2 == 1: // arm, then poll once more
			if err := o.cq.ReqNotify(false); err != nil {
				return 0, err
			}
		case o.ch != nil:
			if _, err := o.ch.Get(w.ctx); err != nil {
				return 0, w.explain(err)
			}
			o.cq.AckEvents(1)
		case polls%64 == 0 && w.ctx.Err() != nil:
			return 0, w.explain(w.ctx.Err())
		}
	}
}

// failed explains a completion that is not a success, by what is behind it
// when there is something.
func (o *objects) failed(w *watch, wc *verbs.WC) error {
	if w.ctx.Err() != nil {
		return context.Cause(w.ctx)
	}
	select {
	case <-o.dev.Done():
		return verbs.ErrDeviceDead
	default:
	}
	what := "receive"
	if wc.WRID == sendID {
		what = "send"
	}
	return fmt.Errorf("%s failed: %v: %s", what, wc.Status, wc.Status.Explain())
}

// errStalled is the cause when nothing happened for too long.
var errStalled = errors.New("the peer is silent: it has ended, its options differ, or packets do not arrive")
