package udp4791

import (
	"net/netip"
	"testing"

	"github.com/softroce/softroce/internal/testnet"
)

// A flow opened on a thread of another network namespace than the group's
// must not send into that other network: it gets the receive socket.
func TestFlowStaysInTheGroupsNamespace(t *testing.T) {
	h := testnet.One(t)
	addr := netip.MustParseAddr("127.0.0.1") // an address of either namespace
	var g *Group
	err := h.Do(func() (err error) {
		g, err = Open(Config{Addrs: []netip.Addr{addr}})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	if _, port, err := g.Endpoint(0).OpenFlow(addr, 1, 0xC123); err != nil || port != Port {
		t.Errorf("outside of the namespace: port %#x, %v; want the receive socket's %d", port, err, Port)
	}
	err = h.Do(func() error {
		_, port, err := g.Endpoint(0).OpenFlow(addr, 2, 0xC123)
		if port != 0xC123 {
			t.Errorf("inside: port %#x, want 0xC123", port)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
