package nic

import (
	"context"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/softroce/softroce/internal/shm"
	"github.com/softroce/softroce/internal/testaddr"
	"github.com/softroce/softroce/internal/testmatrix"
	"github.com/softroce/softroce/pkg/verbs"
)

// startAdapter starts an adapter on addresses of its own.
func startAdapter(t testing.TB, change func(*Config)) *Adapter {
	t.Helper()
	cfg := Config{
		Addrs: testaddr.Take(t, 1), Workers: testmatrix.Workers(t, 2), RecvBuffer: 212992, Offload: testmatrix.Offload(t), Backend: testmatrix.Backend(t),
	}
	if testing.Verbose() {
		cfg.Log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	}
	if change != nil {
		change(&cfg)
	}
	if cfg.Backend == BackendTUN {
		cfg.TUN = testmatrix.TUN(t, cfg.Addrs)
	}
	a, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Errorf("close adapter: %v", err)
		}
	})
	return a
}

// connect returns the program's end of a served connection. served is closed
// when everything of the program is released.
func connect(t testing.TB, a *Adapter) (c *shm.Conn, served <-chan struct{}) {
	t.Helper()
	ours, theirs, err := shm.Socketpair()
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		a.ServeConn(theirs)
	}()
	t.Cleanup(func() {
		_ = ours.Close() // may be closed already
		<-done
	})
	return ours, done
}

func openDevice(t testing.TB, a *Adapter) *verbs.Device {
	t.Helper()
	c, _ := connect(t, a)
	d, err := verbs.OpenConn(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() }) // may be closed or dead already
	return d
}

// An endpoint is what a test needs of one program: a queue pair, its queues
// and a region.
type endpoint struct {
	dev *verbs.Device
	pd  *verbs.PD
	cq  *verbs.CQ
	mr  *verbs.MR
	qp  *verbs.QP
}

const allAccess = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic

func newEndpoint(t testing.TB, d *verbs.Device, size int) *endpoint {
	t.Helper()
	e := &endpoint{dev: d}
	var err error
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	e.pd, err = d.AllocPD()
	check(err)
	e.cq, err = d.CreateCQ(64, nil, 0)
	check(err)
	e.mr, err = e.pd.AllocMR(size, allAccess)
	check(err)
	e.qp, err = e.pd.CreateQP(&verbs.QPInitAttr{
		SendCQ: e.cq, RecvCQ: e.cq, Type: verbs.RC,
		Cap: verbs.QPCap{MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 2, MaxRecvSGE: 2, MaxInlineData: 64},
	})
	check(err)
	return e
}

func connectPair(t testing.TB, a, b *endpoint) {
	t.Helper()
	connectPairAt(t, a, b, 0)
}

// connectPairAt connects by the GIDs at an index that both have.
func connectPairAt(t testing.TB, a, b *endpoint, index uint8) {
	t.Helper()
	for _, side := range []struct {
		own, peer *endpoint
		psn, rpsn verbs.PSN
	}{{a, b, 3, 7}, {b, a, 7, 3}} {
		gid, err := side.peer.dev.QueryGID(int(index))
		if err != nil {
			t.Fatal(err)
		}
		peer := verbs.RCPeer{QPN: side.peer.qp.Num(), PSN: side.rpsn, GID: gid}
		if err := side.own.qp.ConnectRC(peer, verbs.RCConfig{PSN: side.psn, SGIDIndex: index}); err != nil {
			t.Fatal(err)
		}
	}
}

// completion polls for one completion, until ctx ends.
func completion(ctx context.Context, c *verbs.CQ) (verbs.WC, error) {
	var wcs [1]verbs.WC
	for {
		n, err := c.Poll(wcs[:])
		if n == 1 || err != nil {
			return wcs[0], err
		}
		if err := ctx.Err(); err != nil {
			return wcs[0], err
		}
	}
}

// within bounds a wait in a test, generously: it ends hung tests, it measures
// nothing.
func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// usage is what this process holds that a program's death must give back.
type usage struct{ fds, mappings, goroutines int }

func processUsage(t testing.TB) (u usage) {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	u.fds = len(fds)
	for line := range strings.Lines(string(maps)) {
		if strings.Contains(line, "memfd:") {
			u.mappings++
		}
	}
	u.goroutines = runtime.NumGoroutine()
	return u
}

// returnsTo waits until the process holds no more than base: what ended
// asynchronously (a goroutine on its way out) may take a moment.
func returnsTo(t testing.TB, base usage) {
	t.Helper()
	ctx := within(t)
	for {
		u := processUsage(t)
		if u.fds <= base.fds && u.mappings <= base.mappings && u.goroutines <= base.goroutines {
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("held %+v before, %+v after", base, u)
		}
		runtime.Gosched()
	}
}
