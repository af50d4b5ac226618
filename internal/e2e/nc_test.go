package e2e

import (
	"bytes"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/softroce/softroce/internal/testaddr"
)

// ncPair starts two daemons and a server of nc.
func ncPair(t *testing.T, port string, args ...string) (client *daemon, host string, srv *toolProcess) {
	t.Helper()
	addrs := testaddr.Take(t, 2)
	server, client := startDaemon(t, addrs[0], socketIn(t)), startDaemon(t, addrs[1], socketIn(t))
	host = addrs[0].String()
	srv = tool(t, append([]string{"nc", "-l", host, port, "-v", "--socket", server.socket}, args...)...)
	eventually(t, "the server listens", func() bool { return srv.ended() || strings.Contains(srv.out.String(), "listening on") })
	return client, host, srv
}

// nc passes files in both directions, with a progress display on a terminal and
// nowhere else.
func TestNC(t *testing.T) {
	dir := t.TempDir()
	r := rand.NewChaCha8([32]byte{})
	file := func(name string, n int) string {
		b := make([]byte, n)
		_, _ = r.Read(b) // it does not fail
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	// So much that it takes more than one tick of the display on any machine.
	there, here, copied := file("there", 64<<20), file("here", 3<<20), filepath.Join(dir, "copy")
	client, host, srv := ncPair(t, "7000", "--in", here, "--out", copied)

	stdin, err := os.Open(there)
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(t.Context(), binaries.softroce, "nc", host, "7000", "--socket", client.socket)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &out, &errs
	if err := cmd.Run(); err != nil || errs.Len() > 0 {
		t.Fatalf("the client: %v\n%s", err, errs.String())
	}
	srv.finish(t)
	if !strings.Contains(srv.out.String(), "3145728 bytes sent, 67108864 received") {
		t.Errorf("the server says of its work:\n%s", srv.out.String())
	}
	for from, got := range map[string][]byte{there: read(t, copied), here: out.Bytes()} {
		if !bytes.Equal(read(t, from), got) {
			t.Errorf("%s came out changed: %d bytes", from, len(got))
		}
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// What is stopped by ctrl-C ends with status 1 and one line, and so does its peer.
// While it runs a terminal shows how far it is.
func TestNCStopped(t *testing.T) {
	client, host, srv := ncPair(t, "7001", "--in", "/dev/null")
	master, slave := terminal(t)
	cmd := exec.Command(binaries.softroce, "nc", host, "7001", "--socket", client.socket)
	cmd.Stderr = slave
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() }) // it may have ended
	if _, err := stdin.Write(bytes.Repeat([]byte("x"), 5<<20)); err != nil {
		t.Fatal(err)
	}
	shown := ""
	for buf := make([]byte, 4096); !strings.Contains(shown, "5.0 MiB sent"); {
		n, err := master.Read(buf)
		if err != nil {
			t.Fatalf("the terminal shows %q, then %v", shown, err)
		}
		shown += string(buf[:n])
	}
	if !strings.Contains(shown, "MiB/s") || !strings.Contains(shown, "\r") || strings.Contains(shown, "\n") {
		t.Errorf("the terminal shows %q, want one line that is replaced", shown)
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // the status says it
	if code := cmd.ProcessState.ExitCode(); code != 1 {
		t.Errorf("exit status after ctrl-C: got %d, want 1", code)
	}
	eventually(t, "the server ends", srv.ended)
	if err := <-srv.done; err == nil || !strings.Contains(srv.out.String(), "connection reset by peer") {
		t.Errorf("the peer of what was stopped: %v, %s", err, tail(srv.out.String()))
	}
}

// tail is the end of a long text.
func tail(s string) string { return s[max(len(s)-300, 0):] }
