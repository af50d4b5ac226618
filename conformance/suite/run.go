package suite

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"path"
	"runtime/debug"
	"strings"
	"time"

	"github.com/softroce/softroce/conformance/agent"
	"github.com/softroce/softroce/conformance/wire"
	"github.com/softroce/softroce/pkg/bth"
)

// Config is a run.
type Config struct {
	Link wire.Link
	// Dial reaches the target's agent. It is called again when an agent was lost; what it returns is closed if it can be.
	Dial func() (Agent, *agent.Hello, error)

	Cases      []Case
	Untestable []Untestable

	Seed        uint64
	Wait, Quiet time.Duration // [2 s], [30 ms]
	Level       Level         // the lowest that is run
	Only        []string      // ids, sections' prefixes (RDR) or patterns as of path.Match; empty: all
	Except      []string      // likewise: what is left out, because the target does not survive it for instance

	// Progress is called after each case; n counts from 1.
	Progress func(n, total int, r *Result)
}

// back is how long a run waits for a lost agent to come back: its daemon dies, and is started again. It waits so long once,
// until there is an agent again; one that stays away costs every other case one try.
const back = 10 * time.Second

// silentMost is in how many cases in a row an agent may be silent: each costs a time-out, and the run ends behind them.
const silentMost = 3

// ErrSilent is why a run ended early: the agent answers no more.
var ErrSilent = errors.New("the run ends early, the agent is silent")

// keep is how many frames of a case are kept.
const keep = 2000

// Selected returns the statements that a run is about, in order.
func (c *Config) Selected() []Statement {
	var out []Statement
	for _, s := range Statements() {
		if s.Level >= c.Level && matches(c.Only, s.ID) {
			out = append(out, s)
		}
	}
	return out
}

func matches(only []string, id string) bool {
	if len(only) == 0 {
		return true
	}
	for _, o := range only {
		prefix, _, _ := strings.Cut(id, "-")
		if ok, _ := path.Match(o, id); ok || o == prefix {
			return true
		}
	}
	return false
}

// Run runs the selected cases one after the other. A statement without a case is skipped with its reason. The error is for
// what keeps the whole run from being made: the first Dial, the link, the context, an agent that falls silent (ErrSilent).
func Run(ctx context.Context, cfg Config) ([]Result, error) {
	if cfg.Wait == 0 {
		cfg.Wait = 2 * time.Second
	}
	if cfg.Quiet == 0 {
		cfg.Quiet = 30 * time.Millisecond
	}
	r := runner{ctx: ctx, cfg: cfg}
	if err := r.dial(); err != nil {
		return nil, err
	}
	defer r.hangUp()
	if _, err := gidIndex(r.hello, cfg.Link.Remote()); err != nil {
		return nil, err
	}
	defer wire.InOrder()()
	var out []Result
	selected := cfg.Selected()
	for _, s := range selected {
		if err := ctx.Err(); err != nil {
			return out, err
		}
		out = append(out, r.one(s))
		if cfg.Progress != nil {
			cfg.Progress(len(out), len(selected), &out[len(out)-1])
		}
		if r.silent == silentMost && len(out) < len(selected) {
			return out, fmt.Errorf("%w: in %d cases in a row it did not answer in time, the last time: %w", ErrSilent, r.silent, r.silence)
		}
	}
	return out, nil
}

type runner struct {
	ctx   context.Context // the run's
	cfg   Config
	agent Agent
	hello *agent.Hello
	gone  bool // it was waited for, in vain

	silent  int // cases in a row in which it did not answer in time
	silence error
}

func (r *runner) dial() error {
	a, hello, err := r.cfg.Dial()
	if err != nil {
		return fmt.Errorf("the target's agent: %w", err)
	}
	r.agent, r.hello = a, hello
	return nil
}

func (r *runner) hangUp() {
	if c, ok := r.agent.(io.Closer); ok {
		_ = c.Close() // it is given up
	}
	r.agent = nil
}

// heard counts the cases in a row in which the agent did not answer in time.
func (r *runner) heard(err error) {
	var n net.Error
	if !errors.As(err, &n) || !n.Timeout() {
		r.silent = 0
		return
	}
	r.silent++
	r.silence = err
}

