package shm

import (
	"os"
	"strconv"
	"testing"
)

// openFDs returns this process's descriptors, by what they are.
func openFDs(t *testing.T) map[int]string {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	fds := map[int]string{}
	for _, e := range entries {
		// The directory's own descriptor is gone by now: no link to read.
		if target, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil {
			n, _ := strconv.Atoi(e.Name())
			fds[n] = target
		}
	}
	return fds
}

// noNewFDs fails the test when it ends with more descriptors than it has now.
// Call it first, so that it looks after every other clean-up.
func noNewFDs(t *testing.T) {
	t.Helper()
	warmUp(t)
	before := openFDs(t)
	t.Cleanup(func() {
		after := openFDs(t)
		if len(after) <= len(before) {
			return
		}
		for fd, what := range after {
			if before[fd] != what {
				t.Errorf("descriptor %d left open: %s", fd, what)
			}
		}
	})
}

// warmUp makes the runtime open what it opens once (its poller).
func warmUp(t *testing.T) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	w.Close()
}
