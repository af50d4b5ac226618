package bench

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
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

// What was started ends with the benchmark.
func TestStarterEnds(t *testing.T) {
	var p *proc
	t.Run("run", func(t *testing.T) {
		var err error
		if p, err = newStarter(t).start(host{}, "sleep", "1000"); err != nil {
			t.Fatal(err)
		}
	})
	select {
	case <-p.done:
	default:
		p.stop()
		t.Error("a process outlived its benchmark")
	}
}

// What was started dies with its starter's process, however that ends.
func TestStarterDies(t *testing.T) {
	if os.Getenv("BENCH_STARTER") != "" {
		p, err := newStarter(t).start(host{}, "sleep", "1000")
		if err != nil {
			t.Fatal(err)
		}
		fmt.Printf("pid %d\n", p.cmd.Process.Pid)
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		<-p.done
	}
	self := exec.Command(os.Args[0], "-test.run", "^TestStarterDies$")
	self.Env = append(os.Environ(), "BENCH_STARTER=1")
	out, err := self.Output() // ends when nobody has its output open
	var pid int
	if _, scan := fmt.Sscanf(string(out), "pid %d", &pid); scan != nil {
		t.Fatalf("got %q, %v", out, err)
	}
	for end := time.Now().Add(patience); ; <-time.After(5 * time.Millisecond) {
		if err := syscall.Kill(pid, 0); errors.Is(err, syscall.ESRCH) {
			return
		}
		if stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil && strings.Contains(string(stat), ") Z ") {
			return // dead, its new parent has not asked yet
		}
		if time.Now().After(end) {
			t.Fatalf("process %d outlived its starter's", pid)
		}
	}
}
