package rdmacm

import "sync"

// acks counts the events of an identifier that were returned to the program and
// are not acknowledged yet.
type acks struct {
	mu   sync.Mutex
	n    int
	none chan struct{} // closed when n falls to 0; nil when nobody waits
}

func (a *acks) took() {
	a.mu.Lock()
	a.n++
	a.mu.Unlock()
}

func (a *acks) ack() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.n--; a.n == 0 && a.none != nil {
		close(a.none)
		a.none = nil
	}
}

// wait waits until every event is acknowledged, or the adapter is gone.
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
