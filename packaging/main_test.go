package packaging

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
)

// limit ends what hangs; nothing is measured by it.
const limit = 60 * time.Second

// softroce is the command, built once by the step of the Dockerfile that builds
// it.
var softroce string

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "packaging")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a test's own directory (2026-11)
	softroce = filepath.Join(dir, "softroce")
	if err := buildImageBinary(softroce); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// needs skips a test whose tool is not installed, and says which Debian package
// has it.
func needs(t *testing.T, tool, pkg string) string {
	t.Helper()
	path, err := exec.LookPath(tool)
	if err != nil {
		t.Skipf("%s is not installed (Debian: %s)", tool, pkg)
	}
	return path
}

func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// documents decodes every document of a YAML file into maps, and fails for what
// is no YAML and for keys that are there twice.
func documents(t *testing.T, name string) []map[string]any {
	t.Helper()
	var docs []map[string]any
	dec := yaml.NewDecoder(strings.NewReader(read(t, name)))
	for {
		var doc map[string]any
		err := dec.Decode(&doc)
		switch {
		case err == nil:
			docs = append(docs, doc)
		case err.Error() == "EOF":
			return docs
		default:
			t.Fatalf("%s: %v", name, err)
		}
	}
}

// command runs a command and fails the test when that fails.
func command(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// lockedBuffer collects a process's output.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// start runs a process until the test ends, and waits until it has said want.
func start(t *testing.T, want, name string, args ...string) *lockedBuffer {
	t.Helper()
	log := &lockedBuffer{}
	cmd := exec.Command(name, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a tracer and what it traces end together
	cmd.WaitDelay = limit
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) // it may have ended
		stuck := time.AfterFunc(limit, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
		defer stuck.Stop()
		_ = cmd.Wait() // its output is what counts
	})
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(limit); !strings.Contains(log.String(), want); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("%s does not say %q:\n%s", name, want, log)
		}
	}
	return log
}

// shortDir is a directory whose path leaves room for a socket's name.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "pk") //nolint:usetesting // t.TempDir's path is too long for a socket (2026-11)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}
