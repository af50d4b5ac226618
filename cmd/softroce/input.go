package main

import (
	"context"
	"fmt"
	"io"
	"os"
)

// openInput opens a file to be read; "-" is stdin. It may be a pipe that nobody
// writes to, or whose writer never ends: where ctx ends the open fails, and what is
// open is read no further, as if its writer had ended then.
func openInput(ctx context.Context, name string, stdin io.Reader) (io.ReadCloser, error) {
	if name == "-" {
		return io.NopCloser(readUntil(ctx, stdin)), nil
	}
	type opened struct {
		file *os.File
		err  error
	}
	done := make(chan opened, 1)
	go func() {
		f, err := os.Open(name)
		done <- opened{f, err}
	}()
	select {
	case o := <-done:
		if o.err != nil {
			return nil, o.err
		}
		if st, err := o.file.Stat(); err == nil && st.Mode().IsRegular() {
			return o.file, nil
		}
		return struct {
			io.Reader
			io.Closer
		}{readUntil(ctx, o.file), o.file}, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("open %s: ended by a signal before there was a writer", name)
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
