package cm_test

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/softroce/softroce/internal/cm"
)

// TestPorts: who may hold a port beside whom.
func TestPorts(t *testing.T) {
	addr := netip.MustParseAddr
	for _, tt := range []struct {
		name          string
		first, second cm.BindArgs
		listen        bool // the first listens before the second binds
		want          error
	}{
		{name: "the same", first: cm.BindArgs{Addr: addrA}, second: cm.BindArgs{Addr: addrA}, want: cm.ErrInUse},
		{name: "another address", first: cm.BindArgs{Addr: addrA}, second: cm.BindArgs{Addr: addrB}},
		{name: "wildcard after one", first: cm.BindArgs{Addr: addrA}, second: cm.BindArgs{Addr: netip.IPv4Unspecified()}, want: cm.ErrInUse},
		{name: "one after wildcard", first: cm.BindArgs{Addr: addr("::")}, second: cm.BindArgs{Addr: addrA}, want: cm.ErrInUse},
		{name: "IPv6 only beside IPv4", first: cm.BindArgs{Addr: addr("::"), Only: true}, second: cm.BindArgs{Addr: addrA}},
		{name: "another port", first: cm.BindArgs{Addr: addrA}, second: cm.BindArgs{Addr: addrA, Port: 8}},
		{name: "another space", first: cm.BindArgs{Addr: addrA}, second: cm.BindArgs{Addr: addrA, Space: cm.SpaceUDP}},
		{name: "both reuse", first: cm.BindArgs{Addr: addrA, Reuse: true}, second: cm.BindArgs{Addr: addrA, Reuse: true}},
		{name: "one reuses", first: cm.BindArgs{Addr: addrA}, second: cm.BindArgs{Addr: addrA, Reuse: true}, want: cm.ErrInUse},
		{name: "the other reuses", first: cm.BindArgs{Addr: addrA, Reuse: true}, second: cm.BindArgs{Addr: addrA}, want: cm.ErrInUse},
		{
			name: "reuse of a listener", listen: true, want: cm.ErrInUse,
			first: cm.BindArgs{Addr: addrA, Reuse: true}, second: cm.BindArgs{Addr: addrA, Reuse: true},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var ports cm.Ports
			for _, a := range []*cm.BindArgs{&tt.first, &tt.second} {
				if a.Space == 0 {
					a.Space = cm.SpaceTCP
				}
				if a.Port == 0 {
					a.Port = 7
				}
			}
			first := must[*cm.Binding](t)(ports.Bind(tt.first, 0))
			if tt.listen {
				ok(t, ports.Listen(first))
			}
			if _, err := ports.Bind(tt.second, 0); !errors.Is(err, tt.want) {
				t.Fatalf("%v, want %v", err, tt.want)
			}
			ports.Release(first)
			ports.Release(first)
			if want := map[bool]int{true: 0, false: 1}[tt.want != nil]; ports.Bound() != want {
				t.Errorf("%d bound, want %d", ports.Bound(), want)
			}
			again, err := ports.Bind(tt.first, 0)
			if tt.want != nil {
				ok(t, err)
				ok(t, ports.Listen(again))
			}
		})
	}
}

// TestPortsListen: of those that share a port none may listen.
func TestPortsListen(t *testing.T) {
	var ports cm.Ports
	shared := cm.BindArgs{Space: cm.SpaceTCP, Addr: addrA, Port: 7, Reuse: true}
	first := must[*cm.Binding](t)(ports.Bind(shared, 0))
	second := must[*cm.Binding](t)(ports.Bind(shared, 0))
	if err := ports.Listen(first); !errors.Is(err, cm.ErrInUse) {
		t.Errorf("%v", err)
	}
	ports.Release(second)
	ok(t, ports.Listen(first))
	if first.Service() != 0x1060007 {
		t.Errorf("%v", first.Service())
	}
}

// TestEphemeralPorts: port 0 is a free port of the range, begun anywhere.
func TestEphemeralPorts(t *testing.T) {
	ports := cm.Ports{Low: 100, High: 104}
	seen := map[uint16]bool{}
	var last *cm.Binding
	for i := range 5 {
		last = must[*cm.Binding](t)(ports.Bind(cm.BindArgs{Space: cm.SpaceTCP, Addr: addrA}, uint32(i)*7+3))
		if p := last.Port(); p < 100 || p > 104 || seen[p] {
			t.Errorf("port %d, after %v", p, seen)
		}
		seen[last.Port()] = true
	}
	if _, err := ports.Bind(cm.BindArgs{Space: cm.SpaceTCP, Addr: addrB}, 1); !errors.Is(err, cm.ErrFull) {
		t.Errorf("%v", err)
	}
	must[*cm.Binding](t)(ports.Bind(cm.BindArgs{Space: cm.SpaceUDP, Addr: addrB}, 1))
	freed := last.Port()
	ports.Release(last)
	if b := must[*cm.Binding](t)(ports.Bind(cm.BindArgs{Space: cm.SpaceTCP, Addr: addrA}, 1)); b.Port() != freed {
		t.Errorf("port %d, want the freed %d", b.Port(), freed)
	}
	ports = cm.Ports{Limit: 1}
	if b := must[*cm.Binding](t)(ports.Bind(cm.BindArgs{Space: cm.SpaceTCP}, 5)); b.Port() != cm.DefaultLowPort+5 {
		t.Errorf("port %d", b.Port())
	}
	if _, err := ports.Bind(cm.BindArgs{Space: cm.SpaceTCP}, 9); !errors.Is(err, cm.ErrFull) {
		t.Errorf("%v", err)
	}
	if _, err := (&cm.Ports{Low: 9, High: 8}).Bind(cm.BindArgs{Space: cm.SpaceTCP}, 9); !errors.Is(err, cm.ErrFull) {
		t.Errorf("%v", err)
	}
}
