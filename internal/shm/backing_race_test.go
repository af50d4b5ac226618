//go:build race

package shm

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

// A race build keeps its segments on the heap: the registry knows both ends,
// forgets them with the last one, and nobody else can take zeros for them.
func TestRaceBacking(t *testing.T) {
	a := create(t, 4096)
	fd, err := unix.Dup(a.FD())
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	b, err := Map(fd, false)
	if err != nil {
		t.Fatal(err)
	}
	if AddrOf(a.Bytes()) != AddrOf(b.Bytes()) {
		t.Error("the ends are different memory")
	}
	if _, err := unix.Mmap(fd, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); !errors.Is(err, unix.EPERM) {
		t.Errorf("a real writable mapping: %v, want EPERM", err)
	}
	if err := errors.Join(a.Close(), b.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := Map(fd, false); !errors.Is(err, ErrOtherHeap) {
		t.Errorf("Map after the last end closed: %v, want ErrOtherHeap", err)
	}
}
