package demo

import (
	"bytes"
	"context"
	"net/netip"
	"testing"

	"github.com/softroce/softroce/internal/testaddr"
	"github.com/softroce/softroce/internal/testmatrix"
	"github.com/softroce/softroce/pkg/adapter"
)

func addrs(t *testing.T) [2]netip.Addr {
	t.Helper()
	a := testaddr.Take(t, 2)
	return [2]netip.Addr{a[0], a[1]}
}

// cell sets what the matrix asks for.
func cell(t *testing.T) func(*adapter.Config) {
	t.Helper()
	offload, workers, backend := testmatrix.Offload(t), testmatrix.Workers(t, 0), testmatrix.Backend(t)
	return func(c *adapter.Config) {
		c.Offload, c.Workers, c.Backend, c.TUN = offload, workers, backend, testmatrix.TUN(t, c.Addrs)
	}
}

func TestDemo(t *testing.T) {
	var pcap bytes.Buffer
	rep, err := Run(context.Background(), Config{Addrs: addrs(t), Capture: &pcap, Change: cell(t)})
	if err != nil {
		t.Fatalf("the demo failed: %v", err)
	}
	if len(rep.Rows) != len(steps) {
		t.Errorf("rows: got %d, want %d", len(rep.Rows), len(steps))
	}
	for _, r := range rep.Rows {
		if !r.Checked || r.Count == 0 || r.Elapsed <= 0 {
			t.Errorf("step %s: got %+v, want checked data, a count and a time", r.Verb, r)
		}
	}
	if pcap.Len() == 0 {
		t.Error("the capture is empty")
	}
}

// The two adapters share nothing but the wire: without it, nothing arrives.
func TestDemoNeedsTheWire(t *testing.T) {
	_, err := Run(context.Background(), Config{
		Addrs: addrs(t), Change: cell(t),
		Connected: func(_, b *adapter.Adapter) {
			if err := b.CloseSockets(); err != nil {
				t.Errorf("close the second adapter's sockets: %v", err)
			}
		},
	})
	if err == nil {
		t.Fatal("the demo passed although the second adapter's sockets are closed")
	}
	t.Log(err)
}
