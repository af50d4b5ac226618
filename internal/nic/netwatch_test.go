package nic

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/testmatrix"
	"github.com/softroce/softroce/internal/testnet"
	"github.com/softroce/softroce/internal/uapi"
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/verbs"
)

// startOn starts an adapter on a host.
func startOn(t *testing.T, h *testnet.Host, cfg Config) (a *Adapter) {
	t.Helper()
	if testing.Verbose() {
		cfg.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	cfg.Workers, cfg.RecvBuffer, cfg.Offload = testmatrix.Workers(t, 2), 212992, testmatrix.Offload(t)
	cfg.Backend, cfg.TUN = testmatrix.Backend(t), testmatrix.TUN(t, nil)
	err := h.Do(func() (err error) {
		a, err = New(cfg)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return a
}

// changeLink changes the host's end of the link.
func changeLink(t *testing.T, h *testnet.Host, f func(*netlink.Handle, netlink.Link) error) {
	t.Helper()
	ns, err := netns.GetFromPath(h.Path())
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	nl, err := netlink.NewHandleAt(ns)
	if err != nil {
		t.Fatal(err)
	}
	defer nl.Close()
	link, err := nl.LinkByName(testnet.Iface)
	if err == nil {
		err = f(nl, link)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func address(a netip.Addr) *netlink.Addr {
	return &netlink.Addr{
		IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen()-8, a.BitLen())}, Flags: unix.IFA_F_NODAD,
	}
}

func addAddress(t *testing.T, h *testnet.Host, a netip.Addr) {
	t.Helper()
	changeLink(t, h, func(nl *netlink.Handle, l netlink.Link) error { return nl.AddrAdd(l, address(a)) })
}

func delAddress(t *testing.T, h *testnet.Host, a netip.Addr) {
	t.Helper()
	changeLink(t, h, func(nl *netlink.Handle, l netlink.Link) error {
		all, err := nl.AddrList(l, netlink.FAMILY_ALL)
		for i := range all {
			if ip, ok := netip.AddrFromSlice(all[i].IP); ok && ip.Unmap() == a {
				return nl.AddrDel(l, &all[i])
			}
		}
		return fmt.Errorf("no address %v: %w", a, err)
	})
}

// A watched program sees the events of a device in their order.
type watched struct {
	dev    *verbs.Device
	events chan verbs.EventType
}

func watchEvents(t *testing.T, a *Adapter) *watched {
	t.Helper()
	w := &watched{dev: openDevice(t, a), events: make(chan verbs.EventType, 64)}
	ctx := within(t)
	go func() {
		for {
			ev, err := w.dev.AsyncEvent(ctx)
			if err != nil {
				return
			}
			w.events <- ev.Type
		}
	}()
	return w
}

func (w *watched) want(t *testing.T, want verbs.EventType) {
	t.Helper()
	select {
	case got := <-w.events:
		if got != want {
			t.Errorf("event %v, want %v", got, want)
		}
	case <-within(t).Done():
		t.Fatalf("no event, want %v", want)
	}
}

func (w *watched) wantNone(t *testing.T) {
	t.Helper()
	select {
	case got := <-w.events:
		t.Errorf("event %v, want none", got)
	default:
	}
}

// until waits for what the watch brings about.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for ctx := within(t); !ok(); runtime.Gosched() {
		if ctx.Err() != nil {
			t.Fatalf("never came: %s", what)
		}
	}
}

// tableOf lists a program's GID table, a hole as the zero GID.
func tableOf(t *testing.T, r *rawClient) (out []netip.Addr) {
	t.Helper()
	for _, e := range must[uapi.QueryGIDTableReply](r, uapi.OpQueryGIDTable, nil).Entries {
		for uint32(len(out)) < e.Index {
			out = append(out, netip.Addr{})
		}
		out = append(out, e.GID.Addr())
	}
	return out
}

// noLinkLocal takes the link-local address away, whose coming is not timed.
func noLinkLocal(t *testing.T, hosts ...*testnet.Host) {
	t.Helper()
	for _, h := range hosts {
		err := h.Do(func() error {
			err := os.WriteFile("/proc/sys/net/ipv6/conf/"+testnet.Iface+"/addr_gen_mode", []byte("1"), 0)
			if os.IsNotExist(err) {
				return nil
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		changeLink(t, h, func(nl *netlink.Handle, l netlink.Link) error {
			all, err := nl.AddrList(l, netlink.FAMILY_V6)
			for i := range all {
				if all[i].IP.IsLinkLocalUnicast() {
					err = nl.AddrDel(l, &all[i])
				}
			}
			return err
		})
	}
}

// The GID table follows the interface: an address that goes leaves a hole, the
// others keep their index, a new one takes the first hole and carries traffic
// both ways; every program hears of each change once.
func TestGIDTableFollowsTheInterface(t *testing.T) {
	hostA, hostB := testnet.Pair(t, 1500)
	noLinkLocal(t, hostA, hostB)
	a, b := startOn(t, hostA, Config{Interface: testnet.Iface}), startOn(t, hostB, Config{Interface: testnet.Iface})
	one, two := watchEvents(t, a), watchEvents(t, a)
	r := rawHello(t, a)
	first, next := netip.MustParseAddr("198.18.78.1"), netip.MustParseAddr("198.18.79.1")
	start := tableOf(t, r)
	step := func(what string, change func(), want ...netip.Addr) {
		t.Helper()
		change()
		until(t, what, func() bool { return slices.Equal(tableOf(t, r), want) })
		one.want(t, verbs.EventGIDChange)
		two.want(t, verbs.EventGIDChange)
	}
	db := openDevice(t, b)
	ctx := within(t)
	x, y := newEndpoint(t, one.dev, 1<<14), newEndpoint(t, db, 1<<14)
	connectSlow(t, x, y)
	step("a new one", func() { addAddress(t, hostA, first) }, append(slices.Clone(start), first)...)
	addAddress(t, hostB, netip.MustParseAddr("198.18.78.2"))
	until(t, "the peer's", func() bool { return len(b.Addrs()) == len(start)+1 })
	p, q := newEndpoint(t, one.dev, 1<<14), newEndpoint(t, db, 1<<14)
	connectPairAt(t, p, q, uint8(len(start)))
	for i := range byte(3) {
		if err := transfer(ctx, p, q, i); err != nil {
			t.Fatalf("by the new address: %v", err)
		}
		if err := transfer(ctx, q, p, i); err != nil {
			t.Fatalf("to the new address: %v", err)
		}
	}
	hole := append([]netip.Addr{{}}, append(slices.Clone(start[1:]), first)...)
	step("a hole", func() { delAddress(t, hostA, start[0]) }, hole...)
	if _, err := one.dev.QueryGID(0); err == nil {
		t.Error("a hole has a GID")
	}
	if err := transfer(ctx, p, q, 9); err != nil {
		t.Errorf("the other address's queue pair: %v", err)
	}
	away := make(chan error, 1)
	go func() { away <- transfer(ctx, x, y, 4) }()
	until(t, "a send that fails", func() bool { return sendErrors(a) > 0 })
	filled := append([]netip.Addr{next}, hole[1:]...)
	step("the hole filled", func() { addAddress(t, hostA, next) }, filled...)
	// The first address comes back: behind the others, and its queue pair goes on.
	step("back", func() { addAddress(t, hostA, start[0]) }, append(slices.Clone(filled), start[0])...)
	if err := <-away; err != nil {
		t.Errorf("the queue pair of the address that came back: %v", err)
	}
	one.wantNone(t)
	two.wantNone(t)
	for _, w := range a.Snapshot().Workers {
		if w.Stats.SegmentsStopped != 0 {
			t.Error("segmentation was given up for an address that was away")
		}
	}
}

// sendErrors is how many packets the kernel refused to send.
func sendErrors(a *Adapter) (n uint64) {
	for _, w := range a.Snapshot().Workers {
		for _, v := range w.Stats.SendErrors {
			n += v
		}
	}
	return n
}

// The port follows the link: down, up, and its MTU.
func TestPortFollowsTheLink(t *testing.T) {
	hostA, _ := testnet.Pair(t, 1500)
	noLinkLocal(t, hostA)
	a := startOn(t, hostA, Config{Addrs: []netip.Addr{hostA.Addr4}})
	one, two := watchEvents(t, a), watchEvents(t, a)
	port := func() uapi.PortAttr { return a.portAttr() }
	if p := port(); p.State != 4 || p.PhysState != 5 || p.ActiveMTU != bth.MTU1024 {
		t.Fatalf("port %+v", p)
	}
	changeLink(t, hostA, func(nl *netlink.Handle, l netlink.Link) error { return nl.LinkSetMTU(l, 4500) })
	until(t, "the MTU", func() bool { return port().ActiveMTU == bth.MTU4096 && port().LinkMTU == 4500 })
	for _, w := range []*watched{one, two} {
		w.wantNone(t)
	}
	changeLink(t, hostA, (*netlink.Handle).LinkSetDown)
	one.want(t, verbs.EventPortErr)
	two.want(t, verbs.EventPortErr)
	if p := port(); p.State != 1 || p.PhysState != 3 {
		t.Errorf("port %+v after the link went down", p)
	}
	changeLink(t, hostA, (*netlink.Handle).LinkSetUp)
	one.want(t, verbs.EventPortActive)
	two.want(t, verbs.EventPortActive)
	if p := port(); p.State != 4 || p.PhysState != 5 {
		t.Errorf("port %+v after the link came up", p)
	}
	late := rawHello(t, a) // hears nothing of the past, and goes with the rest
	if got := tableOf(t, late); len(got) != 1 || got[0] != hostA.Addr4 {
		t.Errorf("GID table %v", got)
	}
}

// An adapter of one address whose interface vanishes neither spins nor loses its
// queue pairs for good: the address comes back at its index.
func TestInterfaceVanishes(t *testing.T) {
	hostA, hostB := testnet.Pair(t, 1500)
	noLinkLocal(t, hostA, hostB)
	a := startOn(t, hostA, Config{Addrs: []netip.Addr{hostA.Addr4}})
	w := watchEvents(t, a)
	changeLink(t, hostA, (*netlink.Handle).LinkDel)
	w.want(t, verbs.EventGIDChange)
	w.want(t, verbs.EventPortErr)
	if _, err := w.dev.QueryGID(0); err == nil {
		t.Error("the address that is gone still has a GID")
	}
	if len(a.Addrs()) != 0 {
		t.Errorf("addresses %v", a.Addrs())
	}
	e := newEndpoint(t, w.dev, 4096)
	gid := bth.GIDFromAddr(hostB.Addr4)
	err := e.qp.ConnectRC(verbs.RCPeer{QPN: 99, GID: gid}, verbs.RCConfig{})
	if err == nil {
		t.Error("a queue pair connected from a hole")
	}
	until(t, "sleep", func() bool { return asleep(a) })
	err = hostA.Do(func() error {
		at := netlink.NewLinkAttrs()
		at.Name = testnet.Iface
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: at, PeerName: "peer0"}); err != nil {
			return err
		}
		l, err := netlink.LinkByName(testnet.Iface)
		if err != nil {
			return err
		}
		if err := netlink.AddrAdd(l, address(hostA.Addr4)); err != nil {
			return err
		}
		peer, err := netlink.LinkByName("peer0")
		if err != nil {
			return err
		}
		if err := netlink.LinkSetUp(peer); err != nil {
			return err
		}
		return netlink.LinkSetUp(l)
	})
	if err != nil {
		t.Fatal(err)
	}
	until(t, "the address", func() bool { return len(a.Addrs()) == 1 })
	until(t, "the port", func() bool { return a.portAttr().State == 4 })
	w.want(t, verbs.EventGIDChange)
	w.want(t, verbs.EventPortActive)
	if gid, err := w.dev.QueryGID(0); err != nil || gid.Addr() != hostA.Addr4 {
		t.Errorf("GID 0 is %v, %v", gid, err)
	}
}

// asleep says whether every worker sleeps and makes no turn meanwhile.
func asleep(a *Adapter) bool {
	for _, w := range a.workers {
		if w.asleep.Load() == 0 {
			return false
		}
	}
	return true
}

// A flood of changes, of which the kernel drops messages, ends with the table as
// the interface has it; more addresses than a table holds are left out.
func TestFloodOfAddresses(t *testing.T) {
	host, _ := testnet.Pair(t, 1500)
	noLinkLocal(t, host)
	a := startOn(t, host, Config{Interface: testnet.Iface})
	start := len(a.Addrs())
	if err := a.watch.sub.SetReceiveBufferSize(1, true); err != nil {
		t.Fatal(err)
	}
	const n = gidTableLen + 10
	extra := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{198, 19, byte(i), 1}) }
	changeLink(t, host, func(nl *netlink.Handle, l netlink.Link) error {
		for i := range n {
			if err := nl.AddrAdd(l, address(extra(i))); err != nil {
				return err
			}
		}
		return nil
	})
	until(t, "a full table", func() bool { return len(a.Addrs()) == gidTableLen })
	changeLink(t, host, func(nl *netlink.Handle, l netlink.Link) error {
		for i := range n {
			if err := nl.AddrDel(l, address(extra(i))); err != nil {
				return err
			}
		}
		return nl.AddrAdd(l, address(extra(n)))
	})
	until(t, "the last one", func() bool { return len(a.Addrs()) == start+1 && slices.Contains(a.Addrs(), extra(n)) })
}

