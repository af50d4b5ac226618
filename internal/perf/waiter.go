package perf

import (
	"context"
	"errors"
)

// errDone is the cause when the client has measured all.
var errDone = errors.New("the client is done")

// waiter lets the server work while it waits for the client's message.
type waiter struct {
	ctx    context.Context // ends when the message is there, or the session
	cancel context.CancelCauseFunc
	done   chan struct{}
	m      message
	err    error
}

// untilDone starts to wait for the message that ends a measurement.
func (s *session) untilDone() *waiter {
	w := &waiter{done: make(chan struct{})}
	w.ctx, w.cancel = context.WithCancelCause(s.ctx)
	go func() {
		defer close(w.done)
		if w.m, w.err = s.link.recv(w.ctx, kindDone); w.err != nil {
			w.cancel(w.err)
			return
		}
		w.cancel(errDone)
	}()
	return w
}

// ended says whether there is nothing to wait for any more.
func (w *waiter) ended() bool { return w.ctx.Err() != nil }

// result gives what came, once ended; m is valid without error.
func (w *waiter) result(s *session) error {
	<-w.done
	if w.err != nil {
		return w.err
	}
	return s.counted(w.m)
}

// stop ends the wait in any case.
func (w *waiter) stop() {
	w.cancel(context.Canceled)
	<-w.done
}
