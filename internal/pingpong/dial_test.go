package pingpong

import (
	"context"
	"errors"
	"net"
	"syscall"
	"testing"
	"testing/synctest"
)

// A client whose server is not there yet tries again, for a while and not for other errors.
func TestClientBeforeServer(t *testing.T) {
	refused := &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	other := errors.New("no route")
	for _, c := range []struct {
		name  string
		stop  bool
		tries []error // what the tries give; then refused
		want  error
		least int
	}{
		{"the third connects", false, []error{refused, refused, nil}, nil, 3},
		{"another error", false, []error{other}, other, 1},
		{"nobody ever", false, nil, refused, 10},
		{"stopped", true, nil, other, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, stop := context.WithCancelCause(t.Context())
				defer stop(nil)
				if c.stop {
					stop(other)
				}
				n := 0
				_, err := unlessRefused(ctx, func() (net.Conn, error) {
					n++
					if n <= len(c.tries) {
						return nil, c.tries[n-1]
					}
					return nil, refused
				})
				if !errors.Is(err, c.want) || n < c.least || len(c.tries) > 0 && n != len(c.tries) {
					t.Errorf("got %v after %d tries, want %v", err, n, c.want)
				}
			})
		})
	}
}
