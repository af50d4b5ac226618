package shm

import (
	"errors"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

func TestDoorbell(t *testing.T) {
	noNewFDs(t)
	d, err := NewDoorbell()
	if err != nil {
		t.Fatal(err)
	}
	rung := func() bool {
		ok, err := readable(d.FD())
		if err != nil {
			t.Fatal(err)
		}
		return ok
	}
	if rung() {
		t.Error("a new doorbell has rung")
	}
	d.Ring()
	d.Ring()
	if !rung() {
		t.Error("it did not ring")
	}
	d.Drain()
	if rung() {
		t.Error("Drain left a ring")
	}
	if n := testing.AllocsPerRun(100, func() { d.Ring(); d.Drain() }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); !errors.Is(err, ErrClosed) {
		t.Errorf("second Close: %v, want ErrClosed", err)
	}
	d.Ring() // and neither may touch a descriptor that now is another's
	d.Drain()
	if d.FD() != -1 {
		t.Errorf("FD() = %d after Close", d.FD())
	}
}

// A program may take O_NONBLOCK from the shared eventfd and read it empty just
// before the adapter does: the adapter must not wait for it.
func TestDoorbellDrainNeverBlocks(t *testing.T) {
	d, err := NewDoorbell()
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := unix.SetNonblock(d.FD(), false); err != nil {
		t.Fatal(err)
	}
	d.Drain() // would hang the test
}

func TestDoorbellFromFD(t *testing.T) {
	noNewFDs(t)
	d, err := NewDoorbell()
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	fd, err := unix.Dup(d.FD())
	if err != nil {
		t.Fatal(err)
	}
	other := DoorbellFromFD(fd)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(other.Ring)
	}
	wg.Wait()
	if ok, _ := readable(d.FD()); !ok {
		t.Error("a ring through the copy was not seen")
	}
	if err := other.Close(); err != nil {
		t.Error(err)
	}
}
