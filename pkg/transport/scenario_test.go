package transport_test

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/softroce/softroce/internal/scenario"
)

var update = flag.Bool("update", false, "write the scenarios' outputs anew; read the diff")

// TestScenarios runs testdata/*.txt; docs/scenarios.md says how to read them.
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, f := range files {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			if *update {
				got, err := scenario.Run(f, string(text))
				if err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(f, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if err = scenario.Check(f, string(text)); err != nil {
				t.Error(err)
			}
			if differs := new(scenario.Error); errors.As(err, &differs) {
				t.Logf("all of it (-update writes it anew):\n%s", differs.All)
			}
		})
	}
}
