package cmtime

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/softroce/softroce/pkg/rdmacm"
	"github.com/softroce/softroce/pkg/verbs"
)

// Step is how long one step took.
type Step struct {
	Name  string
	Total time.Duration // from the first connection's beginning to the last one's end
	// Min and Max are of one connection, from its beginning to its end.
	Min, Max time.Duration
}

// Report is the outcome of a client.
type Report struct {
	Addr  netip.AddrPort
	Conns int
	Steps []Step
}

// errEvent is wrapped by the error of an event that does not belong to its step.
var errEvent = errors.New("unexpected event")

// client is one run.
type client struct {
	cfg   *Config
	ch    *rdmacm.EventChannel
	pd    *verbs.PD
	cq    *verbs.CQ
	ids   []*rdmacm.ID
	begin []time.Time // of the step, by connection
	tries []int
	steps []Step
}

// Client connects and disconnects. It leaves nothing of its own on dev.
func Client(ctx context.Context, dev *verbs.Device, cfg Config) (*Report, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	if cfg.Conns == 0 {
		cfg.Conns = DefaultConns
	}
	c := &client{cfg: &cfg, begin: make([]time.Time, cfg.Conns), tries: make([]int, cfg.Conns)}
	defer c.close()
	if err := c.open(dev); err != nil {
		return nil, err
	}
	if err := c.run(ctx); err != nil {
		return nil, fmt.Errorf("cmtime: %w", err)
	}
	return &Report{cfg.Addr, cfg.Conns, c.steps}, nil
}

func (c *client) open(dev *verbs.Device) (err error) {
	if c.ch, err = rdmacm.NewEventChannel(dev); err != nil {
		return err
	}
	if c.pd, err = dev.AllocPD(); err != nil {
		return err
	}
	c.cq, err = dev.CreateCQ(1, nil, 0)
	return err
}

func (c *client) close() {
	for _, id := range c.ids {
		if id != nil {
			_ = id.Destroy()
		}
	}
	if c.cq != nil {
		_ = c.cq.Destroy()
	}
	if c.pd != nil {
		_ = c.pd.Dealloc()
	}
	if c.ch != nil {
		_ = c.ch.Destroy()
	}
}

// qpAttr is a queue pair that carries nothing.
func qpAttr(cq *verbs.CQ) *verbs.QPInitAttr {
	return &verbs.QPInitAttr{
		Type: verbs.RC, SendCQ: cq, RecvCQ: cq,
		Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1},
	}
}

// run takes all connections through all steps.
func (c *client) run(ctx context.Context) error {
	ids := c.cfg.Conns
	c.ids = make([]*rdmacm.ID, ids)
	create := func(i int) (err error) {
		if c.ids[i], err = c.ch.CreateID(rdmacm.PSTCP); err == nil {
			c.ids[i].Context = i
		}
		return err
	}
	if err := c.each(ctx, "create id", create); err != nil {
		return err
	}
	if err := c.until(ctx, "resolve addr", c.resolve, rdmacm.EventAddrResolved); err != nil {
		return err
	}
	route := func(i int) error { return c.ids[i].ResolveRoute(c.cfg.Timeout) }
	if err := c.until(ctx, "resolve route", route, rdmacm.EventRouteResolved); err != nil {
		return err
	}
	if err := c.each(ctx, "create qp", func(i int) error { return c.ids[i].CreateQP(c.pd, qpAttr(c.cq)) }); err != nil {
		return err
	}
	connect := func(i int) error { return c.ids[i].Connect(nil) }
	if err := c.until(ctx, "connect", connect, rdmacm.EventEstablished); err != nil {
		return err
	}
	disconnect := func(i int) error { return c.ids[i].Disconnect() }
	if err := c.until(ctx, "disconnect", disconnect, rdmacm.EventDisconnected); err != nil {
		return err
	}
	return c.each(ctx, "destroy", func(i int) error {
		id := c.ids[i]
		c.ids[i] = nil
		return id.Destroy()
	})
}

func (c *client) resolve(i int) error {
	var own netip.AddrPort
	if c.cfg.Local.IsValid() {
		own = netip.AddrPortFrom(c.cfg.Local, 0)
	}
	return c.ids[i].ResolveAddr(own, c.cfg.Addr, c.cfg.Timeout)
}

// each does a step that has ended when its call has.
func (c *client) each(ctx context.Context, name string, do func(int) error) error {
	s, start := Step{Name: name}, time.Now()
	for i := range c.cfg.Conns {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		begin := time.Now()
		if err := do(i); err != nil {
			return fmt.Errorf("%s, connection %d: %w", name, i, err)
		}
		s.add(i == 0, time.Since(begin))
		c.progress(name, i+1)
	}
	s.Total = time.Since(start)
	c.steps = append(c.steps, s)
	return nil
}

// until does a step that has ended when its event comes.
func (c *client) until(ctx context.Context, name string, do func(int) error, want rdmacm.EventType) error {
	s, start := Step{Name: name}, time.Now()
	for i := range c.cfg.Conns {
		c.begin[i] = time.Now()
		if err := do(i); err != nil {
			return fmt.Errorf("%s, connection %d: %w", name, i, err)
		}
	}
	for done := 0; done < c.cfg.Conns; {
		i, err := c.next(ctx, want, do)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if i >= 0 {
			s.add(done == 0, time.Since(c.begin[i]))
			done++
			c.progress(name, done)
		}
	}
	s.Total = time.Since(start)
	c.steps = append(c.steps, s)
	return nil
}

// next takes an event, and gives the connection whose step it ends; -1: of none.
func (c *client) next(ctx context.Context, want rdmacm.EventType, again func(int) error) (int, error) {
	e, err := c.ch.Get(ctx)
	if err != nil {
		return -1, err
	}
	defer e.Ack()
	i, ok := e.ID.Context.(int)
	switch {
	case !ok:
		return -1, fmt.Errorf("%w: %v of an identifier that is not ours", errEvent, e.Type)
	case e.Type == want:
		return i, nil
	case e.Type == rdmacm.EventTimewaitExit:
		return -1, nil
	case e.Type == rdmacm.EventAddrError && c.tries[i] < c.cfg.Retries:
		c.tries[i]++
		return -1, again(i)
	case e.Err() != nil:
		return -1, fmt.Errorf("connection %d: %w", i, e.Err())
	}
	return -1, fmt.Errorf("%w: connection %d: %v", errEvent, i, e.Type)
}

func (s *Step) add(first bool, d time.Duration) {
	if first || d < s.Min {
		s.Min = d
	}
	s.Max = max(s.Max, d)
}

func (c *client) progress(step string, done int) {
	if c.cfg.Progress != nil {
		c.cfg.Progress(step, done, c.cfg.Conns)
	}
}
