package adapter_test

import (
	"bytes"
	"fmt"
	"net/netip"
	"sync"
	"testing"

	"github.com/softroce/softroce/internal/testaddr"
	"github.com/softroce/softroce/internal/testnet"
	"github.com/softroce/softroce/pkg/adapter"
	"github.com/softroce/softroce/pkg/verbs"
)

// Field case F62: several adapters on one host, each reached by each; two
// programs on every address; and an address serves one adapter only.
func TestF62SeveralAdaptersOnLoopback(t *testing.T) {
	addrs := testaddr.Take(t, 4)
	var hosts []*host
	for i, addr := range addrs {
		hosts = append(hosts, start(t, func(c *adapter.Config) {
			c.Addrs, c.Name, c.Workers = []netip.Addr{addr}, fmt.Sprint("roce", i), 1+i%2
		}))
	}
	var wg sync.WaitGroup
	for i, x := range hosts {
		for _, y := range hosts[i:] { // and with itself
			for range 2 {
				a, b := x.open(t, shape{}), y.open(t, shape{})
				connect(a, b, verbs.RCConfig{})
				wg.Go(func() {
					if err := rounds(a, b, 10); err != nil {
						t.Errorf("%v to %v: %v", x.Addrs(), y.Addrs(), err)
					}
				})
			}
		}
	}
	wg.Wait()
	_, err := tryStart(t, on(addrs[2]))
	wantWords(t, err, addrs[2].String(), "busy", "another adapter")
}

// rounds writes a pattern and reads it back; not only for the test's
// goroutine.
func rounds(a, b *program, n int) error {
	const size = 5000
	for i := range n {
		fill(a.mr.Bytes()[:size], i)
		for _, wr := range []verbs.SendWR{a.write(b, 0, 0, size), a.read(b, size, 0, size)} {
			wr.WRID, wr.Flags = uint64(i), verbs.SendSignaled
			if _, err := a.qp.PostSend(wr); err != nil {
				return err
			}
			if wc, ok := pollOne(a.cq); !ok || wc.Status != verbs.WCSuccess || wc.WRID != wr.WRID {
				return fmt.Errorf("round %d: %v: completion %d %v (%v)", i, wr.Opcode, wc.WRID, wc.Status, ok)
			}
		}
		if !bytes.Equal(a.mr.Bytes()[:size], a.mr.Bytes()[size:2*size]) {
			return fmt.Errorf("round %d: the data differ", i)
		}
	}
	return nil
}

// Field case F62: one adapter in each network namespace, on addresses that the
// others have, too, beside one on the link.
func TestF62OneAdapterPerNamespace(t *testing.T) {
	x, y := testnet.Pair(t, 0)
	local := netip.MustParseAddr("127.0.0.1")
	var link, loop [2]*host
	for i, n := range []*testnet.Host{x, y} {
		must(t, n.Do(func() error {
			link[i], loop[i] = start(t, on(n.Addr4)), start(t, on(local))
			return nil
		}))
	}
	a, b := link[0].open(t, shape{}), link[1].open(t, shape{})
	connect(a, b, verbs.RCConfig{})
	alive(a, b)
	if mtu := a.portMTU(); mtu.Bytes() != 1024 {
		t.Errorf("active MTU %v on a link of 1500", mtu)
	}
	for i, h := range loop {
		c, d := h.open(t, shape{}), link[i].open(t, shape{})
		connect(c, d, verbs.RCConfig{MTU: a.portMTU()})
		alive(c, d)
		alive(d, c)
	}
	// The two on 127.0.0.1 saw nothing of each other's packets.
	for i, h := range loop {
		w := h.workers()
		if w.Stats.Drops != [len(w.Stats.Drops)]uint64{} {
			t.Errorf("adapter %d on 127.0.0.1 dropped packets: %v", i, w.Stats.Drops)
		}
	}
}

func (p *program) portMTU() verbs.MTU {
	p.t.Helper()
	port, err := p.dev.QueryPort(1)
	must(p.t, err)
	return port.ActiveMTU
}

// IPv6: on ::1, which serves one adapter, and over a link, with capture and
// the check of every packet of F1.
func TestIPv6(t *testing.T) {
	n := testnet.One(t)
	if !n.Addr6.IsValid() {
		t.Skip("this kernel has no IPv6")
	}
	var h *host
	must(t, n.Do(func() error { h = start(t, on(netip.IPv6Loopback())); return nil }))
	a, b := h.open(t, shape{}), h.open(t, shape{})
	connect(a, b, verbs.RCConfig{})
	alive(a, b)

	x, y := testnet.Pair(t, 9000)
	var tapes [2]bytes.Buffer
	var hosts [2]*host
	var ends [2]*program
	for i, n := range []*testnet.Host{x, y} {
		must(t, n.Do(func() (err error) {
			hosts[i], err = tryStart(t, func(c *adapter.Config) { c.Addrs, c.Capture = []netip.Addr{n.Addr6}, &tapes[i] })
			return err
		}))
		ends[i] = hosts[i].open(t, shape{})
	}
	connect(ends[0], ends[1], verbs.RCConfig{})
	for _, size := range []int{1, 2, 3, 4, 63, 4095, 4096, 4097, 20000} {
		oneLength(t, ends[0], ends[1], size, verbs.WRRDMAWrite)
		oneLength(t, ends[1], ends[0], size, verbs.WRSend)
	}
	for i, n := range []*testnet.Host{x, y} {
		must(t, ends[i].dev.Close())
		must(t, hosts[i].Close())
		if out, in := checkTape(t, &tapes[i], n.Addr6); out < 18 || in < 18 {
			t.Errorf("capture %d has %d packets sent and %d received, too few", i, out, in)
		}
	}
}
