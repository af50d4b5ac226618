package e2e

import (
	"bufio"
	"context"
	"errors"
	"math/rand/v2"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/softroce/softroce/internal/testaddr"
	"github.com/softroce/softroce/pkg/verbs"
)

// A client that is killed in mid-transfer, again and again, leaves nothing in
// either daemon: queue pairs, regions, descriptors, mappings and resident
// memory return to where they were after the first ones.
func TestKillClientLeavesNothing(t *testing.T) {
	needsSharedMemory(t)
	times := 100
	if testing.Short() {
		times = 10
		t.Logf("-short: %d kills instead of 100", times)
	}
	addrs := testaddr.Take(t, 2)
	a := startDaemon(t, addrs[0], socketIn(t))
	b := startDaemon(t, addrs[1], socketIn(t))
	var before [2]footprint
	for i := range times + warmup {
		if i == warmup {
			before = [2]footprint{a.settled(), b.settled()}
		}
		killOne(t, a, b)
	}
	for i, d := range []*daemon{a, b} {
		after := d.settled()
		t.Logf("daemon %d: before %+v, after %d kills %+v", i, before[i], times, after)
		rss, maps := after.rss-before[i].rss, after.maps-before[i].maps
		after.rss, before[i].rss, after.maps, before[i].maps = 0, 0, 0, 0
		if maps > mapsSlack {
			t.Errorf("daemon %d: %d more mappings after %d kills, slack %d", i, maps, times, mapsSlack)
		}
		if after != before[i] {
			t.Errorf("daemon %d: got %+v, want %+v", i, after, before[i])
		}
		if rss > rssSlack {
			t.Errorf("daemon %d: resident memory grew by %d bytes over %d kills, slack %d", i, rss, times, rssSlack)
		}
		if n := d.metric("softroce_programs_gone_total", ""); n < float64(times) {
			t.Errorf("daemon %d: %v programs gone, want at least %d", i, n, times)
		}
		if code := d.stop(); code != 0 {
			t.Errorf("daemon %d: exit status %d after SIGTERM, want 0\n%s", i, code, d.log)
		}
	}
}

// The same with both queue pairs on one daemon, whose packets go by memory: of
// one worker, and between two.
func TestKillClientOfOneDaemonLeavesNothing(t *testing.T) {
	needsSharedMemory(t)
	const times = 20
	for _, workers := range []string{"1", "2"} {
		t.Run(workers+" workers", func(t *testing.T) {
			d := startDaemon(t, testaddr.Take(t, 1)[0], socketIn(t), "--workers", workers)
			for range warmup {
				killOne(t, d, d)
			}
			before := d.settled()
			for range times {
				killOne(t, d, d)
			}
			after := d.settled()
			if n := d.metric("softroce_local_packets_total", ""); n == 0 {
				t.Error("no packet went by memory")
			}
			if after.descriptors != before.descriptors || after.shared != before.shared || after.rss-before.rss > rssSlack {
				t.Errorf("before %+v, after %d kills %+v", before, times, after)
			}
			if code := d.stop(); code != 0 {
				t.Errorf("exit status %d after SIGTERM, want 0\n%s", code, d.log)
			}
		})
	}
}

const (
	// warmup kills fill the daemon's pools before the first look.
	warmup = 5
	// rssSlack is what Go's heap may move by between two collections.
	rssSlack = 16 << 20
	// mapsSlack is for the Go runtime's own: arenas and thread stacks. Shared
	// memory is counted apart and exactly.
	mapsSlack = 10
)

// killOne starts a writer and kills it at a random moment of its transfer.
func killOne(t *testing.T, a, b *daemon) {
	t.Helper()
	p := startProgram(t, "writer", a.socket, b.socket)
	defer p.kill()
	if got := p.line(t); got != "ready" {
		t.Fatalf("the client program said %q, want ready\n%s\n%s", got, a.log, b.log)
	}
	pause := time.NewTimer(time.Duration(rand.IntN(20_000)) * time.Microsecond)
	defer pause.Stop()
	<-pause.C
}

// settled waits until the daemon serves nobody and gives what it then holds.
func (d *daemon) settled() footprint {
	d.t.Helper()
	eventually(d.t, "the daemon has cleaned up", func() bool {
		f := d.footprint()
		return f.qps == 0 && f.mrs == 0 && f.programs == 0
	})
	f := d.footprint()
	eventually(d.t, "the daemon is still", func() bool {
		last := f
		f = d.footprint()
		last.rss, last.maps = f.rss, f.maps
		return f == last
	})
	return f
}

// When the daemon is killed, every call of a client returns with an error
// within a second, and what was posted completes as flushed.
func TestKillDaemonEndsEveryCall(t *testing.T) {
	needsSharedMemory(t)
	addr := testaddr.Take(t, 1)[0]
	d := startDaemon(t, addr, socketIn(t))
	dev, err := verbs.Open(&verbs.Options{Socket: d.socket})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	c := newClient(t, dev)
	waits := map[string]func() error{
		"AsyncEvent": func() error {
			ev, err := dev.AsyncEvent(context.Background())
			if err == nil && ev.Type != verbs.EventDeviceFatal {
				return errors.New("not the fatal event: " + ev.Type.String())
			}
			if err != nil {
				return err
			}
			return verbs.ErrDeviceDead
		},
		"CompChannel.Get": func() error { _, err := c.ch.Get(context.Background()); return err },
		"Done":            func() error { <-dev.Done(); return verbs.ErrDeviceDead },
		"control calls": func() error {
			for {
				if _, err := dev.QueryPort(1); err != nil {
					return err
				}
			}
		},
		"PostRecv and Poll": c.postUntilError,
	}
	type result struct {
		name string
		err  error
		at   time.Time
	}
	results := make(chan result, len(waits))
	for name, f := range waits {
		go func() { err := f(); results <- result{name, err, time.Now()} }()
	}
	killed := time.Now()
	d.kill()
	for range waits {
		select {
		case r := <-results:
			if !errors.Is(r.err, verbs.ErrDeviceDead) {
				t.Errorf("%s: got %v, want an error that is ErrDeviceDead", r.name, r.err)
			}
			t.Logf("%s returned %v after the kill", r.name, r.at.Sub(killed))
		case <-time.After(limit):
			t.Fatalf("a call still waits %v after the daemon's death", limit)
		}
	}
	c.wantFlushed(t)
	c.wantErrors(t, dev)
}

// The example that reconnects counts again with the next daemon.
func TestKillDaemonReconnect(t *testing.T) {
	addr := testaddr.Take(t, 1)[0]
	socket := socketIn(t)
	d := startDaemon(t, addr, socket)
	cmd := exec.Command(binaries.reconnect, "-socket", socket)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr lockedBuffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it runs until then
		_ = cmd.Wait()         // killed: an error by nature
	})
	lines := bufio.NewScanner(out)
	// A dying daemon may still take a connection, which is then lost too.
	want := func(prefix string) {
		t.Helper()
		for lines.Scan() {
			if strings.HasPrefix(lines.Text(), prefix) {
				return
			}
			if !strings.HasPrefix(lines.Text(), "lost: ") {
				break
			}
		}
		t.Fatalf("the example said %q, want %q...; %s", lines.Text(), prefix, stderr.String())
	}
	want("counting")
	for range 3 {
		d.kill() // its stale socket file stays
		want("lost: ")
		d = startDaemon(t, addr, socket)
		want("counting")
	}
}
