package main

import (
	"errors"
	"fmt"
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/perf"
	"github.com/softroce/softroce/internal/pingpong"
	"github.com/softroce/softroce/internal/rping"
)

// The errors of failed completions, and no others, name the command that explains them, with the socket that was given.
func TestHinted(t *testing.T) {
	for _, e := range []error{pingpong.ErrCompletion, perf.ErrCompletion, rping.ErrCompletion} {
		e = fmt.Errorf("send %w: IBV_WC_RETRY_EXC_ERR", e)
		if got, want := hinted(e, "").Error(), "send failed: IBV_WC_RETRY_EXC_ERR (softroce explain --last says more)"; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		if got, want := hinted(e, "/x/sock").Error(), "send failed: IBV_WC_RETRY_EXC_ERR (softroce explain --last --socket /x/sock says more)"; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	other := errors.New("other")
	for _, hint := range []func(error, string) error{hinted, hintedConn} {
		if err := hint(nil, ""); err != nil {
			t.Errorf("no error: got %v", err)
		}
		if got := hint(other, "").Error(); got != other.Error() {
			t.Errorf("another error: got %q", got)
		}
	}
	reset := &net.OpError{Op: "read", Err: unix.ECONNRESET}
	if got, want := hintedConn(reset, "").Error(), "read: connection reset by peer (softroce explain --last says more)"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
