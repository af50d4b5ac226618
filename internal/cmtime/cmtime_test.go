package cmtime

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/softroce/softroce/internal/testaddr"
	"github.com/softroce/softroce/internal/testmatrix"
	"github.com/softroce/softroce/pkg/adapter"
	"github.com/softroce/softroce/pkg/rdmacm"
	"github.com/softroce/softroce/pkg/verbs"
)

// devices starts n adapters and opens each.
func devices(t *testing.T, n int) (devs []*verbs.Device, addrs []netip.Addr) {
	t.Helper()
	addrs = testaddr.Take(t, n)
	for _, a := range addrs {
		ad, err := adapter.Start(adapter.Config{
			Addrs: []netip.Addr{a}, Workers: testmatrix.Workers(t, 1), Offload: testmatrix.Offload(t), Backend: testmatrix.Backend(t), TUN: testmatrix.TUN(t, []netip.Addr{a}),
		})
		if err != nil {
			t.Fatalf("start an adapter on %v: %v", a, err)
		}
		t.Cleanup(func() {
			if err := ad.Close(); err != nil {
				t.Errorf("close the adapter: %v", err)
			}
		})
		d, err := ad.Open()
		if err != nil {
			t.Fatalf("open the adapter on %v: %v", a, err)
		}
		t.Cleanup(func() { _ = d.Close() })
		devs = append(devs, d)
	}
	return devs, addrs
}

// Every step is there once, of every connection, and the server sees them all
// end.
func TestSteps(t *testing.T) {
	devs, addrs := devices(t, 2)
	const conns = 20
	ready, ended := make(chan netip.AddrPort, 1), make(chan error, 1)
	served := 0
	go func() {
		var err error
		served, err = Server(t.Context(), devs[0], Config{Conns: conns, Ready: func(a netip.AddrPort) { ready <- a }})
		ended <- err
	}()
	select {
	case <-ready:
	case err := <-ended:
		t.Fatalf("the server does not listen: %v", err)
	}
	seen := map[string]int{}
	rep, err := Client(t.Context(), devs[1], Config{
		Addr: netip.AddrPortFrom(addrs[0], 0), Local: addrs[1], Conns: conns,
		Progress: func(step string, done, total int) {
			if total == conns && done == seen[step]+1 {
				seen[step] = done
			}
		},
	})
	if err != nil {
		t.Fatalf("client: %v", err)
	}
	if err := <-ended; err != nil || served != conns {
		t.Fatalf("server: %d served, %v", served, err)
	}
	var names []string
	for _, s := range rep.Steps {
		names = append(names, s.Name)
		if s.Min <= 0 || s.Max < s.Min || s.Total < s.Max {
			t.Errorf("%s: total %v, of one %v to %v", s.Name, s.Total, s.Min, s.Max)
		}
		if seen[s.Name] != conns {
			t.Errorf("%s: %d connections, want %d", s.Name, seen[s.Name], conns)
		}
	}
	want := []string{"create id", "resolve addr", "resolve route", "create qp", "connect", "disconnect", "destroy"}
	if !slices.Equal(names, want) {
		t.Errorf("steps %q, want %q", names, want)
	}
}

func TestNobodyListens(t *testing.T) {
	devs, addrs := devices(t, 2)
	_, err := Client(t.Context(), devs[1], Config{Addr: netip.AddrPortFrom(addrs[0], 0), Conns: 3})
	var rej *rdmacm.RejectError
	if !errors.As(err, &rej) || rej.Reason != rdmacm.RejectNoListener {
		t.Errorf("got %v, want the reason %v", err, rdmacm.RejectNoListener)
	}
}

func TestValidate(t *testing.T) {
	for _, c := range []Config{{Conns: -1}, {Conns: MaxConns + 1}, {Timeout: -1}, {Retries: -1}} {
		if c.Validate() == nil {
			t.Errorf("%+v is taken", c)
		}
	}
}
