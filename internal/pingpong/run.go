package pingpong

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/softroce/softroce/pkg/verbs"
)

// Marks of the two kinds of request; that of a receive has its slot above.
const (
	recvID    = 1
	sendID    = 2
	slotShift = 2
)

// Report is the outcome of a run.
type Report struct {
	Service       Service
	Local, Remote []Endpoint // of each queue pair
	Size, Iters   int
	MTU           int           // bytes
	Elapsed       time.Duration // of all exchanges
	Checked       bool
	// BadPages are the numbers of the pages of the message whose data was
	// wrong, as pages of this host.
	BadPages []int
	// Unacknowledged is how many messages at the end arrived, or had left for a peer that was through, but whose
	// acknowledgement never came: rdma-core's programs take their queue pairs away at once, and one that was lost is not
	// sent again.
	Unacknowledged int
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
	us := o.endpoints()
	tell(cfg.Local, us)
	l, peers, err := meet(ctx, o, us)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	tell(cfg.Remote, peers)
	rep := &Report{
		Service: cfg.Service, Local: us, Remote: peers, Size: cfg.Size, Iters: cfg.Iters, MTU: cfg.MTU.Bytes(), Checked: cfg.Check,
	}
	w := newWatch(ctx, l, &cfg)
	defer w.stop()
	if rep.Elapsed, err = o.play(w, rep); err != nil {
		return nil, fmt.Errorf("pingpong: %w", err)
	}
	if cfg.Check {
		rep.BadPages = o.badPages()
	}
	if cfg.Service.reliable() {
		w.linger()
	}
	return rep, nil
}

func tell(show func(Endpoint), ends []Endpoint) {
	if show == nil {
		return
	}
	for _, e := range ends {
		show(e)
	}
}

func (o *objects) endpoints() []Endpoint {
	us := make([]Endpoint, len(o.lines))
	for i := range us {
		us[i] = o.lines[i].us
	}
	return us
}

// meet makes the TCP connection and exchanges the endpoints.
func meet(ctx context.Context, o *objects, us []Endpoint) (link, []Endpoint, error) {
	server := o.cfg.Host == ""
	open := dial
	if server {
		open = accept
	}
	conn, err := open(ctx, o.cfg)
	if err != nil {
		return link{}, nil, err
	}
	l := link{conn, o.cfg.Service}
	stop, err := l.guard(ctx, o.cfg.Patience)
	if err == nil {
		var peers []Endpoint
		if peers, err = l.exchange(server, us, o.connect); err == nil {
			stop()
			return l, peers, nil
		}
		stop()
	}
	l.Close()
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return l, nil, fmt.Errorf("pingpong: exchange with %s: %w", conn.RemoteAddr(), err)
}

// score counts what has completed.
type score struct {
	posted         int // receives that wait
	sent, received int // messages, of all queue pairs
	unacked        int // of those sent
}

// over says whether both directions have had n messages.
func (s *score) over(n int) bool { return s.received >= n && s.sent >= n }

// play makes the exchanges: a queue pair's message is sent when the one before
// it is through and one has come.
func (o *objects) play(w *watch, rep *Report) (time.Duration, error) {
	start := time.Now()
	for i := range o.lines {
		l := &o.lines[i]
		l.pending = recvID
		if o.cfg.Host == "" {
			continue
		}
		if err := o.send(l); err != nil {
			return 0, err
		}
		l.pending |= sendID
	}
	s := score{posted: o.cfg.RxDepth}
	var wcs [32]verbs.WC
	for !s.over(o.cfg.Iters) {
		n, err := o.wait(w, wcs[:])
		if err != nil {
			return 0, err
		}
		// Several queue pairs send a few messages more than are asked for: how
		// these end is nobody's matter.
		for i := 0; i < n && !s.over(o.cfg.Iters); i++ {
			if err := o.completed(w, &wcs[i], &s); err != nil {
				return 0, err
			}
		}
		w.done.Store(int64(s.received))
	}
	rep.Unacknowledged = s.unacked
	return time.Since(start), nil
}

// completed counts a completion and sends the next message when it is time.
func (o *objects) completed(w *watch, wc *verbs.WC, s *score) error {
	if o.farewell(w, wc, s) {
		s.sent++
		s.unacked++
		return nil
	}
	if wc.Status != verbs.WCSuccess {
		return o.failed(w, wc)
	}
	l := o.line(wc.QPN)
	if l == nil {
		return fmt.Errorf("a completion names queue pair 0x%06x, which is none of ours", uint32(wc.QPN))
	}
	kind := int(wc.WRID) & (recvID | sendID)
	if kind == sendID {
		s.sent++
	} else {
		if err := o.took(l, wc, s); err != nil || o.strange(l, wc) {
			return err
		}
		s.received++
	}
	if err := o.free(l, kind, s); err != nil {
		return err
	}
	if l.pending &^= kind; l.pending == 0 && s.sent < o.cfg.Iters {
		l.pending = recvID | sendID
		return o.send(l)
	}
	return nil
}

// farewell says whether a send failed for no more than the acknowledgement of the last message: all that was to come
// is here, the answer to this message among it, or at the server the peer has hung up with nothing more to ask.
func (o *objects) farewell(w *watch, wc *verbs.WC, s *score) bool {
	if wc.Status != verbs.WCRetryExcErr || int(wc.WRID)&sendID == 0 || s.received < o.cfg.Iters {
		return false
	}
	if o.cfg.Host == "" {
		return w.gone()
	}
	l := o.line(wc.QPN)
	return l != nil && l.pending&recvID == 0
}

// took looks at a message that came. Without slots it posts receives again when
// few wait.
func (o *objects) took(l *line, wc *verbs.WC, s *score) error {
	l.slot = int(wc.WRID >> slotShift)
	o.last = l.slot
	if s.posted--; o.srq == nil && s.posted <= 1 {
		if err := o.post(0, o.cfg.RxDepth-s.posted); err != nil {
			return err
		}
		s.posted = o.cfg.RxDepth
	}
	if want := o.head + o.cfg.Size; !o.strange(l, wc) && wc.ByteLen != uint32(want) {
		return fmt.Errorf("a message of %d bytes came, not %d: both sides need the same -s", int(wc.ByteLen)-o.head, o.cfg.Size)
	}
	return nil
}

// free posts a slot again whose message is done with: at the client when it has
// come, at the server when it is sent back. The last message stays where it is.
func (o *objects) free(l *line, kind int, s *score) error {
	done, slot := sendID, l.echo
	if o.cfg.Host != "" {
		done, slot = recvID, l.slot
	}
	if o.srq == nil || kind != done || s.received >= o.cfg.Iters {
		return nil
	}
	return o.post(slot, 1)
}

// strange says whether a datagram is not the peer's: anybody who knows the Q_Key
// may send one.
func (o *objects) strange(l *line, wc *verbs.WC) bool {
	return o.cfg.Service == UD && wc.SrcQP != l.peer.QPN
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

// ErrCompletion is wrapped by the error of a completion that was no success.
var ErrCompletion = errors.New("failed")

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
	return fmt.Errorf("%s %w: %v: %s", what, ErrCompletion, wc.Status, wc.Status.Explain())
}

// errStalled is the cause when nothing happened for too long.
var errStalled = errors.New("the peer is silent: it has ended, its options differ, or packets do not arrive")

// errLost is errStalled where a lost packet is not sent again.
var errLost = fmt.Errorf("%w; a message that is lost ends the run, since this service does not send it again", errStalled)
