package shm

import (
	"errors"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

func TestPidfd(t *testing.T) {
	noNewFDs(t)
	in, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	cmd := exec.Command("cat")
	cmd.Stdin = in
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p, err := OpenPidfd(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if gone, err := p.Exited(); gone || err != nil {
		t.Errorf("Exited() = %t, %v of a live process", gone, err)
	}
	done := make(chan error)
	go func() { done <- p.Wait() }()
	if err := out.Close(); err != nil { // cat ends
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Errorf("Wait: %v", err)
	}
	if gone, err := p.Exited(); !gone || err != nil {
		t.Errorf("Exited() = %t, %v of a dead process", gone, err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	if gone, err := p.Exited(); !gone || err != nil {
		t.Errorf("Exited() = %t, %v once it is reaped", gone, err)
	}
	if _, err := OpenPidfd(cmd.Process.Pid); !errors.Is(err, unix.ESRCH) {
		t.Errorf("OpenPidfd of a dead process: %v, want ESRCH", err)
	}
}

func TestPeerPidfd(t *testing.T) {
	noNewFDs(t)
	a, _ := pair(t)
	p, err := a.PeerPidfd()
	if err != nil {
		t.Fatal(err)
	}
	if gone, err := p.Exited(); gone || err != nil {
		t.Errorf("Exited() = %t, %v of this process", gone, err)
	}
	done := make(chan error)
	go func() { done <- p.Wait() }()
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, os.ErrClosed) {
		t.Errorf("Wait: %v, want os.ErrClosed", err)
	}
	if _, err := p.Exited(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Exited after Close: %v, want os.ErrClosed", err)
	}
}

func TestAllowTracer(t *testing.T) {
	if err := AllowTracer(os.Getpid()); err != nil {
		t.Error(err)
	}
	if err := AllowTracer(0); !errors.Is(err, ErrPeerHidden) {
		t.Errorf("of an invisible adapter: %v, want ErrPeerHidden", err)
	}
}