// A message that did not fit the socket makes the watch look again, and so does
// whatever else; the end of the subscription ends it.
func TestWatchHearsLoss(t *testing.T) {
	n := &netWatch{poke: make(chan struct{}, 1), stop: make(chan struct{})}
	var calls atomic.Int32
	n.listen(func() error {
		switch calls.Add(1) {
		case 1:
			return nil
		case 2:
			<-n.poke
			return fmt.Errorf("receive: %w", syscall.ENOBUFS)
		case 3:
			select {
			case <-n.poke:
			default:
				t.Error("a loss woke nobody")
			}
			return nil
		}
		return os.ErrClosed
	})
	if calls.Load() != 4 {
		t.Errorf("%d calls, want 4", calls.Load())
	}
}

// connectSlow is connectPair with timeouts that outlast what the test does
// meanwhile.
func connectSlow(t *testing.T, a, b *endpoint) {
	t.Helper()
	for _, side := range []struct{ own, peer *endpoint }{{a, b}, {b, a}} {
		gid, err := side.peer.dev.QueryGID(0)
		if err != nil {
			t.Fatal(err)
		}
		if err := side.own.qp.ConnectRC(verbs.RCPeer{QPN: side.peer.qp.Num(), GID: gid}, verbs.RCConfig{Timeout: 18}); err != nil {
			t.Fatal(err)
		}
	}
}
