package rdmacm

import (
	"context"
	"sync"

	"github.com/softroce/softroce/pkg/verbs"
)

// A hub is an event channel with a goroutine that hands events to those who
// wait: one of each Dial, and one of each Listener and its connections. It ends
// with the last of them.
type hub struct {
	ch   *EventChannel
	stop context.CancelFunc
	done chan struct{} // closed when the goroutine has ended
	err  error         // why, valid then

	mu   sync.Mutex
	uses int
}

// newHub makes a hub with one use.
func newHub(dev *verbs.Device) (*hub, error) {
	ch, err := NewEventChannel(dev)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	h := &hub{ch: ch, stop: stop, done: make(chan struct{}), uses: 1}
	go h.run(ctx)
	return h, nil
}

func (h *hub) run(ctx context.Context) {
	defer close(h.done)
	for {
		e, err := h.ch.Get(ctx)
		if err != nil {
			h.err = err
			return
		}
		// Events are acknowledged as they are handed on: nobody who destroys an
		// identifier has to know of those that wait.
		e.Ack()
		to := e.ID
		if e.Listen != nil {
			to = e.Listen
			e.ID.box.Store(newMailbox(h)) // for what happens until somebody takes it
		}
		if b := to.box.Load(); b != nil {
			b.put(e)
		}
	}
}

func (h *hub) use() {
	h.mu.Lock()
	h.uses++
	h.mu.Unlock()
}

// unuse ends one use: the last one ends the channel. The hub's own goroutine
// does not call it.
func (h *hub) unuse() {
	h.mu.Lock()
	h.uses--
	last := h.uses == 0
	h.mu.Unlock()
	if !last {
		return
	}
	h.stop()
	<-h.done
	_ = h.ch.Destroy() // the adapter ends what is left of it with the device
}

// A mailbox keeps the events of an identifier until they are taken. Their number
// is bounded by the adapter: a few of a connection, of a listener its backlog.
type mailbox struct {
	hub   *hub
	ready chan struct{} // has a token when there may be events
	// late gets the events of a connection that is up, from the hub's goroutine;
	// guarded by mu.
	late func(*Event)

	mu     sync.Mutex
	events []*Event
	closed bool
}

func newMailbox(h *hub) *mailbox { return &mailbox{hub: h, ready: make(chan struct{}, 1)} }

func (b *mailbox) put(e *Event) {
	b.mu.Lock()
	late := b.late
	if late == nil && !b.closed {
		b.events = append(b.events, e)
		select {
		case b.ready <- struct{}{}:
		default:
		}
	}
	closed := b.closed
	b.mu.Unlock()
	if late != nil {
		late(e)
	}
	if closed && e.Listen != nil {
		_ = e.ID.Destroy() // refuses the peer
	}
}

// onLate gives all events, those that wait first, to f.
func (b *mailbox) onLate(f func(*Event)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range b.events {
		f(e)
	}
	b.events, b.late = nil, f
}

// close drops what waits, and returns it.
func (b *mailbox) close() []*Event {
	b.mu.Lock()
	defer b.mu.Unlock()
	events := b.events
	b.events, b.closed = nil, true
	return events
}

// next waits for an event. It ends with ctx's error, when the adapter is gone, or
// when end, which may be nil, is closed, with endErr.
func (b *mailbox) next(ctx context.Context, end <-chan struct{}, endErr error) (*Event, error) {
	for {
		b.mu.Lock()
		if len(b.events) > 0 {
			e := b.events[0]
			b.events = b.events[1:]
			more := len(b.events) > 0
			b.mu.Unlock()
			if more { // for another one that waits
				select {
				case b.ready <- struct{}{}:
				default:
				}
			}
			return e, nil
		}
		b.mu.Unlock()
		select {
		case <-b.ready:
		case <-end:
			return nil, endErr
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-b.hub.done:
			return nil, b.hub.err
		}
	}
}

// await waits for an event of the given kind; another is an error.
func (b *mailbox) await(ctx context.Context, kind EventType) (*Event, error) {
	for {
		e, err := b.next(ctx, nil, nil)
		if err != nil {
			return nil, err
		}
		if e.Type == kind {
			return e, nil
		}
		if err := e.Err(); err != nil {
			return nil, err
		}
	}
}
