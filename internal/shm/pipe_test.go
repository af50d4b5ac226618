package shm

import (
	"errors"
	"io"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

func TestRecordPipe(t *testing.T) {
	noNewFDs(t)
	w, fd, err := NewRecordPipe()
	if err != nil {
		t.Fatal(err)
	}
	r, err := OpenRecordReader(fd)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	read := make(chan string)
	go func() { // waits in the runtime's poller before anything is there
		var buf [8]byte
		for {
			if _, err := io.ReadFull(r, buf[:]); err != nil {
				read <- err.Error()
				return
			}
			read <- string(buf[:])
		}
	}()
	record := []byte("12345678")
	if !w.Write(record) {
		t.Fatal("Write failed")
	}
	if got := <-read; got != "12345678" {
		t.Errorf("read %q", got)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if got := <-read; got != "EOF" {
		t.Errorf("after Close the reader gets %q, want EOF", got)
	}
	if w.Write(record) || w.Dropped() != 1 {
		t.Errorf("Write after Close succeeded, or was not counted (%d)", w.Dropped())
	}
	if err := w.Close(); !errors.Is(err, ErrClosed) {
		t.Errorf("second Close: %v, want ErrClosed", err)
	}
}

func TestRecordPipeFull(t *testing.T) {
	noNewFDs(t)
	w, fd, err := NewRecordPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	record := make([]byte, 16)
	n := 0
	for w.Write(record) {
		n++
	}
	if n == 0 || w.Dropped() != 1 {
		t.Errorf("%d records written, %d dropped", n, w.Dropped())
	}
	buf := make([]byte, 16*n+1)
	if got, err := unix.Read(fd, buf); got != 16*n || err != nil {
		t.Errorf("the pipe holds %d bytes (%v), want whole records: %d", got, err, 16*n)
	}
	if n := testing.AllocsPerRun(50, func() { w.Write(record) }); n != 0 {
		t.Errorf("Write: %v allocations", n)
	}
	if err := unix.Close(fd); err != nil {
		t.Fatal(err)
	}
	// No reader any more: refused, and no SIGPIPE ends this process.
	if w.Write(record) {
		t.Error("Write without a reader succeeded")
	}
}

func TestRecordReaderClosed(t *testing.T) {
	noNewFDs(t)
	w, fd, err := NewRecordPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	r, err := OpenRecordReader(fd)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() {
		_, err := r.Read(make([]byte, 8))
		done <- err
	}()
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, os.ErrClosed) {
		t.Errorf("Read: %v, want os.ErrClosed", err)
	}
}
