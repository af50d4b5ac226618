package cmtime

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/softroce/softroce/internal/testdevices"
	"github.com/softroce/softroce/pkg/rdmacm"
)

// Every step is there once, of every connection, and the server sees them all
// end.
func TestSteps(t *testing.T) {
	devs, addrs := testdevices.Open(t, 2)
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
	devs, addrs := testdevices.Open(t, 2)
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
