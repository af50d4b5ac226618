package bench

import (
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The CPU time of a process that works grows, that of one that sleeps is known.
func TestRanFor(t *testing.T) {
	before, err := ranFor(os.Getpid())
	if err != nil {
		t.Skipf("no CPU times of threads here: %v", err)
	}
	for end := time.Now().Add(patience); ; {
		after, err := ranFor(os.Getpid())
		if err != nil {
			t.Fatal(err)
		}
		if after > before {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("this process ran for %d ns, and after %v of reading as long", before, patience)
		}
	}
	if v, err := ranFor(-1); err == nil {
		t.Errorf("no process: got %d", v)
	}
}

// A process says what it said, how it ended, and ends when told.
func TestProcesses(t *testing.T) {
	s := newStarter(t)
	p, err := s.start(host{}, "sh", "-c", "echo out; echo err >&2; exit 3")
	if err != nil {
		t.Fatal(err)
	}
	if err := p.wait(); err == nil || !strings.Contains(err.Error(), "exit status 3: err") || string(p.out.Bytes()) != "out\n" {
		t.Errorf("got %v, output %q", err, p.out.Bytes())
	}
	p.stop() // once more is no harm
	if p, err = s.start(host{}, "sleep", "1000"); err != nil {
		t.Fatal(err)
	}
	p.stop()
	if st, _ := p.cmd.ProcessState.Sys().(syscall.WaitStatus); !st.Signaled() || st.Signal() != syscall.SIGTERM {
		t.Errorf("a sleeper ended with %v, want SIGTERM", p.cmd.ProcessState)
	}
	if _, err := s.start(host{}, "/nowhere/to/be/found"); err == nil {
		t.Error("a program that is not there was started")
	}
}

// What was started dies with the thread that starts, so with the benchmark.
func TestStarterKills(t *testing.T) {
	var p *proc
	t.Run("run", func(t *testing.T) {
		var err error
		if p, err = newStarter(t).start(host{}, "sleep", "1000"); err != nil {
			t.Fatal(err)
		}
	})
	select {
	case <-p.done:
	case <-time.After(patience):
		p.stop()
		t.Error("a process outlived its starter")
	}
}
