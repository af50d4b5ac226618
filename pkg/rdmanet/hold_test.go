package rdmanet

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// burst writes small pieces while none gets through, so that the last are held
// back, and lets them go their way.
func burst(t *testing.T, patient time.Duration) (x, y *Conn, all []byte) {
	t.Helper()
	n, a, b, x, y := partitioned(t, -1)
	x.mu.Lock()
	x.held.patient = patient
	x.mu.Unlock()
	n.Partition(a, b)
	for i := range sends {
		piece := bytes.Repeat([]byte{byte(i)}, 1000)
		write(t, x, piece)
		all = append(all, piece...)
	}
	x.mu.Lock()
	posts, held := x.posts, x.held.n
	x.mu.Unlock()
	if patient == time.Hour && (posts > sends/2 || held == 0) {
		t.Errorf("%d messages are sent, and %d bytes held back", posts, held)
	}
	n.Heal(a, b)
	return x, y, all
}

// What is held back is sent by itself, and before whatever comes behind it.
func TestHeldBack(t *testing.T) {
	for _, c := range []struct {
		name    string
		patient time.Duration
		then    func(t *testing.T, x *Conn) // what is written then
		want    string
	}{
		{"by itself", holdTime, func(*testing.T, *Conn) {}, ""},
		{"at CloseWrite", time.Hour, closeWrite, ""},
		{"at Close", time.Hour, func(t *testing.T, x *Conn) { check(t, x.Close()) }, ""},
		{"before a large Write", time.Hour, func(t *testing.T, x *Conn) {
			write(t, x, make([]byte, chunk))
			closeWrite(t, x) // the last part is held back, too
		}, string(make([]byte, chunk))},
		{"before what a reader reads", time.Hour, func(t *testing.T, x *Conn) {
			if n, err := x.readFrom(bytes.NewReader([]byte("read")), 0); n != 4 || err != nil {
				t.Errorf("ReadFrom: %d, %v", n, err)
			}
		}, "read"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel() // each waits for a timeout
			x, y, all := burst(t, c.patient)
			c.then(t, x)
			readFull(t, y, append(all, c.want...))
			closeBoth(x, y)
		})
	}
}

// Data that is held back when the peer closes did not arrive.
func TestHeldBackIsLost(t *testing.T) {
	t.Parallel()
	x, y, all := burst(t, time.Hour)
	readFull(t, y, all[:x.sent]) // whatever was sent
	closed := make(chan error)
	go func() { closed <- y.Close() }()
	if _, err := io.ReadAll(x); err != nil {
		t.Errorf("Read: %v", err)
	}
	if err := x.Close(); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("Close: %v, want ECONNRESET", err)
	}
	check(t, <-closed)
}

// A peer without room gets what is held back when it has some.
func TestHeldBackWaitsForRoom(t *testing.T) {
	t.Parallel()
	x, y, all := burst(t, time.Hour)
	x.mu.Lock()
	credits := x.credits
	x.credits = reserve
	x.mu.Unlock()
	x.overdue()
	x.mu.Lock()
	if x.held.n == 0 || x.held.again != longHold {
		t.Errorf("%d bytes are held back for %v", x.held.n, x.held.again)
	}
	x.credits += credits - reserve
	x.mu.Unlock()
	readFull(t, y, all)
	closeBoth(x, y)
}
