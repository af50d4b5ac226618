package rdmacm_test

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	"github.com/softroce/softroce/internal/testdevices"
	"github.com/softroce/softroce/pkg/rdmacm"
	"github.com/softroce/softroce/pkg/verbs"
)

// A request whose peer has given up is said to be so by Accept.
func TestAcceptWithdrawn(t *testing.T) {
	devs, addrs := testdevices.Open(t, 2)
	l, err := rdmacm.Listen(devs[1], netip.AddrPortFrom(addrs[1], 0), nil)
	check(t, err)
	defer func() { check(t, l.Close()) }()
	ctx, cancel := context.WithCancel(patience(t))
	dialed := make(chan error)
	go func() {
		_, err := rdmacm.Dial(ctx, devs[0], l.Addr(), &rdmacm.Config{QP: verbs.QPInitAttr{Cap: limits}})
		dialed <- err
	}()
	r, err := l.Request(patience(t))
	check(t, err)
	cancel()
	if err := <-dialed; !errors.Is(err, context.Canceled) {
		t.Errorf("Dial: %v", err)
	}
	c, err := r.Accept(patience(t), &rdmacm.Config{QP: verbs.QPInitAttr{Cap: limits}})
	if err == nil { // it was granted before the peer's word came, which ends it
		<-c.Done()
		check(t, c.Close())
		return
	}
	if reject := (*rdmacm.RejectError)(nil); !errors.As(err, &reject) {
		t.Errorf("Accept of a request that is withdrawn: %v, want a RejectError", err)
	}
}
