package adapter_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/softroce/softroce/internal/shm"
)

// Environment of the test binary when it is not the test: the role it plays,
// the socket of an adapter, and that a test runs in a process of its own.
const (
	envRole   = "ADAPTER_TEST_ROLE"
	envSocket = "ADAPTER_TEST_SOCKET"
	envOwn    = "ADAPTER_TEST_OWN_PROCESS"
)

// roles are what the test binary can be instead. Each reads its orders from
// standard input and reports, line by line, on standard output.
var roles = map[string]func(socket string, in *bufio.Reader) error{
	"scribbler":    scribblerMain,
	"unprivileged": unprivilegedMain,
}

func TestMain(m *testing.M) {
	role := os.Getenv(envRole)
	if role == "" {
		os.Exit(m.Run())
	}
	if err := roles[role](os.Getenv(envSocket), bufio.NewReader(os.Stdin)); err != nil {
		fmt.Println("failed:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// inOwnProcess runs the test again in a process of its own and reports true
// in the outer one, which has nothing more to do. There, race builds share
// memory with other processes, which would blind the detector for the rest.
func inOwnProcess(t *testing.T) (outer bool) {
	t.Helper()
	if os.Getenv(envOwn) != "" {
		shm.ShareAcrossProcesses()
		return false
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), envOwn+"=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("in a process of its own: %v\n%s", err, out)
	}
	if strings.Contains(string(out), "\n--- SKIP") {
		t.Skipf("in a process of its own: %s", out)
	}
	return true
}

// serve serves an adapter on a socket file.
func (h *host) serve(t *testing.T) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "s")
	l, err := shm.Listen(shm.ListenConfig{Path: path, UID: -1, GID: -1})
	must(t, err)
	done := make(chan error, 1)
	go func() { done <- h.NIC().Serve(l) }()
	t.Cleanup(func() {
		_ = l.Close() // the adapter's Close may have been first
		if err := <-done; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return path
}

// A child is this test binary in another role.
type child struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func startChild(t *testing.T, role, socket string, change func(*exec.Cmd)) *child {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), envRole+"="+role, envSocket+"="+socket)
	cmd.Stderr = os.Stderr
	if change != nil {
		change(cmd)
	}
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	c := &child{t: t, cmd: cmd, in: in, out: bufio.NewReader(out)}
	t.Cleanup(func() {
		_ = in.Close() // ends the child, if it still runs
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill() // it may be gone by now
			_ = cmd.Wait()         // killed: an error by nature
		}
	})
	return c
}

// say gives the child a line, ask takes one from it.
func (c *child) say(words ...any) {
	c.t.Helper()
	_, err := fmt.Fprintln(c.in, words...)
	must(c.t, err)
}

func (c *child) line() string {
	c.t.Helper()
	s, err := c.out.ReadString('\n')
	if err != nil {
		c.t.Fatalf("the child says %q and then %v", s, err)
	}
	return strings.TrimSpace(s)
}
