package rdmanet

import (
	"testing"

	"github.com/softroce/softroce/pkg/verbs"
)

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// pair connects two endpoints without a connection manager.
func pair(t testing.TB, a, b *verbs.Device, ca, cb *Config) (x, y *Conn) {
	t.Helper()
	ea, err := NewEndpoint(a, ca)
	check(t, err)
	eb, err := NewEndpoint(b, cb)
	check(t, err)
	ga, err := a.QueryGID(0)
	check(t, err)
	gb, err := b.QueryGID(0)
	check(t, err)
	pa, pb := verbs.RCPeer{QPN: ea.QP().Num(), PSN: 100, GID: ga}, verbs.RCPeer{QPN: eb.QP().Num(), PSN: 200, GID: gb}
	check(t, ea.QP().ConnectRC(pb, verbs.RCConfig{PSN: pa.PSN}))
	check(t, eb.QP().ConnectRC(pa, verbs.RCConfig{PSN: pb.PSN}))
	check(t, ea.PostReceives())
	check(t, eb.PostReceives())
	x, err = ea.Start(eb.Hello(), nil, nil)
	check(t, err)
	y, err = eb.Start(ea.Hello(), nil, nil)
	check(t, err)
	return x, y
}
