package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"
)

// openInput opens a file to be read; "-" is stdin. It may be a pipe that nobody
// writes to, or whose writer never ends: where ctx ends the open fails, and what is
// open is read no further, as if its writer had ended then.
func openInput(ctx context.Context, name string, stdin io.Reader) (io.ReadCloser, error) {
	if name == "-" {
		return io.NopCloser(readUntil(ctx, stdin)), nil
	}
	f, err := openFile(ctx, name, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	if st, err := f.Stat(); err == nil && st.Mode().IsRegular() {
		return f, nil
	}
	return struct {
		io.Reader
		io.Closer
	}{readUntil(ctx, f), f}, nil
}

// openGrace is how long an open may take behind the end of a command: only a pipe
// without another end takes any time. Our own choice.
const openGrace = time.Second

// openFile opens a file as os.OpenFile does, a new one its owner's alone. A pipe whose
// other end nobody has is waited for until ctx ends.
func openFile(ctx context.Context, name string, flag int) (*os.File, error) {
	type opened struct {
		file *os.File
		err  error
	}
	done := make(chan opened, 1)
	go func() {
		f, err := os.OpenFile(name, flag, 0o600)
		done <- opened{f, err}
	}()
	select {
	case o := <-done:
		return o.file, o.err
	case <-ctx.Done():
	}
	select {
	case o := <-done:
		return o.file, o.err
	case <-time.After(openGrace):
		return nil, fmt.Errorf("open %s: ended by a signal, nobody has its other end", name)
	}
}

// inputRoom is what is read at once of a pipe, in bytes; our own choice.
const inputRoom = 64 << 10

// untilDone is a reader that ends with a context.
type untilDone struct {
	done <-chan struct{}
	in   chan piece
	rest piece
}

type piece struct {
	b   []byte
	err error
}

// readUntil returns what r gives until ctx ends.
func readUntil(ctx context.Context, r io.Reader) io.Reader {
	u := &untilDone{done: ctx.Done(), in: make(chan piece)}
	go func() {
		var bufs [2][inputRoom]byte // one is being read while the other is filled
		for i := 0; ; i ^= 1 {
			n, err := r.Read(bufs[i][:])
			select {
			case u.in <- piece{bufs[i][:n], err}:
			case <-u.done:
				return
			}
			if err != nil {
				return
			}
		}
	}()
	return u
}

// Read implements io.Reader.
func (u *untilDone) Read(b []byte) (int, error) {
	for len(u.rest.b) == 0 {
		if u.rest.err != nil {
			return 0, u.rest.err
		}
		select {
		case u.rest = <-u.in:
		case <-u.done:
			u.rest.err = io.EOF
		}
	}
	n := copy(b, u.rest.b)
	u.rest.b = u.rest.b[n:]
	return n, nil
}
