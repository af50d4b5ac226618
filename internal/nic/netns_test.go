package nic

import (
	"net"
	"net/netip"
	"os"
	"runtime"
	"testing"

	"github.com/softroce/softroce/internal/testmatrix"
	"github.com/softroce/softroce/internal/testnet"
	"github.com/softroce/softroce/internal/uapi"
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/qpstate"
)

// Field cases F41 and F62: adapters on the interfaces of two hosts have the
// addresses of their interface and no other, IPv4-mapped first, and meet by
// every one of them; the active MTU follows the link's.
func TestF41EachIndexOfAnInterface(t *testing.T) {
	hostA, hostB := testnet.Pair(t, 1500)
	start := func(h *testnet.Host) (a *Adapter) {
		t.Helper()
		err := h.Do(func() (err error) {
			a, err = New(Config{
				Interface: testnet.Iface, Workers: testmatrix.Workers(t, 1), RecvBuffer: 212992, Offload: testmatrix.Offload(t), Backend: testmatrix.Backend(t), TUN: testmatrix.TUN(t, nil),
			})
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = a.Close() })
		return a
	}
	waitBindable(t, hostA)
	waitBindable(t, hostB)
	a, b := start(hostA), start(hostB)
	want := map[netip.Addr]bool{}
	err := hostA.Do(func() error {
		in, err := net.InterfaceByName(testnet.Iface)
		if err != nil {
			return err
		}
		prefixes, err := prefixesOf(in)
		for _, p := range prefixes {
			want[p.Addr()] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	addrs := a.Addrs()
	if len(addrs) != len(want) || !addrs[0].Is4() || len(addrs) != len(b.Addrs()) {
		t.Fatalf("GIDs %v (the other host's %v), the interface has %v", addrs, b.Addrs(), want)
	}
	if got := a.portAttr(); got.ActiveMTU != bth.MTU1024 || got.LinkMTU != 1500 {
		t.Errorf("active MTU %v of a link of %d bytes, want 1024 of 1500", got.ActiveMTU, got.LinkMTU)
	}
	ctx := within(t)
	da, db := openDevice(t, a), openDevice(t, b)
	for i, addr := range addrs {
		if !want[addr.WithZone("")] {
			t.Errorf("GID %d is %v, which the interface has not", i, addr)
		}
		x, y := newEndpoint(t, da, 1<<14), newEndpoint(t, db, 1<<14)
		connectPairAt(t, x, y, uint8(i))
		if err := transfer(ctx, x, y, byte(i)); err != nil {
			t.Errorf("GID %d (%v): %v", i, addr, err)
		}
	}
}

// waitBindable waits until every address of the host's interface can be
// bound: a link-local one is tentative at first.
func waitBindable(t *testing.T, h *testnet.Host) {
	t.Helper()
	ctx := within(t)
	err := h.Do(func() error {
		in, err := net.InterfaceByName(testnet.Iface)
		if err != nil {
			return err
		}
		prefixes, err := prefixesOf(in)
		if err != nil {
			return err
		}
		for _, p := range prefixes {
			addr := p.Addr()
			if addr.Is6() && addr.IsLinkLocalUnicast() {
				addr = addr.WithZone(in.Name)
			}
			for err = tryBind(addr); err != nil; err = tryBind(addr) {
				if ctx.Err() != nil {
					return err
				}
				runtime.Gosched()
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A path MTU that the link cannot carry is refused by name: its packets would
// be lost one and all.
func TestPathMTUOverTheLink(t *testing.T) {
	host, _ := testnet.Pair(t, 1500)
	var a *Adapter
	err := host.Do(func() (err error) {
		a, err = New(Config{
			Interface: testnet.Iface, Workers: testmatrix.Workers(t, 1), RecvBuffer: 212992, Offload: testmatrix.Offload(t), Backend: testmatrix.Backend(t), TUN: testmatrix.TUN(t, nil),
		})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.Close() })
	r := rawHello(t, a)
	qp := r.qp(r.pd(), r.cq(4)).Handle
	must[uapi.ModifyQPReply](r, uapi.OpModifyQP, &uapi.ModifyQPRequest{
		Handle: qp, Mask: qpstate.MaskState | qpstate.MaskPKeyIndex | qpstate.MaskPort | qpstate.MaskAccessFlags,
		Attr: qpstate.Attr{State: qpstate.Init, PortNum: 1},
	})
	gid, _, _ := a.gid(0)
	m := &uapi.ModifyQPRequest{
		Handle: qp, Mask: qpstate.MaskState | qpstate.MaskAV | qpstate.MaskPathMTU | qpstate.MaskDestQPN | qpstate.MaskRQPSN |
			qpstate.MaskMaxDestRDAtomic | qpstate.MaskMinRNRTimer,
		Attr: qpstate.Attr{State: qpstate.RTR, PathMTU: bth.MTU2048, DestQPN: 5, AH: qpstate.AHAttr{DGID: gid, IsGlobal: true, PortNum: 1}},
	}
	r.wantRefusal(r.call(uapi.OpModifyQP, m), 22, "path_mtu", "1024")
	m.Attr.PathMTU = bth.MTU1024
	must[uapi.ModifyQPReply](r, uapi.OpModifyQP, m)
}

// docs/security.md: foreign memory is refused, with the reason, to a program of
// another user; shared memory is not. So is a Q_Key with bit 31 to a program
// without privilege. In need of root to become that user.
func TestForeignMemoryOfAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to start a program of another user")
	}
	if inOwnProcess(t) {
		return
	}
	a := startAdapter(t, nil)
	socket := serveSocket(t, a)
	openToAll(t, socket)
	child := startChild(t, "stranger", socket)
	child.kill(t)
	waitPrograms(t, a, 0)
}
