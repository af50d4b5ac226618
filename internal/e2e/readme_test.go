package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/softroce/softroce/internal/testnet"
)

// TestReadmeFault types the README's block of two adapters with a fault between them into a shell, word for word but for the sockets'
// places and the pause until both serve: each command does what its comment says, in its turn, and the failure is explained by the rule.
func TestReadmeFault(t *testing.T) {
	for _, name := range []string{"bash", "dash"} {
		t.Run(name, func(t *testing.T) {
			shell, err := exec.LookPath(name)
			if err != nil {
				t.Skipf("skipped: %v", err)
			}
			readmeFault(t, shell)
		})
	}
}

func readmeFault(t *testing.T, shell string) {
	t.Helper()
	host := testnet.One(t)
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	const first = "bin/softroce daemon --addr 127.0.0.1 &\n"
	_, rest, found := strings.Cut(string(readme), "```\n"+first)
	block, _, ended := strings.Cut(rest, "```\n")
	if !found || !ended {
		t.Fatalf("README.md has no block that begins with %q", first)
	}
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "bin"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(binaries.softroce, filepath.Join(dir, "bin", "softroce")); err != nil {
		t.Fatal(err)
	}
	a, b := filepath.Join(dir, "a", "sock"), filepath.Join(dir, "b", "sock")
	typed := first + strings.ReplaceAll(block, "/tmp/softroce-b/sock", b)
	typed = strings.ReplaceAll(typed, "sleep 1 ", "until [ -S "+a+" ] && [ -S "+b+" ]; do sleep 0.1; done ")
	cmd := exec.CommandContext(t.Context(), shell, "-c", typed+"jobs -p >jobs; kill $(cat jobs); wait") // dash knows no jobs in $(jobs -p)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "SOFTROCE_SOCKET="+a)
	var out []byte
	if err := host.Do(func() (err error) { out, err = cmd.CombinedOutput(); return err }); err != nil {
		t.Logf("%s: %v", shell, err) // the status of what was killed
	}
	got := strings.Join(strings.Fields(string(out)), " ")
	_, harmed, _ := strings.Cut(got, "impaired on purpose\"")
	if strings.Contains(harmed, "iters in") {
		t.Errorf("a ping-pong that works ends after the rule is there:\n%s", out)
	}
	for _, want := range []struct {
		text  string
		times int
	}{
		{"1000 iters in", 2},
		{"packets are impaired on purpose\"", 1},
		{"pingpong: send failed: IBV_WC_RETRY_EXC_ERR", 1},
		{"(softroce explain --last --socket " + b + " says more)", 1},
		{"status 12, IBV_WC_RETRY_EXC_ERR", 1},
		{"packets of this adapter are impaired on purpose: rule 1 (drop sent SEND) hit", 1},
		{"packets are no longer impaired", 1},
		{"no daemon serves", 0},
	} {
		if n := strings.Count(got, want.text); n != want.times {
			t.Errorf("%d times %q, want %d, in\n%s", n, want.text, want.times, out)
		}
	}
}
