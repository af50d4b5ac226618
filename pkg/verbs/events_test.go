package verbs

import (
	"context"
	"errors"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/uapi"
)

// event writes a completion event of a queue.
func (f *fake) event(ch *CompChannel, c *CQ) {
	if !f.channels[ch.handle].Write(uapi.AppendChannelRecord(nil, c.handle)) {
		f.t.Error("the channel's pipe is full")
	}
}

// A wait for events allocates nothing while its context stays the same.
func TestWaitsDoNotAllocate(t *testing.T) {
	f, d := newFake(t)
	o := newObjects(t, d, RC, StateReset)
	ctx := patience(t)
	comp := uapi.AppendChannelRecord(nil, o.cq.handle)
	rec := uapi.AsyncRecord{Event: uapi.EventCommEst, Kind: uapi.ElementQP, Handle: o.qp.handle}
	async := rec.Append(nil)
	for _, c := range []struct {
		name string
		ctx  context.Context
		wait func(context.Context) error
	}{
		{"Get", ctx, func(ctx context.Context) error {
			f.channels[o.ch.handle].Write(comp)
			c, err := o.ch.Get(ctx)
			if err == nil {
				c.AckEvents(1)
			}
			return err
		}},
		{"Get without an end", context.Background(), func(ctx context.Context) error {
			f.channels[o.ch.handle].Write(comp)
			c, err := o.ch.Get(ctx)
			if err == nil {
				c.AckEvents(1)
			}
			return err
		}},
		{"TryGet", ctx, func(context.Context) error {
			f.channels[o.ch.handle].Write(comp)
			c, err := o.ch.TryGet()
			if err == nil {
				c.AckEvents(1)
			}
			if _, err := o.ch.TryGet(); !errors.Is(err, unix.EAGAIN) {
				return errors.New("an event too many")
			}
			return err
		}},
		{"AsyncEvent", ctx, func(ctx context.Context) error {
			f.async.Write(async)
			ev, err := d.AsyncEvent(ctx)
			ev.Ack()
			return err
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := testing.AllocsPerRun(100, func() {
				if err := c.wait(c.ctx); err != nil {
					t.Error(err)
				}
			})
			if n != 0 {
				t.Errorf("%v allocations for a wait", n)
			}
		})
	}
}

// askedContext tells when somebody begins to wait for its end.
type askedContext struct {
	context.Context
	once  sync.Once
	asked chan struct{}
}

func (c *askedContext) Done() <-chan struct{} {
	c.once.Do(func() { close(c.asked) })
	return c.Context.Done()
}

// Contexts end their own waits only, whichever came before, and one that waits
// for its turn behind another.
func TestContextsOfWaits(t *testing.T) {
	f, d := newFake(t)
	o := newObjects(t, d, RC, StateReset)
	first, cancelFirst := context.WithCancel(context.Background())
	f.event(o.ch, o.cq)
	get := func(ctx context.Context, want error) {
		t.Helper()
		c, err := o.ch.Get(ctx)
		if !errors.Is(err, want) || want == nil && c != o.cq {
			t.Errorf("Get: %v, %v; want error %v", c, err, want)
		}
	}
	get(first, nil)
	cancelFirst() // after its wait: the next one must not see it
	f.event(o.ch, o.cq)
	get(patience(t), nil)
	get(first, context.Canceled)

	// One that waits for its turn behind another.
	ended := make(chan error)
	wait := func(ctx context.Context) {
		_, err := o.ch.Get(ctx)
		ended <- err
	}
	canceled := func() {
		t.Helper()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("the wait ends with %v", err)
		}
	}
	ctx, cancelBehind := context.WithCancel(context.Background())
	behind := &askedContext{Context: ctx, asked: make(chan struct{})}
	o.ch.rec.turn <- struct{}{}
	go wait(behind)
	<-behind.asked
	cancelBehind()
	canceled()
	<-o.ch.rec.turn

	// One that waits for an event, and one whose end comes late, when another
	// waits already.
	waiting, cancelWaiting := context.WithCancel(context.Background())
	go wait(waiting)
	for { // until it is the one that ends the wait
		o.ch.rec.mu.Lock()
		now := o.ch.rec.done
		o.ch.rec.mu.Unlock()
		if now == waiting.Done() {
			break
		}
	}
	o.ch.rec.end(first.Done())
	cancelWaiting()
	canceled()
	f.event(o.ch, o.cq)
	get(patience(t), nil)
	check(t, o.ch.rec.watch(patience(t)))
	o.ch.rec.end(waiting.Done())
	if o.ch.rec.past {
		t.Error("the end of a former context ended the waits of the present one")
	}
	o.cq.AckEvents(3)
}

