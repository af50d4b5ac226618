package rdmanet

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/testdevices"
)

// byCopy is a connection whose calls are those of io.Copy: Write is a ReadFrom and
// Read a WriteTo whose writer takes what there is room for.
type byCopy struct{ *Conn }

func (c byCopy) Write(b []byte) (int, error) {
	if len(b) == 0 {
		return c.Conn.Write(b)
	}
	n, err := c.readFrom(bytes.NewReader(b), 0)
	return int(n), err
}

func (c byCopy) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return c.Conn.Read(b)
	}
	var into once
	into.to = b
	n, err := c.WriteTo(&into)
	switch {
	case n > 0:
		return int(n), nil
	case err == nil:
		return 0, io.EOF
	}
	return 0, err
}

// once takes one write, as far as it has room for.
type once struct{ to []byte }

var errFull = errors.New("full")

func (o *once) Write(b []byte) (int, error) {
	n := copy(o.to, b)
	return n, errFull
}

// What a net.Conn must do holds for ReadFrom and WriteTo, too: deadlines, Close
// beside them, data that is whole.
func TestNettestByCopy(t *testing.T) {
	testConn(t, func(c *Conn) net.Conn { return byCopy{c} })
}

// plain hides what else a reader or writer can do.
type plain struct {
	io.Reader
	io.Writer
}

// io.Copy through connections with every mix of sizes: the whole arrives, and its
// end.
func TestCopy(t *testing.T) {
	devs, _ := testdevices.Open(t, 2)
	data := bytes.Repeat([]byte("0123456789abcdefg"), 250_000)
	for _, c := range []struct {
		name   string
		ca, cb *Config
		n      int
	}{
		{"nothing", nil, nil, 0},
		{"less than the first", nil, nil, first - 1},
		{"the first", nil, nil, first},
		{"more than the first", nil, nil, first + 1},
		{"usual", nil, nil, len(data)},
		{"small and large", &Config{RecvBuffer: 5000, SendBuffer: 4099, Receives: 8}, &Config{RecvBuffer: 1 << 20, Receives: 1023}, len(data) / 8},
		{"large and small", &Config{SendBuffer: 1 << 20}, &Config{RecvBuffer: 4097, Receives: 8}, len(data) / 8},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := pair(t, devs[0], devs[1], c.ca, c.cb)
			var wg sync.WaitGroup
			wg.Go(func() {
				n, err := io.Copy(a, plain{Reader: bytes.NewReader(data[:c.n])})
				if n != int64(c.n) || err != nil {
					t.Errorf("io.Copy to the connection: %d, %v", n, err)
				}
				closeWrite(t, a)
			})
			var got bytes.Buffer
			n, err := io.Copy(plain{Writer: &got}, b)
			if n != int64(c.n) || err != nil || !bytes.Equal(got.Bytes(), data[:c.n]) {
				t.Errorf("io.Copy of the connection: %d, %v; equal %v", n, err, bytes.Equal(got.Bytes(), data[:c.n]))
			}
			wg.Wait()
			closeBoth(a, b)
		})
	}
}

// What a writer did not take is read next, whether it says why or not.
func TestShortWrite(t *testing.T) {
	devs, _ := testdevices.Open(t, 2)
	a, b := pair(t, devs[0], devs[1], nil, nil)
	write(t, a, []byte("0123456789"))
	closeWrite(t, a)
	if n, err := b.WriteTo(&once{make([]byte, 3)}); n != 3 || !errors.Is(err, errFull) {
		t.Errorf("a writer with an error: %d, %v", n, err)
	}
	if n, err := b.WriteTo(counts(2)); n != 2 || !errors.Is(err, io.ErrShortWrite) {
		t.Errorf("a writer without: %d, %v", n, err)
	}
	for _, bad := range []counts{-1, 11} {
		if n, err := b.WriteTo(bad); n != 0 || err == nil {
			t.Errorf("a writer that says %d: %d, %v", bad, n, err)
		}
	}
	func() {
		defer func() { _ = recover() }()
		_, _ = b.WriteTo(plain{}) // no writer: it panics
	}()
	readAll(t, b, []byte("56789"))
	if n, err := a.readFrom(counts(1<<30), 0); n != 0 || err == nil {
		t.Errorf("a reader that says too much: %d, %v", n, err)
	}
	closeBoth(a, b)
}

// counts is a reader and a writer that says so many bytes.
type counts int

func (c counts) Write([]byte) (int, error) { return int(c), nil }
func (c counts) Read([]byte) (int, error)  { return int(c), nil }

// stuck is a reader or writer that says when it is called, and waits.
type stuck struct{ called, release chan struct{} }

func newStuck() *stuck { return &stuck{make(chan struct{}), make(chan struct{})} }

func (s *stuck) wait() {
	select {
	case s.called <- struct{}{}:
		<-s.release
	case <-s.release:
	}
}

func (s *stuck) Read(b []byte) (int, error) {
	s.wait()
	return copy(b, "late"), io.EOF
}

func (s *stuck) Write(b []byte) (int, error) {
	s.wait()
	return len(bytes.Clone(b)), nil // the memory is there
}