// clear destroys what a case made at the agent, which is given up where it cannot. The error is for an agent that is lost:
// the target may have died of the case's last packets.
func (r *runner) clear() error {
	_, err := r.agent.Do(agent.Request{Do: agent.DoReset})
	if err != nil {
		r.hangUp()
	}
	if e, refused := agent.Refusal(err); refused && e.Errno != "EIO" && e.Errno != "ENODEV" { // by these two the device is gone
		return nil
	}
	return err
}

// fresh leaves an agent without objects, after one more Dial where the old one was given up.
func (r *runner) fresh() error {
	if r.agent != nil {
		return nil
	}
	err := r.dial()
	for end := time.Now().Add(back); err != nil && !r.gone && time.Now().Before(end) && r.pause(); {
		err = r.dial()
	}
	r.gone = err != nil
	return err
}

// pause waits a little; false: the run is to end.
func (r *runner) pause() bool {
	t := time.NewTimer(100 * time.Millisecond)
	defer t.Stop()
	select {
	case <-r.ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

func (r *runner) find(id string) *Case {
	for i := range r.cfg.Cases {
		if r.cfg.Cases[i].ID == id {
			return &r.cfg.Cases[i]
		}
	}
	return nil
}

func (r *runner) one(s Statement) Result {
	res := Result{Statement: s, Began: time.Now(), names: map[bth.QPN]string{}}
	if len(r.cfg.Except) > 0 && matches(r.cfg.Except, s.ID) {
		res.Outcome, res.Reason = Skip, "left out"
		return res
	}
	c := r.find(s.ID)
	if c == nil {
		res.Outcome, res.Reason = Skip, "no case"
		for _, u := range r.cfg.Untestable {
			if u.ID == s.ID {
				res.Reason = "not testable: " + u.Reason
			}
		}
		return res
	}
	if err := r.fresh(); err != nil {
		r.heard(err)
		res.Outcome, res.Reason = Fail, err.Error()
		return res
	}
	for _, need := range c.Needs {
		if !has(r.hello, need) {
			res.Outcome, res.Reason = Skip, "the target does not have "+need
			return res
		}
	}
	r.play(c, &res)
	res.Took = time.Since(res.Began)
	err := r.clear()
	if r.heard(err); err != nil && res.Outcome != Fail {
		res.Outcome, res.Reason = Fail, "behind the case: "+err.Error()
	}
	return res
}

func (r *runner) play(c *Case, res *Result) {
	cfg := r.cfg
	gid, err := gidIndex(r.hello, cfg.Link.Remote())
	if err != nil {
		res.Outcome, res.Reason = Fail, err.Error()
		return
	}
	t := &T{
		Case: c, Link: cfg.Link, Hello: r.hello, Rand: seeded(cfg.Seed, c.ID), Wait: cfg.Wait, Quiet: cfg.Quiet,
		agent: r.agent, res: res, peers: map[bth.QPN]*Peer{}, gid: gid,
	}
	drain(cfg.Link)
	cfg.Link.Record(func(f *wire.Frame) {
		if len(res.Frames) < keep {
			res.Frames = append(res.Frames, f)
		}
	})
	defer cfg.Link.Record(nil)
	res.Began = time.Now()
	defer func() {
		switch p := recover().(type) {
		case nil, over:
		default:
			res.Outcome, res.Reason = Fail, fmt.Sprintf("the case panicked: %v\n%s", p, debug.Stack())
		}
	}()
	c.Run(t)
}

// drain takes from the link what an earlier case left there; a target that floods is not waited for.
func drain(l wire.Link) {
	for end := time.Now().Add(50 * time.Millisecond); time.Now().Before(end); {
		if _, ok, err := l.Receive(time.Now()); !ok || err != nil {
			return
		}
	}
}

// gidIndex finds the target's GID of an address.
func gidIndex(h *agent.Hello, a netip.Addr) (int, error) {
	var have []string
	for _, g := range h.GIDs {
		got, err := netip.ParseAddr(g.Addr)
		if err == nil && got.Unmap() == a.Unmap().WithZone("") {
			return g.Index, nil
		}
		have = append(have, g.Addr)
	}
	return 0, fmt.Errorf("the target's agent has no RoCEv2 GID for %v, but for %s", a, strings.Join(have, ", "))
}
