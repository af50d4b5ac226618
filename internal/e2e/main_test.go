package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// childEnv makes this test binary a client program instead.
const childEnv = "SOFTROCE_E2E_CHILD"

// binaries are built once for all tests.
var binaries struct{ softroce, reconnect string }

func TestMain(m *testing.M) {
	if mode := os.Getenv(childEnv); mode != "" {
		os.Exit(child(mode))
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "softroce-e2e")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }() // a temporary folder
	for name, p := range map[string]*string{"cmd/softroce": &binaries.softroce, "examples/reconnect": &binaries.reconnect} {
		*p = filepath.Join(dir, filepath.Base(name))
		out, err := exec.Command("go", "build", "-o", *p, "../../"+name).CombinedOutput()
		if err != nil {
			fmt.Fprintf(os.Stderr, "build %s: %v\n%s", name, err, out)
			return 1
		}
	}
	return m.Run()
}
