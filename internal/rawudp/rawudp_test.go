package rawudp

import (
	"errors"
	"net/netip"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/testaddr"
	"github.com/softroce/softroce/internal/testnet"
)

// sides are two ends on the loopback device.
func sides(t testing.TB) Config {
	t.Helper()
	a := testaddr.Take(t, 2)
	return Config{Tx: Side{Addr: a[0]}, Rx: Side{Addr: a[1]}, Duration: 20 * time.Millisecond}
}

// everything measures each thing once and wants figures.
func everything(t *testing.T, c Config) {
	t.Helper()
	for _, s := range []struct {
		name string
		size int
		rx   Receiver
		f    func(Config) (Result, error)
	}{
		{"segmented, recvmsg", 4112, Recvmsg, Stream},
		{"segmented, recvmmsg", 1040, Recvmmsg, Stream},
		{"segmented, small", 96, Recvmsg, Stream},
		{"batches", 96, Recvmmsg, Batches},
		{"batches, large", 4112, Recvmmsg, Batches},
	} {
		c := c
		c.Size, c.Receiver = s.size, s.rx
		r, err := s.f(c)
		// A busy machine may not let both threads run within so short a time.
		for err == nil && r.Packets == 0 && c.Duration < 10*time.Second {
			c.Duration *= 4
			r, err = s.f(c)
		}
		if err != nil {
			t.Errorf("%s: %v", s.name, err)
			continue
		}
		if r.Packets <= 0 || r.Elapsed < c.Duration || r.Rate() <= 0 {
			t.Errorf("%s: got %+v, want packets over at least %v", s.name, r, c.Duration)
		}
	}
	for _, block := range []bool{false, true} {
		c := c
		c.Size, c.Block, c.Unpinned = 40, block, block
		r, err := PingPong(c)
		if err != nil {
			t.Errorf("ping-pong, blocking %v: %v", block, err)
			continue
		}
		if r.Trips < 1 || r.Median <= 0 || r.P99 < r.Median {
			t.Errorf("ping-pong, blocking %v: got %+v", block, r)
		}
	}
}

func TestLoopback(t *testing.T) { everything(t, sides(t)) }

func TestLoopback6(t *testing.T) {
	c := sides(t)
	c.Tx.Addr, c.Rx.Addr = netip.IPv6Loopback(), netip.IPv6Loopback()
	if k, err := listen(c.Tx.Addr); err != nil {
		t.Skipf("no IPv6 here: %v", err)
	} else {
		k.close()
	}
	everything(t, c)
}

func TestNamespaces(t *testing.T) {
	x, y := testnet.Pair(t, 9000)
	c := sides(t)
	c.Tx, c.Rx = Side{Addr: x.Addr4, In: x.Do}, Side{Addr: y.Addr4, In: y.Do}
	everything(t, c)
}

// What does not come is counted and the run ends in time: the receiver closes
// its ears.
func TestLoss(t *testing.T) {
	c := sides(t)
	c.Size, c.Duration = 4112, 60*time.Millisecond
	c, err := c.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	d, err := openDuo(c.Tx, c.Rx)
	if err != nil {
		t.Fatal(err)
	}
	defer d.close()
	deaf := func() (int, unix.Errno) { return 0, unix.EAGAIN }
	r, err := run(c, d, newBatch(d, c).send, deaf, c.Batch)
	if err != nil || r.Packets != 0 || r.Lost < int64(c.Batch) {
		t.Errorf("got %+v %v, want only losses", r, err)
	}
}

// An error of either side ends both.
func TestErrorEnds(t *testing.T) {
	c := sides(t)
	c.Size = 4112
	c, err := c.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	d, err := openDuo(c.Tx, c.Rx)
	if err != nil {
		t.Fatal(err)
	}
	defer d.close()
	receive := newReceiver(d.rx, 1, c.Size).many
	if _, err := run(c, d, func() unix.Errno { return unix.EPERM }, receive, 1); !errors.Is(err, unix.EPERM) {
		t.Errorf("send: got %v, want EPERM", err)
	}
	if _, err := run(c, d, func() unix.Errno { return unix.EINVAL }, receive, 1); !errors.Is(err, ErrNoSegmentation) {
		t.Errorf("first send: got %v, want ErrNoSegmentation", err)
	}
	bad := func() (int, unix.Errno) { return 0, unix.EBADF }
	if _, err := run(c, d, newBatch(d, c).send, bad, c.Batch); !errors.Is(err, unix.EBADF) {
		t.Errorf("receive: got %v, want EBADF", err)
	}
}

// A thread that others keep from its CPU says so: three spin on one.
func TestWaited(t *testing.T) {
	var stop atomic.Bool
	spinner := func() error {
		for !stop.Load() {
		}
		return nil
	}
	others := []<-chan outcome{onThread(0, true, spinner), onThread(0, true, spinner)}
	defer func() {
		stop.Store(true)
		for _, o := range others {
			<-o
		}
	}()
	var o outcome
	for d := 50 * time.Millisecond; o.waited == 0 && d < 10*time.Second; d *= 2 {
		o = <-onThread(0, true, func() error {
			for start := time.Now(); time.Since(start) < d; {
			}
			return nil
		})
	}
	if _, err := os.Stat("/proc/thread-self/schedstat"); err != nil {
		t.Skipf("no schedstat here: %v", err)
	}
	if o.err != nil || o.waited <= 0 || o.waited > 1 {
		t.Errorf("got %+v, want that it waited for a part of the time", o)
	}
}

func TestConfig(t *testing.T) {
	c, err := Config{Size: 4112}.withDefaults()
	if err != nil || c.Segments != 15 || c.Window != 1<<20 {
		t.Errorf("4112 bytes: got %+v %v, want 15 segments in 1 MiB", c, err)
	}
	if c, err := (Config{Size: 1040}).withDefaults(); err != nil || c.Segments != 62 {
		t.Errorf("1040 bytes: got %+v %v, want 62 segments", c, err)
	}
	for _, c := range []Config{{}, {Size: maxDatagram + 1}, {Size: 4112, Segments: 16}, {Size: 4112, Window: 4112}, {Size: 1, Batch: -1}, {Size: 1, Duration: -1}} {
		if got, err := c.withDefaults(); err == nil {
			t.Errorf("%+v was taken as %+v", c, got)
		}
		if _, err := Stream(c); err == nil {
			t.Errorf("stream: %+v was taken", c)
		}
	}
}

func TestMemcpy(t *testing.T) {
	if v, waited, err := Memcpy(1<<20, time.Millisecond); err != nil || v <= 0 || waited < 0 {
		t.Errorf("got %v %v %v", v, waited, err)
	}
	if _, _, err := Memcpy(0, time.Second); err == nil {
		t.Error("no bytes were copied without an error")
	}
}

func BenchmarkStream(b *testing.B) {
	for _, s := range []struct {
		name string
		size int
		rx   Receiver
	}{
		{"4096/recvmsg", 4112, Recvmsg}, {"4096/recvmmsg", 4112, Recvmmsg}, {"1024/recvmsg", 1040, Recvmsg}, {"1024/recvmmsg", 1040, Recvmmsg},
	} {
		b.Run(s.name, func(b *testing.B) {
			c := sides(b)
			c.Size, c.Receiver, c.Duration = s.size, s.rx, 500*time.Millisecond
			for b.Loop() {
				r, err := Stream(c)
				if err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(r.Rate()*float64(s.size-16)/1e9, "GB/s")
				b.ReportMetric(float64(r.Lost), "lost")
				b.ReportMetric(r.Waited, "waited")
			}
		})
	}
}
