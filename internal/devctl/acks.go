package devctl

import "sync"

// Acks counts the events of an object that were returned to the program and are
// not acknowledged yet: its destruction waits for them (ibv_ack_cq_events(3),
// ibv_get_async_event(3)).
type Acks struct {
	mu   sync.Mutex
	n    int
	none chan struct{} // closed when n falls to 0; nil when nobody waits
}

// Took counts one event that is about to be returned.
func (a *Acks) Took() {
	a.mu.Lock()
	a.n++
	a.mu.Unlock()
}

// Ack acknowledges n events; more than there are is all of them.
func (a *Acks) Ack(n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.n = max(a.n-n, 0); a.n == 0 && a.none != nil {
		close(a.none)
		a.none = nil
	}
}

// Wait waits until every event is acknowledged, or the adapter is gone. No
// further one is counted: the caller made sure of that.
func (a *Acks) Wait(gone <-chan struct{}) {
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
