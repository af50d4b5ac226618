package report

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
)

// TestDeviations holds docs/rxe-deviations.md against what the suite found: each failure has a line, and nothing else has.
func TestDeviations(t *testing.T) {
	text, err := os.ReadFile("../../docs/rxe-deviations.md")
	if err != nil {
		t.Fatal(err)
	}
	var listed []string
	for _, m := range regexp.MustCompile(`(?m)^\| ([A-Z]+-\d+) \| (?:must|should|may) \|`).FindAllStringSubmatch(string(text), -1) {
		listed = append(listed, m[1])
	}
	files, err := filepath.Glob("../results/rxe-*.json")
	if err != nil || len(files) < 2 {
		t.Fatalf("results: %q, %v", files, err)
	}
	failed := map[string]bool{}
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		run, err := ReadJSON(f)
		_ = f.Close() // it was only read
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for _, c := range run.Cases {
			if c.Result == resultFail {
				failed[c.ID] = true
				if !slices.Contains(listed, c.ID) {
					t.Errorf("%s: %s fails and is not in docs/rxe-deviations.md: %s", name, c.ID, c.Reason)
				}
			}
		}
	}
	for _, id := range listed {
		if !failed[id] {
			t.Errorf("docs/rxe-deviations.md has %s, which fails nowhere", id)
		}
	}
}
