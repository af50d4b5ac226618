package rdmanet

import (
	"net/netip"
	"testing"

	"github.com/softroce/softroce/internal/testaddr"
	"github.com/softroce/softroce/pkg/adapter"
	"github.com/softroce/softroce/pkg/verbs"
)

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// devices opens n adapters in this process, which meet over UDP.
func devices(t testing.TB, n int) (devs []*verbs.Device, addrs []netip.Addr) {
	t.Helper()
	addrs = testaddr.Take(t, n)
	for _, a := range addrs {
		ad, err := adapter.Start(adapter.Config{Addrs: []netip.Addr{a}, Workers: 1})
		check(t, err)
		t.Cleanup(func() { check(t, ad.Close()) })
		d, err := ad.Open()
		check(t, err)
		t.Cleanup(func() { check(t, d.Close()) })
		devs = append(devs, d)
	}
	return devs, addrs
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
