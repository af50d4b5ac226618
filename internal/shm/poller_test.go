package shm

import (
	"errors"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func newPoller(t *testing.T) *Poller {
	t.Helper()
	p, err := NewPoller()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func newDoorbell(t *testing.T) *Doorbell {
	t.Helper()
	d, err := NewDoorbell()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

// wait looks without sleeping.
func wait(t *testing.T, p *Poller) []uint64 {
	t.Helper()
	var events [8]uint64
	n, err := p.Wait(0, events[:])
	if err != nil {
		t.Fatal(err)
	}
	got := events[:n]
	slices.Sort(got)
	return got
}

func TestPoller(t *testing.T) {
	noNewFDs(t)
	p, level, edge := newPoller(t), newDoorbell(t), newDoorbell(t)
	const levelToken, edgeToken = 1<<63 | 1<<31 | 5, 1<<32 | 7
	if err := errors.Join(p.Add(level.FD(), levelToken), p.AddEdge(edge.FD(), edgeToken)); err != nil {
		t.Fatal(err)
	}
	expect := func(what string, want ...uint64) {
		t.Helper()
		slices.Sort(want)
		if got := wait(t, p); !slices.Equal(got, want) {
			t.Errorf("%s: tokens %#x, want %#x", what, got, want)
		}
	}
	expect("nothing rang")
	level.Ring()
	edge.Ring()
	expect("both rang", levelToken, edgeToken)
	expect("nothing more: the level stays", levelToken)
	edge.Ring()
	expect("the edge rang again, never read", levelToken, edgeToken)
	level.Drain()
	expect("drained")
	if err := p.Remove(edge.FD()); err != nil {
		t.Fatal(err)
	}
	edge.Ring()
	expect("removed")
	if err := p.Add(-1, 1); !errors.Is(err, unix.EBADF) {
		t.Errorf("Add of no descriptor: %v, want EBADF", err)
	}
	events := make([]uint64, 8)
	if n := testing.AllocsPerRun(100, func() { _, _ = p.Wait(0, events); _, _ = p.Wait(1, events) }); n > 0 {
		t.Errorf("Wait: %v allocations", n)
	}
}

func TestPollerWritable(t *testing.T) {
	p := newPoller(t)
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer CloseFDs(fds[:])
	if err := p.AddWritable(fds[0], 3); err != nil {
		t.Fatal(err)
	}
	if got := wait(t, p); !slices.Equal(got, []uint64{3}) {
		t.Errorf("writable: %v, want [3]", got)
	}
	if got := wait(t, p); len(got) != 0 {
		t.Errorf("reported twice: %v", got)
	}
	for err = nil; err == nil; {
		_, err = unix.Write(fds[0], make([]byte, 1024))
	}
	if err := p.Rearm(fds[0], 4); err != nil {
		t.Fatal(err)
	}
	if got := wait(t, p); len(got) != 0 {
		t.Errorf("a full socket reported: %v", got)
	}
	var buf [1024]byte
	for err = nil; err == nil; {
		_, err = unix.Read(fds[1], buf[:])
	}
	if got := wait(t, p); !slices.Equal(got, []uint64{4}) {
		t.Errorf("room again: %v, want [4]", got)
	}
	if err := p.Watch(fds[0], 5, true, false); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Write(fds[1], buf[:1]); err != nil {
		t.Fatal(err)
	}
	if got := wait(t, p); !slices.Equal(got, []uint64{5}) {
		t.Errorf("watched for reading: %v, want [5]", got)
	}
}

// Both ways of the kernel to sleep keep the deadline's lower bound, and a ring
// ends a sleep without one.
func TestPollerSleeps(t *testing.T) {
	for _, coarse := range []bool{false, true} {
		p, d := newPoller(t), newDoorbell(t)
		p.coarse = coarse
		if err := p.Add(d.FD(), 9); err != nil {
			t.Fatal(err)
		}
		var events [1]uint64
		start := time.Now()
		n, err := p.Wait(1500*time.Microsecond, events[:])
		if took := time.Since(start); n != 0 || err != nil || took < 1500*time.Microsecond {
			t.Errorf("coarse %t: %d events, %v after %v", coarse, n, err, took)
		}
		var wg sync.WaitGroup
		wg.Go(d.Ring)
		for n == 0 && err == nil {
			n, err = p.Wait(-1, events[:])
		}
		wg.Wait()
		if n != 1 || err != nil || events[0] != 9 {
			t.Errorf("coarse %t: %d events, %v, token %d", coarse, n, err, events[0])
		}
	}
}

// A signal ends a Wait early and without an error.
func TestPollerInterrupted(t *testing.T) {
	sig := make(chan os.Signal, 1)
	signal.Notify(sig, syscall.SIGUSR1)
	defer signal.Stop(sig)
	p, d := newPoller(t), newDoorbell(t)
	if err := p.Add(d.FD(), 1); err != nil {
		t.Fatal(err)
	}
	tid := make(chan int)
	done := make(chan error)
	go func() {
		tid <- unix.Gettid()
		var events [1]uint64
		for {
			n, err := p.Wait(-1, events[:])
			if n > 0 || err != nil {
				done <- err
				return
			}
		}
	}()
	id := <-tid
	for range 20 {
		if err := unix.Tgkill(os.Getpid(), id, unix.SIGUSR1); err != nil && !errors.Is(err, unix.ESRCH) {
			t.Fatal(err)
		}
		<-sig
	}
	d.Ring()
	if err := <-done; err != nil {
		t.Errorf("Wait: %v", err)
	}
	SchedYield()
}
