package verbs

import "sync"

// acks counts the events of an object that were returned to the program and are
// not acknowledged yet: its destruction waits for them (ibv_ack_cq_events(3),
// ibv_get_async_event(3)).
type acks struct {
	mu   sync.Mutex
	n    int
	none chan struct{} // closed when n falls to 0; nil when nobody waits
}

// took counts one event that is about to be returned.
func (a *acks) took() {
	a.mu.Lock()
	a.n++
	a.mu.Unlock()
}

// ack acknowledges n events; more than there are is all of them.
func (a *acks) ack(n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.n = max(a.n-n, 0); a.n == 0 && a.none != nil {
		close(a.none)
		a.none = nil
	}
}

// wait waits until every event is acknowledged, or the adapter is gone. No
// further one is counted: the caller made sure of that.
func (a *acks) wait(gone <-chan struct{}) {
	a.mu.Lock()
	if a.n == 0 {
		a.mu.Unlock()
		return
	}
	if a.none == nil {
		a.none = make(chan struct{})
	}
	none := a.none
	a.mu.Unlock()
	select {
	case <-none:
	case <-gone:
	}
}
