package main

import (
	"errors"
	"strings"
	"testing"

	"github.com/softroce/softroce/internal/soak"
)

// TestRun: the last line says how it went, with the seeds, the packets and the
// faults.
func TestRun(t *testing.T) {
	var out strings.Builder
	o := &options{seconds: 1, seed: 7, seeds: 3, workers: 2, world: soak.Config{Requests: 200}}
	if code := run(o, &out); code != 0 {
		t.Errorf("exit status %d", code)
	}
	for _, want := range []string{"soak: ok: ", "seeds 7 to 9; ", " packets, ", "faults: lost "} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in %q", want, out.String())
		}
	}
}

// TestFailure: a world that fails ends it, with the command that makes the same
// world.
func TestFailure(t *testing.T) {
	var out strings.Builder
	s := &state{o: &options{seed: 5, world: soak.Config{Adapters: 3, Requests: 90}}, out: &out, next: 6}
	s.add(5, new(soak.Result), errors.New("at 1ms: wrong"))
	if _, more := s.take(); more || !s.failed {
		t.Error("it goes on")
	}
	if want := "soak: seed 5 failed at 1ms: wrong\nthe same world again: make soak SEED=5 SEEDS=1 ADAPTERS=3 REQUESTS=90 "; !strings.HasPrefix(out.String(), want) {
		t.Errorf("got %q, want %q", out.String(), want)
	}
}

// TestPanic: it is a failure of its world.
func TestPanic(t *testing.T) {
	_, err := world(soak.Config{Seed: 1, Requests: 100, Trace: func(string) { panic("here") }})
	if err == nil || !strings.Contains(err.Error(), "panic: here") {
		t.Errorf("got %v", err)
	}
}
