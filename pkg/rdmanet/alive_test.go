package rdmanet

import (
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/pkg/rdmatest"
)

// partitioned makes two adapters and a connection between them.
func partitioned(t *testing.T, keepAlive time.Duration) (n *rdmatest.Net, a, b *rdmatest.Adapter, x, y *Conn) {
	t.Helper()
	n = rdmatest.New(t, rdmatest.Config{})
	a, b = n.Adapter("a"), n.Adapter("b")
	conf := Config{KeepAlive: keepAlive}
	l, err := (&ListenConfig{Config: conf}).ListenTo(b.Open(), net.JoinHostPort(b.Addr().String(), "0"))
	check(t, err)
	t.Cleanup(func() { check(t, l.Close()) })
	x, y = connect(t, l, &Dialer{Device: a.Open(), Config: conf})
	return n, a, b, x, y
}

// A Read ends when the peer's host is gone without a word.
func TestKeepAlive(t *testing.T) {
	t.Parallel() // it waits for timeouts
	n, a, b, x, y := partitioned(t, 10*time.Millisecond)
	n.Partition(a, b)
	var both sync.WaitGroup
	for name, c := range map[string]*Conn{"dialed": x, "accepted": y} {
		both.Go(func() {
			if _, err := c.Read(make([]byte, 1)); !errors.Is(err, unix.ETIMEDOUT) {
				t.Errorf("Read of the %s end: %v, want ETIMEDOUT", name, err)
			}
		})
	}
	both.Wait()
	_, _ = x.Abort(), y.Abort()
}

// A peer that is there and says nothing is asked again and again, and the
// connection stays. Its program is told nothing.
func TestKeepAliveOfAPeerThatLives(t *testing.T) {
	n, a, b, x, y := partitioned(t, time.Millisecond)
	asked := n.Count(rdmatest.Sent(a), rdmatest.Opcode("WRITE"))
	answered := n.Count(rdmatest.Sent(b), rdmatest.Opcode("ACK"))
	read := make(chan string)
	go func() {
		got, err := io.ReadAll(x)
		if err != nil {
			t.Errorf("Read: %v", err)
		}
		read <- string(got)
	}()
	asked.Wait(2 * sends) // more than there is room for in the queue
	answered.Wait(2 * sends)
	write(t, y, []byte("here"))
	closeWrite(t, y)
	if got := <-read; got != "here" {
		t.Errorf("%q was read", got)
	}
	closeBoth(x, y)
}

// Nobody is asked for the sake of nobody, nor without a keep-alive.
func TestNoKeepAlive(t *testing.T) {
	for name, c := range map[string]struct {
		period time.Duration
		reads  bool
	}{
		"nobody waits": {time.Millisecond, false},
		"none":         {-1, true},
	} {
		t.Run(name, func(t *testing.T) {
			n, a, _, x, y := partitioned(t, c.period)
			asked := n.Count(rdmatest.Sent(a), rdmatest.Opcode("WRITE"))
			if c.reads {
				go func() { _, _ = x.Read(make([]byte, 1)) }()
			}
			ticks := time.NewTicker(2 * time.Millisecond) // what must not happen has time to
			defer ticks.Stop()
			for range 20 {
				<-ticks.C
			}
			if asked.Hit() > 0 {
				t.Errorf("the peer was asked %d times", asked.Hit())
			}
			closeBoth(x, y)
		})
	}
}