// While a reader or writer of the program's takes its time, the rest goes on: other
// writes, a half close, and Close, after which its memory is there until it returns.
func TestSlowReaderAndWriter(t *testing.T) {
	l, d := listen(t, &ListenConfig{})
	before := left(t, d.Device)
	a, b := connect(t, l, d)
	in, out := newStuck(), newStuck()
	reading, writing := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := a.readFrom(in, 0)
		reading <- err
	}()
	go func() {
		_, err := a.WriteTo(out)
		writing <- err
	}()
	<-in.called
	write(t, a, []byte("beside"))
	if n, err := a.readFrom(plain{Reader: bytes.NewReader([]byte(" it"))}, 0); n != 3 || err != nil {
		t.Errorf("a second ReadFrom: %d, %v", n, err)
	}
	if a.direct.filled > 0 {
		t.Error("a second ReadFrom sent memory that the first one's reader has")
	}
	closeWrite(t, a)
	readAll(t, b, []byte("beside it"))
	write(t, b, []byte("answer"))
	<-out.called
	check(t, a.SetReadDeadline(time.Now().Add(time.Millisecond)))
	if _, err := a.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("Read beside a writer that waits: %v", err)
	}
	closeBoth(a, b)
	if now := left(t, d.Device); now == before {
		t.Errorf("the memory that the reader and the writer have is gone")
	}
	close(in.release)
	if err := <-reading; !errors.Is(err, net.ErrClosed) {
		t.Errorf("ReadFrom after Close: %v", err)
	}
	close(out.release)
	if err := <-writing; !errors.Is(err, net.ErrClosed) {
		t.Errorf("WriteTo after Close: %v", err)
	}
	if now := left(t, d.Device); now != before {
		t.Errorf("the adapter has %s, before %s", now, before)
	}
	if _, err := a.ReadFrom(in); !errors.Is(err, net.ErrClosed) {
		t.Errorf("ReadFrom of a connection that is closed: %v", err)
	}
	if _, err := a.WriteTo(out); !errors.Is(err, net.ErrClosed) {
		t.Errorf("WriteTo of a connection that is closed: %v", err)
	}
}

// A Read beside a writer that has the data wakes when that gives back what it did
// not take.
func TestReadBesideWriteTo(t *testing.T) {
	devs, _ := testdevices.Open(t, 2)
	a, b := pair(t, devs[0], devs[1], nil, nil)
	out := newStuck()
	written := make(chan error, 1)
	go func() {
		_, err := a.WriteTo(plain{Writer: io.MultiWriter(out, &once{make([]byte, 2)})})
		written <- err
	}()
	write(t, b, []byte("answer"))
	<-out.called
	read := make(chan string)
	go func() {
		buf := make([]byte, 10)
		n, err := a.Read(buf)
		if err != nil {
			t.Errorf("Read: %v", err)
		}
		read <- string(buf[:n])
	}()
	for waits := false; !waits; {
		a.mu.Lock()
		waits = a.inRead && a.driving
		a.mu.Unlock()
	}
	close(out.release)
	if err := <-written; !errors.Is(err, errFull) {
		t.Errorf("WriteTo: %v", err)
	}
	if got := <-read; got != "swer" {
		t.Errorf("Read what the writer did not take: %q", got)
	}
	closeBoth(a, b)
}

// A half close, a peer that is gone and a deadline end io.Copy as they end Read and
// Write, and nothing is read for a connection that takes nothing.
func TestCopyEnds(t *testing.T) {
	l, d := listen(t, &ListenConfig{})
	a, b := connect(t, l, d)
	check(t, a.SetWriteDeadline(time.Now().Add(-time.Second)))
	src := bytes.NewReader([]byte("source"))
	if n, err := a.readFrom(src, 0); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) || src.Len() != 6 {
		t.Errorf("ReadFrom past its deadline: %d, %v; %d left", n, err, src.Len())
	}
	check(t, a.SetWriteDeadline(time.Time{}))
	if n, err := a.readFrom(io.MultiReader(src, broken{}), 0); n != 6 || !errors.Is(err, errBroken) {
		t.Errorf("ReadFrom of a reader that fails: %d, %v", n, err)
	}
	closeWrite(t, a)
	src = bytes.NewReader([]byte("source"))
	if n, err := a.readFrom(src, 0); n != 0 || !errors.Is(err, unix.EPIPE) || src.Len() != 6 {
		t.Errorf("ReadFrom after CloseWrite: %d, %v; %d left", n, err, src.Len())
	}
	check(t, a.SetReadDeadline(time.Now().Add(time.Millisecond)))
	if n, err := a.WriteTo(io.Discard); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("WriteTo until its deadline: %d, %v", n, err)
	}
	check(t, a.SetReadDeadline(time.Time{}))
	write(t, b, []byte("last"))
	var got bytes.Buffer
	n, err := a.WriteTo(io.MultiWriter(&got, abort{b}))
	if n != 4 || got.String() != "last" || !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("WriteTo of a peer that aborts: %d, %q, %v", n, got.String(), err)
	}
	_ = a.Close()
}

// abort is a writer that ends a connection.
type abort struct{ c *Conn }

func (a abort) Write(b []byte) (int, error) { return len(b), a.c.Abort() }

var errBroken = errors.New("broken")

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, errBroken }

// Without memory of the adapter's for it, ReadFrom copies.
func TestReadFromWithoutMemory(t *testing.T) {
	devs, _ := testdevices.Open(t, 2)
	a, b := pair(t, devs[0], devs[1], nil, nil)
	none, err := devs[0].AllocPD()
	check(t, err)
	check(t, none.Dealloc())
	own := a.e.pd
	a.e.pd = none
	n, err := a.readFrom(bytes.NewReader([]byte("data")), 2)
	a.e.pd = own
	if n != 4 || err != nil || a.loans.direct || a.direct.mr != nil {
		t.Errorf("%d, %v; memory %v", n, err, a.direct.mr)
	}
	closeWrite(t, a)
	readAll(t, b, []byte("data"))
	closeBoth(a, b)
}
