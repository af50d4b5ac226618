package cases_test

import (
	"context"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/conformance/agent"
	"github.com/softroce/softroce/conformance/agent/verbsagent"
	"github.com/softroce/softroce/conformance/cases"
	"github.com/softroce/softroce/conformance/suite"
	"github.com/softroce/softroce/conformance/wire"
	"github.com/softroce/softroce/internal/rping"
	"github.com/softroce/softroce/pkg/adapter"
)

// inside says that the test runs in a network namespace of its own.
const inside = "SOFTROCE_CASES_INSIDE"

// TestSoftroce runs the suite against an adapter of the test's own process, over the loopback device of a network
// namespace of its own. SOFTROCE_CASES=RDR,ATM-03 chooses cases.
func TestSoftroce(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("packet sockets and a network namespace need root")
	}
	if os.Getenv(inside) == "" {
		again(t)
		return
	}
	loopback(t)
	t.Run("IPv4", func(t *testing.T) { against(t, "127.0.0.2", "127.0.0.3") })
	t.Run("IPv6", func(t *testing.T) { against(t, "fd00::2", "fd00::3") })
	t.Run("no agent, IPv4", func(t *testing.T) { withoutAgent(t, "127.0.0.2", "127.0.0.3") })
	t.Run("no agent, IPv6", func(t *testing.T) { withoutAgent(t, "fd00::2", "fd00::3") })
}

// again runs the calling test once more, in a process of its own that is in a network namespace of its own.
func again(t *testing.T) {
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=10m")
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET, Pdeathsig: unix.SIGKILL}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
}

// loopback brings the namespace's loopback device up, with addresses for adapter and tester, and lets the tester's packets
// in, which come from nowhere as far as the host knows.
func loopback(t *testing.T) {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		t.Fatal(err)
	}
	for _, a := range []string{"fd00::2/64", "fd00::3/64"} {
		addr, err := netlink.ParseAddr(a)
		if err != nil {
			t.Fatal(err)
		}
		addr.Flags = unix.IFA_F_NODAD
		if err := netlink.AddrAdd(lo, addr); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile("/proc/sys/net/ipv4/conf/lo/route_localnet", []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
}

// stand starts an adapter and opens a link to it.
func stand(t *testing.T, target, tester string) (*adapter.Adapter, wire.Link) {
	remote, local := netip.MustParseAddr(target), netip.MustParseAddr(tester)
	a, err := adapter.Start(adapter.Config{Addrs: []netip.Addr{remote}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.Close() })
	link, err := wire.Open(wire.Config{Remote: remote, Local: local, Iface: "lo"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = link.Close() })
	return a, link
}

func run(t *testing.T, link wire.Link, dial func() (suite.Agent, *agent.Hello, error)) []suite.Result {
	cfg := suite.Config{
		Link: link, Cases: cases.All(), Untestable: cases.NotTestable(), Seed: 1, Quiet: 20 * time.Millisecond, Dial: dial,
	}
	if only := os.Getenv("SOFTROCE_CASES"); only != "" {
		cfg.Only = strings.Split(only, ",")
	}
	results, err := suite.Run(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return results
}

func against(t *testing.T, target, tester string) {
	a, link := stand(t, target, tester)
	judge(t, run(t, link, func() (suite.Agent, *agent.Hello, error) { return open(a) }))
}

// withoutAgent runs what can be run when there is nothing but an rping -s -P on the target's side.
func withoutAgent(t *testing.T, target, tester string) {
	a, link := stand(t, target, tester)
	dev, err := a.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	ready, done := make(chan netip.AddrPort, 1), make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		_, err := rping.Server(ctx, dev, rping.Config{Persistent: true, Ready: func(a netip.AddrPort) { ready <- a }})
		done <- err
	}()
	defer func() {
		cancel()
		if err := <-done; err != nil && ctx.Err() == nil {
			t.Error(err)
		}
	}()
	select {
	case at := <-ready:
		cm := suite.NewCM(link, at.Port(), 1)
		results := run(t, link, func() (suite.Agent, *agent.Hello, error) { return cm, cm.Hello(), nil })
		if passed := judge(t, results); os.Getenv("SOFTROCE_CASES") == "" && passed < 20 {
			t.Errorf("%d cases ran", passed)
		}
	case err := <-done:
		t.Fatal(err)
	}
}

// open begins a session on a device of an adapter.
func open(a *adapter.Adapter) (suite.Agent, *agent.Hello, error) {
	dev, err := a.Open()
	if err != nil {
		return nil, nil, err
	}
	s := verbsagent.New(dev)
	answer, err := s.Do(agent.Request{Do: agent.DoHello, Version: agent.Version})
	if err != nil {
		return nil, nil, err
	}
	return s, answer.Hello, nil
}

// exceptions are what fails for the socket's or the loopback device's sake.
var exceptions = map[string]string{
	"CRC-04": "a UDP socket does not show the IPv4 identification: see conformance/exceptions/udp.txt",
	"UD-14":  "the kernel does not take IPv6 multicast packets from outside on its loopback device; make conformance tests it",
}

func judge(t *testing.T, results []suite.Result) (passed int) {
	counts := map[suite.Outcome]int{}
	for i := range results {
		r := &results[i]
		counts[r.Outcome]++
		switch {
		case r.Outcome == suite.Fail && (exceptions[r.ID] == "" || r.ID == "UD-14" && !strings.HasSuffix(t.Name(), "IPv6")):
			t.Errorf("%s (%v): %s: %s\n%s", r.ID, r.Level, r.Stimulus, r.Reason, suite.Ladder(r))
		case r.Outcome == suite.Skip:
			t.Logf("%s skipped: %s", r.ID, r.Reason)
		}
		for _, n := range r.Notes {
			t.Logf("%s: %s", r.ID, n)
		}
		if r.Took > 500*time.Millisecond {
			t.Logf("%s took %v", r.ID, r.Took)
		}
	}
	t.Logf("passed %d, failed %d, skipped %d", counts[suite.Pass], counts[suite.Fail], counts[suite.Skip])
	return counts[suite.Pass]
}