// The descriptors are readable when an event is there, as a program's own epoll
// sees it, and TryGet drains them.
func TestDescriptorsOfEvents(t *testing.T) {
	f, d := newFake(t)
	o := newObjects(t, d, RC, StateReset)
	ready := func(fd int) bool {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, 0)
		check(t, err)
		return n == 1
	}
	var chFD, asyncFD int
	rc, err := o.ch.SyscallConn()
	check(t, err)
	check(t, rc.Control(func(fd uintptr) { chFD = int(fd) }))
	ac, err := d.AsyncConn()
	check(t, err)
	check(t, ac.Control(func(fd uintptr) { asyncFD = int(fd) }))
	if ready(chFD) || ready(asyncFD) {
		t.Error("a descriptor is readable before an event")
	}
	_, err = o.ch.TryGet()
	want(t, "TryGet", err, unix.EAGAIN)
	_, err = d.TryAsyncEvent()
	want(t, "TryAsyncEvent", err, unix.EAGAIN)
	f.event(o.ch, o.cq)
	f.raise(EventGIDChange, uapi.ElementPort, 1)
	if !ready(chFD) || !ready(asyncFD) {
		t.Error("a descriptor is not readable with an event")
	}
	c, err := o.ch.TryGet()
	if err != nil || c != o.cq {
		t.Errorf("TryGet: %v, %v", c, err)
	}
	c.AckEvents(1)
	ev, err := d.TryAsyncEvent()
	if err != nil || ev.Type != EventGIDChange || ev.Port != 1 || ev.QP != nil {
		t.Errorf("TryAsyncEvent: %+v, %v", ev, err)
	}
	ev.Ack()
	if ready(chFD) || ready(asyncFD) {
		t.Error("a descriptor is readable after the event")
	}
}

// Every kind of asynchronous event names its object; destroying the object waits
// for the acknowledgement and drops what is unread.
func TestAsyncEventsAndDestroy(t *testing.T) {
	f, d := newFake(t)
	o := newObjects(t, d, RC, StateReset)
	srq, err := o.pd.CreateSRQ(SRQAttr{MaxWR: 4, MaxSGE: 1})
	check(t, err)
	lone, err := d.CreateCQ(4, nil, 0)
	check(t, err)
	ctx := patience(t)
	for _, c := range []struct {
		name    string
		kind    uapi.Element
		handle  uint32
		event   EventType
		object  func(AsyncEvent) bool
		destroy func() error
	}{
		{"QP", uapi.ElementQP, o.qp.handle, EventSQDrained, func(e AsyncEvent) bool { return e.QP == o.qp }, o.qp.Destroy},
		{"SRQ", uapi.ElementSRQ, srq.handle, EventSRQLimitReached, func(e AsyncEvent) bool { return e.SRQ == srq }, srq.Destroy},
		{"CQ", uapi.ElementCQ, lone.handle, EventCQErr, func(e AsyncEvent) bool { return e.CQ == lone }, lone.Destroy},
	} {
		t.Run(c.name, func(t *testing.T) {
			f.raise(c.event, c.kind, c.handle)
			f.raise(c.event, c.kind, c.handle) // stays unread
			ev, err := d.AsyncEvent(ctx)
			check(t, err)
			if ev.Type != c.event || !c.object(ev) {
				t.Errorf("event %+v, want %v of the object", ev, c.event)
			}
			done := make(chan error)
			go func() { done <- c.destroy() }()
			for gone := false; !gone; { // until only the acknowledgement is missing
				d.mu.Lock()
				gone = d.qps[c.handle] == nil && d.cqs[c.handle] == nil && d.srqs[c.handle] == nil
				d.mu.Unlock()
			}
			select {
			case err := <-done:
				t.Fatalf("destroyed with an event not acknowledged: %v", err)
			default:
			}
			ev.Ack()
			check(t, <-done)
			f.raise(EventPortErr, uapi.ElementPort, 1)
			if ev, err = d.AsyncEvent(ctx); err != nil || ev.Type != EventPortErr || ev.Port != 1 {
				t.Errorf("after the object: %+v, %v; want the port's event", ev, err)
			}
		})
	}
}

// An adapter that is gone ends the wait of a destruction, too.
func TestDestroyOfDeadDevice(t *testing.T) {
	f, d := newFake(t)
	o := newObjects(t, d, RC, StateRTS)
	ctx := patience(t)
	f.raise(EventCommEst, uapi.ElementQP, o.qp.handle)
	_, err := d.AsyncEvent(ctx)
	check(t, err)
	f.event(o.ch, o.cq)
	_, err = o.ch.Get(ctx)
	check(t, err)
	check(t, f.conn.Close())
	<-d.Done()
	for what, err := range map[string]error{"QP": o.qp.Destroy(), "CQ": o.cq.Destroy()} {
		if !errors.Is(err, ErrDeviceDead) {
			t.Errorf("destroy %s: %v, want ErrDeviceDead", what, err)
		}
	}
}

// An event of a queue pair's end tells the library its state.
func TestEventsTellState(t *testing.T) {
	for ev, want := range map[EventType]QPState{
		EventQPFatal: StateErr, EventQPReqErr: StateErr, EventQPAccessErr: StateErr, EventQPLastWQE: StateErr,
		EventCommEst: StateRTS, EventSQDrained: StateRTS,
	} {
		f, d := newFake(t)
		o := newObjects(t, d, RC, StateRTS)
		f.raise(ev, uapi.ElementQP, o.qp.handle)
		got, err := d.AsyncEvent(patience(t))
		check(t, err)
		got.Ack()
		if s := o.qp.State(); s != want {
			t.Errorf("after %v: state %v, want %v", ev, s, want)
		}
	}
}
