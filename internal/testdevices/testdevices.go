// Package testdevices opens adapters inside a test's process, which meet over the
// network of the run's cell of the matrix. It owns their start and end and nothing
// else.
package testdevices

import (
	"net/netip"
	"testing"

	"github.com/softroce/softroce/internal/testaddr"
	"github.com/softroce/softroce/internal/testmatrix"
	"github.com/softroce/softroce/pkg/adapter"
	"github.com/softroce/softroce/pkg/verbs"
)

// Open starts n adapters, each on an address of its own, and opens each. They end
// with t, which fails when one does not end as it should.
func Open(t testing.TB, n int) (devs []*verbs.Device, addrs []netip.Addr) {
	t.Helper()
	addrs = testaddr.Take(t, n)
	for _, a := range addrs {
		ad, err := adapter.Start(adapter.Config{
			Addrs: []netip.Addr{a}, Workers: testmatrix.Workers(t, 1), Offload: testmatrix.Offload(t),
			Backend: testmatrix.Backend(t), TUN: testmatrix.TUN(t, []netip.Addr{a}),
		})
		if err != nil {
			t.Fatalf("start an adapter on %v: %v", a, err)
		}
		t.Cleanup(func() {
			if err := ad.Close(); err != nil {
				t.Errorf("close the adapter on %v: %v", a, err)
			}
		})
		d, err := ad.Open()
		if err != nil {
			t.Fatalf("open the adapter on %v: %v", a, err)
		}
		t.Cleanup(func() {
			if err := d.Close(); err != nil {
				t.Errorf("close the device on %v: %v", a, err)
			}
		})
		devs = append(devs, d)
	}
	return devs, addrs
}
