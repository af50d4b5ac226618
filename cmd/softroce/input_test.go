package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// A pipe without a writer, and one whose writer never ends, end with the context.
func TestInputEndsWithTheContext(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // lets go who waits for a writer
		if fd, err := unix.Open(fifo, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0); err == nil {
			unix.Close(fd)
		}
	})
	ended, end := context.WithCancel(t.Context())
	end()
	if f, err := openInput(ended, fifo, nil); err == nil {
		t.Errorf("a pipe without a writer was opened: %v", f)
	}
	if _, err := readRules(ended, fifo, nil); err == nil {
		t.Error("rules of a pipe without a writer")
	}

	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	ctx, end := context.WithCancel(t.Context())
	in, err := openInput(ctx, "-", r)
	if err != nil {
		t.Fatal(err)
	}
	want := bytes.Repeat([]byte("drop 1%\n"), 1000)
	if _, err := w.Write(want); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(want))
	if _, err := io.ReadFull(in, got); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes, %v, want %d others", len(got), err, len(want))
	}
	end()
	if n, err := in.Read(got); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("behind the end: %d bytes, %v", n, err)
	}
}

// What is in a pipe whose writer ends is read to its end.
func TestInputReadsAPipe(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	want := make([]byte, 5*inputRoom+7)
	for i := range want {
		want[i] = byte(i >> 8 * i)
	}
	go func() {
		_, _ = w.Write(want) // what is read shows it
		_ = w.Close()
	}()
	in, err := openInput(t.Context(), "-", r)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(in); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes, %v, want %d", len(got), err, len(want))
	}
}
