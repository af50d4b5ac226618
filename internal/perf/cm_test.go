package perf

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/softroce/softroce/internal/testdevices"
	"github.com/softroce/softroce/pkg/rdmanet"
	"github.com/softroce/softroce/pkg/verbs"
)

// listenCM listens by the connection manager, and says where.
func listenCM(t *testing.T, d *verbs.Device) (l net.Listener, host string, port int) {
	t.Helper()
	gid, err := d.QueryGID(0)
	if err != nil {
		t.Fatal(err)
	}
	host = gid.Addr().Unmap().String()
	rl, err := rdmanet.Listen(d, net.JoinHostPort(host, "0"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = rl.Close() })
	return rl, host, int(rl.Addr().(rdmanet.Addr).Port())
}

// The connection manager connects the queue pairs, and nothing is left after a run.
func TestByConnectionManager(t *testing.T) {
	devs, _ := testdevices.Open(t, 2)
	for name, p := range map[string]Params{
		"write bandwidth, queue pairs": {Op: Write, Sizes: []int{1, 5000}, Iters: 100, QPs: 3},
		"write latency":                {Op: Write, Latency: true, Sizes: []int{8}, Iters: 100},
		"read bandwidth":               {Op: Read, Sizes: []int{20001}, Iters: 100, RDAtomic: 2},
		"send bandwidth":               {Op: Send, Sizes: []int{3000}, Iters: 200, RxDepth: 4},
		"send latency":                 {Op: Send, Latency: true, Sizes: []int{2}, Iters: 50, RxDepth: 1},
		"atomic latency":               {Op: Atomic, Latency: true, Iters: 50},
	} {
		t.Run(name, func(t *testing.T) {
			l, host, port := listenCM(t, devs[0])
			server := Config{Params: Params{Op: p.Op, Latency: p.Latency, Check: true}, CM: true, Listener: l}
			client := Config{Params: p, CM: true, Host: host, Port: port}
			client.Check = true
			depth := 0
			client.Started = func(*Report) { depth = queuePairs(t, devs[1]) }
			served := begin(t.Context(), devs[0], server)
			rep, err := Run(t.Context(), devs[1], client)
			s := <-served
			if err != nil || s.err != nil {
				t.Fatalf("client: %v, server: %v", err, s.err)
			}
			checkReport(t, &p, rep)
			if rep.Local != s.rep.Remote || rep.Remote != s.rep.Local || rep.Remote != host || rep.Params.MTU != s.rep.Params.MTU {
				t.Errorf("the sides do not agree: %+v and %+v", rep, s.rep)
			}
			if want := max(p.QPs, 1) + 1; depth != want { // the exchange has one
				t.Errorf("the client had %d queue pairs, want %d", depth, want)
			}
			for _, d := range devs {
				if n := queuePairs(t, d); n != 0 {
					t.Errorf("%d queue pairs are left", n)
				}
			}
		})
	}
}

// What the connection manager chooses cannot be asked for, and nobody there is an
// error.
func TestConnectionManagerErrors(t *testing.T) {
	devs, _ := testdevices.Open(t, 2)
	_, host, port := listenCM(t, devs[0])
	for name, c := range map[string]Config{
		"MTU":                {Host: host, Params: Params{Op: Write, MTU: 1}},
		"GID":                {Host: host, Params: Params{Op: Write}, GIDIndex: 1},
		"the server's class": {Params: Params{Op: Write}, TrafficClass: 8},
	} {
		c.CM = true
		if _, err := Run(t.Context(), devs[1], c); !errors.As(err, new(*ParamError)) {
			t.Errorf("%s: got %v, want a ParamError", name, err)
		}
	}
	if _, err := Run(t.Context(), devs[1], Config{Params: Params{Op: Write}, CM: true, Host: host, Port: port ^ 1}); err == nil ||
		!strings.Contains(err.Error(), "no server to connect to") {
		t.Errorf("nobody there: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Run(ctx, devs[1], Config{Params: Params{Op: Write}, CM: true}); !errors.Is(err, context.Canceled) {
		t.Errorf("a server that is stopped: %v", err)
	}
}

func queuePairs(t *testing.T, d *verbs.Device) int {
	t.Helper()
	rs, err := d.Resources(verbs.ResourceQP)
	if err != nil {
		t.Fatal(err)
	}
	return len(rs)
}
