package nic

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/shm"
	"github.com/softroce/softroce/pkg/verbs"
)

// Environment of the test binary when it is not the test: the role of a
// program that dies, the adapter's socket, and that a test runs in a process
// of its own.
const (
	envRole   = "NIC_TEST_ROLE"
	envSocket = "NIC_TEST_SOCKET"
	envOwn    = "NIC_TEST_OWN_PROCESS"
)

// TestMain lets the test binary be the program that dies.
func TestMain(m *testing.M) {
	switch role := os.Getenv(envRole); role {
	case "":
		os.Exit(m.Run())
	case "client", "parent":
		err := childMain(role == "parent", os.Getenv(envSocket))
		fmt.Println("failed:", err)
		os.Exit(1)
	case "stranger":
		fmt.Println("failed:", strangerMain(os.Getenv(envSocket)))
		os.Exit(1)
	case "holder":
		// Holds the socket it inherited until its standard input ends.
		_, err := io.Copy(io.Discard, os.Stdin)
		fmt.Fprintln(os.Stderr, "holder ends:", err)
		os.Exit(0)
	default:
		fmt.Fprintln(os.Stderr, "unknown role", role)
		os.Exit(2)
	}
}

// childMain connects, makes one of everything, says so and waits to be
// killed. As parent it first starts a process that inherits its socket.
func childMain(parent bool, socket string) error {
	shm.ShareAcrossProcesses()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: socket}); err != nil {
		return err
	}
	inherited, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return err
	}
	c, err := shm.ConnFromFD(fd)
	if err != nil {
		return err
	}
	d, err := verbs.OpenConn(c)
	if err != nil {
		return err
	}
	if err := oneOfEach(d); err != nil {
		return err
	}
	if parent {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), envRole+"=holder")
		cmd.ExtraFiles = []*os.File{os.NewFile(uintptr(inherited), "socket")}
		cmd.Stdin = os.Stdin // ends with the test
		if err := cmd.Start(); err != nil {
			return err
		}
	}
	fmt.Println("ready")
	select {}
}

// strangerMain becomes another user, and sees that foreign memory is refused
// to it by name while shared memory is not.
func strangerMain(socket string) error {
	shm.ShareAcrossProcesses()
	if err := unix.Setgroups(nil); err != nil {
		return err
	}
	if err := syscall.Setgid(strangerID); err != nil {
		return err
	}
	if err := syscall.Setuid(strangerID); err != nil {
		return err
	}
	c, err := shm.Dial(socket)
	if err != nil {
		return err
	}
	d, err := verbs.OpenConn(c)
	if err != nil {
		return err
	}
	pd, err := d.AllocPD()
	if err != nil {
		return err
	}
	if _, err := pd.AllocMR(4096, allAccess); err != nil {
		return fmt.Errorf("shared memory: %w", err)
	}
	_, err = pd.RegMR(make([]byte, 8192), allAccess)
	if err == nil {
		return errors.New("foreign memory was registered")
	}
	if !errors.Is(err, unix.EPERM) || !strings.Contains(err.Error(), "user") || !strings.Contains(err.Error(), "shared regions") {
		return fmt.Errorf("foreign memory: %w; want EPERM that names the users and the way out", err)
	}
	if err := strangerQKey(d, pd); err != nil {
		return err
	}
	fmt.Println("ready")
	select {}
}

// strangerQKey sees that a Q_Key for privileged programs is refused, and any
// other is not.
func strangerQKey(d *verbs.Device, pd *verbs.PD) error {
	cq, err := d.CreateCQ(4, nil, 0)
	if err != nil {
		return err
	}
	qp, err := pd.CreateQP(&verbs.QPInitAttr{Type: verbs.UD, SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4}})
	if err != nil {
		return err
	}
	if err := qp.ReadyUD(0x80010000, 0); !errors.Is(err, unix.EPERM) || !strings.Contains(err.Error(), "CAP_NET_RAW") {
		return fmt.Errorf("privileged Q_Key: %w; want EPERM that names the capability", err)
	}
	return qp.ReadyUD(0x7fffffff, 0)
}

// strangerID is the user and group of the stranger: nobody.
const strangerID = 65534

// openToAll lets every user reach the socket.
func openToAll(t *testing.T, socket string) {
	t.Helper()
	if err := os.Chmod(socket, 0o666); err != nil {
		t.Fatal(err)
	}
	for dir := filepath.Dir(socket); dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

func oneOfEach(d *verbs.Device) error {
	pd, err := d.AllocPD()
	if err != nil {
		return err
	}
	ch, err := d.CreateCompChannel()
	if err != nil {
		return err
	}
	cq, err := d.CreateCQ(16, ch, 0)
	if err != nil {
		return err
	}
	for range 3 {
		if _, err := pd.CreateQP(&verbs.QPInitAttr{
			Type: verbs.RC, SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1},
		}); err != nil {
			return err
		}
	}
	if _, err := pd.AllocMR(1<<20, allAccess); err != nil {
		return err
	}
	_, err = pd.RegMR(make([]byte, 8192), allAccess)
	return err
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
	return true
}

// serveSocket serves the adapter on a socket file.
func serveSocket(t *testing.T, a *Adapter) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "nic.sock")
	l, err := shm.Listen(shm.ListenConfig{Path: path, UID: -1, GID: -1})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- a.Serve(l) }()
	t.Cleanup(func() {
		_ = l.Close() // the adapter's Close may have been first
		if err := <-done; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return path
}

// startChild starts a program in the role and waits until it has all it
// makes. Whatever it inherits its input to ends with the test.
func startChild(t *testing.T, role, socket string) *child {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), envRole+"="+role, envSocket+"="+socket)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := &child{cmd, stdin, stdout}
	t.Cleanup(c.close)
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil || line != "ready\n" {
		_ = cmd.Process.Kill()
		t.Fatalf("child says %q, %v", line, err)
	}
	return c
}

type child struct {
	*exec.Cmd
	stdin  io.WriteCloser
	stdout io.ReadCloser
}

func (c *child) close() {
	_ = c.stdin.Close() // closed twice
	_ = c.stdout.Close()
}

// kill ends a child with SIGKILL and collects it.
func (c *child) kill(t *testing.T) {
	t.Helper()
	if err := c.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	// Not Cmd.Wait, which closes the pipes that a process of the child's holds.
	if _, err := c.Process.Wait(); err != nil {
		t.Fatal(err)
	}
}
