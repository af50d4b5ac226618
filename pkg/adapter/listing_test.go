package adapter_test

import (
	"net"
	"os"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/testnet"
	"github.com/softroce/softroce/pkg/adapter"
	"github.com/softroce/softroce/pkg/verbs"
)

// A listing has every object of the program, with its numbers and its pid; the
// counters have what was sent.
func TestResourcesAndCounters(t *testing.T) {
	a, b := pair(t, shape{srq: 8}, verbs.RCConfig{}, nil)
	w, err := a.pd.AllocMW(verbs.MWType2)
	must(t, err)
	a.handleTo(b.gid)
	alive(a, b)
	one := func(kind verbs.ResourceKind, want func(verbs.Resource) bool) {
		t.Helper()
		list, err := a.dev.Resources(kind)
		must(t, err)
		if len(list) != 1 || list[0].PID != os.Getpid() || list[0].Name == "" || !want(list[0]) {
			t.Errorf("kind %d: %+v", kind, list)
		}
	}
	one(verbs.ResourceQP, func(r verbs.Resource) bool {
		return r.Number == uint32(a.qp.Num()) && r.Type == "RC" && r.State == "RTS" && r.PeerQPN == uint32(b.qp.Num())
	})
	one(verbs.ResourceCQ, func(r verbs.Resource) bool { return r.CQE == uint32(a.cq.Cap()) })
	one(verbs.ResourceMR, func(r verbs.Resource) bool {
		return r.Length == uint64(a.mr.Len()) && r.IOVA == a.mr.Addr() && r.RKey == uint32(a.mr.RKey())
	})
	one(verbs.ResourcePD, func(r verbs.Resource) bool { return r.Users >= 4 })
	one(verbs.ResourceSRQ, func(r verbs.Resource) bool { return r.Number == a.srq.Num() && r.MaxWR >= 8 })
	one(verbs.ResourceMW, func(r verbs.Resource) bool { return r.Type == "2B" && r.RKey == uint32(w.RKey()) })
	one(verbs.ResourceAH, func(verbs.Resource) bool { return true })
	one(verbs.ResourceProgram, func(verbs.Resource) bool { return true })
	_, err = a.dev.Resources(99)
	wantErrno(t, "an unknown kind", err, unix.EINVAL)

	counters, err := a.dev.Counters()
	must(t, err)
	byName := map[string]uint64{}
	for _, c := range counters {
		if c.Help == "" {
			t.Errorf("counter %s is not explained", c.Name)
		}
		byName[c.Name] = c.Value
	}
	if len(byName) != len(counters) || byName["sent_pkts"] == 0 || byName["rcvd_pkts"] == 0 {
		t.Errorf("%d counters: %v", len(counters), byName)
	}
}

// The port and the GID table follow the interface, and say so: an address that
// comes and goes, a link that goes and comes (ibv_get_async_event(3)).
func TestPortAndGIDEvents(t *testing.T) {
	x, _ := testnet.Pair(t, 0)
	var h *host
	must(t, x.Do(func() (err error) {
		h, err = tryStart(t, func(c *adapter.Config) { c.Interface = testnet.Iface })
		return err
	}))
	t.Cleanup(func() { must(t, h.Close()) })
	dev, err := h.Open()
	must(t, err)
	t.Cleanup(func() { must(t, dev.Close()) })
	event := func(want verbs.EventType) {
		t.Helper()
		for {
			ev, err := dev.AsyncEvent(within(t))
			must(t, err)
			ev.Ack()
			switch {
			case ev.Port != 1:
				t.Fatalf("event %+v of no port", ev)
			case ev.Type == want:
				return
			case ev.Type != verbs.EventGIDChange:
				t.Fatalf("event %v, want %v", ev.Type, want)
			}
		}
	}
	change := func(f func(link netlink.Link) error) {
		t.Helper()
		must(t, x.Do(func() error {
			link, err := netlink.LinkByName(testnet.Iface)
			if err != nil {
				return err
			}
			return f(link)
		}))
	}
	has := func(addr string, want bool) {
		t.Helper()
		eventually(t, "the table follows "+addr, func() bool {
			table, err := dev.GIDTable()
			must(t, err)
			for _, e := range table {
				if e.GID.Addr().String() == addr {
					return want
				}
			}
			return !want
		})
	}
	extra := &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(192, 0, 2, 77), Mask: net.CIDRMask(32, 32)}}
	change(func(l netlink.Link) error { return netlink.AddrAdd(l, extra) })
	event(verbs.EventGIDChange)
	has("192.0.2.77", true)
	change(func(l netlink.Link) error { return netlink.AddrDel(l, extra) })
	event(verbs.EventGIDChange)
	has("192.0.2.77", false)
	change(netlink.LinkSetDown)
	event(verbs.EventPortErr)
	if p, err := dev.QueryPort(1); err != nil || p.State != verbs.PortDown {
		t.Errorf("the port is in state %d, %v", p.State, err)
	}
	change(netlink.LinkSetUp)
	event(verbs.EventPortActive)
	if p, err := dev.QueryPort(1); err != nil || p.State != verbs.PortActive {
		t.Errorf("the port is in state %d, %v", p.State, err)
	}
}
