package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestFuzzFuncs(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x_test.go")
	src := `package x
import "testing"
func FuzzA(f *testing.F) {}
func FuzzB(f *testing.F) {}
func TestA(t *testing.T) {}
func Fuzzy() {}
type s struct{}
func (s) FuzzMethod(f *testing.F) {}
`
	if err := os.WriteFile(path, []byte(src), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := fuzzFuncs(path)
	if want := []string{"FuzzA", "FuzzB"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v; want %v", got, err, want)
	}
}

// TestRunSeesAFailure runs a fuzz target that fails at once, in a module of its own, and one that does not.
func TestRunSeesAFailure(t *testing.T) {
	dir := t.TempDir()
	files := map[string]string{
		"go.mod": "module example.test\n\ngo 1.26\n",
		"x_test.go": `package x
import "testing"
func FuzzFails(f *testing.F) { f.Add([]byte{1}); f.Fuzz(func(t *testing.T, b []byte) { t.Fatal("planted") }) }
func FuzzPasses(f *testing.F) { f.Add([]byte{1}); f.Fuzz(func(t *testing.T, b []byte) {}) }
`,
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(dir)
	targets, err := find([]string{"./..."})
	if want := []target{{"example.test", "FuzzFails"}, {"example.test", "FuzzPasses"}}; err != nil || !slices.Equal(targets, want) {
		t.Fatalf("found %v, %v; want %v", targets, err, want)
	}
	for _, x := range targets {
		if got, want := x.run("1x", t.Output()), x.Name == "FuzzPasses"; got != want {
			t.Errorf("%s: passed %v, want %v", x.Name, got, want)
		}
	}
}

// TestOnlyLate: a deadline without an input is no finding; all else is one.
func TestOnlyLate(t *testing.T) {
	const late = "--- FAIL: FuzzX (5.07s)\n    context deadline exceeded\nFAIL\n"
	for text, want := range map[string]bool{
		late: true,
		late + "    Failing input written to testdata/fuzz/FuzzX/1\n": false,
		"--- FAIL: FuzzX (0.1s)\n    x_test.go:3: planted\nFAIL\n":    false,
		"panic: test timed out: context deadline exceeded\n":          false,
	} {
		if got := onlyLate([]byte(text)); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}
